"""Shared attention on a GPU, after FlashAttention (Dao et al. 2022) with scores that cost next to nothing.

`kernels.shared_attention` states the equations and picks this code for CUDA tensors. The values are wider
than an accumulator: a program takes a chunk of their columns, and every chunk computes the scores anew,
from y and F, R wide. The backward pass does so too, from the saved log-sum-exp: one kernel for the
gradient of v, by chunks, and one for those of y and F, in which a tile's dP is a sum over all columns.
Scores are computed in float32 whatever the types. Sums over tiles are partial results in memory that are
added up in order, so that a gradient repeats itself to the bit.

In all kernels: `length` rows t attend to columns j <= t; the rows of y, and of what has its shape or the
output's, begin at SHIFT (1: strict). Base 2 throughout: exp2 is what the hardware has.
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from kernels.backend import INTERPRETED

LOG2E = tl.constexpr(1.4426950408889634)
# scores: three products in tf32 are nearly one in float32, on tensor cores
PRECISE = tl.constexpr("tf32x3")


@triton.jit
def _dot(a, b, total, WIDE: tl.constexpr):
    """total + a @ b in b's type, or WIDE in float32: the interpreter has no products in bfloat16."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISE)
    return tl.dot(a.to(b.dtype), b, total, input_precision=PRECISE)


@triton.jit
def _load(pointer, rows, columns, stride, row_count, column_count):
    """A tile of a matrix whose columns lie side by side; zeros beyond its edges."""
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    return tl.load(pointer + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask, other=0.0)


