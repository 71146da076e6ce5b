"""What a run would need: parameters, FLOPs, memory and hours, without allocating anything."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from tqdm import tqdm

from architecture import ModelConfig, model_config
from data import mixture
from kernels.linear_cross_entropy import CHUNK_BYTES
from model import GPT, flops_per_token, parameter_counts, without_embeddings
from plural import counted
from training.hardware import PEAK_TFLOPS, autocast, peak_flops
from training.optimizer import hidden_matrices
from training.schedule import Dyadic

GIB = 2**30
FEW = 3  # the last, an inner and the first block


def memory_estimate(
    config: ModelConfig, batch_size: int, dtype: str, checkpointing: bool, optimizer: str = "adamw"
) -> dict[str, int]:
    """Bytes on one device at the fullest moment of a step, by kind.

    weights, gradients, AdamW's two moments and Muon's one are float32. activations: everything else that is
    alive at the fullest moment of a forward and backward pass over batch_size sequences. It is counted by
    running the model, or one of a few of its equal blocks, on tensors without storage, in eager PyTorch;
    torch.compile needs less.
    """
    weights = 4 * sum(parameter_counts(config).values())
    moments = 2 * weights
    if optimizer == "muon":
        with torch.device("meta"):
            moments -= 4 * sum(matrix.numel() for matrix in hidden_matrices(GPT(config)))
    activations = _activations(config, batch_size, dtype, checkpointing)
    return {"weights": weights, "gradients": weights, "optimizer": moments, "activations": activations}


def _activations(config, batch_size, dtype, checkpointing) -> int:
    """Counted with all layers, or with FEW and FEW + 1 if that gives the same number: see `_peaks`."""
    with torch.device("meta"):
        model = GPT(config)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    if config.n_layer <= FEW + 1 or not _equal(model.blocks):
        return buffers + _peaks(config, batch_size, dtype, checkpointing)[-1]
    fewer, more = (
        _peaks(dataclasses.replace(config, n_layer=n_layer), batch_size, dtype, checkpointing)
        for n_layer in (FEW, FEW + 1)
    )
    added = config.n_layer - FEW - 1
    return buffers + max(
        more[-1], *(m + added * (m - f) for f, m in zip(fewer[:-1], more[:-1], strict=True))
    )


def _peaks(config, batch_size, dtype, checkpointing) -> tuple[int, int, int]:
    """Bytes of activations, without the model's buffers, at the fullest moment up to the end of the forward
    pass, up to the backward pass of the second block, and of all.

    With equal blocks, of which the last, an inner and the first are there, each of the first two grows by
    the same amount with every further block: the fullest moment of the forward pass has all blocks behind
    it, and the one of the backward pass all blocks, or all but one, before it. (The second is the first
    where the forward pass is fuller. It remains so with more blocks, because what the backward pass needs
    is there at the end of the forward pass.) What follows does not depend on the number of blocks.
    """
    with FakeTensorMode():
        model = GPT(config)
        model.activation_checkpointing = checkpointing
        model.loss_bytes = CHUNK_BYTES["cuda"]  # the plan is for GPUs, though nothing is on one here
        held = sum(buffer.nbytes for buffer in model.buffers())
        for parameter in model.parameters():
            # as in the later micro-batches of a step
            parameter.grad = torch.zeros_like(parameter)
            held += 8 * parameter.numel()
        tokens = torch.zeros(batch_size, config.block_size, dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, *(p.grad for p in model.parameters()))
        keys = {"unit": "block", "leave": False, "mininterval": 0.5, "delay": 2}
        bar = tqdm(desc="counting memory", total=config.n_layer, **keys)

        def peak():
            return int(tracker.get_tracker_snapshot("peak")[tokens.device]["Total"]) - held

        def tick(block, *unused):
            bar.update()
            if block.layer == 1:
                peaks.append(peak())

        peaks = []
        for block in model.blocks:
            block.register_full_backward_hook(tick)
        with bar, tracker:
            with autocast(tokens.device, dtype):
                loss = model(tokens, tokens)
            peaks.append(peak())
            loss.backward()
        peaks.append(peak())
    return peaks[0], peaks[1], peaks[-1]


def _equal(blocks) -> bool:
    """Whether all blocks consist of the same modules with tensors of the same shapes."""
    return all(_structure(block) == _structure(blocks[0]) for block in blocks)


def _structure(block) -> list:
    """Names, classes, numbers and texts of a block's modules, but for its place in the model."""
    found = []
    for name, module in block.named_modules():
        values = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str)}
        if module is block:
            del values["layer"]
        found.append((name, type(module), values))
    tensors = (*block.named_parameters(), *block.named_buffers())
    return [*found, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors)]


