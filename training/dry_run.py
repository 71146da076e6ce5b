"""What a run would take: parameters, FLOPs, memory and hours, with nothing allocated."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from model import GPT, ModelConfig, flops_per_token, parameter_counts
from training.hardware import PEAK_TFLOPS, autocast, peak_flops

GIB = 2**30


def memory_estimate(
    config: ModelConfig, batch_size: int, dtype: str, checkpointing: bool
) -> dict[str, int]:
    """Bytes on one device at the fullest moment of a step, by kind.

    weights, gradients and the two moments of AdamW are float32. activations: everything else that is alive
    at the worst moment of a forward and backward pass over batch_size sequences, as eager PyTorch would
    keep it (torch.compile needs less), counted by running the model on tensors without storage: that takes
    some ten seconds for 48 blocks.
    """
    weights = 4 * sum(parameter_counts(config).values())
    activations = _activations(config, batch_size, dtype, checkpointing)
    return {"weights": weights, "gradients": weights, "optimizer": 2 * weights, "activations": activations}


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
        with tracker:
            with autocast(tokens.device, dtype):
                loss = model(tokens, tokens)
            loss.backward()
        peak = tracker.get_tracker_snapshot("peak")[tokens.device]
    return int(peak["Total"]) - held


def describe(config, model: ModelConfig, vocabulary: str) -> str:
    """The text that --dry_run=True prints. config: a TrainConfig whose dtype is resolved."""
    counts = parameter_counts(model)
    total = sum(counts.values())
    body = total - counts["embedding"] - counts["position"]
    forward = flops_per_token(model)
    tokens = config.batch_size * config.gradient_accumulation_steps * config.block_size
    all_tokens = tokens * config.max_iters
    memory = memory_estimate(model, config.batch_size, config.dtype, config.activation_checkpointing)
    kinds = ", ".join(f"{kind} {size / GIB:,.2f}" for kind, size in memory.items())
    flops = 3 * forward * all_tokens
    lines = [
        f"parameters       {total:,} ({body:,} without embeddings), vocabulary {vocabulary}",
        f"FLOPs per token  {forward / 1e6:,.1f} M forward, {3 * forward / 1e6:,.1f} M in training",
        f"tokens           {tokens:,} per step, {all_tokens:,} in {config.max_iters:,} steps",
        f"memory           {sum(memory.values()) / GIB:,.2f} GiB on each device: {kinds}",
        f"                 (micro-batch of {config.batch_size} x {config.block_size} tokens in "
        f"{config.dtype}, eager; torch.compile needs less for activations)",
    ]
    peak = peak_flops(config.dry_run_gpu, config.dtype)
    if peak is None:
        known = ", ".join(name.replace(r"\b", "").replace("?", "") for name in PEAK_TFLOPS)
        lines.append(
            f"time             unknown: no peak FLOP rate in {config.dtype} for {config.dry_run_gpu!r}; "
            f"known: {known}"
        )
    else:
        hours = flops / (peak * config.dry_run_mfu * config.dry_run_gpus) / 3600
        rate = all_tokens / hours / 3600
        lines.append(
            f"time             {hours:,.1f} h on {config.dry_run_gpus} x {config.dry_run_gpu} at "
            f"{100 * config.dry_run_mfu:g} % MFU of {peak / 1e12:,.0f} TFLOP/s each: {rate:,.0f} tokens/s, "
            f"{hours * config.dry_run_gpus:,.0f} GPU hours"
        )
    return "\n".join(lines)
