"""Loss with partial denominators from bfloat16 parts, as on a GPU, and from float32 products.

    python results/split_products/run.py --seeds=1,2,3,4,5,6,1337 > results/split_products/losses.csv
    python results/split_products/run.py --table < results/split_products/losses.csv

Trains config/ours/demo.py for 200 steps on a CPU in bfloat16, without the schedule, 4 sequences a step, a
process for each run, each about a minute and a half on one thread. Needs data/sotu/bpe4096.
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
    "config/ours/demo.py", "--dtype=bfloat16", "--compile=False", "--max_iters=200", "--eval_interval=200",
    "--dyadic=False", "--batch_size=4", "--device=cpu",
)  # fmt: skip
FORMS = ("float32", "parts")


def child(form: str, seed: str, out: str):
    sys.path.insert(0, str(ROOT))
    import torch

    import train
    from kernels import split

    torch.set_num_threads(1)
    if form == "parts":
        split.in_parts = lambda x: True  # as on a GPU
    train.main([*KEYS, f"--seed={seed}", f"--out_dir={out}"])


def measure(form: str, seed: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        command = [sys.executable, os.path.abspath(__file__), "--child", form, seed, out]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        return json.loads((Path(out) / "log.jsonl").read_text().splitlines()[-1])["val_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--table", action="store_true", help="read losses from stdin, print the difference")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    if given.table:
        return print(summary(list(csv.DictReader(sys.stdin))))
    out = csv.writer(sys.stdout)
    out.writerow(["seed", *FORMS])
    for seed in given.seeds.split(","):
        out.writerow([seed, *(f"{measure(form, seed):.6f}" for form in FORMS)])
        sys.stdout.flush()


def summary(rows: list[dict]) -> str:
    changes = [float(row["parts"]) - float(row["float32"]) for row in rows]
    error = statistics.stdev(changes) / len(changes) ** 0.5
    return (
        f"parts minus float32: {statistics.mean(changes):+.4f} ± {error:.4f} nats per token (mean and "
        f"standard error of {len(changes)} seeds), largest {max(changes, key=abs):+.4f}"
    )


if __name__ == "__main__":
    main()
