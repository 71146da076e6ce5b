"""Seconds of a training token of every model of a study, from a short measurement before it starts.

The same measurement serves the estimate of the study's hours and the time multipliers. The times of the
runs themselves would not do: runs that share a machine slow each other down, each at its own moment.
"""

import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager

import torch
from tqdm import tqdm

from ablation.plan import PlanError
from benchmarks import training_step
from benchmarks.timing import seconds
from models.architecture import ModelConfig
from training import cuda_graph
from training.config import TrainConfig
from training.hardware import choose_device, choose_dtype

ROUNDS = 7  # through all models, of which the median counts
AT_LEAST = 0.2  # seconds of a measurement
CONTEXT = 2**30  # bytes of a GPU that a process takes for its context, libraries and evaluations

Models = dict[tuple[str, str], tuple[TrainConfig, ModelConfig]]  # configs by family and size


def measure(models: Models, parallel: int | None) -> tuple[dict[tuple[str, str], list[float]], int]:
    """{(family, size): seconds of a token, of seven measurements, whose median counts}, and the most bytes
    of a GPU's memory that a step takes; 0 on a CPU.

    Each is taken after one step that allocates memory. They are taken in rounds
    through all models, so that a machine whose speed drifts slows all of them alike; compiled models are
    measured one after the other, because each would be compiled again in every round. With `parallel`
    runs on a CPU, each has its share of the threads, but the others are not there to slow it down. The
    optimizer is AdamW, whatever the recipe's. Micro-batches are measured once and multiplied. Where more
    runs than one will share a GPU, so many models are compiled at a time before the first is measured, on
    each core one where their number is open (None).
    Raises PlanError where a model does not fit into the GPU's memory.
    """
    first, _ = next(iter(models.values()))
    rounds, repetitions = (1, ROUNDS) if first.compile else (ROUNDS, 1)
    found: dict[tuple[str, str], list[float]] = {name: [] for name in models}
    on_gpu, most = choose_device(first.device).type == "cuda", 0
    parallel = parallel or cores()
    with threads(parallel):
        if on_gpu and parallel > torch.cuda.device_count():
            compile_side_by_side(models, parallel)
        order = [*models.items()] * rounds
        for name, (config, model) in tqdm(order, desc="measuring steps", unit="measurement", delay=2):
            try:
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats()
                found[name] += of_model(config, model, repetitions)
                if on_gpu:
                    most = max(most, torch.cuda.max_memory_reserved())
            except torch.OutOfMemoryError:
                raise PlanError(
                    f"{' at '.join(name)} does not fit into the GPU's memory with "
                    f"batch_size={config.batch_size}: take a smaller --batch_size, and as many more "
                    "--gradient_accumulation_steps"
                ) from None
            finally:
                torch.cuda.empty_cache()  # the runs need it; does nothing without a GPU
    return found, most


def side_by_side(step: int) -> int:
    """How many runs train at the same time on the GPUs, each of which takes `step` bytes and CONTEXT.

    As many as fit into nine tenths of the free memory, no more than there are cores for, and one at least.
    """
    gpus = torch.cuda.device_count()
    free, _ = torch.cuda.mem_get_info()
    return gpus * max(1, min(int(0.9 * free) // (step + CONTEXT), (cores() - 1) // gpus))


def cores() -> int:
    return os.cpu_count() or 1


def spread(found: dict[tuple[str, str], list[float]], names: dict[str, str]) -> str:
    """How far the measurements of one model lie apart, for the screen. names: what to call the families."""
    spreads = {}
    for name, times in found.items():
        low, _, high = statistics.quantiles(times, n=4)
        spreads[name] = (high - low) / statistics.median(times)
    worst = max(spreads, key=spreads.get)
    usual = statistics.median(spreads.values())
    return (
        f"the middle half of {ROUNDS} measurements of a step spreads by {usual:.0%}, and by up to "
        f"{spreads[worst]:.0%} ({names.get(worst[0], worst[0])} at {worst[1]})"
    )


def compile_side_by_side(models: Models, processes: int):
    """Fills the compiler's cache, which all processes share. What fails is said when it is measured."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(models)), context) as pool:
        running = [pool.submit(of_model, *configs, 1) for configs in models.values()]
        for _ in tqdm(as_completed(running), "compiling", len(models), unit="model", delay=2):
            pass


def of_model(config: TrainConfig, model: ModelConfig, repetitions: int) -> list[float]:
    """Seconds of a training token of one model, once for each repetition."""
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    options = training_step.StepOptions(
        config.batch_size,
        dtype,
        config.compile,
        config.activation_checkpointing,
        cuda_graph=config.cuda_graph and cuda_graph.possible(config, device),
    )
    parts = training_step.sections(model, options, device)
    micro_batches = config.gradient_accumulation_steps

    def times(part: str) -> list[float]:
        parts[part]()
        return [seconds(parts[part], AT_LEAST, device) for _ in range(repetitions)]

    whole = times("whole")
    updates = times("optimizer") if micro_batches > 1 else [0.0] * repetitions
    tokens = config.batch_size * micro_batches * config.block_size
    return [
        (micro_batches * max(0.0, step - update) + update) / tokens
        for step, update in zip(whole, updates, strict=True)
    ]


@contextmanager
def threads(parallel: int) -> Iterator[None]:
    """The number of threads that each of `parallel` runs will have, as in ablation/execution.py."""
    before = torch.get_num_threads()
    if parallel > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // parallel))
    try:
        yield
    finally:
        torch.set_num_threads(before)
