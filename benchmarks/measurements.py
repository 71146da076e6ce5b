"""What is measured, one function for each kind of task.

Each one runs in a process of its own and returns {item: function that returns a result, a dict of JSON
values}; what repeats something is a generator function, which yields before each repetition. The functions
named warm_... compile what is measured later, so that its time does not count twice: compiled code is in
the compiler's cache, which all processes share.
"""

import contextlib
import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import decoding, forms, operators, training_step
from benchmarks.timing import costliest, measure, peak_bytes, quartiles, synchronize
from models.architecture import ModelConfig
from models.kinds import cache_bytes_per_token, flops_per_token, parameter_counts
from training.hardware import device_name, peak_flops

Turns = Generator[None, None, dict]
Measurements = dict[str, Callable[[], dict | Turns]]
CUDA_GRAPH = "step as a CUDA graph"


@dataclass(frozen=True)
class Timing:
    """repetitions of at least so many seconds each"""

    repetitions: int
    seconds: float

    def of(self, function: Callable, device: torch.device) -> Turns:
        """{seconds: median, quartiles: low and high, all_seconds: of each repetition, method}"""
        found, method = yield from measure(function, self.repetitions, self.seconds, device)
        low, median, high = quartiles(found)
        return {"seconds": median, "quartiles": [low, high], "all_seconds": found, "method": method}


def ceilings(sizes: operators.Sizes, timing: Timing, device: torch.device) -> Measurements:
    """The bandwidth of a copy, and the rate of a large matrix product in each kind of arithmetic."""

    def copy():
        found = yield from timing.of(operators.ceilings("float32", device, sizes)["copy"], device)
        return {**found, "bytes": sizes.copy_bytes, "bytes_per_second": sizes.copy_bytes / found["seconds"]}

    def product(dtype, tensor_float):
        torch.set_float32_matmul_precision("high" if tensor_float else "highest")
        found = yield from timing.of(operators.ceilings(dtype, device, sizes)["matrix product"], device)
        flops = sizes.gemm_flops
        return {**found, "flops": flops, "flops_per_second": flops / found["seconds"]}

    return {
        "copy": copy,
        "matrix product, bfloat16": functools.partial(product, "bfloat16", False),
        "matrix product, tf32": functools.partial(product, "float32", True),
        "matrix product, float32": functools.partial(product, "float32", False),
    }


def kernel(
    name: str, sizes: operators.Sizes, dtype: str, compile: bool, timing: Timing, device: torch.device
) -> Measurements:
    """The time of each form of a kernel that computes the right numbers."""
    case = operators.cases(device, sizes)[name]()
    made = forms.Forms(case, dtype, compile, device)

    def one(form):
        start = time.perf_counter()
        made.check(form)  # compiles
        call = made.call(form)
        call()
        synchronize(device)
        first = time.perf_counter() - start
        found = yield from timing.of(call, device)
        counts = {"flops": case.flops, "bytes": case.bytes, "limit": case.limit, "what": case.what}
        counts["same_function"] = form.rpartition(", ")[0] in case.implementations
        return {**found, **counts, "peak_bytes": peak_bytes(call, device), "first_seconds": first}

    return {form: functools.partial(one, form) for form in made.functions}


def warm_kernel(
    name: str, sizes: operators.Sizes, dtype: str, compile: bool, device: torch.device
) -> Measurements:
    """Compiles the forms of a kernel."""

    def every_form():
        made = forms.Forms(operators.cases(device, sizes)[name](), dtype, compile, device)
        failed, start = {}, time.perf_counter()
        for form in made.functions:
            try:
                made.call(form)()
            except Exception as error:  # said when it is its turn to be measured
                failed[form] = type(error).__name__
        return {"compile_seconds": time.perf_counter() - start, "failed": failed}

    return {"compile": every_form}


