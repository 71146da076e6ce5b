"""One process per model or kernel, so that each has its own memory; the processes take turns.

The parent requests one repetition of one section after the other and goes round the workers. So a machine
that slows down affects all of them alike. A waiting worker is idle.
"""

import gc
import math
import multiprocessing
import re
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from training.hardware import give_back_freed_memory, keep_freed_memory


class BenchError(RuntimeError):
    """Something cannot be measured; the message says what and why."""


class Worker:
    """The parent's handle of a process.

    `make(*arguments) -> {section: function}` runs in the process, so it must be a function at module level.
    A section's function does one iteration.
    """

    def __init__(self, name: str, device: torch.device, threads: int | None, make: Callable, *arguments):
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, device, threads, make, arguments))
        self.process.start()
        other.close()

    def ask(self, *request):
        """Sends a request and returns the answer. Raises BenchError if the process fails or dies."""
        try:
            self.pipe.send(request)
            failed, answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            raise BenchError(
                f"{self.name}: the process ended with exit code {self.process.exitcode}"
                + (": out of memory, perhaps" if self.process.exitcode == -9 else "")
            ) from None
        if failed:
            raise BenchError(f"{self.name}: {answer}")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe, device, threads, make, arguments):
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory(device)  # as train.py does
    sections = None
    try:
        while True:
            request, *rest = pipe.recv()
            try:
                if request == "sections":
                    sections = make(*arguments)
                    answer = list(sections)
                elif request == "time":
                    answer = seconds(sections[rest[0]], rest[1], device)
                elif request == "profile":
                    answer = profile(sections[rest[0]], rest[1], device)
                else:
                    answer = peak_bytes(sections[rest[0]], device)
                pipe.send((False, answer))
            except torch.OutOfMemoryError as error:
                pipe.send((True, f"out of memory ({str(error).splitlines()[0]})"))
            except Exception as error:  # whatever a model raises is reported to the parent
                if asked := re.search(r"can't allocate memory: you tried to allocate (\d+)", str(error)):
                    pipe.send((True, f"out of memory ({int(asked[1]) / 1e9:,.1f} GB more were asked for)"))
                    continue
                where = traceback.extract_tb(error.__traceback__)[-1]
                pipe.send(
                    (True, f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})")
                )
    except (EOFError, KeyboardInterrupt):
        return


def synchronize(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(function: Callable, at_least: float, device: torch.device) -> float:
    """Seconds of one iteration, averaged over iterations that take at least `at_least` seconds together."""
    if device.type == "cuda":
        function()  # allocates again the memory that was given back
    synchronize(device)
    count, start = 0, time.perf_counter()
    batch = 1
    while True:
        for _ in range(batch):
            function()
        synchronize(device)
        count += batch
        passed = time.perf_counter() - start
        if passed >= at_least:
            if device.type == "cuda":
                torch.cuda.empty_cache()  # for the other processes
            return passed / count
        # synchronising with a GPU takes time of its own: do so seldom
        batch = max(1, min(1000, math.ceil(count * (at_least - passed) / passed)))


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


def profile(function: Callable, path: str, device: torch.device) -> str:
    """Writes a trace of one iteration for Perfetto, and returns a table of its ten costliest operations."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        function()
        synchronize(device)
    profiler.export_chrome_trace(path)
    key = f"self_{device.type}_time_total"
    return profiler.key_averages().table(sort_by=key, row_limit=10, max_name_column_width=60)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """(first quartile, median, third quartile)"""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
