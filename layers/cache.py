"""The cache of decoding: preallocated tensors that are written in place.

A token mixer's `new_cache(batch, length, device, dtype)` returns a tuple of tensors [B, .., length, width]
with one row per position from 0 on. Positions are the same for all sequences of a batch. A mixer that needs
the last token by itself has further tensors [B, 1, width] at the end of the tuple. One with a state of
constant size says with `cache_rows` how many tensors, from the first on, have rows; the others have any
shape [B, ..]. A text begins at position 0: what a state holds then is of another text. The mixer's `decode`
receives this tuple:

- without a compiler, narrowed to the rows in use, so that the cost of a step grows with these rows only;
- compiled, with all rows that it has room for (`models/cache.py`). Positions are tensors, so that one graph
  serves every step.
"""

import torch
from torch.nn import functional as F


def in_use(cache, end, rows=None):
    """Views of the first `end` rows of the first `rows` tensors of a cache, None: of all. Tensors of the
    last token and a state stay whole.
    """
    narrowed = (held.narrow(-2, 0, min(end, held.shape[-2])) for held in cache[:rows])
    return (*narrowed, *(cache[rows:] if rows is not None else ()))


def update_cache(held, new, pos):
    """Writes the rows of new tokens, and returns held.

    held: [.., rows, width], changed in place. Without a compiler, its last row must be that of the newest
    token; rows after it hold finite numbers, which a mask leaves out. new: [.., T, width]; pos: [T] int64,
    ascending. Returns [.., rows, width] in held's dtype.
    Raises IndexError (on CUDA: a device-side assertion) if a position is not below rows.
    """
    return held.index_copy_(-2, pos, new.to(held.dtype))


def begins_text(rows, pos):
    """Whether these tokens, several, are all that the cache holds: then the forward pass computes them."""
    return rows.shape[-2] == len(pos) > 1


def of_token_before(new, pos=None, last=None):
    """Shifts rows by one token: each token gets the row of the previous token, the first one gets 0.

    new: [B, T, width], one row per token -> [B, T, width].
    last: in decoding, the cache's row of the token before these: [B, 1, width]. It is overwritten with the
    row of the newest token. pos: [T] int64, the positions of the tokens, needed with last only.
    """
    if last is None:
        return F.pad(new[:, :-1], (0, 0, 1, 0))
    # selected, not multiplied by 0: before the first token it may hold anything
    before = torch.where(pos[:1] > 0, last.to(new.dtype), 0)
    last.copy_(new[:, -1:])
    return torch.cat([before, new[:, :-1]], dim=1)


def causal_mask(pos, rows):
    """pos: [T] int64 -> [T, rows] bool: whether a row of the cache is at or before the position."""
    return torch.arange(rows, device=pos.device) <= pos[:, None]


def key_mask(lengths, rows):
    """lengths: [B] int64 -> [B, 1, 1, rows] bool: whether a row is one of the first `lengths` rows."""
    return (torch.arange(rows, device=lengths.device) < lengths[:, None])[:, None, None]


def products(q, k):
    """q k^T: [.., T, D], [.., rows, D] -> [.., T, rows].

    Compiled and for few rows of q, it is a sum of products in at least float32, which reads the cache once
    and fuses with what follows.
    """
    if not torch.compiler.is_compiling() or q.shape[-2] > MOST_ROWS:
        return q @ k.mT
    return (q.unsqueeze(-2).to(torch.promote_types(q.dtype, torch.float32)) * k.unsqueeze(-3)).sum(-1)


def weighted_sum(weights, v):
    """weights v: [.., T, rows], [.., rows, width] -> [.., T, width], computed as in `products`."""
    if not torch.compiler.is_compiling() or weights.shape[-2] > MOST_ROWS:
        return weights.to(v.dtype) @ v
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


# rows of a step, such as the heads that share k and v; with more rows, matrix products are faster
MOST_ROWS = 16
