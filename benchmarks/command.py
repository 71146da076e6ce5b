"""The command line of bench.py: its keys and models, and what each result says of the machine."""

from host.disk import unwritable

import dataclasses
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
from benchmarks import decoding
from benchmarks.lines import Lines
from benchmarks.plan import STAGES
from benchmarks.session import Session
from config_keys import Above, Count, Positive, names
from models.architecture import ModelConfig
from training.environment import environment

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


def hardware(device: torch.device) -> dict:
    """What every line says of the machine, the versions and the commit."""
    facts = environment(device) | {"cores": os.cpu_count(), "triton": None}
    if find_spec("triton"):
        import triton

        facts["triton"] = triton.__version__
    if device.type == "cuda":
        facts["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return facts


def open_session(lines: Lines, device: torch.device, minutes: float) -> Session:
    # threads of each process: several compile at a time
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return Session(lines, device, threads, minutes, lambda text: print(text, flush=True))
