"""What decoding keeps of the past: preallocated tensors that are written in place.

A token mixer's `new_cache(batch, length, device, dtype)` is a tuple of tensors [B, .., length, width] with
a row for each position from 0 on, the same for all sequences of a batch, and behind them, where the last
token matters by itself, of tensors [B, 1, width] for it alone. The mixer's `decode` takes it back

- as it runs, without a compiler: narrowed to the rows in use, so that a step costs what it looks at;
- compiled: whole. Positions are tensors and shapes never change, so that one graph serves every step.
"""

import torch
from torch.nn import functional as F


def in_use(cache, end):
    """Views of the first `end` rows of each tensor of a mixer's cache, and of the one of the last token."""
    return tuple(held.narrow(-2, 0, min(end, held.shape[-2])) for held in cache)


def update_cache(held, new, pos):
    """Writes the rows of new tokens, and returns all that the newest of them may see.

    held: [.., rows, width], changed in place, its last row that of the newest token unless compiled;
    new: [.., T, width]; pos: [T] int64, ascending
    -> [.., rows, width] in held's type: zeros, whatever was there before, in rows after the last of pos.
    Raises IndexError (on CUDA: an assertion on the device) where a position is not below rows.
    """
    held.index_copy_(-2, pos, new.to(held.dtype))
    if not torch.compiler.is_compiling():
        return held
    # selected, not multiplied: 0 * NaN would let through what an allocation happened to hold
    return torch.where(causal_mask(pos[-1:], held.shape[-2]).mT, held, 0)


def of_token_before(new, pos=None, last=None):
    """new: [B, T, width], a row for each token -> the same with that of the token before, 0 for the first.

    last: [B, 1, width] of a cache, what it was for the token before these, which stand at pos ([T] int64);
    changed in place to that of the newest.
    """
    if last is None:
        return F.pad(new[:, :-1], (0, 0, 1, 0))
    # selected, not multiplied, as in `update_cache`
    before = torch.where(pos[:1] > 0, last.to(new.dtype), 0)
    last.copy_(new[:, -1:])
    return torch.cat([before, new[:, :-1]], dim=1)


def causal_mask(pos, rows):
    """pos: [T] int64 -> [T, rows] bool: is a row of the cache at or before this position?"""
    return torch.arange(rows, device=pos.device) <= pos[:, None]


def products(q, k):
    """q: [.., T, D], k: [.., rows, D] -> q k^T: [.., T, rows]; for few rows of q, in at least float32
    where compiled.

    There the compiler fuses product, sum and the selection in `update_cache`, and reads the cache once;
    before a matrix product it would write the selection to memory.
    """
    if not torch.compiler.is_compiling() or q.shape[-2] > MOST_ROWS:
        return q @ k.mT
    return (q.unsqueeze(-2).to(torch.promote_types(q.dtype, torch.float32)) * k.unsqueeze(-3)).sum(-1)


def weighted_sum(weights, v):
    """weights: [.., T, rows], v: [.., rows, width] -> weights v: [.., T, width]; see `products`."""
    if not torch.compiler.is_compiling() or weights.shape[-2] > MOST_ROWS:
        return weights.to(v.dtype) @ v
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


MOST_ROWS = 16  # of a step: the heads that share k and v; more are better off with matrix units
