"""Where the time and the memory of a training step go: a trace of some steps, from `--profile=N`.

out/<run>/trace.json.gz   every operator and kernel of N steps, for https://ui.perfetto.dev
          memory.pickle   on a GPU: every allocation in these steps, for https://pytorch.org/memory_viz
"""

from host.disk import why_not_written

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from config_keys import INCIDENTAL, Natural
from reports.markdown_table import table
from reports.plural import counted

TRACE, MEMORY = "trace.json.gz", "memory.pickle"
WARM_UP = (
    3  # steps before the trace: they compile, capture and allocate, and the last warms up the profiler
)
ROWS, LETTERS = 10, 60  # of the table of operators, and of a name in it
ALLOCATIONS = 100_000  # the newest that the snapshot of the memory holds
NAMES = {"ProfilerStep*": "(outside of operators: Python)"}


@dataclass
class Keys:
    MARKS = (INCIDENTAL,)

    # profiling
    #: trace so many steps, after the first three of this start, into the run folder; 0: none
    profile: Natural = 0


def mistakes(keys: Keys, left: int) -> list[str]:
    """What is wrong with profiling a run that has so many steps left."""
    needed = keys.profile + WARM_UP
    if not keys.profile or needed <= left:
        return []
    return [
        f"profile={keys.profile} traces {counted(keys.profile, 'step')} after {WARM_UP} others, and the "
        f"run has {counted(left, 'step')} to go: take a smaller --profile, or more --max_iters"
    ]


class Trace:
    """Traces `steps` steps of a run on its first rank, after WARM_UP others; nothing for 0.

    A context for the loop, which calls `step` after every step and `write` where that returns True. A run
    that ends earlier writes nothing. The losses are those of a run without a trace.
    """

    def __init__(self, steps: int, device: torch.device, folder: Path, first: bool):
        self.steps, self.folder, self.on_gpu, self.seen = steps, folder, device.type == "cuda", 0
        self.profiler = None
        if steps and first:
            activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * self.on_gpu]
            when = schedule(wait=WARM_UP - 1, warmup=1, active=steps, repeat=1)
            self.profiler = profile(activities=activities, schedule=when)

    def __enter__(self):
        if self.profiler is not None:
            if self.on_gpu:
                torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS, stacks="python")
            self.profiler.start()
        return self

    def __exit__(self, *exception):
        if self.profiler is not None:
            self.profiler.stop()
            if self.on_gpu:
                torch.cuda.memory._record_memory_history(enabled=None)

    def step(self) -> bool:
        """Whether the last step to trace is over, on every rank."""
        self.seen += 1
        if self.profiler is not None and self.seen <= WARM_UP + self.steps:
            self.profiler.step()
        return self.steps > 0 and self.seen == WARM_UP + self.steps

    def write(self) -> str:
        """Write the files -> where they are and the most expensive operators, as words. Raises OSError."""
        trace, memory = self.folder / TRACE, self.folder / MEMORY
        written = [f"{trace} (for https://ui.perfetto.dev)"]
        write_beside(trace, self.profiler.export_chrome_trace)
        if self.on_gpu:
            write_beside(memory, torch.cuda.memory._dump_snapshot)
            torch.cuda.memory._record_memory_history(enabled=None)
            written.append(f"{memory} (for https://pytorch.org/memory_viz)")
        rows = table(costs(self.profiler.key_averages(), self.steps, self.on_gpu))
        return f"profile of {counted(self.steps, 'step')}: {', '.join(written)}\n{rows}"


def costs(events, steps: int, on_gpu: bool) -> list[dict[str, str]]:
    """Rows of the ROWS most expensive operators, or on a GPU kernels, by the time in themselves.

    events: averages of torch.profiler over `steps` steps.
    """
    kind, time = (
        (DeviceType.CUDA, "self_device_time_total") if on_gpu else (DeviceType.CPU, "self_cpu_time_total")
    )
    # a user's annotation lies over kernels, whose time it would count again
    own = [e for e in events if e.device_type == kind and not (on_gpu and e.is_user_annotation)]
    own.sort(key=lambda event: getattr(event, time), reverse=True)
    total = sum(getattr(event, time) for event in own)
    return [
        {
            "kernel" if on_gpu else "operator": NAMES.get(event.key, event.key)[:LETTERS],
            "calls a step": f"{event.count / steps:,.4g}",
            "ms a step": f"{getattr(event, time) / steps / 1000:,.3f}",
            "share": f"{getattr(event, time) / total:.1%}",
        }
        for event in own[:ROWS]
    ]


def write_beside(path: Path, write: Callable[[str], None]):
    """Let `write` make a file under another name with the same ending, and rename it. Raises OSError."""
    temporary = path.with_name(f"tmp_{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write(str(temporary))
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written ({why_not_written(error)})") from error
