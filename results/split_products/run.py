r"""Losses after 200 steps with the bfloat16 products of a GPU and with float32 products.

    python results/split_products/run.py --seeds=1,2,3,4,5,6,1337 > results/split_products/losses.csv
    python results/split_products/run.py --table < results/split_products/losses.csv
    python results/split_products/run.py --study=scores --seeds=1,2,3,4,5 > \
        results/split_products/scores.csv
    python results/split_products/run.py --table < results/split_products/scores.csv

denominators: config/ours/demo.py with its partial denominators in parts.
scores: config/demo_cofrgenet.py with its partial denominators and its collapsed scores in parts. The column
`rounded` of scores.csv is that of commit 46aba9f, which could round x in the scores once instead.

On a CPU in bfloat16, without the schedule, 4 sequences a micro-batch (scores: 2), a process for each run,
one thread. Products of bfloat16 matrices are computed in float32 and rounded: a CPU without instructions
for bfloat16 takes 20 times as long. Needs data/sotu/bpe4096.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEYS = (
    "--dtype=bfloat16", "--compile=False", "--max_iters=200", "--eval_interval=200", "--dyadic=False",
    "--device=cpu",
)  # fmt: skip
STUDIES = {  # arguments, forms
    "denominators": (
        ("config/ours/demo.py", "--batch_size=4", "--gradient_accumulation_steps=1"),
        ("float32", "parts"),
    ),
    "scores": (
        (
            "config/demo_cofrgenet.py", "--batch_size=2", "--gradient_accumulation_steps=1",
            "--eval_tokens=32_768",
        ),
        ("float32", "parts"),
    ),
}  # fmt: skip


def float32_products(library):
    """Compute the products of bfloat16 matrices in float32, and round the result, as tensor cores do."""
    import torch

    for name in ("mm", "bmm", "addmm", "baddbmm"):
        operator = getattr(torch.ops.aten, name)

        def product(*factors, operator=operator, **scales):
            wide = [x.float() if x.dtype == torch.bfloat16 else x for x in factors]
            out = operator.out(*wide, **scales, out=torch.empty(0, dtype=wide[0].dtype))
            return out.to(factors[0].dtype)

        library.impl(name, product, "CPU")


def child(study: str, form: str, seed: str, out: str):
    sys.path.insert(0, str(ROOT))
    import torch

    import train
    from kernels import split, wide_attention

    torch.set_num_threads(1)
    library = torch.library.Library("aten", "IMPL")
    float32_products(library)
    if form == "parts":  # as on a GPU
        split.in_parts = lambda x: True
        wide_attention._in_parts = lambda v: v.dtype == torch.bfloat16
    train.main([*STUDIES[study][0], *KEYS, f"--seed={seed}", f"--out_dir={out}"])


def measure(study: str, form: str, seed: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        command = [sys.executable, os.path.abspath(__file__), "--child", study, form, seed, out]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        return json.loads((Path(out) / "log.jsonl").read_text().splitlines()[-1])["val_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", default="denominators", choices=STUDIES)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--table", action="store_true", help="read losses from stdin, print differences")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    if given.table:
        return print(summary(list(csv.DictReader(sys.stdin))))
    forms = STUDIES[given.study][1]
    out = csv.writer(sys.stdout)
    out.writerow(["seed", *forms])
    for seed in given.seeds.split(","):
        out.writerow([seed, *(f"{measure(given.study, form, seed):.6f}" for form in forms)])
        sys.stdout.flush()


def summary(rows: list[dict]) -> str:
    """One line for each pair of forms."""
    forms = [form for form in rows[0] if form != "seed"]
    pairs = [(one, other) for at, other in enumerate(forms) for one in forms[at + 1 :]]
    return "\n".join(difference(rows, *pair) for pair in pairs)


def difference(rows: list[dict], one: str, other: str) -> str:
    changes = [float(row[one]) - float(row[other]) for row in rows]
    error = statistics.stdev(changes) / len(changes) ** 0.5
    return (
        f"{one} minus {other}: {statistics.mean(changes):+.4f} ± {error:.4f} nats per token (mean and "
        f"standard error of {len(changes)} seeds), largest {max(changes, key=abs):+.4f}"
    )


if __name__ == "__main__":
    main()
