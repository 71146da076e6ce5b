"""Steps of decoding by how long idle threads spin, on a quiet machine and on a busy one.

    python results/speed/spin_count.py
    python results/speed/spin_count.py --table     # the table of spin_count.csv

Eager, float32, one sequence, GPT-2 small's width, half of the cache full. Each setting has a process of its
own; settings take turns, REPETITIONS times, each time with the median of STEPS steps one after the other.
Busy: one other process counts in a loop. One thread waits for nobody: its columns show the noise. Rows are
appended as they are measured; what the file has is not measured again.
"""

import argparse
import contextlib
import itertools
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reports.markdown_table import table
from results.speed.decoding_in_turns import MODELS
from results.speed.turns import Rows, Worker, spread, started

SPINS = ("0", "1000", "10000", "100000", "300000")  # the last is libgomp's own
SETTINGS = [(model, threads) for model in ("dense", "full") for threads in ("1", "2")]
LOADS = ("quiet", "busy")
STEPS, REPETITIONS = 10, 5
WARM_UP = 3  # steps, of which the first prepares the copy


@contextlib.contextmanager
def load(kind: str):
    if kind == "quiet":
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def measure(rows: Rows, model: str, threads: str, overrides: list[str]):
    wanted = [
        (model, threads, kind, spins, str(number))
        for number in range(1, REPETITIONS + 1)
        for kind in LOADS
        for spins in SPINS
    ]
    if not (wanted := [key for key in wanted if key not in rows.values]):
        return
    keys = ("ours", "eager", "float32", 1, threads, *MODELS[model], *overrides)
    workers = {}
    for spins in sorted({key[3] for key in wanted}, key=int):
        environment = {"GOMP_SPINCOUNT": spins, "OMP_NUM_THREADS": threads}
        workers[spins] = Worker("decoding_worker.py", *keys, **environment)
    with started(workers, WARM_UP):
        for kind, keys in itertools.groupby(wanted, lambda key: key[2]):
            with load(kind):
                for key in keys:
                    workers[key[3]].ask(STEPS)
                    rows.add(key, workers[key[3]].answer())


def tables(rows: Rows) -> str:
    """Milliseconds of a step: the median (smallest to largest) of the repetitions."""
    lines = []
    for model, threads in SETTINGS:
        for kind in LOADS:
            found = {spins: rows.of(model, threads, kind, spins) for spins in SPINS}
            if all(found.values()):
                cells = {f"{int(spins):,} spins": spread(times) for spins, times in found.items()}
                lines.append({"model": model, "threads": threads, "machine": kind, **cells})
    return table(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--table", action="store_true", help="print the table and measure nothing")
    given, overrides = parser.parse_known_args()  # keys of the model, such as --n_layer=2
    rows = Rows(given.csv, ["model", "threads", "machine", "spins", "repetition"], "ms")
    if not given.table:
        for model, threads in SETTINGS:
            measure(rows, model, threads, overrides)
    print(tables(rows))


if __name__ == "__main__":
    main()
