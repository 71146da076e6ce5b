"""Fill the disk under runs of train.py at a random byte, make room again, resume, and count what was lost.

    python tests/faults/fill_disk.py --count=200 --seed=1 --csv=full_disks.csv
    unshare -rm python tests/faults/fill_disk.py --count=200 --seed=1 --ways=tmpfs --csv=full_disks.csv
    python tests/faults/fill_disk.py --table --csv=full_disks.csv

Every run begins as a copy of one that was killed half way. ways:

    wrapper  the write that crosses a random byte writes up to it, and raises ENOSPC, as all later ones do
    limit    no file may grow beyond a random size (RLIMIT_FSIZE)
    tmpfs    the run folder is a small file system of its own with a random number of free pages; mounting
             it needs the command `unshare -rm` above, or root
"""

import argparse
import collections
import contextlib
import csv
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reports.markdown_table import table
from tests.faults import kept, runs, watched
from tests.faults.watched import PHASES

WAYS = ("wrapper", "limit", "tmpfs")
PAGE = 4096
COLUMNS = ("number", "way", "model", "phase", "status", "message", "tracebacks", "lost", "equal")


@contextlib.contextmanager
def mounted(folder: Path, size: int):
    """A tmpfs of so many bytes at an empty folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_one(number: int, way: str, model: str, seed: int, base: Path, prepared: dict) -> dict:
    """One run whose disk is full for a while -> a row."""
    dice = random.Random(f"{seed} {way} {number}")
    half, reference, arguments_of, sizes = prepared[model]
    folder, scratch = base / f"{way}{number}", base / "scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    arguments = arguments_of(folder)
    with contextlib.ExitStack() as stack:
        if way == "tmpfs":
            used = sum(-(-path.stat().st_size // PAGE) + 1 for path in half.rglob("*"))
            pages = used + 4 + dice.randint(0, sizes["checkpoint"] // PAGE)
            stack.enter_context(mounted(folder, pages * PAGE))
        shutil.copytree(half, folder, dirs_exist_ok=True)
        ledger = kept.Ledger(folder, reference)
        lost = ledger.lost(watched.new_slots(base / "none", 1))
        fuse = limit = None
        if way == "wrapper":
            fuse = {"rank": 0, "at": "byte", "action": "full", "victim": "self"}
            fuse["count"] = dice.randint(1, sizes["bytes"])
        elif way == "limit":
            limit = dice.randint(8_000, sizes["checkpoint"])  # what it prints is a file, too
        started = runs.start("warm", 1, arguments, scratch, fuse, limit)
        in_time = started.finish()
        said, tracebacks = runs.messages(started.said())
        status, phase = started.status, PHASES[int(started.slots[0]["blown_phase"])] if fuse else ""
        lost += ledger.lost(started.slots) + ([] if in_time else ["the process hung"])
        if status and not said:
            lost.append("it ended without a message")
        if way == "tmpfs":
            subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        started = runs.start("warm", 1, arguments, scratch)
        ended = started.finish() and not started.status
        wrong = ledger.at_the_end() if ended else [f"it does not go on: {started.said()[-300:]}"]
        row = {
            "number": number, "way": way, "model": model, "phase": phase, "status": status,
            "message": " / ".join(said)[:300].replace(str(folder), "RUN"), "tracebacks": tracebacks,
            "lost": "; ".join(lost)[:300], "equal": "; ".join(wrong)[:300] or "yes",
        }  # fmt: skip
    if row["lost"] or tracebacks or wrong:
        print(f"look at {folder}: {row}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return row


def prepare(model: str, base: Path, dataset: Path, more: list[str]):
    """(a folder that was killed half way, the uninterrupted run, command line of a folder, sizes)"""

    def arguments(folder):
        return runs.command_line(dataset, model, folder, *more)

    whole, half = (base / "reference" / model / name for name in ("whole", "half"))
    reference = kept.Reference.of("warm", 1, arguments(whole), whole, base / "scratch")
    runs.killed_half_way(arguments(half), base / "scratch")
    sizes = {"checkpoint": (whole / "ckpt" / "best.pt").stat().st_size}
    # the half of a run writes half of its bytes; what it writes at its start comes on top
    sizes["bytes"] = int(0.6 * reference.slots[0]["bytes"])
    return half, reference, arguments, sizes


def main(given: list[str]) -> int:
    """-> 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", default="wrapper,limit", help=", ".join(WAYS))
    parser.add_argument("--models", default=",".join(runs.MODELS))
    parser.add_argument("--keys", default="", help="more keys for train.py, separated by blanks")
    parser.add_argument("--csv", type=Path, required=True, help="rows are appended")
    parser.add_argument("--table", action="store_true", help="print a summary of the CSV, fill nothing")
    options = parser.parse_args(given)
    rows = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    if options.table:
        print(summary(rows))
        return 0
    ways, models, prepared = options.ways.split(","), options.models.split(","), {}
    done = sum(row["way"] in ways for row in rows)
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs.warm_up(base)
        dataset = runs.make_dataset(base / "data")
        file = stack.enter_context(options.csv.open("a"))
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for number in range(done, options.count):
            way, model = ways[number % len(ways)], models[number // len(ways) % len(models)]
            if model not in prepared:
                prepared[model] = prepare(model, base, dataset, options.keys.split())
            row = fill_one(number, way, model, options.seed, base, prepared)
            writer.writerow(row)
            file.flush()
            rows.append({key: str(value) for key, value in row.items()})
    bad = [row for row in rows if row["lost"] or int(row["tracebacks"]) or row["equal"] != "yes"]
    print(f"{len(rows)} full disks; {len(bad)} with something wrong")
    return bool(bad)


def summary(rows: list[dict]) -> str:
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["way"]].append(row)
    return table(
        [
            {
                "disk full by": name,
                "runs": f"{len(group):,}",
                "ended by it": f"{sum(r['status'] != '0' for r in group):,}",
                "with a message": f"{sum(bool(r['message']) for r in group):,}",
                "tracebacks": f"{sum(r['tracebacks'] != '0' for r in group):,}",
                "something lost": f"{sum(bool(r['lost']) for r in group):,}",
                "resumed, equal to the bit": f"{sum(r['equal'] == 'yes' for r in group):,}",
            }
            for name, group in [*groups.items(), ("all", rows)]
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
