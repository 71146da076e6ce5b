"""Products of a weight and the rows of a step of decoding on a GPU, with all that stands around them.

    out = activation(W h + b) + residual,    h = norm(x + what is added to x)

One kernel is one pass over W: at 1 to 8 sequences nothing else takes time. So each program makes the whole
h again, from a few kilobytes that lie in the cache, and what a product is followed by is done on its rows.
Sums are float32 and weights stay in their dtype. Weights are read before the kernel waits for the kernel
before it (programmatic dependent launch, from compute capability 9.0 on).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.backend import INTERPRETED, on_its_device
from kernels.continued_fraction_triton import FAST_FLOOR, _clamped_reciprocal, _softplus

WIDEST = 16_384  # numbers of h in a program's registers
MOST_ROWS = 8  # sequences


class Ladders(NamedTuple):
    """What makes fractions z: [B, L] of partial denominators a.

    a: [B, parts d L], a view of rows of any stride; the parts are added. low, high: [L] float32, between
    which z is clipped where low <= high, or None. constant: the floor if positive, else eps.
    """

    a: torch.Tensor | None
    depth: int
    count: int
    positive: bool
    constant: float
    parts: int = 1
    low: torch.Tensor | None = None
    high: torch.Tensor | None = None


@dataclass
class Rows:
    """x: [B, K] float32, and what is still to be added to it, as `added` says:

    none
    parts: more [S, B, K] float32, summed over S
    ladders: more [B, K] (a view of rows of any stride) + V z, V: [L, K] transposed
    heads: x is not read; more [S, B, K] float32 and stats [S, B, heads, 2] are those of `split_attention`
    """

    x: torch.Tensor
    added: str = "none"
    more: torch.Tensor | None = None
    ladders: Ladders | None = None
    V: torch.Tensor | None = None
    stats: torch.Tensor | None = None


class Written(NamedTuple):
    """Where the last outputs go: row `filled` ([] int64) of caches [B, heads, room, D] each."""

    caches: tuple[torch.Tensor, ...]
    filled: torch.Tensor


class Launch(NamedTuple):
    rows: int  # of W in a program
    warps: int


def launch_of(width: int, itemsize: int) -> Launch:
    """Up to 4 rows of W, which fit into registers beside h: a thread has 128 bytes of them."""
    block = triton.next_power_of_2(width)
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
    most = 64 if INTERPRETED else 4  # the interpreter's time is that of the programs
    return Launch(max(1, min(most, 128 * 32 * warps // (block * itemsize))), warps)


@triton.jit
def _fractions(
    a_ptr, low_ptr, high_ptr, constant,
    D: tl.constexpr, L: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, POSITIVE: tl.constexpr,
    FAST: tl.constexpr, CLIP: tl.constexpr,
):  # fmt: skip
    """a: [PARTS, D, L] -> z: [PADDED], zeros from L on"""
    ladder = tl.arange(0, PADDED)
    here = ladder < L
    previous, current = tl.zeros((PADDED,), tl.float32), tl.full((PADDED,), 1.0, tl.float32)
    for k in tl.static_range(D):
        a = tl.load(a_ptr + (D - 1 - k) * L + ladder, here, other=1.0)
        for part in tl.static_range(1, PARTS):
            a += tl.load(a_ptr + (part * D + D - 1 - k) * L + ladder, here, other=0.0)
        if POSITIVE:
            a = _softplus(a, FAST)[0] + constant
        following = a * current + previous
        previous, current = current, following
    z = previous * (1.0 / current if POSITIVE else _clamped_reciprocal(current, constant))
    if CLIP:
        low = tl.load(low_ptr + ladder, here, other=0.0)
        high = tl.load(high_ptr + ladder, here, other=0.0)
        clipped = tl.minimum(tl.maximum(z, low), high)
        z = tl.where((low <= high) & (z == z), clipped, z)
    return tl.where(here, z, 0.0)


@triton.jit
def _plus_ladders(x, V_ptr, row, mask, z, N, L: tl.constexpr, PADDED: tl.constexpr):
    """x + V z in some rows; V: [L, N] transposed. One ladder after the other takes the fewest registers."""
    ladder = tl.arange(0, PADDED)
    for j in tl.static_range(L):
        z_j = tl.sum(tl.where(ladder == j, z, 0.0), 0)
        x += tl.load(V_ptr + j * N + row, mask, other=0.0).to(tl.float32) * z_j
    return x


@triton.jit
def _input(
    x_ptr, more_ptr, V_ptr, z, b, batch, more_stride, k, mask,
    K: tl.constexpr, ADDED: tl.constexpr, SPLITS: tl.constexpr, L: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Columns k of row b of `Rows`."""
    x = tl.load(x_ptr + b * K + k, mask, other=0.0)
    if ADDED == "parts":
        for s in tl.static_range(SPLITS):
            x += tl.load(more_ptr + (s * batch + b) * K + k, mask, other=0.0)
    if ADDED == "ladders":
        x += tl.load(more_ptr + b * more_stride + k, mask, other=0.0)
        x = _plus_ladders(x, V_ptr, k, mask, z, K, L, PADDED)
    return x


