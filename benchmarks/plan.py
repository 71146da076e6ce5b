"""What a command line of bench.py measures, as tasks in order.

ceilings  the bandwidth of a copy and the rates of matrix products
correct   every kernel against its oracle at awkward shapes, in float32 and bfloat16
ops       the ceilings, then every kernel
train     a training step of each model, and its parts
infer     the bandwidth of a copy, then decoding
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import correctness, decoding, forms, measurements, operators, training_step
from benchmarks.lines import Lines
from benchmarks.measurements import CUDA_GRAPH, Timing
from benchmarks.session import Session, Task
from models.architecture import ModelConfig
from training import cuda_graph

GB = 10**9
STAGES = {  # of the lines of a mode: the default and others, for tables of their own
    "train": ("training", "small", "xl", "llama"),
    "infer": ("decoding", "decode"),
    "ops": ("kernels",),
}
PROFILED = 25  # rows
Phase = tuple[list[Task], int]  # tasks, and how many run at a time: 0 if they take turns


@dataclass
class Plan:
    """The tasks of one command line. config: a BenchConfig. keys: what was asked for on top of the models'
    config files. wrong: implementations of kernels that are not timed.
    """

    config: Any
    models: dict[str, ModelConfig]
    keys: list[str]
    device: torch.device
    wrong: set[str] = field(default_factory=set)

    def __post_init__(self):
        config = self.config
        self.stage = config.stage or STAGES.get(config.mode, (config.mode,))[0]
        self.timing = Timing(config.repetitions, config.seconds)
        self.sizes = operators.sizes(config.batch_size, config.sizes == "tiny", self.device)

    def phases(self) -> list[Phase]:
        """One after the other."""
        return getattr(self, f"_{self.config.mode}")()

    def run(self, session: Session) -> bool:
        """Measures what has no result yet; False if the time is over. Raises LinesError, OSError."""
        for task in self.tasks():
            session.lines.check(task)
        for tasks, slots in self.phases():
            session.run(tasks, slots)
        return session.done(self.tasks())

    def tasks(self) -> list[Task]:
        return [task for tasks, _ in self.phases() for task in tasks]

    def _ceilings(self, copy_only: bool = False):
        items = ["copy"]
        if not copy_only:
            tf32 = ["matrix product, tf32"] if self.device.type == "cuda" else []
            items += ["matrix product, bfloat16", *tf32, "matrix product, float32"]
        arguments = (self.sizes, self.timing, self.device)
        settings = {"copy_bytes": self.sizes.copy_bytes, "gemm": self.sizes.gemm}
        return [([Task("ceilings", "device", items, measurements.ceilings, arguments, settings)], 1)]

    def _correct(self):
        quick, tasks = self.config.sizes == "tiny", []
        for kernel, cases in correctness.awkward(self.device, quick).items():
            for dtype in ("float32", "bfloat16"):
                arguments = (kernel, dtype, quick, self.device)
                settings = {"dtype": dtype, "kernel": kernel}
                name = f"{kernel}, {dtype}"
                tasks.append(Task("correct", name, list(cases), correctness.gate, arguments, settings))
        return [(tasks, self.slots())]

    def _ops(self):
        config, measured = self.config, []
        settings = {"dtype": config.dtype, "batch_size": self.sizes.batch_size, **vars(self.timing)}
        for name in operators.cases(self.device, self.sizes):
            items = forms.names(name, self.sizes, config.compile, self.device)
            items = [form for form in items if form.rpartition(", ")[0] not in self.wrong]
            keys = (name, self.sizes, config.dtype, config.compile)
            measured.append((name, items, settings, keys))
        made = (measurements.kernel, measurements.warm_kernel)
        return [*self._ceilings(), *self._compiled_first(made, measured, checks=False)]

    def _train(self):
        options, measured = self.step_options(), []
        for name, model in self.models.items():
            items = self.steps(model)
            measured.append((name, items, self.settings(model, options), (model, options, tuple(items))))
        made = (measurements.training, measurements.warm_training)
        return [*self._compiled_first(made, measured), *self._profiles(training_step.sections, options)]

    def _infer(self):
        config, measured = self.config, []
        options = decoding.DecodeOptions(config.batch_size, config.dtype, config.compile)
        for name, model in self.models.items():
            settings = self.settings(model, options)
            measured.append((name, decoding.names(model, options, self.device), settings, (model, options)))
        made = (measurements.decode, measurements.warm_decode)
        phases = [*self._compiled_first(made, measured), *self._profiles(decoding.sections, options)]
        # with a stage of its own it is one of several command lines, of which another measures the limits
        return [*self._ceilings(copy_only=True), *phases] if config.stage is None else phases

    def _profile(self):
        return self._profiles(training_step.sections, self.step_options(), "")

    def _profiles(self, make, options, folder=None) -> list[Phase]:
        """Where the time of a step goes; folder: of traces, empty for none."""
        folder, tasks = self.config.profile if folder is None else folder, []
        for name, model in self.models.items() if folder is not None else ():
            settings = self.settings(model, options)
            trace = folder and os.path.join(
                folder, f"{self.config.mode}_{''.join(c if c.isalnum() else '_' for c in name)}.json"
            )
            arguments = (make, model, options, PROFILED, trace, self.device)
            tasks.append(Task("profile", name, ["step"], measurements.profile, arguments, settings))
        return [(tasks, 1)] if tasks else []

    def _compiled_first(self, made, measured, checks=True) -> list[Phase]:
        """Tasks that are timed, after a compiler has worked for several of them at a time.

        Those that do not take turns are timed one by one: so many before the next ones are compiled, and
        results come early. made: the functions that time and that compile. measured: (name, items,
        settings, arguments of both) of each task. checks: compiling shows whether the numbers are right,
        and what fails there is not timed.
        """
        time_it, warm_it = made
        tasks, warm, slots, stage = [], [], self.slots(), self.stage
        first = self.config.compile and slots > 1
        for name, items, settings, keys in measured:
            after = ("compile", f"{stage}: {name}", "compile") if first and checks else None
            arguments = (*keys, self.timing, *([first] if checks else []), self.device)
            settings = settings | vars(self.timing)
            tasks.append(Task(stage, name, items, time_it, arguments, settings, after))
            arguments = (*keys, self.device)
            warm.append(Task("compile", f"{stage}: {name}", ["compile"], warm_it, arguments, settings))
        turns = checks and self.takes_turns()
        if not first:
            return [(tasks, 0 if turns else 1)]
        if turns:
            return [(warm, slots), (tasks, 0)]
        starts = range(0, len(tasks), slots)
        return [p for s in starts for p in ((warm[s : s + slots], slots), (tasks[s : s + slots], 1))]

    def takes_turns(self) -> bool:
        """Whether models are in memory together: on a CPU, which other processes may slow down."""
        return self.device.type == "cpu" if self.config.turns is None else self.config.turns

    def step_options(self) -> training_step.StepOptions:
        config = self.config
        return training_step.StepOptions(
            config.batch_size,
            config.dtype,
            config.compile,
            config.activation_checkpointing,
            config.gradient_accumulation_steps,
            bool(config.cuda_graph),
        )

    def steps(self, model: ModelConfig) -> list[str]:
        """How a training step is run, and its parts: as a CUDA graph too where train.py does that."""
        wanted = self.config.cuda_graph
        graph = model.model == "gpt" and cuda_graph.possible(self.config, self.device)
        items = [] if wanted else ["step"]
        if self.config.parts and model.model == "gpt":
            items += training_step.SECTIONS[1:]
        return [*items, CUDA_GRAPH] if wanted or (graph and wanted is None) else items

    def settings(self, model: ModelConfig, options) -> dict:
        """What the lines of a model say of it."""
        fields = dataclasses.fields(ModelConfig)
        changed = {f.name: getattr(model, f.name) for f in fields if getattr(model, f.name) != f.default}
        return {"model": changed, "keys": self.keys, "block_size": model.block_size, **vars(options)}

    def slots(self) -> int:
        """Processes that compile at a time: half of the CPU's cores, or fewer if a GPU has no room."""
        cores = max(1, (os.cpu_count() or 1) // 2)
        if self.device.type != "cuda":
            return cores
        whole = torch.cuda.get_device_properties(self.device).total_memory
        return max(1, min(cores, int(whole // (self.config.compile_gb * GB))))


def wrong_forms(lines: Lines) -> set[str]:
    """The implementations of kernels that computed wrong numbers anywhere, or did not run."""
    wrong = set()
    for line in lines.of("correct"):
        if "error" in line:  # the process died, so any of them may have been at fault
            wrong |= {f"{name}, triton" for name in ("continuants", "shared_attention")}
        wrong |= {form.rpartition(", ")[0] for form in line.get("wrong", {})}
    return wrong
