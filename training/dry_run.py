"""What a run would need: parameters, FLOPs, memory and hours. What it plans for GPUs allocates nothing."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from corpus import mixture
from corpus.loader import Dataset
from models.architecture import ModelConfig, model_config
from models.kinds import built, flops_per_token, parameter_counts, without_embeddings
from reports.plural import counted
from training import saffu_passes, sharding
from training.distributed import ranks_per_machine
from training.endings import TrainingError
from training.hardware import PEAK_TFLOPS, peak_flops
from training.inputs import open_source
from training.memory import CARDS, GIB, USABLE, activations, fewest, held
from training.schedule import Dyadic

GPUS_OF_A_MACHINE = 8


def show(config, here: Callable):
    """Print the plan of a run; its data set need not be prepared. config: a TrainConfig.

    here(config, model, tokens) says how long so many tokens take on this machine, or None.
    """
    folders, _ = mixture.parse(config.dataset)
    data, vocab_size = None, config.vocab_size or 50257
    if all((Path(folder) / "meta.json").is_file() for folder in folders):
        data = mixture.open_dataset(config.dataset, "train", config.block_size, config.vocab_size)
        vocab_size = config.vocab_size or data.meta["vocab_size"]
        if config.init_from:
            open_source(config, data)
        vocabulary = f"{data.meta['vocab_size']:,} (of {config.dataset})"
    elif config.vocab_size:
        vocabulary = f"{config.vocab_size:,} (vocab_size)"
    else:
        vocabulary = f"50,257 (GPT-2's: {config.dataset} is not prepared yet)"
    asked = dataclasses.replace(config, vocab_size=vocab_size)
    dtype = config.dtype
    if dtype == "auto":
        known, native = (peak_flops(config.dry_run_gpu, dtype) for dtype in ("float32", "bfloat16"))
        dtype = "float32" if known and not native else "bfloat16"
    config = dataclasses.replace(asked, dtype=dtype)
    model = model_config(config)
    if wrong := model.check():  # of the vocabulary, which was not known before
        raise TrainingError("; ".join(wrong))
    tokens = tokens_of_step(config, data) * config.max_iters
    for line in lines(config, model, vocabulary, data, lambda: here(asked, model, tokens)):
        print(line, flush=True)


def tokens_of_step(config, data: Dataset | mixture.Mixture | None) -> int:
    """Tokens that go through the model: a row of MQAR is shorter than block_size, perhaps."""
    rows = isinstance(data, Dataset) and data.unit == "rows"
    width = data.stride if rows else config.block_size
    return config.batch_size * config.gradient_accumulation_steps * width


def lines(
    config,
    model: ModelConfig,
    vocabulary: str,
    data: Dataset | mixture.Mixture | None = None,
    here: Callable[[], str | None] = lambda: None,
) -> Iterator[str]:
    """The lines that --dry_run=True prints; the memory comes last, because counting it takes a while.

    config: a TrainConfig whose dtype is resolved. data: None if not prepared. here: says how long a run
    takes on this machine; it is not asked for pairs.
    """
    counts = parameter_counts(model)
    total = sum(counts.values())
    forward = flops_per_token(model)
    tokens = tokens_of_step(config, data)
    all_tokens = tokens * config.max_iters
    body = without_embeddings(counts)
    yield f"parameters       {total:,} ({body:,} without embeddings), vocabulary {vocabulary}"
    yield f"FLOPs per token  {forward / 1e6:,.1f} M forward, {3 * forward / 1e6:,.1f} M in training"
    of_pairs, epochs = data is not None and data.of_pairs, ""
    if isinstance(data, Dataset):
        samples = config.max_iters * config.batch_size * config.gradient_accumulation_steps
        epochs = f" ({data.epochs(samples):.2f} epochs)"
    steps = counted(config.max_iters, "step")
    yield f"tokens           {tokens:,} per step, {all_tokens:,} in {steps}{epochs}"
    if of_pairs:
        yield f"{'':17}(as if each pair had {config.block_size} tokens, which is the most that it may have)"
    yield f"time             {_time(config, 3 * forward, all_tokens)}"
    if not of_pairs and (of_this_machine := here()):
        yield f"{'':17}{of_this_machine}"
    if model.model == "saffu" and (passes := saffu_passes.plan(config)):
        counting = f"{config.saffu_tokens:,} tokens" if config.saffu_tokens else "an epoch"
        yield f"{'':17}(without the start, which reads {counting} {len(passes)} times)"
    if idle := model.unused_keys():
        yield f"without effect   {', '.join(idle)}"
    if config.dyadic:
        with torch.device("meta"):
            yield Dyadic(built(model), config.dyadic_iters or config.max_iters).table(config.max_iters)
    yield from _memory(config, model)


def _memory(config, model: ModelConfig) -> Iterator[str]:
    """Memory with each kind of sharding on the planned GPUs, and the fewest GPUs of known cards."""
    with torch.device("meta"):
        shapes = built(model)
    keys = (model, config.batch_size, config.dtype)
    # without checkpointing, the backward pass needs all rounded weights, whether autocast keeps them or not
    try:
        kept = {(False, False): activations(*keys, False), (True, False): activations(*keys, True)}
        kept |= {(False, True): kept[False, False], (True, True): activations(*keys, True, keep=False)}
    except Exception as error:  # a layer of a package may raise anything where tensors have no values
        why = textwrap.shorten(f"{type(error).__name__}: {error}", 100)
        yield f"memory           not counted: a layer does not run on tensors without values ({why})"
        return
    gpus, source = sharding.gpus(config)
    group = config.sharding_ranks
    if group is None:  # those of a machine
        group = ranks_per_machine() if source == "WORLD_SIZE" else min(gpus, GPUS_OF_A_MACHINE)
    ways = {"none": 1}
    if gpus > 1 and shapes.blocks:
        ways["full"] = gpus
    if shapes.blocks and group > 1 and gpus % group == 0 and (group < gpus or config.sharding == "hybrid"):
        ways["hybrid"] = group
    label = "memory"
    for way, shards in ways.items():
        memory = held(shapes, config.optimizer, shards)
        memory["activations"] = kept[config.activation_checkpointing, way != "none"]
        kinds = ", ".join(f"{kind} {size / GIB:,.2f}" for kind, size in memory.items())
        total = f"{sum(memory.values()) / GIB:,.2f} GiB on each GPU"
        chosen = " (chosen)" if way == config.sharding and gpus > 1 else ""
        yield f"{label:17}{total} with sharding={way}{chosen}: {kinds}"
        label = ""
    yield (
        f"{'':17}(micro-batch of {config.batch_size} x {config.block_size} tokens in {config.dtype}, "
        "eager; torch.compile needs less for activations)"
    )
    if gpus == 1 and config.sharding != "none":
        yield (
            f"{'':17}(sharding={config.sharding} is not planned: one GPU holds everything, as with none; "
            "--dry_run_gpus=N plans for N)"
        )
    elif shapes.blocks and ("hybrid" in ways or gpus > group > 1):
        size = f"groups of {group} GPUs" if gpus > group else f"one group of {group} GPUs, as with full"
        how = f" is not planned: {size} do not divide {gpus}" if gpus % group else f": {size}"
        change = "" if config.sharding_ranks else "; sharding_ranks sets another number"
        yield f"{'':17}(sharding=hybrid{how}{change})"
    steps = config.gradient_accumulation_steps
    numbers = [number for number in range(1, steps + 1) if steps % number == 0]
    label = "fewest GPUs"
    for card, size in CARDS.items():
        usable = USABLE * size * GIB
        for checkpointing in (False, True) if shapes.blocks else (False,):
            none = fewest(shapes, config.optimizer, kept[checkpointing, False], [1], usable)
            full = none or fewest(shapes, config.optimizer, kept[checkpointing, True], numbers[1:], usable)
            means = " with activation_checkpointing" if checkpointing else ""
            found = f"sharding=none {none or 'does not fit'}"
            if shapes.blocks:
                found += f", full {full or 'does not fit'}"
            yield f"{label:17}{card}{means}: {found}"
            label = ""
    yield (
        f"{'':17}(numbers that divide gradient_accumulation_steps={steps}; tensors may take {USABLE:.0%} "
        "of a card's memory)"
    )


def duration(hours: float) -> str:
    if hours < 1 / 60:
        return "less than a minute"
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.2g} minutes"


def _time(config, flops_per_token: int, tokens: int) -> str:
    peak = peak_flops(config.dry_run_gpu, config.dtype)
    if peak is None:
        known = ", ".join(PEAK_TFLOPS)
        return f"unknown: no peak FLOP rate in {config.dtype} for {config.dry_run_gpu!r}; known: {known}"
    gpus = sharding.gpus(config)[0]
    rate = peak * config.dry_run_mfu * gpus / flops_per_token
    hours = tokens / rate / 3600
    return (
        f"{duration(hours)} on {gpus} x {config.dry_run_gpu} at {100 * config.dry_run_mfu:g} % MFU "
        f"of {peak / 1e12:,.0f} TFLOP/s each: {rate:,.0f} tokens/s, "
        f"{hours * gpus:,.1f} GPU hours"
    )
