"""Measures everything on a GPU, in commands of at most ten minutes.

    python launch/measure_gpu.py
    python launch/measure_gpu.py --stages=ceilings,correct,xl --minutes=5 --json=out/xl.jsonl
    python launch/measure_gpu.py --report --json=out/xl.jsonl
    python launch/measure_gpu.py --device=cpu --sizes=tiny

Each stage is a command line of bench.py, and all of them share one file of results. Each result is written
at once as a line of JSON. The same command goes on after the results that its file holds, so call it until
it says that everything is measured. A result that failed is not tried again: remove its line to do so. At
the end, and with --report, tables and a picture are written beside the lines.

Stages, in this order: ceilings (a copy, matrix products), correct (every kernel against its oracle),
kernels, small, xl and llama (training steps), decode, train (200 steps of train.py, killed and resumed)
and profile. A kernel that is wrong is not timed, and models then use PyTorch in place of Triton.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from host import interruption, openmp  # noqa: E402, F401 (first, before torch)

import torch  # noqa: E402

import configurator  # noqa: E402
from benchmarks import report  # noqa: E402
from benchmarks.command import divided, hardware, open_session, parsed  # noqa: E402
from benchmarks.lines import Lines, LinesError  # noqa: E402
from benchmarks.plan import Plan, wrong_forms  # noqa: E402
from benchmarks.training_run import TrainingTask  # noqa: E402
from training.hardware import DeviceError, choose_device, choose_dtype  # noqa: E402

SECONDS_OF_REPORT = 15
GPT = {
    "dense": ["gpt2_xl.py"],
    "dense with RoPE": ["gpt2_xl.py", "study/rope.py"],
    "CoFrGeNet-F": ["cofrgenet_f.py"],
    "CoFrGeNet-A": ["cofrgenet_a.py"],
    "CoFrGeNet": ["cofrgenet.py"],
    "ours, gated unit plus ladders": ["ours/glu_ladders.py"],
    "ours, attention by distance and content": ["ours/ladder_attention.py"],
    "ours, both layers": ["ours/ladder_full.py"],
}
LLAMA = {
    "dense": ["llama_3b.py"],
    "CoFrGeNet-F": ["llama_3b_cofrgenet_f.py"],
    "CoFrGeNet-A": ["llama_3b_cofrgenet_a.py"],
    "CoFrGeNet": ["llama_3b_cofrgenet.py"],
    "ours, both layers": ["ours/llama_3b_ladder_full.py"],
}
DECODED = {
    **{name: GPT[name] for name in ("dense", "CoFrGeNet-F", "CoFrGeNet-A", "CoFrGeNet")},
    "CoFrGeNet_B": ["cofrgenet.py", "ablate/ladder_form.py"],
    "ours, both layers": GPT["ours, both layers"],
}
OF_PROFILE = ("dense", "dense with RoPE", "CoFrGeNet-F", "CoFrGeNet-A", "CoFrGeNet", "ours, both layers")
PROFILED = {name: GPT[name] for name in OF_PROFILE}
# attention by softmax repeats to the bit only if it is told to
TRAINED = {"dense": ["--deterministic=True"], "CoFrGeNet": []}
STEP = "--parts=False --turns=False"
STAGES = {  # keys of bench.py, and sequences in a batch
    "ceilings": ("--mode=ceilings", 8),
    "correct": ("--mode=correct --compile_gb=4", 8),
    "kernels": ("--mode=ops --compile_gb=10", 8),
    "small": (f"--stage=small --compile_gb=6 {STEP}", 16),
    "xl": (f"--stage=xl --compile_gb=10 {STEP}", 8),
    "llama": (f"--stage=llama --activation_checkpointing=True --compile_gb=20 {STEP}", 2),
    "decode": ("--mode=infer --stage=decode --compile_gb=6 --turns=False", 1),
    "train": ("", 16),
    "profile": ("--mode=profile", 16),
}
MODELS = {"small": GPT, "xl": GPT, "llama": LLAMA, "decode": DECODED, "profile": PROFILED}
SMALL = ("small", "train", "profile")  # stages at GPT-2 small's size
TINY = ["--vocab_size=257", "--block_size=16", "--cf_ladders=2"]


@dataclass
class MeasureConfig:
    """Measures everything on a GPU: results as JSON lines, then tables and a picture."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    sizes: Literal["full", "tiny"] = "full"  # tiny: a trial of everything in a minute or two, on a CPU too
    stages: list[str] = field(default_factory=lambda: list(STAGES))  # what to measure
    minutes: float = 9.0  # this command ends by itself within this time
    json: str | None = None  # file of results, new or to go on with; None: out/measure_DEVICE_SIZES.jsonl
    dataset: str | None = None  # train: a prepared folder of tokens; None: random words
    report: bool = False  # measure nothing: make the tables and the picture of the lines

    def check(self) -> list[str]:
        wrong = []
        choose = f"choose from {', '.join(STAGES)}, or leave --stages out for all of them"
        if unknown := [stage for stage in self.stages if stage and stage not in STAGES]:
            wrong.append(f"stages: there is no {', '.join(unknown)}; {choose}")
        elif not all(self.stages):
            wrong.append(f"stages: a name is missing in {','.join(self.stages)!r}; {choose}")
        if not 60 * self.minutes > SECONDS_OF_REPORT:
            kept = f"{SECONDS_OF_REPORT} seconds are kept for the report"
            wrong.append(f"minutes={self.minutes} is too short: {kept}")
        if self.json is not None and not self.json.endswith(".jsonl"):
            wrong.append(f"json={self.json} must end in .jsonl: the tables are written beside it")
        if self.report and self.json is None:
            wrong.append("report needs the file of results: --json=FILE")
        if self.device == "cpu" and self.sizes == "full" and not self.report:
            wrong.append("device=cpu would take days with sizes=full: take --sizes=tiny")
        if self.dataset is not None and not Path(self.dataset, "meta.json").is_file():
            wrong.append(f"dataset={self.dataset} is no prepared data set: it has no meta.json")
        return wrong


