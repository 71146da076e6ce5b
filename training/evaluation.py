"""Evaluation on fixed windows, spread over the ranks, and statistics of the ladders."""

import contextlib
import math
import operator
from collections.abc import Iterable

import numpy as np
import torch

from corpus.pairs import batches_for
from layers.ladder import Fraction
from training.distributed import Ranks
from training.hardware import autocast
from training.sharding import is_sharded, whole


@torch.no_grad()
def evaluate(
    model,
    windows: np.ndarray,
    text_bytes: int,
    batch_size: int,
    dtype: str,
    ranks: Ranks,
    parts: dict[str, np.ndarray] | None = None,
) -> dict:
    """Score every target token of `windows` [count, T + 1] once, whatever the number of ranks.

    Tokens that are not scored are masked, as in corpus/loader.py. Returns mean loss in nats per token,
    perplexity, and bits per byte; `text_bytes` is the size of the targets' text. If the ladders are clipped
    to their ranges in evaluation, `val_loss_unclipped` is the loss without clipping. If `parts` divides the
    windows, {name: indices}, `val_loss_<name>` is the loss of each part.
    """
    model.eval()
    losses, scored = {}, int(_scored(windows).sum())
    for name, rows in (parts or {}).items():
        losses[f"val_loss_{name}"] = _loss(model, windows[rows], batch_size, dtype, ranks)
    if parts:
        sizes = [int(_scored(windows[rows]).sum()) for rows in parts.values()]
        loss = math.fsum(map(operator.mul, losses.values(), sizes)) / scored
    else:
        loss = _loss(model, windows, batch_size, dtype, ranks)
    result = {
        "val_loss": loss,
        "val_perplexity": math.exp(min(loss, 700)),
        "val_bits_per_byte": loss * scored / math.log(2) / text_bytes,
        **losses,
    }
    clipped = [module for module in model.modules() if isinstance(module, Fraction) and module.has_range]
    if clipped:
        with unclipped(clipped):
            result["val_loss_unclipped"] = _loss(model, windows, batch_size, dtype, ranks)
    return result


@contextlib.contextmanager
def unclipped(fractions: Iterable[Fraction]):
    """Switch off clipping to the ranges of training; the ranges do not change."""
    for fraction in fractions:
        fraction.clip = False
    yield
    for fraction in fractions:
        fraction.clip = True


def _loss(model, windows, batch_size, dtype, ranks) -> float:
    """Mean loss. Any number of ranks has the same batches, so that only the order of the sum differs.

    Every rank makes the same number of forward passes, because in those of a sharded model ranks wait for
    each other. A rank without a batch of its own repeats the last one, and does not count it.
    """
    device = next(model.parameters()).device
    nats = torch.zeros((), dtype=torch.float64)
    last = -(-len(windows) // batch_size) - 1
    for number in range(ranks.rank, ranks.rank + last + 1, ranks.world):
        start = min(number, last) * batch_size
        rows, count = _without_padding(windows[start : start + batch_size])
        batch = batches_for(model.config.encoder_layers)(rows)
        with autocast(device, dtype, keep=not is_sharded(model)):
            mean = model(*(one.to(device) for one in batch)).double().cpu()
        if number <= last:
            nats += mean * count
    return ranks.sum(nats).item() / int(_scored(windows).sum())


def _scored(windows: np.ndarray) -> np.ndarray:
    """Which targets of windows [count, T + 1] are scored: bool [count, T]."""
    return ~np.ma.getmaskarray(windows)[:, 1:]


def _without_padding(windows: np.ndarray) -> tuple[np.ndarray, int]:
    """(windows [count, T + 1] up to the last scored target of any, their scored targets)"""
    scored = _scored(windows)
    return windows[:, : 2 + int(np.flatnonzero(scored.any(axis=0))[-1])], int(scored.sum())


def reduce_ranges(model, ranks: Ranks):
    """Combine the ladders' ranges of all ranks; called before every evaluation and checkpoint."""
    ranks.any(False)  # a missing rank is noticed here, with a message, before the host waits for a GPU
    fractions = [m for m in model.modules() if isinstance(m, Fraction) and m.has_range]
    ranks.extremes([f.z_min for f in fractions], [f.z_max for f in fractions])


@torch.no_grad()
def ladder_statistics(model, dtype: str, tokens, targets=None, *source) -> dict[str, dict[str, float]]:
    """How near the ladders of each layer come to their poles on a batch. Makes a forward pass.

    {layer: {clamped: share of |K_d| < cf_eps, whether or not the pole clamps there, min_denominator: least
    |K_d|, z_99: 99th percentile of |z|}}. Empty for a model without ladders.
    """
    found: dict[str, dict[str, float]] = {}

    def read(name):
        def hook(fraction, inputs, z):
            size = fraction.denominator(inputs[0]).abs()
            z = z.abs().float().flatten()
            found[name.removesuffix(".fraction")] = {
                "clamped": (size < fraction.eps).float().mean().item(),
                "min_denominator": size.min().item(),
                # torch.quantile takes at most 16 million values
                "z_99": z.kthvalue(max(1, math.ceil(0.99 * z.numel()))).values.item(),
            }

        return hook

    fractions = {name: module for name, module in model.named_modules() if isinstance(module, Fraction)}
    hooks = [module.register_forward_hook(read(name)) for name, module in fractions.items()]
    if hooks:
        model.eval()
        with autocast(tokens.device, dtype, keep=not is_sharded(model)), unclipped(fractions.values()):
            model(tokens, None, *source)
    for hook in hooks:
        hook.remove()
    return found


def ladder_gradients(model) -> dict[str, torch.Tensor]:
    """{layer: norm of the gradient of its ladder weights}, scalars on the device.

    Depths without a gradient count as 0.
    """
    norms = {}
    for name, module in model.named_modules():
        if not hasattr(module, "depth_parameters"):
            continue
        gradients = [p.grad for depth in module.depth_parameters() for p in depth if p.grad is not None]
        norms[name] = whole(torch.nn.utils.get_total_norm(gradients)) if gradients else torch.zeros(())
    return norms
