"""What the first minutes on a GPU bring home, stage by stage, in order of weight.

ceilings  the bandwidth of a copy and the rates of matrix products
correct   every kernel against its oracle, in float32 and bfloat16
kernels   the time of every kernel that is correct
small     a training step of each model at GPT-2 small's size; xl: at GPT2-xl's; llama: at Llama-3.2-3B's
decode    decoding at GPT2-xl's size (the CoFrGeNet paper's table 4)
train     200 steps by train.py, and the same killed and resumed
profile   where the time of a training step goes
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

import configurator
from benchmarks import correctness, decoding, forms, gpu_measurements, operators, training_step
from benchmarks.gpu_measurements import Timing
from benchmarks.lines import Lines
from benchmarks.session import Task
from benchmarks.training_run import TrainingTask
from models.architecture import ModelConfig
from training import cuda_graph

CONFIG = Path(__file__).resolve().parents[1] / "config"
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
# attention by softmax repeats to the bit only if it is told to
TRAINED = {"dense": ["--deterministic=True"], "CoFrGeNet": []}
PROFILED = ("dense", "dense with RoPE", "CoFrGeNet-F", "CoFrGeNet-A", "CoFrGeNet", "ours, both layers")
GB = 10**9


@dataclass(frozen=True)
class Scale:
    """How large everything is that is measured."""

    timing: Timing
    models: Timing
    sizes: operators.Sizes
    overlay: tuple[str, ...] = ()  # on every model
    small: tuple[str, ...] = ("size/small.py",)
    overrides: tuple[str, ...] = ()
    batches: dict[str, int] = field(
        default_factory=lambda: {"small": 16, "xl": 8, "llama": 2, "decode": 1, "train": 16}
    )
    steps: int = 200
    profile_rows: int = 25


# a copy of 8 GB reads and writes 16
FULL = Scale(Timing(5, 0.05), Timing(5, 0.3), operators.Sizes(copy_bytes=16 * GB, gemm=8192))
TINY = Scale(
    Timing(2, 0.001),
    Timing(2, 0.001),
    operators.Sizes(2, 40, 24, 3, 3, vocabulary=64, columns=60, copy_bytes=2**20, gemm=64),
    overlay=("size/tiny.py",),
    small=(),
    overrides=("--vocab_size=257", "--block_size=16", "--cf_ladders=2"),
    batches={"small": 2, "xl": 2, "llama": 2, "decode": 1, "train": 2},
    steps=40,
    profile_rows=5,
)
SCALES = {"full": FULL, "tiny": TINY}


@dataclass
class Plan:
    """The tasks of each stage, for one device. dataset: prepared tokens for the stage train, or None."""

    device: torch.device
    dtype: str
    compile: bool
    scale: Scale
    dataset: str | None = None

    def phases(self, stage: str, lines: Lines) -> list[tuple[list, int]]:
        """(tasks, how many at a time), one after the other; `lines` tell which kernels are wrong."""
        return getattr(self, f"_{stage}")(lines)

    def _ceilings(self, lines):
        items = ["copy", "matrix product, bfloat16", "matrix product, float32"]
        if self.device.type == "cuda":
            items.insert(2, "matrix product, tf32")
        arguments = (self.scale.sizes, self.scale.timing, self.device)
        settings = {"copy_bytes": self.scale.sizes.copy_bytes, "gemm": self.scale.sizes.gemm}
        return [([Task("ceilings", "device", items, gpu_measurements.ceilings, arguments, settings)], 1)]

    def _correct(self, lines):
        quick, tasks = self.scale is not FULL, []
        for kernel, cases in correctness.awkward(self.device, quick).items():
            for dtype in ("float32", "bfloat16"):
                arguments = (kernel, dtype, quick, self.device)
                settings = {"dtype": dtype, "kernel": kernel}
                name = f"{kernel}, {dtype}"
                tasks.append(Task("correct", name, list(cases), correctness.gate, arguments, settings))
        return [(tasks, self.slots(4 * GB))]

    def _kernels(self, lines):
        sizes, timing, measured = self.scale.sizes, self.scale.timing, []
        settings = {"dtype": self.dtype, "batch_size": sizes.batch_size, **vars(timing)}
        wrong = wrong_forms(lines)
        for name in operators.cases(self.device, sizes):
            items = forms.names(name, sizes, self.compile, self.device)
            items = [form for form in items if form.rpartition(", ")[0] not in wrong]
            keys = (name, sizes, self.dtype, self.compile)
            measured.append((name, items, settings, keys, timing))
        made = (gpu_measurements.kernel, gpu_measurements.warm_kernel)
        return self._compiled_first("kernels", made, measured, 10 * GB, checks=False)

    def _small(self, lines):
        return self._trained("small", GPT, self.scale.small, lines, 6 * GB)

    def _xl(self, lines):
        return self._trained("xl", GPT, (), lines, 10 * GB)

    def _llama(self, lines):
        return self._trained("llama", LLAMA, (), lines, 20 * GB, activation_checkpointing=True)

    def _trained(self, stage, models, overlay, lines, memory, activation_checkpointing=False):
        batch, measured = self.scale.batches[stage], []
        options = training_step.StepOptions(batch, self.dtype, self.compile, activation_checkpointing)
        for name, files in models.items():
            model, settings = self.model(files, overlay, lines)
            settings |= vars(options) | vars(self.scale.models)
            measured.append((name, self.steps(options), settings, (model, options), self.scale.models))
        made = (gpu_measurements.training, gpu_measurements.warm_training)
        return self._compiled_first(stage, made, measured, memory)

    def _decode(self, lines):
        options = decoding.DecodeOptions(self.scale.batches["decode"], self.dtype, self.compile)
        measured = []
        for name, files in DECODED.items():
            model, settings = self.model(files, (), lines)
            settings |= vars(options) | vars(self.scale.models)
            measured.append((name, list(decoding.SECTIONS), settings, (model, options), self.scale.models))
        made = (gpu_measurements.decode, gpu_measurements.warm_decode)
        return self._compiled_first("decode", made, measured, 6 * GB)

    def _train(self, lines):
        batch, steps = self.scale.batches["train"], self.scale.steps
        keys = [f"--batch_size={batch}", "--gradient_accumulation_steps=1", "--warmup_iters=10"]
        keys += [f"--eval_interval={10 * steps}", f"--eval_tokens={1024 * batch}"]
        keys += [f"--device={self.device.type}", f"--dtype={self.dtype}", f"--compile={self.compile}"]
        keys += [*self.scale.overrides, backend_key(lines)]
        models = {
            name: [*self.files(GPT[name], self.scale.small), *keys, *own] for name, own in TRAINED.items()
        }
        settings = {"dtype": self.dtype, "batch_size": batch, "keys": keys}
        settings["dataset"] = self.dataset or "random words, as bytes"
        return [([TrainingTask("train", "train.py", [*models], models, steps, self.dataset, settings)], 1)]

    def _profile(self, lines):
        batch, tasks = self.scale.batches["small"], []
        options = training_step.StepOptions(batch, self.dtype, self.compile, False)
        for name in PROFILED:
            model, settings = self.model(GPT[name], self.scale.small, lines)
            arguments = (model, options, self.scale.profile_rows, self.device)
            settings |= vars(options)
            tasks.append(Task("profile", name, ["step"], gpu_measurements.profile, arguments, settings))
        return [(tasks, 1)]

    def _compiled_first(self, stage, made, measured, memory, checks=True) -> list[tuple[list, int]]:
        """Tasks that are timed one by one, after a compiler has worked for several of them at a time.

        So many tasks are timed before the next ones are compiled: results come early. made: the functions
        that time and that compile. measured: (name, items, settings, arguments of both, timing) of each
        task. memory: bytes that compiling one of them takes on the GPU. checks: compiling shows whether the
        numbers are right, and what fails there is not timed.
        """
        time_it, warm_it = made
        tasks, warm, slots = [], [], self.slots(memory)
        first = self.compile and slots > 1
        for name, items, settings, keys, timing in measured:
            after = ("compile", f"{stage}: {name}", "compile") if first and checks else None
            arguments = (*keys, timing, *([first] if checks else []), self.device)
            tasks.append(Task(stage, name, items, time_it, arguments, settings, after))
            arguments = (*keys, self.device)
            warm.append(Task("compile", f"{stage}: {name}", ["compile"], warm_it, arguments, settings))
        if not first:
            return [(tasks, 1)]
        starts = range(0, len(tasks), slots)
        return [p for s in starts for p in ((warm[s : s + slots], slots), (tasks[s : s + slots], 1))]

    def steps(self, options) -> list[str]:
        """How a training step is run."""
        graph = cuda_graph.possible(options, self.device)
        return ["step", gpu_measurements.CUDA_GRAPH] if graph else ["step"]

    def slots(self, memory: int) -> int:
        """Processes at a time that need so many bytes each on a GPU, at most half of the CPU's cores."""
        cores = max(1, (os.cpu_count() or 1) // 2)
        if self.device.type != "cuda":
            return cores
        whole = torch.cuda.get_device_properties(self.device).total_memory
        return max(1, min(cores, int(whole // memory)))

    def files(self, files, overlay) -> list[str]:
        return [str(CONFIG / file) for file in (*files, *overlay, *self.scale.overlay)]

    def model(self, files, overlay, lines) -> tuple[ModelConfig, dict]:
        """A model, and what its lines say of it."""
        files, keys = self.files(files, overlay), [*self.scale.overrides, backend_key(lines)]
        model = configurator.resolve(ModelConfig, [*files, *keys])
        model.vocab_size = model.vocab_size or 50257
        named = "+".join(str(Path(file).relative_to(CONFIG.parent)) for file in files)
        return model, {"model": named, "keys": keys, "block_size": model.block_size}


def wrong_forms(lines: Lines) -> set[str]:
    """The implementations of kernels that computed wrong numbers anywhere, or did not run."""
    wrong = set()
    for line in lines.of("correct"):
        if "error" in line:  # the process died, so any of them may have been at fault
            wrong |= {f"{name}, triton" for name in ("continuants", "shared_attention")}
        wrong |= {form.rpartition(", ")[0] for form in line.get("wrong", {})}
    return wrong


def backend_key(lines: Lines) -> str:
    """The backend of models: without Triton if one of its kernels is wrong."""
    return f"--cf_backend={'torch' if any('triton' in form for form in wrong_forms(lines)) else 'auto'}"


STAGES = ("ceilings", "correct", "kernels", "small", "xl", "llama", "decode", "train", "profile")
TITLES = {
    "ceilings": "Upper limits",
    "correct": "Correctness of kernels",
    "kernels": "Kernels",
    "small": "Training step at GPT-2 small's size",
    "xl": "Training step at GPT2-xl's size",
    "llama": "Training step at Llama-3.2-3B's size",
    "decode": "Decoding at GPT2-xl's size",
    "train": "train.py, killed and resumed",
    "profile": "Where a training step spends its time",
}