def main(argv: list[str]) -> int:
    """Returns the exit status: 0, or 1 if something failed or was wrong."""
    config = configurator.parse(MeasureConfig, with_values(argv), files=False)
    try:
        if config.report:
            return report.write(Path(config.json))
        device = choose_device(config.device)
        if device.type == "cpu" and config.sizes == "full":
            sys.exit("measure_gpu.py: PyTorch sees no GPU here; for a trial: --device=cpu --sizes=tiny")
        path = Path(config.json or ROOT / "out" / f"measure_{device.type}_{config.sizes}.jsonl")
        report.check_place(path)
        if config.sizes == "tiny":
            torch.set_num_threads(1)
        facts = hardware(device) | {"sizes": config.sizes}
        with Lines(path, facts) as lines:
            measure(config, device, lines)
        return report.write(path)
    except (DeviceError, LinesError) as error:
        sys.exit(f"measure_gpu.py: {error}")
    except OSError as error:
        sys.exit(f"measure_gpu.py: {error}")


def with_values(argv: list[str]) -> list[str]:
    """The command line with --report in the form of all other keys."""
    return ["--report=True" if argument == "--report" else argument for argument in argv]


def measure(config: MeasureConfig, device: torch.device, lines: Lines):
    """Runs the stages until they are done or the time is over."""
    print(", ".join(f"{key} {value}" for key, value in lines.facts.items()), flush=True)
    print(f"results: {lines.path}, {len(lines.results)} there already", flush=True)
    session = open_session(lines, device, config.minutes - SECONDS_OF_REPORT / 60)
    tiny = config.sizes == "tiny"
    for stage in [stage for stage in STAGES if stage in config.stages]:
        if stage not in ("ceilings", "correct") and not session.done(plan("correct", tiny, device).tasks()):
            raise LinesError(
                f"the stage {stage} needs to know which kernels are right: --stages=correct,{stage}"
            )
        wrong = wrong_forms(lines)
        if stage == "train":
            task = training_task(device, tiny, wrong, config.dataset)
            lines.check(task)
            session.run([task])
            done = session.done([task])
        else:
            done = plan(stage, tiny, device, wrong).run(session)
        if not done:
            print(f"the time is over in the stage {stage}; the same command goes on", flush=True)
            return
    print("everything is measured", flush=True)


def plan(stage: str, tiny: bool, device: torch.device, wrong: Collection[str] = ()) -> Plan:
    """The tasks of a stage other than train. wrong: implementations of kernels that are not right."""
    argv = command(stage, tiny, device, wrong)
    config, made = parsed(argv)
    config.dtype = choose_dtype(config.dtype, device)
    models = dict(zip(MODELS.get(stage, ()), made.values(), strict=True))
    return Plan(config, models, divided(argv)[2], device, set(wrong))


def command(stage: str, tiny: bool, device: torch.device, wrong: Collection[str]) -> list[str]:
    """The command line of bench.py that measures a stage."""
    keys, batch = STAGES[stage]
    models = ["+".join(files(stage, tiny, model)) for model in MODELS.get(stage, {}).values()]
    argv = [*models, *keys.split(), f"--device={device.type}", f"--compile={device.type == 'cuda'}"]
    argv += [f"--batch_size={min(batch, 2) if tiny else batch}", f"--repetitions={2 if tiny else 5}"]
    argv += [f"--seconds={0.001 if tiny else 0.3 if models else 0.05}"]
    return argv + (of_models(tiny, wrong) if models else [f"--sizes={'tiny' if tiny else 'full'}"])


def files(stage: str, tiny: bool, model: list[str]) -> list[str]:
    """Paths of the config files of a model."""
    size = ["size/tiny.py"] if tiny else ["size/small.py"] if stage in SMALL else []
    return [str(ROOT / "config" / file) for file in (*model, *size)]


def of_models(tiny: bool, wrong: Collection[str]) -> list[str]:
    """Keys of all models: without Triton if one of its kernels is wrong."""
    backend = "torch" if any("triton" in form for form in wrong) else "auto"
    return [*(TINY if tiny else []), f"--cf_backend={backend}"]


def training_task(
    device: torch.device, tiny: bool, wrong: Collection[str], dataset: str | None
) -> TrainingTask:
    batch, steps = (2, 40) if tiny else (STAGES["train"][1], 200)
    dtype = choose_dtype("auto", device)
    keys = [f"--batch_size={batch}", "--gradient_accumulation_steps=1", "--warmup_iters=10"]
    keys += [f"--eval_interval={10 * steps}", f"--eval_tokens={1024 * batch}", f"--device={device.type}"]
    keys += [f"--dtype={dtype}", f"--compile={device.type == 'cuda'}", *of_models(tiny, wrong)]
    models = {name: [*files("train", tiny, GPT[name]), *keys, *own] for name, own in TRAINED.items()}
    settings = {"dtype": dtype, "batch_size": batch, "keys": keys}
    settings["dataset"] = dataset or "random words, as bytes"
    return TrainingTask("train", "train.py", [*models], models, steps, dataset, settings)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nmeasure_gpu.py: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
