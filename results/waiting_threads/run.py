"""How threads wait at a barrier, and what that costs on a quiet and on a busy machine.

    python results/waiting_threads/run.py --rounds=3 > results/waiting_threads/rounds.csv     # half an hour
    python results/waiting_threads/run.py --table < results/waiting_threads/rounds.csv

Trains config/demo_cofrgenet.py on random tokens, a process for each row and round, all rows of a round one
after the other. busy: as many other processes as the machine has cores, which count in a loop.
"""

import argparse
import csv
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from reports.markdown_table import table

ROOT = Path(__file__).resolve().parents[2]
# what libgomp reads; without any, a thread spins for a while before it sleeps
POLICIES = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "short spin": {"GOMP_SPINCOUNT": "1000"},
}
SECONDS = 8.0
KEYS = ("threads", "form", "machine", "waiting")


def rows():
    for threads, form, machine in itertools.product((1, 2), ("eager", "compiled"), ("quiet", "busy")):
        for waiting in POLICIES if threads > 1 else ["default"]:  # one thread waits for nobody
            yield threads, form, machine, waiting


def child(form: str, threads: int):
    """Print the tokens per second of training."""
    import torch

    import configurator
    from benchmarks import training_step
    from models import architecture
    from training.hardware import keep_freed_memory

    torch.set_num_threads(threads)
    device = torch.device("cpu")
    keep_freed_memory(device)
    config = configurator.parse(architecture.ModelConfig, [str(ROOT / "config/demo_cofrgenet.py")])
    config.vocab_size = 4096
    options = training_step.StepOptions(8, "float32", form == "compiled", activation_checkpointing=False)
    step = training_step.sections(config, options, device)["whole"]
    for _ in range(3):
        step()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        step()
        steps += 1
    print(steps * 8 * config.block_size / (time.perf_counter() - start))


def measure(threads: int, form: str, machine: str, waiting: str) -> float:
    cleared = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    count = os.cpu_count() if machine == "busy" else 0
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        command = [sys.executable, __file__, "--child", form, str(threads)]
        done = subprocess.run(
            command, env=cleared | POLICIES[waiting], capture_output=True, text=True, check=True
        )
    finally:
        for other in others:
            other.kill()
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="read rounds from stdin, print medians")
    parser.add_argument("--child", nargs=2, metavar=("form", "threads"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.child[0], int(given.child[1]))
    if given.table:
        return print(summary(list(csv.DictReader(sys.stdin))))
    out = csv.DictWriter(sys.stdout, [*KEYS, "round", "tokens/s"])
    out.writeheader()
    for number in range(1, given.rounds + 1):
        for row in rows():
            rate = measure(*row)
            out.writerow(dict(zip(KEYS, row, strict=True)) | {"round": number, "tokens/s": round(rate)})
            sys.stdout.flush()
            print(f"round {number}: {row} {rate:,.0f} tokens/s", file=sys.stderr)


def summary(found: list[dict]) -> str:
    groups: dict = {}
    for row in found:
        groups.setdefault(tuple(row[key] for key in KEYS), []).append(float(row["tokens/s"]))
    return table(
        [
            dict(zip(KEYS, key, strict=True))
            | {
                "tokens/s": f"{statistics.median(rates):,.0f}",
                "from": f"{min(rates):,.0f}",
                "to": f"{max(rates):,.0f}",
            }
            for key, rates in groups.items()
        ]
    )


if __name__ == "__main__":
    main()
