"""What is measured on a GPU, one function for each kind of task.

Each one runs in a process of its own and returns {item: function that returns a result, a dict of JSON
values}. The functions named warm_... compile what is measured later, so that its time does not count twice:
compiled code is in the compiler's cache, which all processes share.
"""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import decoding, forms, operators, training_step
from benchmarks.timing import costliest, measure, peak_bytes, quartiles, synchronize
from models.architecture import ModelConfig
from models.kinds import cache_bytes_per_token, flops_per_token, parameter_counts
from training import cuda_graph
from training.hardware import device_name, peak_flops

Measurements = dict[str, Callable[[], dict]]
CUDA_GRAPH = "step as a CUDA graph"


@dataclass(frozen=True)
class Timing:
    """repetitions of at least so many seconds each"""

    repetitions: int
    seconds: float

    def of(self, function: Callable, device: torch.device) -> dict:
        """{seconds: median, quartiles: low and high, method}"""
        found, method = measure(function, self.repetitions, self.seconds, device)
        low, median, high = quartiles(found)
        return {"seconds": median, "quartiles": [low, high], "method": method}


def ceilings(sizes: operators.Sizes, timing: Timing, device: torch.device) -> Measurements:
    """The bandwidth of a copy, and the rate of a large matrix product in each kind of arithmetic."""

    def copy():
        found = timing.of(operators.ceilings("float32", device, sizes)["copy"], device)
        return {**found, "bytes": sizes.copy_bytes, "bytes_per_second": sizes.copy_bytes / found["seconds"]}

    def product(dtype, tensor_float):
        torch.set_float32_matmul_precision("high" if tensor_float else "highest")
        found = timing.of(operators.ceilings(dtype, device, sizes)["matrix product"], device)
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
        found = timing.of(call, device)
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
    timing: Timing,
    checked: bool,
    device: torch.device,
) -> Measurements:
    """A training step of a model that computes the right numbers; checked: another task has seen that.

    On a GPU it is also measured with forward and backward as a CUDA graph, unless blocks are recomputed.
    """

    def measured(captured):
        these = dataclasses.replace(options, cuda_graph=captured)
        return functools.partial(_training, model, these, timing, checked, device)

    made = {"step": measured(False)}
    return made | {CUDA_GRAPH: measured(True)} if cuda_graph.possible(options, device) else made


def _training(model, options, timing, checked, device):
    gc.collect()  # what the step measured before held
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if not checked:
        training_step.gate(model, options, device)
    step = training_step.sections(model, options, device)["whole"]
    first, peak_of_first = _first(step, device), None
    if options.cuda_graph:  # its memory is allocated once
        peak_of_first = torch.cuda.max_memory_allocated(device)
    found = timing.of(step, device)
    tokens, flops = options.sequences() * model.block_size, 3 * flops_per_token(model)
    rate = tokens / found["seconds"]
    peak = peak_flops(device_name(device), options.dtype)
    return {
        "tokens_per_second": rate,
        "mfu": None if peak is None else rate * flops / peak,
        "flops_per_second": rate * flops,
        "peak_bytes": peak_of_first or peak_bytes(step, device),
        "parameters": sum(parameter_counts(model).values()),
        "flops_per_token": flops,
        "first_seconds": first,
        **found,
    }


def warm_training(
    model: ModelConfig, options: training_step.StepOptions, device: torch.device
) -> Measurements:
    """Compiles the training step of a model, for two layers: all blocks share code. Checks its numbers, and
    on a GPU those of CUDA graphs.
    """
    options = dataclasses.replace(options, cuda_graph=cuda_graph.possible(options, device))

    def first_step():
        start = time.perf_counter()
        training_step.gate(model, options, device)
        return {"compile_seconds": time.perf_counter() - start}

    return {"compile": first_step}


def decode(
    model: ModelConfig, options: decoding.DecodeOptions, timing: Timing, checked: bool, device: torch.device
) -> Measurements:
    """Each section of decoding; checked: another task has seen that its numbers are right."""
    if not checked:
        decoding.gate(model, options, device)
    made = decoding.sections(model, options, device)

    def one(section):
        function = made[section]
        first = _first(function, device)
        found = timing.of(function, device)
        return {
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
        decoding.gate(model, options, device)
        gate = time.perf_counter() - start
        for function in decoding.sections(training_step.shallow(model), options, device).values():
            _first(function, device)
        return {"compile_seconds": time.perf_counter() - start - gate, "gate_seconds": gate}

    return {"compile": every_section}


def profile(
    model: ModelConfig, options: training_step.StepOptions, rows: int, device: torch.device
) -> Measurements:
    """The kernels that take longest in one training step."""

    def step():
        function = training_step.sections(model, options, device)["whole"]
        for _ in range(3):
            _first(function, device)
        kernels, microseconds = costliest(function, device, rows)
        return {"kernels": kernels, "microseconds": microseconds}

    return {"step": step}


def _first(function, device) -> float:
    """Seconds of a first iteration, which compiles."""
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start
