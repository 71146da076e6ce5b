"""Seconds, memory and profile of one function on one device.

On a CPU, the host's clock counts. On a GPU, CUDA events count, and a kernel is timed as a replayed CUDA
graph of many calls, each on tensors of its own: so neither Python nor the cache takes part.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import torch

from reports.plural import counted
from training.hardware import give_back_freed_memory

COLD_BYTES = 2**31  # tensors of the calls in one graph: many times what a GPU's cache holds
MOST_CALLS = 256  # in one graph, for tensors so small that they are cached anyway


@dataclass
class Call:
    """A function of a list of tensors, and these tensors. On a GPU, timing repeats it on copies of them."""

    function: Callable[[list[torch.Tensor]], object]
    inputs: list[torch.Tensor]

    def __call__(self):
        return self.function(self.inputs)


def synchronize(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    function: Callable, repetitions: int, at_least: float, device: torch.device
) -> Generator[None, None, tuple[list[float], str]]:
    """Yields before each repetition, so that several processes can take turns; returns (seconds of one
    iteration, once for each repetition; how they were measured)

    Each repetition averages over iterations that take at least `at_least` seconds together. A function
    that cannot be captured as a CUDA graph is timed by events, and the second result says so.
    """
    calls, found, method = 1, [], "CUDA events" if device.type == "cuda" else "host clock"
    if device.type == "cuda" and isinstance(function, Call):
        try:
            function, calls = captured(function)
            method = f"CUDA graph of {counted(calls, 'call')}"
        except RuntimeError as error:
            synchronize(device)
            method += f", no graph ({str(error).splitlines()[0]})"
    if device.type == "cuda":
        function()  # allocates again the memory that was given back
    for _ in range(repetitions):
        yield
        found.append(_average(function, at_least, device) / calls)
    del function
    if device.type == "cuda":
        torch.cuda.empty_cache()  # for the other processes
    return found, method


def result_of(steps: Generator):
    """What a generator returns, without turns in between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def seconds(function: Callable, at_least: float, device: torch.device) -> float:
    """Seconds of one iteration: one repetition of `measure`."""
    return result_of(measure(function, 1, at_least, device))[0][0]


def captured(call: Call) -> tuple[Callable, int]:
    """(function that replays a CUDA graph, calls in this graph)

    The calls go through as many copies of the tensors as COLD_BYTES hold, each with gradients of its own.
    Raises RuntimeError if the call does what no graph can, such as waiting for the GPU.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in call.inputs)
    count = max(1, min(MOST_CALLS, math.ceil(COLD_BYTES / size)))
    copies = [call.inputs]
    for _ in range(count - 1):
        copies.append([t.detach().clone().requires_grad_(t.requires_grad) for t in call.inputs])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is allocated or compiled once must not be captured
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for copy in copies:
            call.function(copy)

    def replay():
        graph.replay()
        return copies  # held for as long as the graph reads them

    return replay, count


def _stopwatch(device: torch.device) -> Callable[[], float]:
    """A function that waits for the device and returns the seconds since now."""
    if device.type != "cuda":
        start = time.perf_counter()
        return lambda: time.perf_counter() - start
    first = torch.cuda.Event(enable_timing=True)
    first.record()

    def passed():
        last = torch.cuda.Event(enable_timing=True)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    return passed


def _average(function: Callable, at_least: float, device: torch.device) -> float:
    synchronize(device)
    count, batch, passed = 0, 1, _stopwatch(device)
    while True:
        for _ in range(batch):
            function()
        count += batch
        so_far = passed()
        if so_far >= at_least:
            return so_far / count
        # waiting for a GPU takes time of its own: do so seldom
        batch = max(1, min(1000, math.ceil(count * (at_least - so_far) / max(so_far, 1e-9))))


def peak_bytes(function: Callable, device: torch.device) -> int | None:
    """Peak memory of the process in bytes during one iteration, on the GPU if there is one.

    None if the system does not tell.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    give_back_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        function()
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def profiled(function: Callable, device: torch.device) -> torch.profiler.profile:
    """A profile of one iteration."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        function()
        synchronize(device)
    return profiler


def costliest(
    function: Callable, device: torch.device, rows: int, trace: str = ""
) -> tuple[list[dict], float]:
    """(the kernels, or on a CPU the operations, that take longest in one iteration; microseconds of all)

    Each is a dict of name (shortened), calls and microseconds. `rows` are listed. trace: a new file.
    """
    profiler = profiled(function, device)
    if trace:
        profiler.export_chrome_trace(trace)
    wanted = torch.autograd.DeviceType.CUDA if device.type == "cuda" else torch.autograd.DeviceType.CPU
    key = f"self_{'device' if device.type == 'cuda' else 'cpu'}_time_total"
    found = [
        {"name": event.key[:80], "calls": event.count, "microseconds": round(getattr(event, key), 1)}
        for event in profiler.key_averages()
        if event.device_type == wanted and not event.is_user_annotation  # which spans other events
    ]
    found.sort(key=lambda row: -row["microseconds"])
    return found[:rows], sum(row["microseconds"] for row in found)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """(first quartile, median, third quartile)"""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
