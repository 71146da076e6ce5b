"""Measure how fast models train and decode and how fast kernels are, side by side.

    python bench.py config/gpt2.py config/cofrgenet_f.py+config/size/small.py --mode=train
    python bench.py config/gpt2.py config/cofrgenet.py+config/size/small.py --mode=infer
    python bench.py --mode=ops

Each argument is a model: `A.py B.py` are two, `A.py+B.py` is one, with B's keys on top of A's. A model's
--key=value applies to all models. Each model has a process of its own, and the models take turns; the
first repetition, which compiles, does not count. Models are compared with the first one. Name a model twice
to see how large the machine's noise is. A model or kernel that computes wrong numbers is not timed.

Each model of GPT-2 small's size takes minutes. For a quick try:
    python bench.py config/demo_dense.py config/demo_cofrgenet.py --repetitions=2 --seconds=0.2
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)
from host.disk import unwritable

import contextlib
import dataclasses
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

import configurator
import overlays
from benchmarks import decoding, forms, operators, report, training_step
from benchmarks.timing import quartiles
from benchmarks.worker import BenchError, Worker
from config_keys import names
from models.architecture import ModelConfig
from models.compilation import missing_for_compile
from reports.markdown_table import table
from reports.plural import counted
from training import cuda_graph
from training.environment import environment
from training.hardware import DeviceError, choose_device, choose_dtype

OF_TRAINING = ("activation_checkpointing", "gradient_accumulation_steps", "cuda_graph", "parts")


@dataclass
class BenchConfig:
    """How fast models train and decode, and how fast kernels are. Keys of a model apply to all models."""

    mode: Literal["train", "infer", "ops"] = "train"  # time training steps, decoding or kernels
    batch_size: int = 4  # sequences in a batch
    repetitions: int = 7  # measurements of each model; the models take turns
    seconds: float = 1.0  # shortest time of a measurement; iterations are repeated until then
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # dtype of matrix products
    compile: bool = True  # torch.compile what is measured
    activation_checkpointing: bool = False  # train: recompute each block in the backward pass
    gradient_accumulation_steps: int = 1  # train: batches in a step
    cuda_graph: bool | None = None  # train: forward and backward as one launch; None: where train.py does
    parts: bool = True  # train: also time the parts of a step
    profile: str | None = None  # train, infer: new folder for a profiler trace of each model
    json: str | None = None  # new JSON file for all numbers
    compare: bool = False  # train, infer: also show the times that the CoFrGeNet papers publish

    def check(self) -> list[str]:
        wrong = []
        for key in ("batch_size", "repetitions", "seconds", "gradient_accumulation_steps"):
            if not getattr(self, key) > 0:
                wrong.append(f"{key} must be above 0, not {getattr(self, key)}")
        if self.json is not None and (reason := unwritable(Path(self.json))):
            wrong.append(f"json={self.json} {reason}")
        if self.json is not None and self.profile == self.json:
            wrong.append(f"json and profile are both {self.json}")
        if self.profile is not None and self.mode == "ops":
            wrong.append("profile acts with mode=train and mode=infer only")
        if self.compare and self.mode == "ops":
            wrong.append("compare acts with mode=train and mode=infer only")
        elif self.profile is not None and (reason := unwritable(Path(self.profile), folder=True)):
            wrong.append(f"profile={self.profile} {reason}")
        for field in dataclasses.fields(self):
            changed = getattr(self, field.name) != field.default
            if field.name in OF_TRAINING and self.mode != "train" and changed:
                wrong.append(f"{field.name} acts with mode=train only")
        return wrong


def main(argv: list[str]):
    config, models = parsed(argv)
    try:
        device = choose_device(config.device)
    except DeviceError as error:
        sys.exit(f"bench.py: {error}")
    config.dtype = choose_dtype(config.dtype, device)
    config.cuda_graph = captures(config, models, device)
    if config.mode == "train" and (wrong := step_options(config).missing(device)):
        sys.exit("\n".join(f"bench.py: {line}" for line in wrong))
    if config.compile and device.type == "cpu" and (lacks := missing_for_compile()):
        sys.exit(f"bench.py: torch.compile lacks {' and '.join(lacks)}; or use --compile=False")
    facts = environment(device)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for line in remarks(models, argv):
        print(line)
    try:
        MODES[config.mode](config, models, device, lambda result: save(config, facts, result))
    except BenchError as error:
        sys.exit(f"bench.py: {error}")
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.exit(f"bench.py: the table above is complete, but a file could not be written: {error}")


def captures(config: BenchConfig, models: dict[str, ModelConfig], device: torch.device) -> bool:
    """Whether forward and backward pass are one CUDA graph: as it was asked for, or as train.py does."""
    if config.cuda_graph is not None or config.mode != "train":
        return bool(config.cuda_graph)
    return all(model.model == "gpt" for model in models.values()) and cuda_graph.possible(config, device)


def remarks(models: dict[str, ModelConfig], argv: list[str]) -> list[str]:
    """What was asked for beside the config files, and what of it a model does not read."""
    given = [a for a in argv if a.startswith("-") and not a.startswith(("--json", "--profile", "--mode"))]
    lines = [f"with {' '.join(given)}"] if given else []
    for name, model in models.items():
        if idle := model.unused_keys():
            lines.append(f"without effect in {name}: {', '.join(idle)}")
    return lines


def save(config: BenchConfig, facts: dict, result: dict):
    """Write all numbers to config.json, if that is wanted."""
    if config.json is not None:
        numbers = json.dumps({**dataclasses.asdict(config), **facts, **result}, indent=1)
        Path(config.json).parent.mkdir(parents=True, exist_ok=True)
        with open(config.json, "x") as file:
            file.write(numbers)


def parsed(argv: list[str]) -> tuple[BenchConfig, dict[str, ModelConfig]]:
    """The bench's keys, and each model's config by the name that it was given on the command line."""
    own = {field.name for field in dataclasses.fields(BenchConfig)}
    given = [a for a in argv if not a.startswith("-")]
    options = [a for a in argv if a.startswith("-")]
    ours = [a for a in options if a[2:].partition("=")[0].replace("-", "_") in own or a in ("-h", "--help")]
    others = [a for a in options if a not in ours]
    config = configurator.parse(BenchConfig, ours)
    if config.mode == "ops":
        if given or others:
            print(
                f"bench.py: mode=ops takes no models and none of their keys: {' '.join(given + others)}",
                file=sys.stderr,
            )
            sys.exit(2)
        return config, {}
    if not given:
        print(
            f"bench.py: name the models, such as config/gpt2.py; mode={config.mode} compares them",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        for line in overlays.check("bench.py", argv):  # before mistakes that may come of it
            print(line, flush=True)
    except configurator.ConfigError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        sys.exit(2)
    models, turns = {}, Counter()
    for name in given:
        model = configurator.parse(ModelConfig, [name, *others], known=names(BenchConfig))
        model.vocab_size = model.vocab_size or 50257
        if model.encoder_layers:
            print(
                f"bench.py: {name} has encoder_layers={model.encoder_layers}, and texts of a benchmark "
                "have no source: leave encoder_layers out",
                file=sys.stderr,
            )
            sys.exit(2)
        if config.mode == "infer" and model.block_size < decoding.SHORTEST:
            print(
                f"bench.py: block_size={model.block_size} has no room for a prompt and two steps: "
                f"mode=infer takes {decoding.SHORTEST} tokens or more",
                file=sys.stderr,
            )
            sys.exit(2)
        if model.model != "gpt":
            if config.mode == "infer" and config.compile:
                told = f"decoding of model={model.model} is not compiled: add --compile=False"
                print(f"bench.py: {name}: {told}", file=sys.stderr)
                sys.exit(2)
            config.parts = False  # of a model without blocks only the whole step can be measured
        turns[name] += 1
        models[f"{name} ({turns[name]})" if turns[name] > 1 else name] = model
    lengths = sorted({model.block_size for model in models.values()})
    if config.mode == "train" and len(lengths) > 1:
        print(
            f"bench.py: models of different block_size {lengths} cannot be compared; give one to all, "
            f"such as --block_size={lengths[0]}",
            file=sys.stderr,
        )
        sys.exit(2)
    return config, models


def step_options(config: BenchConfig) -> training_step.StepOptions:
    names = [field.name for field in dataclasses.fields(training_step.StepOptions)]
    return training_step.StepOptions(**{name: getattr(config, name) for name in names})


def train(config: BenchConfig, models: dict[str, ModelConfig], device: torch.device, save):
    """Prints the table of a training step; all numbers go to `save`."""
    length = next(iter(models.values())).block_size
    options = step_options(config)
    tokens = options.sequences() * length
    accumulated = config.gradient_accumulation_steps
    print(
        f"training step: {f'{accumulated} x ' if accumulated > 1 else ''}{config.batch_size} x {length} "
        f"tokens, {config.dtype}, {'compiled' if config.compile else 'eager'}"
        + (", as a CUDA graph" if config.cuda_graph else "")
        + (", blocks recomputed in the backward pass" if config.activation_checkpointing else ""),
        flush=True,
    )
    chosen = training_step.SECTIONS if config.parts else ("whole",)
    gate, make = training_step.gate, training_step.sections

    def show(seconds, memory):
        for name, model in models.items():
            for part in chosen:
                scale = training_step.in_a_step(model, options, part)
                seconds[name][part] = [scale * s for s in seconds[name][part]]
        save(report.training(config, models, seconds, memory, tokens, device))

    compare(models, gate, make, options, chosen, config, device, show)


def infer(config: BenchConfig, models: dict[str, ModelConfig], device: torch.device, save):
    """Prints the table of one-token steps and prompts; all numbers go to `save`."""
    options = decoding.DecodeOptions(config.batch_size, config.dtype, config.compile)
    lengths = ", ".join(map(str, sorted({model.block_size for model in models.values()})))
    print(
        f"decoding: {counted(config.batch_size, 'sequence')}, a cache of {lengths} tokens, half full for a "
        f"step and full but for one after a prompt, weights in {config.dtype}, "
        f"{'compiled' if config.compile else 'eager'}",
        flush=True,
    )

    def show(seconds, memory):
        save(report.decoding(config, models, seconds, memory))

    gate, make = decoding.gate, decoding.sections
    compare(models, gate, make, options, decoding.SECTIONS, config, device, show)


def ops(config: BenchConfig, models, device: torch.device, save):
    """Prints one table for each kernel; all numbers go to `save`."""
    sizes = operators.Sizes(config.batch_size)
    arguments = (operators.ceilings, config.dtype, device, sizes)
    with Worker("ceilings", device, threads(device), *arguments) as one:
        found, _ = measure([one], ("copy", "matrix product"), config)
    copy, product = (quartiles(seconds)[1] for seconds in found["ceilings"].values())
    limits = {"bytes": sizes.copy_bytes / copy, "flops": sizes.gemm_flops / product}
    print(
        f"forward and backward, {config.dtype}; a copy moves {limits['bytes'] / 1e9:,.0f} GB/s, "
        f"a matrix product of {sizes.gemm} makes {limits['flops'] / 1e12:.3g} TFLOP/s",
        flush=True,
    )
    numbers = {
        "copy_bytes_per_second": limits["bytes"],
        "matrix_product_flops_per_second": limits["flops"],
    }
    for name in operators.cases(device, sizes):
        arguments = (name, sizes, config.dtype, config.compile, device)
        with Worker(name, device, threads(device), forms.sections, *arguments) as one:
            seconds = measure([one], None, config)[0][name]
            memory = {form: one.ask("memory", form) for form in seconds}
        case = operators.describe(name, sizes, device)
        rows = []
        naive = quartiles(next(iter(seconds.values())))[1]
        unit = {"flops": "GFLOP/s", "bytes": "GB/s"}[case.limit]
        for form, measured in seconds.items():
            low, median, high = quartiles(measured)
            rate = case.amount() / median
            rows.append(
                {
                    name: form,
                    "ms": f"{1e3 * median:,.2f}",
                    "quartiles": f"{1e3 * low:,.2f} .. {1e3 * high:,.2f}",
                    unit: f"{rate / 1e9:,.1f}",
                    "of the ceiling": report.share(rate, limits[case.limit]),
                    "peak MB": "" if memory[form] is None else f"{memory[form] / 1e6:,.0f}",
                    "speed-up": f"{naive / median:.2f}",
                }
            )
        print(f"\n{name}: {case.what}\n{table(rows)}", flush=True)
        numbers[name] = {"seconds": seconds, "peak_bytes": memory}
    print("\na share above 100 %: less work than is counted, or a machine that was busier at the start")
    save(numbers)


MODES = {"train": train, "infer": infer, "ops": ops}


def threads(device: torch.device) -> int | None:
    return torch.get_num_threads() if device.type == "cpu" else None


def compare(
    models: dict[str, ModelConfig], gate, make, options, sections, config: BenchConfig, device, show
):
    """Every model through the gate, then all of them in turns; what `measure` gives goes to `show`, then
    the traces are written. Raises BenchError, OSError."""

    def worker(function, name, model):
        return Worker(name, device, threads(device), function, model, options, device)

    for name, model in tqdm(models.items(), desc="checking", unit="model", leave=False):
        with worker(gate, name, model) as one:
            one.ask("sections")
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker(make, *item)) for item in models.items()]
        show(*measure(workers, sections, config))
        if config.profile is not None:
            Path(config.profile).mkdir(parents=True, exist_ok=True)
            for one in workers:
                name = "".join(c if c.isalnum() else "_" for c in one.name)
                path = Path(config.profile) / f"{config.mode}_{name}.json"
                print(f"{one.name}, {sections[0]}: {path}\n{one.ask('profile', sections[0], str(path))}")


def measure(workers: list[Worker], sections, config: BenchConfig):
    """Time the named sections of each worker, None for all that the first one has;
    -> ({worker: {section: [seconds]}}, {worker: peak bytes of the first section}).
    """
    made = [worker.ask("sections") for worker in workers]
    sections = sections or made[0]
    seconds = {worker.name: {section: [] for section in sections} for worker in workers}
    memory = {}
    bar = tqdm(
        total=len(workers) * len(sections) * (config.repetitions + 1), unit="measurement", leave=False
    )
    for repetition in range(config.repetitions + 1):
        for section in sections:
            for worker in workers:
                bar.set_postfix_str(f"{section} of {worker.name}", refresh=False)
                # the first one compiles
                duration = worker.ask("time", section, config.seconds if repetition else 0.0)
                if repetition:
                    seconds[worker.name][section].append(duration)
                bar.update()
        if repetition == 0:
            memory = {worker.name: worker.ask("memory", sections[0]) for worker in workers}
    bar.close()
    return seconds, memory


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        print("\nbench.py: interrupted", file=sys.stderr)
        sys.exit(130)