@triton.jit
def _forward_kernel(
    y_ptr, f_ptr, v_ptr, out_ptr, lse_ptr, heads, length, width,
    y_b, y_h, y_t, f_h, f_r, v_b, v_h, v_t, out_b, out_h, out_t,
    R: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out: [B, H, SHIFT + length, width]; lse: [B H, length] float32, written by the first chunk."""
    chunks = tl.cdiv(width, CHUNK)
    tiles = tl.cdiv(length, ROWS)
    tile = tiles - 1 - tl.program_id(0) // chunks  # the longest rows first
    chunk = tl.program_id(0) % chunks
    sequence = tl.program_id(1).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    rows = tile * ROWS + tl.arange(0, ROWS)
    ranks = tl.arange(0, RANK)
    values = chunk * CHUNK + tl.arange(0, CHUNK)
    y = _load(y_ptr + batch * y_b + head * y_h + SHIFT * y_t, rows, ranks, y_t, length, R)
    y = y.to(tl.float32) * LOG2E
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, CHUNK), tl.float32)
    for start in range(0, tl.minimum((tile + 1) * ROWS, length), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        F = _load(f_ptr + head * f_h, ranks, columns, f_r, R, length).to(tl.float32)
        scores = tl.dot(y, F, input_precision=PRECISE)
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
        # finite after the first tile: every row sees column 0
        larger = tl.maximum(largest, tl.max(scores, 1))
        rescale = tl.exp2(largest - larger)
        weights = tl.exp2(scores - larger[:, None])
        total = total * rescale + tl.sum(weights, 1)
        largest = larger
        v = _load(v_ptr + batch * v_b + head * v_h, columns, values, v_t, length, width)
        out = _dot(weights, v, out * rescale[:, None], WIDE)
    mask = (rows < length)[:, None] & (values < width)[None, :]
    out_ptr += batch * out_b + head * out_h + SHIFT * out_t
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * out_t + values[None, :]
    tl.store(out_ptrs, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask)
    if chunk == 0:
        tl.store(lse_ptr + sequence * length + rows, largest + tl.log2(total), rows < length)


@triton.jit
def _delta_kernel(
    out_ptr, grad_ptr, delta_ptr, heads, length, width,
    out_b, out_h, out_t, grad_b, grad_h, grad_t,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """delta: [B H, length] float32, the sum over j of A_tj dA_tj, which is out_t . grad_t"""
    sequence = tl.program_id(1).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out_ptr += batch * out_b + head * out_h + SHIFT * out_t
    grad_ptr += batch * grad_b + head * grad_h + SHIFT * grad_t
    delta = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, CHUNK):
        values = start + tl.arange(0, CHUNK)
        out = _load(out_ptr, rows, values, out_t, length, width).to(tl.float32)
        grad = _load(grad_ptr, rows, values, grad_t, length, width).to(tl.float32)
        delta += tl.sum(out * grad, 1)
    tl.store(delta_ptr + sequence * length + rows, delta, rows < length)


@triton.jit
def _scores_backward_kernel(
    y_ptr, f_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, grad_y_ptr, grad_f_ptr, heads, length, width,
    y_b, y_h, y_t, f_h, f_r, v_b, v_h, v_t, grad_b, grad_h, grad_t,
    R: tl.constexpr, RANK: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of dS = A (dP - delta), dP = dO v^T: its shares of dS F^T and dS^T y.

    grad_y: [tiles of columns, B H, length, R], grad_f: [tiles of rows, B H, length, R], float32.
    """
    tiles = tl.cdiv(length, TILE)
    below, left = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if left <= below:
        sequence = tl.program_id(1).to(tl.int64)
        batch, head = sequence // heads, sequence % heads
        rows, columns = below * TILE + tl.arange(0, TILE), left * TILE + tl.arange(0, TILE)
        ranks = tl.arange(0, RANK)
        grad_ptr += batch * grad_b + head * grad_h + SHIFT * grad_t
        v_ptr += batch * v_b + head * v_h
        through = tl.zeros((TILE, TILE), tl.float32)
        for start in range(0, width, CHUNK):
            values = start + tl.arange(0, CHUNK)
            grad = _load(grad_ptr, rows, values, grad_t, length, width)
            v = _load(v_ptr, columns, values, v_t, length, width)
            through = _dot(grad, tl.trans(v), through, WIDE)
        y = _load(y_ptr + batch * y_b + head * y_h + SHIFT * y_t, rows, ranks, y_t, length, R)
        y = y.to(tl.float32)
        F = _load(f_ptr + head * f_h, ranks, columns, f_r, R, length).to(tl.float32)
        lse = tl.load(lse_ptr + sequence * length + rows, rows < length, other=float("inf"))
        delta = tl.load(delta_ptr + sequence * length + rows, rows < length, other=0.0)
        scores = tl.dot(y * LOG2E, F, input_precision=PRECISE) - lse[:, None]
        weights = tl.where(columns[None, :] <= rows[:, None], tl.exp2(scores), 0.0)
        through = weights * (through - delta[:, None])
        place = tl.num_programs(1) * length
        y_share = tl.dot(through, tl.trans(F), input_precision=PRECISE)
        y_ptrs = grad_y_ptr + (left * place + sequence * length + rows)[:, None] * R + ranks[None, :]
        tl.store(y_ptrs, y_share, (rows < length)[:, None] & (ranks < R)[None, :])
        f_share = tl.dot(tl.trans(through), y, input_precision=PRECISE)
        f_ptrs = grad_f_ptr + (below * place + sequence * length + columns)[:, None] * R + ranks[None, :]
        tl.store(f_ptrs, f_share, (columns < length)[:, None] & (ranks < R)[None, :])


@triton.jit
def _values_backward_kernel(
    y_ptr, f_ptr, grad_ptr, lse_ptr, grad_v_ptr, heads, length, width,
    y_b, y_h, y_t, f_h, f_r, grad_b, grad_h, grad_t, v_b, v_h, v_t,
    R: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """grad_v = A^T dO, ROWS of v by CHUNK, from tiles of COLUMNS tokens that attend to them."""
    chunks = tl.cdiv(width, CHUNK)
    tile, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    sequence = tl.program_id(1).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    rows = tile * ROWS + tl.arange(0, ROWS)
    ranks = tl.arange(0, RANK)
    values = chunk * CHUNK + tl.arange(0, CHUNK)
    F = tl.trans(_load(f_ptr + head * f_h, ranks, rows, f_r, R, length)).to(tl.float32) * LOG2E
    y_ptr += batch * y_b + head * y_h + SHIFT * y_t
    grad_ptr += batch * grad_b + head * grad_h + SHIFT * grad_t
    out = tl.zeros((ROWS, CHUNK), tl.float32)
    for start in range(tile * ROWS // COLUMNS * COLUMNS, length, COLUMNS):
        tokens = start + tl.arange(0, COLUMNS)
        y = tl.trans(_load(y_ptr, tokens, ranks, y_t, length, R)).to(tl.float32)
        # infinite beyond the end: no weight
        lse = tl.load(lse_ptr + sequence * length + tokens, tokens < length, other=float("inf"))
        scores = tl.dot(F, y, input_precision=PRECISE) - lse[None, :]
        weights = tl.where(rows[:, None] <= tokens[None, :], tl.exp2(scores), 0.0)
        grad = _load(grad_ptr, tokens, values, grad_t, length, width)
        out = _dot(weights, grad, out, WIDE)
    grad_v_ptr += batch * v_b + head * v_h
    mask = (rows < length)[:, None] & (values < width)[None, :]
    v_ptrs = grad_v_ptr + rows.to(tl.int64)[:, None] * v_t + values[None, :]
    tl.store(v_ptrs, out.to(grad_v_ptr.dtype.element_ty), mask)


def _blocks(y, v):
    """(rows, columns, chunk of the values) of a tile, its warps, the side of a tile of dS, its warps.

    The widest chunk computes each exponential least often. Chosen so that registers hardly spill and
    shared memory suffices (227 KiB on Hopper and on data centres' Blackwell, else 99), not tuned.
    """
    roomy = v.device.type != "cuda" or torch.cuda.get_device_capability(v.device)[0] in (9, 10)
    return _sizes(v.dtype.itemsize == 2, roomy, v.shape[-1], _padded(y.shape[-1]))


def _sizes(half, roomy, width, rank):
    width = max(16, triton.next_power_of_2(width))
    if rank > 32:
        return (64, 32, min(width, 64)), 4, 32, 4
    if not half:
        return (64, 32, min(width, 64)), 4, 64, 4
    chunk = min(width, 256 if roomy else 128)
    warps = 8 if chunk > 64 else 4
    return ((128, 64, chunk), warps, 128, 8) if roomy else ((128, 32, chunk), warps, 64, 4)


def _padded(rank):
    """The fewest ranks that a product on tensor cores takes."""
    return max(16, triton.next_power_of_2(rank))


def _dense(x):
    """x itself where its last dimension is dense, else a copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _empty(x, zeros):
    """Like x [B, H, T, P], laid out as [B, T, H, P], which joins the heads without a copy."""
    batch, heads, length, width = x.shape
    new = x.new_zeros if zeros else x.new_empty
    return new((batch, length, heads, width)).transpose(1, 2)


@triton_op("cofrgenet::shared_attention_triton", mutates_args=())
def _forward(
    y: torch.Tensor, F: torch.Tensor, v: torch.Tensor, strict: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> out [B, H, T, P], log-sum-exp [B H, T - strict] float32 in base 2"""
    (batch, heads, length, width), rank, shift = v.shape, y.shape[-1], int(strict)
    y, F, v = _dense(y), _dense(F), _dense(v)
    out = _empty(v, zeros=strict)
    length -= shift
    lse = v.new_empty((batch * heads, length), dtype=torch.float32)
    (rows, columns, chunk), warps, *_ = _blocks(y, v)
    programs = triton.cdiv(length, rows) * triton.cdiv(width, chunk)
    if programs * batch * heads:
        wrap_triton(_forward_kernel)[(programs, batch * heads)](
            y, F, v, out, lse, heads, length, width,
            *y.stride()[:3], *F.stride()[:2], *v.stride()[:3], *out.stride()[:3],
            R=rank, RANK=_padded(rank), ROWS=rows, COLUMNS=columns, CHUNK=chunk,
            SHIFT=shift, WIDE=INTERPRETED, num_warps=warps,
        )  # fmt: skip
    return out, lse


@triton_op("cofrgenet::shared_attention_triton_backward", mutates_args=())
def _backward(
    y: torch.Tensor, F: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, strict: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """-> gradients of y, F and v, in their types"""
    (batch, heads, length, width), rank, shift = v.shape, y.shape[-1], int(strict)
    y, F, v, grad, out = _dense(y), _dense(F), _dense(v), _dense(grad), _dense(out)
    grad_v = _empty(v, zeros=strict)
    length -= shift
    (rows, columns, chunk), warps, side, side_warps = _blocks(y, v)
    tiles, sequences, ranks = triton.cdiv(length, side), batch * heads, _padded(rank)
    partial_y, partial_f = (
        y.new_zeros((max(tiles, 1), batch, heads, length, rank), dtype=torch.float32) for _ in range(2)
    )
    if tiles * width * sequences:
        delta = torch.empty_like(lse)
        wrap_triton(_delta_kernel)[(triton.cdiv(length, 16), sequences)](
            out, grad, delta, heads, length, width, *out.stride()[:3], *grad.stride()[:3],
            ROWS=16, CHUNK=chunk, SHIFT=shift,
        )  # fmt: skip
        wrap_triton(_scores_backward_kernel)[(tiles * tiles, sequences)](
            y, F, v, grad, lse, delta, partial_y, partial_f, heads, length, width,
            *y.stride()[:3], *F.stride()[:2], *v.stride()[:3], *grad.stride()[:3],
            R=rank, RANK=ranks, TILE=side, CHUNK=min(chunk, side // 2), SHIFT=shift, WIDE=INTERPRETED,
            num_warps=side_warps,
        )  # fmt: skip
        programs = triton.cdiv(length, rows) * triton.cdiv(width, chunk)
        wrap_triton(_values_backward_kernel)[(programs, sequences)](
            y, F, grad, lse, grad_v, heads, length, width,
            *y.stride()[:3], *F.stride()[:2], *grad.stride()[:3], *grad_v.stride()[:3],
            R=rank, RANK=ranks, ROWS=rows, COLUMNS=columns, CHUNK=chunk, SHIFT=shift, WIDE=INTERPRETED,
            num_warps=warps,
        )  # fmt: skip
    grad_y = torch.nn.functional.pad(partial_y.sum(0), (0, 0, shift, 0))
    grad_F = torch.nn.functional.pad(partial_f.sum((0, 1)).mT, (0, shift))
    return grad_y.to(y.dtype), grad_F.to(F.dtype), grad_v


def _setup_context(ctx, inputs, output):
    *tensors, ctx.strict = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward_of_forward(ctx, grad, grad_lse):
    y, F, v, out, lse = ctx.saved_tensors
    return *_backward(y, F, v, grad, out, lse, ctx.strict), None


_forward.register_autograd(_backward_of_forward, setup_context=_setup_context)


def shared_attention_triton(
    y: torch.Tensor, F: torch.Tensor, v: torch.Tensor, strict: bool
) -> torch.Tensor:
    """y: [B, H, T, R], F: [H, R, T], v: [B, H, T, P], bfloat16, float16 or float32 each, R <= 64 ->
    [B, H, T, P] in v's type. Differentiable once.
    """
    return _forward(y, F, v, strict)[0]
