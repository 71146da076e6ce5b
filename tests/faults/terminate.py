"""Send SIGTERM to runs of train.py while they evaluate, save or log, and resume them.

    python tests/faults/terminate.py --count=100 --seed=1 --csv=signals.csv
    python tests/faults/terminate.py --table --csv=signals.csv

A run must finish its step, write a checkpoint of that step, say so and exit with status 143. A row of the
CSV is one signal. In a run of two ranks one of them gets the signal, or both.
"""

import argparse
import collections
import contextlib
import csv
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reports.markdown_table import table
from tests.faults import kept, runs
from tests.faults.watched import PHASES

WITHIN = ("evaluating", "saving", "writing a checkpoint", "pruning", "logging", "a step", "drawing")
COLUMNS = (
    "number",
    "model",
    "ranks",
    "hit",
    "phase",
    "status",
    "stopped_at",
    "wrong",
    "tracebacks",
    "equal",
)


def terminate_one(number: int, ranks: int, model: str, seed: int, base: Path, prepared: dict) -> dict:
    """One signal -> a row."""
    dice = random.Random(f"{seed} {ranks} {number}")
    reference, arguments_of = prepared[ranks, model]
    folder, scratch = base / f"{ranks}_{number}", base / "scratch"
    slots = reference.slots[0]
    phases = [phase for phase in WITHIN if slots["counts"][PHASES.index(phase)]]
    phase = phases[number % len(phases)]
    index = PHASES.index(phase)
    hit = dice.choice(["rank 0", "rank 1", "both"][: 2 * ranks - 1])
    # the last ones are of the end of the run, after which nothing is left to stop
    count = dice.randint(1, max(1, int(slots["counts"][index]) - 2))
    fuse = {"rank": 0, "at": "phase", "phase": phase, "count": count, "action": "term", "victim": "watcher"}
    started = runs.start("warm", ranks, arguments_of(folder), scratch, fuse)
    while not started.slots[0]["armed"] and not started.ended():
        time.sleep(0.0002)
    time.sleep(dice.uniform(0, slots["seconds"][index] / max(1, slots["counts"][index])))
    seen = PHASES[int(started.slots[0]["phase"])]
    for rank in range(ranks):
        if hit in (f"rank {rank}", "both") and runs.alive(started.pid(rank)):
            os.kill(started.pid(rank), signal.SIGTERM)
    wrong = [] if started.finish() else ["it hung"]
    ledger = kept.Ledger(folder, reference)
    wrong += ledger.lost(started.slots)
    stopped = re.search(r"stopped at step ([\d,]+); --resume=True --out_dir=\S+ goes on", started.said())
    at = int(stopped[1].replace(",", "")) if stopped else runs.STEPS
    if (started.status, bool(stopped)) not in ((143, True), (0, False)):
        wrong.append(f"status {started.status}, {'' if stopped else 'not '}told where it stopped")
    if ledger.newest() != at:
        wrong.append(f"the last checkpoint is of step {ledger.newest()}, not {at}")
    said, status = started.said(), started.status
    _, tracebacks = runs.messages(said)
    again = runs.start("warm", ranks, arguments_of(folder), scratch)
    ended = again.finish() and not again.status
    equal = ledger.at_the_end() if ended else [f"it does not go on: {again.said()[-300:]}"]
    row = {
        "number": number, "model": model, "ranks": ranks, "hit": hit, "phase": seen, "status": status,
        "stopped_at": at, "wrong": "; ".join(wrong)[:300], "tracebacks": tracebacks,
        "equal": "; ".join(equal)[:300] or "yes",
    }  # fmt: skip
    if wrong or tracebacks or equal:
        print(f"look at {folder}: {row}\n{said}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return row


def main(given: list[str]) -> int:
    """-> 0 if every run stopped with a checkpoint and went on as if nothing had happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", default="1", help="such as 1,2")
    parser.add_argument("--models", default=",".join(runs.MODELS))
    parser.add_argument("--keys", default="", help="more keys for train.py, separated by blanks")
    parser.add_argument("--csv", type=Path, required=True, help="rows are appended")
    parser.add_argument("--table", action="store_true", help="print a summary of the CSV, stop nothing")
    options = parser.parse_args(given)
    rows = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    if options.table:
        print(summary(rows))
        return 0
    sizes, models = [int(n) for n in options.ranks.split(",")], options.models.split(",")
    prepared, more = {}, options.keys.split()
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs.warm_up(base)
        dataset = runs.make_dataset(base / "data")
        file = stack.enter_context(options.csv.open("a"))
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for number in range(len(rows), options.count):
            ranks, model = sizes[number % len(sizes)], models[number // len(sizes) % len(models)]
            if (ranks, model) not in prepared:

                def arguments(folder, model=model):
                    return runs.command_line(dataset, model, folder, *more)

                whole = base / "reference" / f"{model}{ranks}"
                of = ("warm", ranks, arguments(whole), whole, base / "scratch")
                prepared[ranks, model] = kept.Reference.of(*of), arguments
            row = terminate_one(number, ranks, model, options.seed, base, prepared)
            writer.writerow(row)
            file.flush()
            rows.append({key: str(value) for key, value in row.items()})
    bad = [row for row in rows if row["wrong"] or row["tracebacks"] != "0" or row["equal"] != "yes"]
    print(f"{len(rows)} signals; {len(bad)} with something wrong")
    return bool(bad)


def summary(rows: list[dict]) -> str:
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["phase"]].append(row)
    return table(
        [
            {
                "SIGTERM while": name,
                "signals": f"{len(group):,}",
                "stopped with a checkpoint": f"{sum(r['status'] == '143' for r in group):,}",
                "at its end already": f"{sum(r['status'] == '0' for r in group):,}",
                "something wrong": f"{sum(bool(r['wrong']) or r['tracebacks'] != '0' for r in group):,}",
                "resumed, equal to the bit": f"{sum(r['equal'] == 'yes' for r in group):,}",
            }
            for name, group in [*sorted(groups.items()), ("all", rows)]
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
