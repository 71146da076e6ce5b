"""Train the runs of a plan, each with train.py in a process of its own, one or several at a time."""

from host.disk import lock, no_link, read_json

import contextlib
import ctypes
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from ablation.deadline import Deadline
from ablation.plan import MAY_CHANGE, Plan
from ablation.product import Planned
from training.config import DEFAULTS
from training.stopping import Stop

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
OUTPUT = "output.log"  # in each run's folder: what train.py printed in all attempts
SECONDS = 0.5  # between two looks at the processes
WORK = "{l_bar}{bar}| {n:.2f} of {total:.2f} UNIT of runs [{elapsed}<{remaining}{postfix}]"
PR_SET_PDEATHSIG = 1  # of Linux' prctl
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


# () -> (runs that have become known, work of those that are not known yet); see `execute`
More = Callable[[], tuple[list[Planned], float]]


def carry_out(
    plan: Plan,
    runs: list[Planned],
    parallel: int,
    go_on: str,
    more: More | None = None,
    deadline: Deadline | None = None,
):
    """Train the unfinished runs. A signal stops them and ends the process, with the hint `go_on`.

    more, deadline: see `execute`; with `more`, `runs` say which device all of them are for.
    """
    plan.save()
    todo = [run for run in runs if run.name not in plan.done]
    script = Path(sys.argv[0]).name
    try:
        with Stop(speak=False) as stop:
            start = functools.partial(
                train,
                folder=plan.folder,
                defaults=DEFAULTS,
                gpus=gpus(runs),
                parallel=parallel,
            )
            if more:
                execute(plan, [], start, parallel, stop, more, deadline)
            elif todo:
                execute(plan, todo, start, parallel, stop)
    except KeyboardInterrupt:
        sys.exit(f"{script}: interrupted at once. {go_on}")
    if stop:
        left = sum(run.name not in plan.done for run in runs)
        told = f"stopped with {left} of {len(runs)} runs left" if not more else "stopped"
        print(f"{script}: {told}. {go_on}", file=sys.stderr)
        sys.exit(stop.status)