def training(
    model: ModelConfig,
    options: training_step.StepOptions,
    items: tuple[str, ...],
    timing: Timing,
    checked: bool,
    device: torch.device,
) -> Measurements:
    """A training step of a model that computes the right numbers, and its parts: "step", CUDA_GRAPH and
    names of `training_step.SECTIONS`; checked: another task has seen that they are right.
    """
    built = {}

    def sections(captured):
        if captured not in built:
            built.clear()  # memory of what was measured before
            gc.collect()
            these = dataclasses.replace(options, cuda_graph=captured)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            built[captured] = training_step.sections(model, these, device)
        return built[captured]

    def step(captured):
        function = sections(captured)["whole"]
        first, peak_of_first = _first(function, device), None
        if captured:  # its memory is allocated once
            peak_of_first = torch.cuda.max_memory_allocated(device)
        found = yield from timing.of(function, device)
        tokens, flops = options.sequences() * model.block_size, 3 * flops_per_token(model)
        head = 3 * 2 * model.n_embd * model.padded_vocab_size if model.model == "gpt" else flops
        rate = tokens / found["seconds"]
        peak = peak_flops(device_name(device), options.dtype)
        return {
            "tokens_per_second": rate,
            "mfu": None if peak is None else rate * flops / peak,
            "flops_per_second": rate * flops,
            "peak_bytes": peak_of_first or peak_bytes(function, device),
            "parameters": sum(parameter_counts(model).values()),
            "flops_per_token": flops,
            "flops_per_token_blocks": flops - head,
            "first_seconds": first,
            **found,
        }

    def part(name):
        function = sections(False)[name]
        _first(function, device)
        found = yield from timing.of(function, device)
        scale = training_step.in_a_step(model, options, name)
        times = {key: [scale * s for s in found[key]] for key in ("quartiles", "all_seconds")}
        return {**found, "seconds": scale * found["seconds"], **times}

    if not checked:
        training_step.gate(model, dataclasses.replace(options, cuda_graph=CUDA_GRAPH in items), device)
    steps = {"step": functools.partial(step, False), CUDA_GRAPH: functools.partial(step, True)}
    return {item: steps.get(item) or functools.partial(part, item) for item in items}


def warm_training(
    model: ModelConfig, options: training_step.StepOptions, items: tuple[str, ...], device: torch.device
) -> Measurements:
    """Compiles the training step of a model, for two layers: all blocks share code. Checks its numbers, and
    those of a CUDA graph if that is one of the items.
    """
    options = dataclasses.replace(options, cuda_graph=CUDA_GRAPH in items)

    def first_step():
        start = time.perf_counter()
        training_step.gate(model, options, device)
        return {"compile_seconds": time.perf_counter() - start}

    return {"compile": first_step}


def decode(
    model: ModelConfig, options: decoding.DecodeOptions, timing: Timing, checked: bool, device: torch.device
) -> Measurements:
    """Each section of decoding; checked: another task has seen that its numbers are right."""
    refused = {} if checked else decoding.gate(model, options, device)
    made = decoding.sections(model, options, device)

    def one(section):
        if section in refused:
            raise ValueError(refused[section])
        function = made[section]
        first = _first(function, device)
        found = yield from timing.of(function, device)
        more = {"bytes": decoding.step_bytes(model, options)} if section != "prefill" else {}
        return {
            **more,
            "microseconds": 1e6 * found["seconds"],
            "batch_size": options.batch_size,
            "cache_bytes_per_token": cache_bytes_per_token(model),
            "parameters": sum(parameter_counts(model).values()),
            "peak_bytes": peak_bytes(function, device),
            "first_seconds": first,
            **found,
        }

    return {section: functools.partial(one, section) for section in made}


def warm_decode(model: ModelConfig, options: decoding.DecodeOptions, device: torch.device) -> Measurements:
    """Compiles the sections of decoding, for two layers. Checks the model's numbers."""

    def every_section():
        start = time.perf_counter()
        refused = decoding.gate(model, options, device)
        gate = time.perf_counter() - start
        made = decoding.sections(training_step.shallow(model), options, device)
        for section in made:
            if section not in refused:
                with contextlib.suppress(Exception):  # said when it is its turn to be measured
                    _first(made[section], device)
        seconds = time.perf_counter() - start - gate
        return {"compile_seconds": seconds, "gate_seconds": gate, "refused": refused}

    return {"compile": every_section}


def profile(make: Callable, model: ModelConfig, options, rows: int, trace: str, device) -> Measurements:
    """The kernels that take longest in one step. make: `sections` of training or decoding. trace: a file to
    write, or empty.
    """

    def step():
        function = next(iter(make(model, options, device).values()))
        for _ in range(3):
            _first(function, device)
        if trace:
            Path(trace).parent.mkdir(parents=True, exist_ok=True)
        kernels, microseconds = costliest(function, device, rows, trace)
        return {"kernels": kernels, "microseconds": microseconds, **({"trace": trace} if trace else {})}

    return {"step": step}


def _first(function, device) -> float:
    """Seconds of a first iteration, which compiles."""
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start
