"""A model compiled whole and by part (training/compilation.py): time to the first step, time of a step.

    python results/compile_by_part/run.py --rounds=3 > results/compile_by_part/rounds.csv     # an hour
    python results/compile_by_part/run.py --table < results/compile_by_part/rounds.csv

Forward and backward pass over random tokens, float32, one thread, a process for each row and round with an
empty cache of the compiler; all rows of a round one after the other. CPU seconds are those of the process
and of the C++ compilers that it starts.
"""

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from reports.markdown_table import table

ROOT = Path(__file__).resolve().parents[2]
# config stack, micro-batch, block size
MODELS = {
    "demo_dense": (["config/demo_dense.py"], 8, 256),
    "demo_cofrgenet": (["config/demo_cofrgenet.py"], 8, 256),
    "GPT-2 small, dense": (["config/gpt2.py"], 1, 256),
    "GPT-2 small, full model": (["config/cofrgenet.py", "config/size/small.py"], 1, 256),
}
FORMS = ("whole", "by part")
STEPS = 9
KEYS = ("model", "form")
FOUND = ("first step, s", "first step, CPU s", "step, CPU ms", "loss")


def child(name: str, form: str):
    """Print what FOUND names."""
    import torch

    import configurator
    from benchmarks.training_step import batch, build
    from models import architecture
    from training.compilation import CompiledTraining
    from training.hardware import keep_freed_memory

    torch.set_num_threads(1)
    device = torch.device("cpu")
    keep_freed_memory(device)
    stack, batch_size, block_size = MODELS[name]
    config = configurator.parse(architecture.ModelConfig, [str(ROOT / path) for path in stack])
    config.vocab_size, config.block_size = 4096, block_size
    model = build(config, device)
    tokens, targets = batch(config, batch_size, device)
    call = (
        CompiledTraining(model)
        if form == "by part"
        else torch.compile(model, fullgraph=True, dynamic=False)
    )

    def step():
        start = time.perf_counter(), cpu()
        model.zero_grad(set_to_none=True)
        loss = call(tokens, targets)
        loss.backward()
        return time.perf_counter() - start[0], cpu() - start[1], loss.item()

    first = step()
    step()
    later = statistics.median(step()[1] for _ in range(STEPS))
    print(f"{first[0]:.1f} {first[1]:.1f} {1e3 * later:.1f} {first[2]:.6f}")


def cpu() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    uses = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measure(name: str, form: str) -> list[str]:
    command = [sys.executable, __file__, "--child", name, form]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="read rounds from stdin, print medians")
    parser.add_argument("--child", nargs=2, metavar=KEYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    if given.table:
        return print(summary(list(csv.DictReader(sys.stdin))))
    out = csv.DictWriter(sys.stdout, [*KEYS, "round", *FOUND])
    out.writeheader()
    for number in range(1, given.rounds + 1):
        for name in MODELS:
            for form in FORMS:
                found = measure(name, form)
                row = {"model": name, "form": form, "round": number, **dict(zip(FOUND, found, strict=True))}
                out.writerow(row)
                sys.stdout.flush()
                print(", ".join(map(str, row.values())), file=sys.stderr)


def summary(rounds: list[dict]) -> str:
    """Medians, with the smallest and the largest value."""
    rows = []
    for name in MODELS:
        for form in FORMS:
            found = [row for row in rounds if (row["model"], row["form"]) == (name, form)]
            if not found:
                continue
            cells = {"model": name, "compiled": form}
            for key in FOUND[:3]:
                values = [float(row[key]) for row in found]
                cells[key] = f"{statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"
            rows.append(cells)
    return table(rows)


if __name__ == "__main__":
    main()
