"""Kill runs of train.py at random moments, resume them to their ends, and count what was lost.

    python tests/faults/kill.py --count=1000 --seed=1 --kinds=warm,cold,torchrun --csv=kills.csv
    python tests/faults/kill.py --table --csv=kills.csv

Each run is killed several times, most of the time with SIGKILL, sometimes stopped with SIGTERM, and then
left alone. A row of the CSV is one kill; the rows of a run are written when the run has ended. Called again
with the same arguments, the script goes on behind the last whole run of the CSV.

kinds: warm: a child forked from a process that has imported torch; warm2: two such children as ranks;
cold: a new process; torchrun: two new ranks and their launcher. How the moment is drawn:

    clock    uniform over the duration of the run
    phase    within a phase (saving, pruning, evaluating, ...), which is drawn first
    event    before a file is opened, written, synced, renamed, linked or removed
    byte     within a write, after a random byte of all that the run writes
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
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reports.markdown_table import table
from tests.faults import kept, runs
from tests.faults.watched import EVENTS, PHASES
from training.log import read_log

KINDS = {"warm": ("warm", 1), "warm2": ("warm", 2), "cold": ("cold", 1), "torchrun": ("torchrun", 2)}
# how often a phase is drawn: most are so short that moments by the clock alone would miss them
WEIGHTS = {
    "starting": 1, "restoring": 2, "writing config.json": 2, "opening the log": 3, "a step": 1,
    "logging": 3, "evaluating": 3, "drawing": 1, "saving": 4, "syncing the log": 2,
    "writing a checkpoint": 4, "naming best.pt": 3, "renaming": 3, "pruning": 4, "ending": 1,
}  # fmt: skip
CHANGES = {"open": 2, "write": 2, "fsync": 3, "rename": 4, "link": 3, "remove": 3, "mkdir": 1}
MOMENTS = {"clock": 2, "phase": 3, "event": 4, "byte": 2}
COLUMNS = (
    *(
        "seed",
        "run",
        "kind",
        "model",
        "keys",
        "kill",
        "signal",
        "victim",
        "moment",
        "phase",
        "event",
        "checkpoint",
    ),
    *("messages", "tracebacks", "lost", "run_ended", "equal"),
)


@dataclass
class Plan:
    """Whom to kill, how and when."""

    victim: str  # process, rank 0, rank 1, torchrun
    signal: str  # kill, term
    moment: str
    fuse: dict | None = None
    # seconds after the rank began its phase, or (clock) had its modules; below 0: after the start
    delay: float = 0.0


def draw(dice: random.Random, kind: str, reference: kept.Reference, done: float) -> Plan:
    """done: the share of its steps that the run has in its checkpoint."""
    ranks = KINDS[kind][1]
    victims = {"torchrun": ("rank 0", "rank 1", "torchrun"), "warm2": ("rank 0", "rank 1")}
    victim = dice.choice(victims.get(kind, ("process",)))
    what = "term" if dice.random() < 0.1 and victim != "rank 1" else "kill"
    moment = dice.choices([*MOMENTS], [*MOMENTS.values()])[0]
    left = 1.02 - done
    if moment == "clock":
        if kind in ("cold", "torchrun") and dice.random() < 0.2:
            return Plan(victim, what, moment, delay=-dice.uniform(0, 4))
        return Plan(victim, what, moment, delay=dice.uniform(0, left) * reference.seconds)
    # the first rank writes; what it does then, the others do not
    slots = reference.slots[0]
    fuse = {"rank": 0, "at": moment, "action": what, "count": 1}
    fuse["victim"] = {"process": "self", "rank 0": "self", "rank 1": "1", "torchrun": "parent"}[victim]
    if moment == "phase":
        seen = [phase for number, phase in enumerate(PHASES) if slots["counts"][number]]
        phases = [phase for phase in WEIGHTS if phase in (*seen, "restoring")]
        fuse["phase"] = phase = dice.choices(phases, [WEIGHTS[phase] for phase in phases])[0]
        if victim == "rank 1" and phase in ("starting", "a step", "evaluating") and ranks > 1:
            fuse["rank"] = 1
        number = PHASES.index(phase)
        fuse["victim"] = "watcher"
        times = max(1, int(slots["counts"][number]))
        fuse["count"] = dice.randint(1, max(1, int(times * left)))
        length = slots["seconds"][number] / times or 0.05
        return Plan(victim, what, moment, fuse, dice.uniform(0, length))
    if moment == "event":
        fuse["event"] = dice.choices([*CHANGES], [*CHANGES.values()])[0]
        total = slots["events"][EVENTS.index(fuse["event"])]
    else:
        total = slots["bytes"]
    fuse["count"] = dice.randint(1, max(1, int(total * left)))
    return Plan(victim, what, moment, fuse)


def strike(started: runs.Started, plan: Plan) -> tuple[str, str] | None:
    """Wait for the moment, and kill, unless the fuse does -> (phase, event).

    None: the run ended before.
    """
    number = signal.SIGKILL if plan.signal == "kill" else signal.SIGTERM
    place = plan.fuse["rank"] if plan.fuse else 0

    def hit():
        rank = {"rank 1": 1}.get(plan.victim, 0)
        pid = started.pids[0] if plan.victim in ("torchrun", "process") else started.pid(rank)
        if started.ended() or not pid or not runs.alive(pid):
            return None
        seen = PHASES[int(started.slots[rank if plan.victim == "rank 1" else place]["phase"])]
        os.kill(pid, number)
        return seen, "none"

    if plan.delay < 0:
        time.sleep(-plan.delay)
        if plan.victim in ("torchrun", "process"):
            return hit()
    while not started.pid(place) and not started.ended():
        time.sleep(0.0003)
    if plan.moment == "clock":
        end = time.monotonic() + max(0, plan.delay)
        while time.monotonic() < end and not started.ended():
            time.sleep(min(0.005, max(0, end - time.monotonic())))
        return hit()
    slot = started.slots[place]
    while not slot["armed"] and not started.ended():
        time.sleep(0.0003)
    if slot["armed"] == 1:
        time.sleep(min(plan.delay, 2.0))
        return hit()
    return (PHASES[slot["blown_phase"]], EVENTS[slot["blown_event"]]) if slot["armed"] == 2 else None


def break_one(number: int, kind: str, model: str, seed: int, base: Path, references: dict) -> list[dict]:
    """One run with its kills -> rows."""
    dice = random.Random(f"{seed} {kind} {number}")
    form, ranks = KINDS[kind]
    folder, scratch, reference = base / f"{kind}{number}", base / "scratch", references[kind, model]
    shutil.rmtree(folder, ignore_errors=True)
    arguments = references["arguments"](model, folder)
    ledger, rows = kept.Ledger(folder, reference), []
    ended, unasked = False, []
    for kill in range(1, dice.randint(1, 6) + 1):
        if kill > 1 and ledger.newest() == runs.STEPS and dice.random() < 0.7:
            break  # only its last picture is left
        plan = draw(dice, kind, reference, ledger.newest() / runs.STEPS)
        # a survivor waits so long for the others
        limit = [f"--distributed_timeout={references['timeout']}"] if ranks > 1 else []
        started = runs.start(form, ranks, [*arguments, *limit], scratch, plan.fuse)
        struck = strike(started, plan)
        refused = []
        if struck and plan.victim == "torchrun" and dice.random() < 0.5 and ledger.newest():
            refused = start_again(arguments, base)  # while ranks without a launcher may still train
        in_time = started.finish()
        slots = started.slots
        said, tracebacks = runs.messages(started.said())
        lost = ledger.lost(slots) + ([] if in_time else ["a process hung"])
        if struck:
            rows.append(
                {
                    "seed": seed, "run": number, "kind": kind, "model": model, "keys": references["keys"],
                    "kill": kill, "signal": plan.signal,
                    "victim": plan.victim, "moment": plan.moment, "phase": struck[0],
                    "event": struck[1], "checkpoint": ledger.newest(),
                    "messages": told([*said, *refused], base), "tracebacks": tracebacks,
                    "lost": "; ".join(lost)[:300],
                }
            )  # fmt: skip
        elif lost or tracebacks or (started.status and not said):  # on a busy machine a rank may be late
            unasked.append(f"{said} {lost} {tracebacks}")
        if ended := not started.status and reached(ledger):
            break
    attempts = 0
    while not ended and attempts < 3:
        attempts += 1
        started = runs.start(form, ranks, arguments, scratch)
        in_time = started.finish()
        ended = in_time and not started.status
        if not ended:
            unasked.append(f"a resumed run failed: {runs.messages(started.said())} {started.said()[-500:]}")
    wrong = ledger.at_the_end() if ended else ["it never ended"]
    for row in rows:
        row["run_ended"] = "yes" if ended and not unasked else "; ".join(unasked)[:600] or "no"
        row["equal"] = "; ".join(wrong)[:300] or "yes"
    fine = ended and not wrong and not unasked and not any(r["lost"] or r["tracebacks"] for r in rows)
    if fine:
        shutil.rmtree(folder)
    else:
        print(f"look at {folder}: {wrong or unasked or rows}", file=sys.stderr)
    return rows


def told(messages: list[str], base: Path) -> str:
    """Messages for the CSV, without what is only of this machine."""
    text = " / ".join(messages).replace(f"{base}/", "")
    return re.sub(r"process \d+ on [\w.-]+", "process N on HOST", text)[:300]


def reached(ledger: kept.Ledger) -> bool:
    """Whether the log has the last record of an uninterrupted run."""
    records = kept.without_times(read_log(ledger.folder))
    return records[-1:] == ledger.reference.records[-1:] and ledger.newest() == runs.STEPS


def start_again(arguments: list[str], base: Path) -> list[str]:
    """What train.py says to somebody who starts it while the ranks of a killed torchrun may still train.

    With another seed: a run that has a checkpoint refuses that, if it does not refuse the second process.
    """
    second = runs.start("warm", 1, [*arguments, "--seed=2"], base / "second")
    second.finish()
    said, tracebacks = runs.messages(second.said())
    return [f"started again: {' / '.join(said) or 'nothing'}" + " TRACEBACK" * tracebacks]


def arguments_of(given) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="kills, of all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="warm", help="; ".join(KINDS))
    parser.add_argument("--models", default=",".join(runs.MODELS))
    parser.add_argument("--timeout", type=float, default=10, help="distributed_timeout of runs to kill")
    parser.add_argument("--keys", default="", help="more keys for train.py, separated by blanks")
    parser.add_argument("--csv", type=Path, required=True, nargs="+", help="rows are appended")
    parser.add_argument("--folder", type=Path, help="for runs; default: a temporary one")
    parser.add_argument("--table", action="store_true", help="print a summary of the CSV, kill nothing")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """-> 0 if nothing was lost."""
    options = arguments_of(given)
    rows = [row for path in options.csv if path.exists() for row in csv.DictReader(path.open())]
    if options.table:
        print(summary(rows))
        return 0
    (path,) = options.csv
    kinds, models = options.kinds.split(","), options.models.split(",")
    with contextlib.ExitStack() as stack:
        base = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(base / "data", ignore_errors=True)
        runs.warm_up(base)
        dataset, more = runs.make_dataset(base / "data"), options.keys.split()
        references = {"arguments": lambda model, out: runs.command_line(dataset, model, out, *more)}
        references |= {"timeout": options.timeout, "keys": options.keys}
        number = 1 + max((int(row["run"]) for row in rows), default=0)
        file = stack.enter_context(path.open("a"))
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        while len(rows) < options.count:
            kind, model = kinds[number % len(kinds)], models[number // len(kinds) % len(models)]
            if (kind, model) not in references:
                folder = base / "reference" / kind / model
                shutil.rmtree(folder, ignore_errors=True)
                form, ranks = KINDS[kind]
                of = (form, ranks, references["arguments"](model, folder), folder, base / "scratch")
                references[kind, model] = kept.Reference.of(*of)
            found = break_one(number, kind, model, options.seed, base, references)
            writer.writerows(found)
            file.flush()
            rows += found
            number += 1
    bad = [r for r in rows if wrong(r)]
    print(f"{len(rows)} kills in {len({r['run'] for r in rows})} runs; {len(bad)} with something wrong")
    return bool(bad)


def wrong(row: dict) -> bool:
    lost = row["lost"] or int(row["tracebacks"])
    return bool(lost) or (row["equal"], row["run_ended"]) != ("yes", "yes")


def summary(rows: list[dict]) -> str:
    """A table of kinds, one of phases, as Markdown."""
    parts = []
    for key, head in (("victim", "killed"), ("phase", "it was"), ("moment", "moment")):
        shown = []
        groups = collections.defaultdict(list)
        for row in rows:
            killed = f"{row['kind']}{row['keys'] and ' ' + row['keys']}: {row['victim']}, "
            killed += f"SIG{row['signal'].upper()}"
            groups[killed if key == "victim" else row[key]].append(row)
        for name, group in [*sorted(groups.items()), ("all", rows)]:
            endings = {(r["kind"], r["keys"], r["seed"], r["run"]): r["equal"] == "yes" for r in group}
            shown.append(
                {
                    head: name,
                    "kills": f"{len(group):,}",
                    "runs": f"{len(endings):,}",
                    "equal to the bit": f"{sum(endings.values()):,}",
                    "with a message": f"{sum(bool(r['messages']) for r in group):,}",
                    "tracebacks": f"{sum(int(r['tracebacks']) > 0 for r in group):,}",
                    "something lost": f"{sum(bool(r['lost']) for r in group):,}",
                }
            )
        parts.append(table(shown))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
