"""Measure how fast models train and decode and how fast kernels are, side by side.

    python bench.py config/gpt2.py config/cofrgenet_f.py+config/size/small.py --mode=train
    python bench.py config/gpt2.py config/cofrgenet.py+config/size/small.py --mode=infer
    python bench.py --mode=ops

Modes: train (a training step and its parts), infer (decoding), ops (kernels and their upper limits),
ceilings (the limits alone), correct (kernels against their oracles at awkward shapes) and profile (where a
training step spends its time).

Each argument is a model: `A.py B.py` are two, `A.py+B.py` is one, with B's keys on top of A's. A model's
--key=value applies to all models. Each model has a process of its own, and on a CPU the models take turns;
the first repetition, which compiles, does not count. Models are compared with the first one. Name a model
twice to see how large the machine's noise is. A model or kernel that computes wrong numbers is not timed.

With --json=FILE each result is written at once as a line of JSON, and the same command goes on after the
results that the file holds. A result that failed is not tried again: remove its line to do so.

Each model of GPT-2 small's size takes minutes. For a quick try:
    python bench.py config/demo_dense.py config/demo_cofrgenet.py --repetitions=2 --seconds=0.2
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)

import math
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.command import divided, hardware, open_session, parsed
from benchmarks.lines import Lines, LinesError
from benchmarks.plan import Plan
from models.architecture import ModelConfig
from models.compilation import missing_for_compile
from reports.plural import counted
from training.hardware import DeviceError, choose_device, choose_dtype


def main(argv: list[str]) -> int:
    """Returns the exit status: 0, or 1 if something failed or was wrong."""
    config, models = parsed(argv)
    try:
        device = choose_device(config.device)
    except DeviceError as error:
        sys.exit(f"bench.py: {error}")
    config.dtype = choose_dtype(config.dtype, device)
    plan = Plan(config, models, divided(argv)[2], device)
    if wrong := plan.step_options().missing(device):
        sys.exit("\n".join(f"bench.py: {line}" for line in wrong))
    if config.compile and device.type == "cpu" and (lacks := missing_for_compile()):
        sys.exit(f"bench.py: torch.compile lacks {' and '.join(lacks)}; or use --compile=False")
    facts = hardware(device) | {"sizes": config.sizes}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for line in remarks(models, argv):
        print(line)
    try:
        with Lines(config.json and Path(config.json), facts) as lines:
            return measure(plan, lines)
    except LinesError as error:
        sys.exit(f"bench.py: {error}")
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.exit(f"bench.py: what is above was measured, but could not be written: {error}")


def measure(plan: Plan, lines: Lines) -> int:
    """Prints the tables of a command line; returns the exit status. Raises LinesError, OSError."""
    session = open_session(lines, plan.device, plan.config.minutes or math.inf)
    left = sum(len(session.todo(task)) for task in plan.tasks())
    print(f"{counted(left, 'result')} to come; the first of a model or kernel compiles it", flush=True)
    try:
        if not plan.run(session):
            print("the time is over; the same command goes on", flush=True)
    except (OSError, KeyboardInterrupt):
        show(plan, lines)  # what there is
        raise
    return int(any(report.went_wrong(line) for line in show(plan, lines)))


def show(plan: Plan, lines: Lines) -> list[dict]:
    """Prints the tables of a command line, and returns its results."""
    wanted = {(task.stage, task.name) for task in plan.tasks()}
    ours = [line for line in lines.results.values() if (line["stage"], line["task"]) in wanted]
    found = report.tables(ours, detailed=True)
    if plan.config.compare:
        found += report.published_times(plan.config.mode)
    print("\n" + "\n\n".join(found), flush=True)
    return ours


def remarks(models: dict[str, ModelConfig], argv: list[str]) -> list[str]:
    """What was asked for beside the config files, and what of it a model does not read."""
    given = [a for a in argv if a.startswith("-") and not a.startswith(("--json", "--profile", "--mode"))]
    lines = [f"with {' '.join(given)}"] if given else []
    for name, model in models.items():
        if idle := model.unused_keys():
            lines.append(f"without effect in {name}: {', '.join(idle)}")
    return lines


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nbench.py: interrupted", file=sys.stderr)
        sys.exit(130)