@triton.jit
def _joined_heads(
    more_ptr, stats_ptr, b, batch,
    K: tl.constexpr, HEAD: tl.constexpr, SPLITS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The output of `split_attention` for row b: [HEADS WIDTH], heads padded to WIDTH, to HEADS of them"""
    head, d = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    there = head < K // HEAD
    of_head = stats_ptr + (b * (K // HEAD) + head) * 2
    step = batch * (K // HEAD) * 2
    largest = tl.load(of_head, there, other=0.0)
    for s in tl.static_range(1, SPLITS):
        largest = tl.maximum(largest, tl.load(of_head + s * step, there, other=0.0))
    out, total = tl.zeros((HEADS, WIDTH), tl.float32), tl.zeros((HEADS,), tl.float32)
    inside = there[:, None] & (d < HEAD)[None, :]
    for s in tl.static_range(SPLITS):
        share = tl.exp2(tl.load(of_head + s * step, there, other=0.0) - largest)
        total += share * tl.load(of_head + s * step + 1, there, other=1.0)
        place = (s * batch + b) * K + head[:, None] * HEAD + d[None, :]
        out += share[:, None] * tl.load(more_ptr + place, inside, other=0.0)
    return tl.reshape(out / total[:, None], (HEADS * WIDTH,))


@triton.jit
def _activated(y, own, ACTIVATION: tl.constexpr):
    if ACTIVATION == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    elif ACTIVATION == "relu":
        y = tl.maximum(y, 0.0)
    elif ACTIVATION == "relu2":
        y = tl.maximum(y, 0.0)
        y = y * y
    elif ACTIVATION == "gate":
        y = tl.sigmoid(y) * own
    return y


@triton.jit
def gemv_kernel(
    x_ptr, more_ptr, stats_ptr, a_ptr, low_ptr, high_ptr, V_ptr, norm_ptr, norm_bias_ptr, W_ptr, bias_ptr,
    residual_ptr, out_ptr, x_out_ptr, h_out_ptr, first_ptr, second_ptr, filled_ptr,
    batch, N, more_stride, a_stride, room, eps, constant,
    K: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    ADDED: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, L: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, POSITIVE: tl.constexpr,
    FAST: tl.constexpr, CLIP: tl.constexpr,
    NORM: tl.constexpr, NORM_BIAS: tl.constexpr, KEEP_X: tl.constexpr, KEEP_H: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr,
    OUT: tl.constexpr, WRITTEN: tl.constexpr, WIDTH: tl.constexpr, SCORES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS rows of W for all sequences. OUT: width of out; further rows are those of caches, of heads
    WRITTEN wide and WIDTH in all. SCORES: only rows up to `filled` are read, and V z, V: [L, N], is added.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    mask = k < K
    if BLOCK // HEADS != HEAD and ADDED == "heads":  # heads are padded
        width: tl.constexpr = BLOCK // HEADS
        k, mask = k // width * HEAD + k % width, (k % width < HEAD) & (k // width < K // HEAD)
    inside = row < N
    if SCORES:  # which rows are needed is known after the wait only
        if PDL:
            gdc_wait()
        inside = inside & (row <= tl.load(filled_ptr))
    w = tl.load(
        W_ptr + row[:, None].to(tl.int64) * K + k[None, :], inside[:, None] & mask[None, :], other=0.0
    )
    if PDL:
        if not SCORES:
            gdc_wait()
        gdc_launch_dependents()
    for b in range(batch):
        z = tl.zeros((PADDED,), tl.float32)
        if D > 0:
            z = _fractions(
                a_ptr + b * a_stride, low_ptr, high_ptr, constant, D, L, PADDED, PARTS, POSITIVE, FAST, CLIP
            )
        if ADDED == "heads":
            h = _joined_heads(more_ptr, stats_ptr, b, batch, K, HEAD, SPLITS, HEADS, BLOCK // HEADS)
        else:
            h = _input(
                x_ptr, more_ptr, V_ptr, z, b, batch, more_stride, k, mask, K, ADDED, SPLITS, L, PADDED
            )
        if KEEP_X and tl.program_id(0) == 0:
            tl.store(x_out_ptr + b * K + k, h, mask)
        own = tl.zeros((ROWS,), tl.float32)
        if ACTIVATION == "gate":
            own = _input(
                x_ptr, more_ptr, V_ptr, z, b, batch, more_stride, row, inside, K, ADDED, SPLITS, L, PADDED
            )
        if NORM != "none":
            if NORM == "layernorm":
                mean = tl.sum(h, 0) / K
                h = tl.where(mask, h - mean, 0.0)
                own = own - mean
            scale = tl.rsqrt(tl.sum(h * h, 0) / K + eps)
            h = h * scale * tl.load(norm_ptr + k, mask, other=0.0).to(tl.float32)
            if ACTIVATION == "gate":
                own = own * scale * tl.load(norm_ptr + row, inside, other=0.0).to(tl.float32)
            if NORM_BIAS:
                h += tl.load(norm_bias_ptr + k, mask, other=0.0).to(tl.float32)
                if ACTIVATION == "gate":
                    own += tl.load(norm_bias_ptr + row, inside, other=0.0).to(tl.float32)
        if KEEP_H and tl.program_id(0) == 0:
            tl.store(h_out_ptr + b * K + k, h, mask)
        y = tl.sum(w.to(tl.float32) * h[None, :], 1)
        if SCORES:
            y = _plus_ladders(y, V_ptr, row, inside, z, N, L, PADDED)
        if BIAS:
            y += tl.load(bias_ptr + row, inside, other=0.0).to(tl.float32)
        y = _activated(y, own, ACTIVATION)
        if RESIDUAL:
            y += tl.load(residual_ptr + b * N + row, inside, other=0.0)
        tl.store(out_ptr + b * OUT + row, y, inside & (row < OUT))
        if WRITTEN > 0:
            filled = tl.load(filled_ptr)
            column = row - OUT
            head, heads = (column % WIDTH) // WRITTEN, WIDTH // WRITTEN
            place = ((b * heads + head).to(tl.int64) * room + filled) * WRITTEN + column % WRITTEN
            y = y.to(first_ptr.dtype.element_ty)
            there = inside & (filled < room)  # the caller counts; a cache that is full stays as it is
            tl.store(first_ptr + place, y, there & (column >= 0) & (column < WIDTH))
            tl.store(second_ptr + place, y, there & (column >= WIDTH))


@on_its_device
def gemv(
    rows: Rows,
    W: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: torch.nn.Module | None = None,
    activation: str = "none",
    residual: torch.Tensor | None = None,
    keep_x: torch.Tensor | None = None,
    keep_h: torch.Tensor | None = None,
    written: Written | None = None,
    scored: tuple[Ladders, torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """W: [N, K], bias: [N] or None -> [B, N] float32, less what is written to caches.

    norm: LayerNorm or RMSNorm of x, or None. activation: none, gelu, gelu_tanh, relu, relu2, or gate,
    which is sigmoid(W h) h. residual: [B, N] float32 to add. keep_x, keep_h: [B, K] float32, filled with
    x and h.
    written: the last rows of W are those of what caches hold.
    scored: (ladders, V [L, N], filled), W and V are CAttnM's columns: V z is added, and rows after `filled`
    are neither read nor written.
    Raises ValueError for more than MOST_ROWS sequences and K above WIDEST.
    """
    (batch, K), N = rows.x.shape, len(W)
    if batch > MOST_ROWS or K > WIDEST:
        raise ValueError(f"x [{batch}, {K}] has more than {MOST_ROWS} rows or {WIDEST:,} columns")
    launch = launch_of(K, W.itemsize)
    caches, filled = written or ((), None)
    ladders, V, filled = scored or (rows.ladders, rows.V, filled)
    heads = 1 if rows.stats is None else rows.stats.shape[2]
    _, held, room, head = caches[0].shape if caches else (0, 0, 0, 0)
    out = torch.empty(batch, N - len(caches) * held * head, device=W.device)
    fractions = ladders or Ladders(None, depth=0, count=1, positive=True, constant=1.0)
    kind = {torch.nn.LayerNorm: "layernorm", torch.nn.RMSNorm: "rmsnorm"}.get(type(norm), "none")
    norm_weight, norm_bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    pointers = [
        rows.x, rows.more, rows.stats, fractions.a, fractions.low, fractions.high, V, norm_weight,
        norm_bias, W, bias, residual, out, keep_x, keep_h, caches[0] if caches else None,
        caches[-1] if caches else None, filled,
    ]  # fmt: skip
    gemv_kernel[(triton.cdiv(N, launch.rows),)](
        *(out if pointer is None else pointer for pointer in pointers),  # some address that is not read
        batch, N, *(0 if x is None else x.stride(0) for x in (rows.more, fractions.a)), room,
        getattr(norm, "eps", 0.0), fractions.constant,
        K=K, BLOCK=triton.next_power_of_2(heads) * triton.next_power_of_2(K // heads), ROWS=launch.rows,
        ADDED=rows.added, SPLITS=len(rows.more) if rows.added in ("heads", "parts") else 1,
        HEAD=K // heads, HEADS=triton.next_power_of_2(heads),
        D=fractions.depth, L=fractions.count, PADDED=triton.next_power_of_2(fractions.count),
        PARTS=fractions.parts, POSITIVE=fractions.positive, FAST=fractions.constant >= FAST_FLOOR,
        CLIP=fractions.low is not None, NORM=kind, NORM_BIAS=norm_bias is not None,
        KEEP_X=keep_x is not None, KEEP_H=keep_h is not None, BIAS=bias is not None, ACTIVATION=activation,
        RESIDUAL=residual is not None, OUT=out.shape[1], WRITTEN=head, WIDTH=max(1, held * head),
        SCORES=scored is not None, **dependent_launch(W, launch.warps),
    )  # fmt: skip
    return out


def dependent_launch(tensor: torch.Tensor, warps: int) -> dict:
    """Options of a launch that begins before the kernel before it has ended, where the GPU can do that."""
    pdl = tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] >= 9
    return {"PDL": pdl, "num_warps": warps} | ({"launch_pdl": True} if pdl else {})
