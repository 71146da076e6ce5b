"""What a run would need: parameters, FLOPs, memory and hours, without allocating anything."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from tqdm import tqdm

from architecture import ModelConfig, model_config
from data import mixture
from model import GPT, flops_per_token, parameter_counts, without_embeddings
from plural import counted
from training.hardware import PEAK_TFLOPS, autocast, peak_flops
from training.optimizer import hidden_matrices
from training.schedule import Dyadic

GIB = 2**30


def memory_estimate(
    config: ModelConfig, batch_size: int, dtype: str, checkpointing: bool, optimizer: str = "adamw"
) -> dict[str, int]:
    """Bytes on one device at the fullest moment of a step, by kind.

    weights, gradients, AdamW's two moments and Muon's one are float32. activations: everything else that is
    alive at the fullest moment of a forward and backward pass over batch_size sequences. It is counted by
    running the model on tensors without storage, in eager PyTorch; torch.compile needs less.
    """
    weights = 4 * sum(parameter_counts(config).values())
    moments = 2 * weights
    if optimizer == "muon":
        with torch.device("meta"):
            moments -= 4 * sum(matrix.numel() for matrix in hidden_matrices(GPT(config)))
    activations = _activations(config, batch_size, dtype, checkpointing)
    return {"weights": weights, "gradients": weights, "optimizer": moments, "activations": activations}


def _activations(config, batch_size, dtype, checkpointing) -> int:
    with FakeTensorMode():
        model = GPT(config)
        model.activation_checkpointing = checkpointing
        held = 0
        for parameter in model.parameters():
            # as in the later micro-batches of a step
            parameter.grad = torch.zeros_like(parameter)
            held += 8 * parameter.numel()
        tokens = torch.zeros(batch_size, config.block_size, dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, *(p.grad for p in model.parameters()))
        bar = tqdm(desc="counting memory", total=config.n_layer, unit="block", leave=False, mininterval=0.5)

        def tick(*unused):
            bar.update()

        for block in model.blocks:
            block.register_full_backward_hook(tick)
        with bar, tracker:
            with autocast(tokens.device, dtype):
                loss = model(tokens, tokens)
            loss.backward()
        peak = tracker.get_tracker_snapshot("peak")[tokens.device]
    return int(peak["Total"]) - held


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