def show(config):
    """Print the plan of a run; its data set need not be prepared. config: a TrainConfig.

    Sets config.vocab_size and config.dtype where they are open.
    """
    folders, _ = mixture.parse(config.dataset)
    if all((Path(folder) / "meta.json").is_file() for folder in folders):
        data = mixture.open_dataset(config.dataset, "train", config.block_size, config.vocab_size)
        config.vocab_size = config.vocab_size or data.meta["vocab_size"]
        vocabulary = f"{data.meta['vocab_size']:,} (of {config.dataset})"
    elif config.vocab_size:
        vocabulary = f"{config.vocab_size:,} (vocab_size)"
    else:
        config.vocab_size = 50257
        vocabulary = f"50,257 (GPT-2's: {config.dataset} is not prepared yet)"
    if config.dtype == "auto":
        known, native = (peak_flops(config.dry_run_gpu, dtype) for dtype in ("float32", "bfloat16"))
        config.dtype = "float32" if known and not native else "bfloat16"
    for line in lines(config, model_config(config), vocabulary):
        print(line, flush=True)


def lines(config, model: ModelConfig, vocabulary: str) -> Iterator[str]:
    """The lines that --dry_run=True prints; the memory comes last, because counting it takes a while.

    config: a TrainConfig whose dtype is resolved.
    """
    counts = parameter_counts(model)
    total = sum(counts.values())
    forward = flops_per_token(model)
    tokens = config.batch_size * config.gradient_accumulation_steps * config.block_size
    all_tokens = tokens * config.max_iters
    body = without_embeddings(counts)
    yield f"parameters       {total:,} ({body:,} without embeddings), vocabulary {vocabulary}"
    yield f"FLOPs per token  {forward / 1e6:,.1f} M forward, {3 * forward / 1e6:,.1f} M in training"
    yield f"tokens           {tokens:,} per step, {all_tokens:,} in {counted(config.max_iters, 'step')}"
    yield f"time             {_time(config, 3 * forward, all_tokens)}"
    if idle := model.unused_keys():
        yield f"without effect   {', '.join(idle)}"
    if config.dyadic:
        with torch.device("meta"):
            yield Dyadic(GPT(model), config.dyadic_iters or config.max_iters).table()
    memory = memory_estimate(
        model, config.batch_size, config.dtype, config.activation_checkpointing, config.optimizer
    )
    kinds = ", ".join(f"{kind} {size / GIB:,.2f}" for kind, size in memory.items())
    yield f"memory           {sum(memory.values()) / GIB:,.2f} GiB on each device: {kinds}"
    yield (
        f"                 (micro-batch of {config.batch_size} x {config.block_size} tokens in "
        f"{config.dtype}, eager; torch.compile needs less for activations)"
    )


def _time(config, flops_per_token: int, tokens: int) -> str:
    peak = peak_flops(config.dry_run_gpu, config.dtype)
    if peak is None:
        known = ", ".join(PEAK_TFLOPS)
        return f"unknown: no peak FLOP rate in {config.dtype} for {config.dry_run_gpu!r}; known: {known}"
    rate = peak * config.dry_run_mfu * config.dry_run_gpus / flops_per_token
    hours = tokens / rate / 3600
    duration = f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.2g} minutes"
    return (
        f"{duration} on {config.dry_run_gpus} x {config.dry_run_gpu} at {100 * config.dry_run_mfu:g} % MFU "
        f"of {peak / 1e12:,.0f} TFLOP/s each: {rate:,.0f} tokens/s, "
        f"{hours * config.dry_run_gpus:,.1f} GPU hours"
    )
