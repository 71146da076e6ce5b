"""Measures everything on a GPU, in commands of at most ten minutes.

    python launch/measure_gpu.py
    python launch/measure_gpu.py --stages=ceilings,correct,xl --minutes=5 --lines=out/xl.jsonl
    python launch/measure_gpu.py --report --lines=out/xl.jsonl
    python launch/measure_gpu.py --device=cpu --sizes=tiny

Each result is written at once as a line of JSON. The same command goes on after the results that its file
holds, so call it until it says that everything is measured. A result that failed is not tried again: remove
its line to do so. At the end, and with --report, tables and a picture are written beside the lines.

Stages, in this order: ceilings (a copy, matrix products), correct (every kernel against its oracle),
kernels, small, xl and llama (training steps), decode, train (200 steps of train.py, killed and resumed)
and profile. A kernel that is wrong is not timed, and models then use PyTorch in place of Triton.
"""

import os
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from host import interruption, openmp  # noqa: E402, F401 (first, before torch)

import torch  # noqa: E402

import configurator  # noqa: E402
from benchmarks import gpu_report  # noqa: E402
from benchmarks.gpu_plan import SCALES, STAGES, Plan  # noqa: E402
from benchmarks.lines import Lines, LinesError  # noqa: E402
from benchmarks.session import Session  # noqa: E402
from training.environment import environment  # noqa: E402
from training.hardware import DeviceError, choose_device, choose_dtype  # noqa: E402

SECONDS_OF_REPORT = 15


@dataclass
class MeasureConfig:
    """Measures everything on a GPU: results as JSON lines, then tables and a picture."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    sizes: Literal["full", "tiny"] = "full"  # tiny: a trial of everything in a minute or two, on a CPU too
    stages: list[str] = field(default_factory=lambda: list(STAGES))  # what to measure
    minutes: float = 9.0  # this command ends by itself within this time
    lines: str | None = None  # file of results, new or to go on with; None: out/measure_DEVICE_SIZES.jsonl
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
        if self.lines is not None and not self.lines.endswith(".jsonl"):
            wrong.append(f"lines={self.lines} must end in .jsonl: the tables are written beside it")
        if self.report and self.lines is None:
            wrong.append("report needs the file of results: --lines=FILE")
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
            return gpu_report.write(Path(config.lines))
        device = choose_device(config.device)
        if device.type == "cpu" and config.sizes == "full":
            sys.exit("measure_gpu.py: PyTorch sees no GPU here; for a trial: --device=cpu --sizes=tiny")
        path = Path(config.lines or ROOT / "out" / f"measure_{device.type}_{config.sizes}.jsonl")
        gpu_report.check_place(path)
        if config.sizes == "tiny":
            torch.set_num_threads(1)
        facts = hardware(device) | {"sizes": config.sizes}
        with Lines(path, facts) as lines:
            measure(config, device, lines)
        return gpu_report.write(path)
    except (DeviceError, LinesError) as error:
        sys.exit(f"measure_gpu.py: {error}")
    except OSError as error:
        sys.exit(f"measure_gpu.py: {error}")


def with_values(argv: list[str]) -> list[str]:
    """The command line with --report in the form of all other keys."""
    return ["--report=True" if argument == "--report" else argument for argument in argv]


def hardware(device: torch.device) -> dict:
    """What every line says of the machine, the versions and the commit."""
    facts = environment(device) | {"cores": os.cpu_count(), "triton": None}
    if find_spec("triton"):
        import triton

        facts["triton"] = triton.__version__
    if device.type == "cuda":
        facts["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return facts


def measure(config: MeasureConfig, device: torch.device, lines: Lines):
    """Runs the stages until they are done or the time is over."""
    scale = SCALES[config.sizes]
    compiles = device.type == "cuda"
    # of each process: several compile at a time
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
    plan = Plan(device, choose_dtype("auto", device), compiles, scale, config.dataset)
    threads = torch.get_num_threads() if device.type == "cpu" else None
    print(", ".join(f"{key} {value}" for key, value in lines.facts.items()), flush=True)
    print(f"results: {lines.path}, {len(lines.results)} there already", flush=True)
    minutes = config.minutes - SECONDS_OF_REPORT / 60
    session = Session(lines, device, threads, minutes, lambda text: print(text, flush=True))
    for stage in [stage for stage in STAGES if stage in config.stages]:
        if stage not in ("ceilings", "correct") and not session.done(plan.phases("correct", lines)):
            raise LinesError(
                f"the stage {stage} needs to know which kernels are right: --stages=correct,{stage}"
            )
        phases = plan.phases(stage, lines)
        for tasks, slots in phases:
            session.run(tasks, slots)
        if not session.done(phases):
            print(f"the time is over in the stage {stage}; the same command goes on", flush=True)
            return
    print("everything is measured", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nmeasure_gpu.py: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
