"""Attention of one token to a cache on a GPU, split over programs (Dao et al. 2023, Flash-Decoding).

Softmax attention leaves its parts unnormalised, with the largest score and the sum of each; whoever reads
them adds them up (`gemv_triton`, heads). CAttnM's scores stand in memory: each program sums them all.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.backend import on_its_device
from kernels.gemv_triton import dependent_launch

LOG2E = tl.constexpr(1.4426950408889634)
SPLITS = 8  # at 25 heads, or at 1,600 values in chunks of 64, about 200 programs for one sequence


@triton.jit
def split_attention_kernel(
    q_ptr, k_ptr, v_ptr, filled_ptr, out_ptr, stats_ptr, batch, heads, room, scale,
    GROUP: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    b, head, split = tl.program_id(0) // heads, tl.program_id(0) % heads, tl.program_id(1)
    d, row = tl.arange(0, PADDED), tl.arange(0, BLOCK)
    mask = d < D
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    length = tl.minimum((tl.load(filled_ptr) + 1).to(tl.int32), room)
    each = tl.cdiv(length, SPLITS)
    start, end = split * each, tl.minimum(split * each + each, length)
    q = tl.load(q_ptr + (b * heads + head) * D + d, mask, other=0.0) * scale
    held = (b * (heads // GROUP) + head // GROUP).to(tl.int64) * room * D
    largest, total, out = -float("inf"), 0.0, tl.zeros((PADDED,), tl.float32)
    for first in range(start, end, BLOCK):
        there = first + row < end
        place = held + (first + row)[:, None] * D + d[None, :]
        inside = there[:, None] & mask[None, :]
        k = tl.load(k_ptr + place, inside, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + place, inside, other=0.0).to(tl.float32)
        scores = tl.where(there, tl.sum(k * q[None, :], 1), -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, 0))
        weights, kept = tl.exp2(scores - larger), tl.exp2(largest - larger)
        total = total * kept + tl.sum(weights, 0)
        out = out * kept + tl.sum(weights[:, None] * v, 0)
        largest = larger
    here = (split * batch + b) * heads + head
    tl.store(out_ptr + here * D + d, out, mask)
    tl.store(stats_ptr + 2 * here, largest)
    tl.store(stats_ptr + 2 * here + 1, total)


@on_its_device
def split_attention(q, k, v, filled) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention of the token in row `filled` of its cache.

    q: [B, heads D] float32; k, v: [B, heads of keys, room, D], contiguous; filled: [] int64 -> the parts of
    the output [S, B, heads D] float32, and [S, B, heads, 2] float32, the largest score (in base 2) and the
    sum of each. A part without rows has -inf and 0.
    """
    (batch, width), (_, held, room, D) = q.shape, k.shape
    heads = width // D
    out = q.new_empty(SPLITS, batch, width)
    stats = q.new_empty(SPLITS, batch, heads, 2)
    split_attention_kernel[(batch * heads, SPLITS)](
        q, k, v, filled, out, stats, batch, heads, room, D**-0.5 * LOG2E.value,
        GROUP=heads // held, D=D, PADDED=triton.next_power_of_2(D), SPLITS=SPLITS, BLOCK=32,
        **dependent_launch(q, 4),
    )  # fmt: skip
    return out, stats


@triton.jit
def weighted_values_kernel(
    scores_ptr, v_ptr, filled_ptr, out_ptr, batch, columns, room, width,
    STRICT: tl.constexpr, SPLITS: tl.constexpr, SCORES: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    split, b = tl.program_id(1), tl.program_id(2)
    column, row = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, ROWS)
    mask, scores_ptr = column < width, scores_ptr + b * columns
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    length = tl.minimum((tl.load(filled_ptr) + (0 if STRICT else 1)).to(tl.int32), room)
    largest, total = -float("inf"), 0.0
    for first in range(0, length, SCORES):
        j = first + tl.arange(0, SCORES)
        scores = tl.load(scores_ptr + j, j < length, other=-float("inf")) * LOG2E
        larger = tl.maximum(largest, tl.max(scores, 0))
        total = total * tl.exp2(largest - larger) + tl.sum(tl.exp2(scores - larger), 0)
        largest = larger
    each = tl.cdiv(length, SPLITS)
    start, end = split * each, tl.minimum(split * each + each, length)
    out = tl.zeros((CHUNK,), tl.float32)
    for first in range(start, end, ROWS):
        there = first + row < end
        scores = tl.load(scores_ptr + first + row, there, other=-float("inf")) * LOG2E
        weights = tl.exp2(scores - largest) / total
        place = (b.to(tl.int64) * room + first + row)[:, None] * width + column[None, :]
        v = tl.load(v_ptr + place, there[:, None] & mask[None, :], other=0.0).to(tl.float32)
        out += tl.sum(weights[:, None] * v, 0)
    tl.store(out_ptr + (split * batch + b) * width + column, out, mask)


@on_its_device
def weighted_values(scores, v, filled, strict: bool) -> torch.Tensor:
    """softmax(scores) v up to row `filled` of the cache, strict: before it; of no rows 0.

    scores: [B, columns] float32; v: [B, 1, room, P], contiguous; filled: [] int64 -> [S, B, P] float32,
    parts to be added up.
    """
    (batch, columns), (_, _, room, width) = scores.shape, v.shape
    out = scores.new_empty(SPLITS, batch, width)
    weighted_values_kernel[(triton.cdiv(width, 64), SPLITS, batch)](
        scores, v, filled, out, batch, columns, room, width,
        STRICT=strict, SPLITS=SPLITS, SCORES=1024, ROWS=32, CHUNK=64, **dependent_launch(v, 4),
    )  # fmt: skip
    return out