def gpus(runs: list[Planned]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES can name for the runs; empty where they are for the processor."""
    if not torch.cuda.is_available() or any(run.config["device"] == "cpu" for run in runs):
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


@dataclass
class Active:
    run: Planned
    process: subprocess.Popen
    slot: int
    since: float  # time.monotonic() of its start
    before: float  # its work that an earlier attempt had done


def execute(
    plan: Plan,
    runs: list[Planned],
    start: Callable,
    parallel: int,
    stop: Stop,
    more: More | None = None,
    deadline: Deadline | None = None,
):
    """Train `runs` of the plan to their ends, `parallel` at a time; one that fails stops no other.

    start: (run, slot from 0) -> its process. After a signal in `stop` no further run starts, and those
    that train save a checkpoint and end. A second Ctrl-C (KeyboardInterrupt) kills them.
    more: gives runs whose configuration depends on the ends of others. It is called at the beginning and
    after each end. The work that it expects of runs to come counts in the progress bar from the beginning;
    work is in hours of one run then. Of the runs that wait, those with the least work are then first: what
    ends early is complete.
    deadline: with `more`, no run starts that would not end before it, and those that train are stopped
    there as by a signal.
    """
    runs, unknown = list(runs), 0.0
    if more:
        found, unknown = more()
        runs += found
    waiting, slots, active = list(runs), list(range(parallel)), []
    said, lost, asked = set(), set(), False

    def so_far(run):
        return run.work(run.tokens_at(steps_so_far(plan.folder / run.name)))

    def work():
        return sum(map(so_far, runs))

    def total():
        return unknown + sum(so_far(run) if run.name in lost else run.work(run.tokens) for run in runs)

    def in_time(run):
        return not deadline or deadline.fits(run.work(run.tokens) - so_far(run))

    looks = {"unit": "token", "unit_scale": True}
    if more:
        unit, scale = ("hours", 1) if total() >= 1 else ("minutes", 60)
        looks = {"bar_format": WORK.replace("UNIT", unit), "unit_scale": scale}
    bar = tqdm(
        total=total(), initial=work(), dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 30.0, **looks,
    )  # fmt: skip
    try:
        while waiting or active:
            if stop and not asked:
                asked, waiting = True, []
                bar.write("stopping, with a checkpoint each (Ctrl-C again: at once)", file=sys.stderr)
                for one in active:
                    one.process.send_signal(signal.SIGTERM)
            if deadline and not asked:
                if deadline.over() or not (active or any(map(in_time, waiting))):
                    deadline.left = {run.name for run in [*waiting, *(one.run for one in active)]}
                    waiting = []
                if deadline.over() and active:
                    asked = True
                    bar.write("the minutes are over: stopping, with a checkpoint each", file=sys.stderr)
                    for one in active:
                        one.process.send_signal(signal.SIGTERM)
            free = [run for run in waiting if not locked(plan.folder / run.name)] if slots else []
            for run in list(filter(in_time, free))[: len(slots)]:
                waiting.remove(run)
                slot = slots.pop(0)
                active.append(Active(run, start(run, slot), slot, time.monotonic(), so_far(run)))
            for run in filter(in_time, waiting if not active else []):
                if run.name not in said:
                    said.add(run.name)
                    bar.write(f"waiting: another process is training {run.name}", file=sys.stdout)
            for one in [one for one in active if one.process.poll() is not None]:
                active.remove(one)
                slots.append(one.slot)
                bar.write(ended(plan, one.run, one.process.returncode, asked), file=sys.stdout)
                if one.run.name in plan.failed:
                    lost.add(one.run.name)
                elif deadline and one.run.name in plan.done:
                    deadline.left.discard(one.run.name)
                    if one.before == 0:
                        deadline.ended(so_far(one.run), time.monotonic() - one.since)
                if more and not asked:
                    found, unknown = more()
                    runs += found
                    waiting = sorted(waiting + found, key=lambda run: run.work(run.tokens))
                bar.total = total()
            bar.set_postfix_str(", ".join(one.run.name for one in active), refresh=False)
            bar.update(work() - bar.n)
            time.sleep(SECONDS)
    except KeyboardInterrupt:
        for one in active:
            one.process.kill()
        raise
    finally:
        for one in active:
            one.process.terminate()
            one.process.wait()
        bar.close()


def ended(plan: Plan, run: Planned, status: int, asked: bool) -> str:
    """Note in the plan how a run ended -> a line about it. asked: whether it was told to stop."""
    plan.failed.pop(run.name, None)
    if status == 0:
        plan.done.add(run.name)
        line = f"done: {run.name}"
    elif asked:
        line = f"stopped: {run.name}"
    else:
        plan.failed[run.name] = reason(plan.folder / run.name / OUTPUT, status)
        line = f"failed: {run.name}: {plan.failed[run.name]}"
    plan.save()
    return line


def command(run: Planned, folder: Path, defaults: dict) -> list[str]:
    """The command line of a run: the data set, and the keys that are not at train.py's defaults, whatever
    file they are from, so that a file that is edited meanwhile changes nothing. A run that goes on would
    take other keys from its own config.json: those that may change by now are named too.
    """
    own, always = {"out_dir", "resume"}, {"dataset"}  # a command that names nothing is refused
    given = {k: v for k, v in run.config.items() if k not in own and (k in always or v != defaults[k])}
    with contextlib.suppress(OSError, ValueError):
        before = read_json(folder / run.name / "config.json", ValueError)
        given |= {k: v for k, v in run.config.items() if k in MAY_CHANGE - own and before.get(k, v) != v}
    keys = [f"--{key}={value}" for key, value in given.items()]
    return [sys.executable, str(TRAIN), *keys, f"--out_dir={folder / run.name}", "--resume=True"]


def train(run: Planned, slot: int, folder: Path, defaults: dict, gpus: list[str], parallel: int):
    """Start a run's process: on the GPU of its slot alone, or with its share of the processor's cores. More
    runs than GPUs share GPUs and cores.

    gpus: what CUDA_VISIBLE_DEVICES can name; empty: none.
    """
    environment = dict(os.environ)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    if parallel > max(1, len(gpus)):
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // parallel)))
    arguments = command(run, folder, defaults)
    (folder / run.name).mkdir(exist_ok=True)
    with open(folder / run.name / OUTPUT, "a", opener=no_link) as output:
        output.write(f"$ {shlex.join(arguments)}\n")
        output.flush()
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes here alone, and is passed on
            preexec_fn=end_with_parent if LIBC else None,
        )


def end_with_parent():
    """SIGTERM when whoever started this is killed: nobody would be left to watch it (Linux alone)."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def reason(output: Path, status: int) -> str:
    """Why an attempt failed: train.py's own last message, or else the last line that it printed."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    text = output.read_text(errors="replace") if output.is_file() else ""
    attempt = re.split(r"^\$ ", text, flags=re.MULTILINE)[-1]
    lines = [line.strip() for line in re.split(r"[\r\n]+", attempt) if line.strip()]
    # behind a progress bar, it does not begin its line; mistakes in the configuration have one each
    own = re.findall(r"train\.py: (.+(?:\n {2}.+)*)", attempt)
    return " ".join((own or lines or [f"status {status}"])[-1].split())


def steps_so_far(run: Path) -> int:
    """The step of the last whole record in the end of a run's log."""
    with contextlib.suppress(OSError, ValueError), open(run / "log.jsonl", "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - 65_536))
        for line in reversed(log.read().splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                return json.loads(line)["step"]
    return 0


def locked(run: Path) -> bool:
    """Whether a process trains in this run folder, such as one that outlived its ablate.py for a moment."""
    if not (run / ".lock").exists():
        return False
    try:
        lock(run / ".lock").close()
    except BlockingIOError:
        return True
    except OSError:
        pass  # train.py will say it
    return False
