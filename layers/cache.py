"""What decoding keeps of the past: preallocated tensors that are written in place.

A token mixer's `new_cache(batch, length, device, dtype)` is a tuple of tensors [B, .., length, width] with
a row for each position from 0 on, the same for all sequences of a batch. Positions are tensors and shapes
never change, so that one compiled graph serves every step.
"""

import torch


def written(held, new, pos):
    """Writes the rows of new tokens, and returns all that the newest of them may see.

    held: [.., length, width], changed in place; new: [.., T, width]; pos: [T] int64, ascending
    -> [.., length, width] in held's type: zeros, whatever was there before, in rows after the last of pos.
    Raises IndexError (on CUDA: an assertion on the device) where a position is not below length.
    """
    held.index_copy_(-2, pos, new.to(held.dtype))
    # selected, not multiplied: 0 * NaN would let through what an allocation happened to hold
    return torch.where(past(pos[-1:], held.shape[-2]).mT, held, 0)


def past(pos, length):
    """pos: [T] int64 -> [T, length] bool: is a row of the cache at or before this position?"""
    return torch.arange(length, device=pos.device) <= pos[:, None]
