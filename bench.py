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
from host.disk import unwritable

import dataclasses
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import torch

import configurator
import overlays
from benchmarks import decoding, report
from benchmarks.lines import Lines, LinesError
from benchmarks.plan import STAGES, Plan
from benchmarks.session import Session
from config_keys import Above, Count, Positive, names
from models.architecture import ModelConfig
from models.compilation import missing_for_compile
from reports.plural import counted
from training.environment import environment
from training.hardware import DeviceError, choose_device, choose_dtype

Mode = Literal["train", "infer", "ops", "ceilings", "correct", "profile"]
OF_TRAINING = ("activation_checkpointing", "gradient_accumulation_steps", "cuda_graph", "parts")


@dataclass
class BenchConfig:
    """How fast models train and decode, and how fast kernels are. Keys of a model apply to all models."""

    mode: Mode = "train"  # steps, decoding, kernels, their limits, kernels against oracles, or a profile
    batch_size: Count = 4  # sequences in a batch
    repetitions: Count = 7  # measurements of each model
    seconds: Positive = 1.0  # shortest time of a measurement; iterations are repeated until then
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # dtype of matrix products
    compile: bool = True  # torch.compile what is measured
    activation_checkpointing: bool = False  # train: recompute each block in the backward pass
    gradient_accumulation_steps: Count = 1  # train: batches in a step
    cuda_graph: bool | None = None  # train: both passes as one launch; None: also, where train.py does
    parts: bool = True  # train: also time the parts of a step
    turns: bool | None = None  # train, infer: models in memory together, in turns; None: on a CPU
    compile_gb: Positive = 20.0  # memory of a GPU for each model or kernel that is compiled beside others
    sizes: Literal["full", "tiny"] = "full"  # ops, ceilings, correct: tiny for a trial
    stage: str | None = None  # train, infer: under which title results come; None: a general one
    profile: str | None = None  # train, infer: new folder for a profiler trace of each model
    json: str | None = None  # file of results, new or to go on with
    minutes: Annotated[float | None, Above(0)] = None  # this command ends by itself within this time
    compare: bool = False  # train, infer: also show the times that the CoFrGeNet papers publish

    def check(self) -> list[str]:
        wrong = []
        stages = STAGES.get(self.mode, ())
        if self.stage is not None and self.stage not in stages:
            wrong.append(
                f"mode={self.mode} has no stage={self.stage}, only {', '.join(stages) or 'its own'}"
            )
        if self.json is not None and self.profile == self.json:
            wrong.append(f"json and profile are both {self.json}")
        for key in ("profile", "compare", "turns"):
            if self.mode not in ("train", "infer") and getattr(self, key):
                wrong.append(f"{key} acts with mode=train and mode=infer only")
        if self.profile is not None and (reason := unwritable(Path(self.profile), folder=True)):
            wrong.append(f"profile={self.profile} {reason}")
        for field in dataclasses.fields(self):
            changed = getattr(self, field.name) != field.default
            if field.name in OF_TRAINING and self.mode not in ("train", "profile") and changed:
                wrong.append(f"{field.name} acts with mode=train only")
        return wrong


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


def hardware(device: torch.device) -> dict:
    """What every line says of the machine, the versions and the commit."""
    facts = environment(device) | {"cores": os.cpu_count(), "triton": None}
    if find_spec("triton"):
        import triton

        facts["triton"] = triton.__version__
    if device.type == "cuda":
        facts["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return facts


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


def open_session(lines: Lines, device: torch.device, minutes: float) -> Session:
    # threads of each process: several compile at a time
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return Session(lines, device, threads, minutes, lambda text: print(text, flush=True))


def remarks(models: dict[str, ModelConfig], argv: list[str]) -> list[str]:
    """What was asked for beside the config files, and what of it a model does not read."""
    given = [a for a in argv if a.startswith("-") and not a.startswith(("--json", "--profile", "--mode"))]
    lines = [f"with {' '.join(given)}"] if given else []
    for name, model in models.items():
        if idle := model.unused_keys():
            lines.append(f"without effect in {name}: {', '.join(idle)}")
    return lines


def divided(argv: list[str]) -> tuple[list[str], list[str], list[str]]:
    """(models, keys of the bench, keys of models) of a command line"""
    own = {field.name for field in dataclasses.fields(BenchConfig)}
    given = [a for a in argv if not a.startswith("-")]
    options = [a for a in argv if a.startswith("-")]
    ours = [a for a in options if a[2:].partition("=")[0].replace("-", "_") in own or a in ("-h", "--help")]
    return given, ours, [a for a in options if a not in ours]


def parsed(argv: list[str]) -> tuple[BenchConfig, dict[str, ModelConfig]]:
    """The bench's keys, and each model's config by the name that it was given on the command line."""
    given, ours, others = divided(argv)
    config = configurator.parse(BenchConfig, ours)
    if config.mode in ("ops", "ceilings", "correct"):
        if given or others:
            refuse(f"mode={config.mode} takes no models and none of their keys: {' '.join(given + others)}")
        return config, {}
    if not given:
        refuse(f"name the models, such as config/gpt2.py; mode={config.mode} compares them")
    try:
        for line in overlays.check("bench.py", argv):  # before mistakes that may come of it
            print(line, flush=True)
    except configurator.ConfigError as error:
        refuse(str(error))
    models, turns = {}, Counter()
    for name in given:
        model = configurator.parse(ModelConfig, [name, *others], known=names(BenchConfig))
        model.vocab_size = model.vocab_size or 50257
        if model.encoder_layers:
            refuse(
                f"{name} has encoder_layers={model.encoder_layers}, and texts of a benchmark have no "
                "source: leave encoder_layers out"
            )
        if config.mode == "infer" and model.block_size < decoding.SHORTEST:
            refuse(
                f"block_size={model.block_size} has no room for a prompt and two steps: mode=infer takes "
                f"{decoding.SHORTEST} tokens or more"
            )
        if model.model != "gpt" and config.mode == "infer" and config.compile:
            refuse(f"{name}: decoding of model={model.model} is not compiled: add --compile=False")
        turns[name] += 1
        models[f"{name} ({turns[name]})" if turns[name] > 1 else name] = model
    lengths = sorted({model.block_size for model in models.values()})
    if config.mode == "train" and len(lengths) > 1:
        refuse(
            f"models of different block_size {lengths} cannot be compared; give one to all, such as "
            f"--block_size={lengths[0]}"
        )
    return config, models


def refuse(why: str):
    """Ends the script as a mistake of its command line does."""
    print(f"bench.py: {why}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nbench.py: interrupted", file=sys.stderr)
        sys.exit(130)
