"""Shared attention on a GPU, after FlashAttention (Dao et al. 2022), for scores that are cheap to compute.

`kernels.shared_attention` states the equations and selects this code for CUDA tensors. The values can be
wider than an accumulator. So a program takes one chunk of their columns, and every chunk recomputes the
scores from y and F, which are only R wide. The backward pass recomputes them too, from the saved
log-sum-exp. It has one kernel for the gradient of v, in chunks, and one for the gradients of y and F, which
sums dP over all columns of the values. Scores are computed in float32 for all dtypes. Partial sums of tiles
are stored and then added up in order, so that gradients are deterministic to the bit.

In all kernels, `length` rows t attend to columns j <= t. The rows of y, of the output, and of their
gradients begin at SHIFT (1 with strict). Exponentials and logarithms are in base 2, because the hardware
has exp2.

RELATIVE: columns of F are indexed by distance. Take a square tile of scores whose first row is n tokens
behind its first column. On and below its diagonal it needs the distances n .. n + TILE - 1, above it the
TILE distances before n. Indexed by distance, both parts fit into one tile of the same size. Rotating row i
of that tile by i gives the scores by position, and the same rotation leads back. KEYS adds y_t k_j.
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from kernels.backend import INTERPRETED, NAMESPACE

LOG2E = tl.constexpr(1.4426950408889634)
# for scores: three tf32 products on tensor cores are nearly as exact as one float32 product
PRECISE = tl.constexpr("tf32x3")


@triton.jit
def _dot(a, b, total, WIDE: tl.constexpr):
    """total + a @ b in b's dtype, or in float32 if WIDE: the interpreter has no bfloat16 products."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISE)
    return tl.dot(a.to(b.dtype), b, total, input_precision=PRECISE)


@triton.jit
def _load(pointer, rows, columns, stride, row_count, column_count):
    """Loads a tile of a matrix whose columns are contiguous; zeros beyond its edges."""
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    return tl.load(pointer + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask, other=0.0)


@triton.jit
def _store(pointer, x, rows, columns, row_count, column_count):
    """Stores a tile of a float32 matrix whose columns are contiguous."""
    mask = ((rows >= 0) & (rows < row_count))[:, None] & (columns < column_count)[None, :]
    tl.store(pointer + rows[:, None] * column_count + columns[None, :], x, mask)


@triton.jit
def _load_columns(f_ptr, ranks, first, stride, R, length, COLUMNS: tl.constexpr):
    """Loads columns first .. first + COLUMNS - 1 of F as float32; zeros beyond its edges."""
    columns = first + tl.arange(0, COLUMNS)
    mask = (ranks < R)[:, None] & ((columns >= 0) & (columns < length))[None, :]
    return tl.load(f_ptr + ranks.to(tl.int64)[:, None] * stride + columns[None, :], mask, other=0.0).to(
        tl.float32
    )


@triton.jit
def _load_keys(k_ptr, columns, ranks, stride, length, R):
    """Loads keys k_j as columns, in float32."""
    return tl.trans(_load(k_ptr, columns, ranks, stride, length, R).to(tl.float32))


@triton.jit
def _turned(x, AXIS: tl.constexpr, TILE: tl.constexpr):
    """Rotates a tile of scores from distances to positions, or back. AXIS: the axis of distances."""
    one = tl.arange(0, TILE)
    by = one[:, None] - one[None, :] if AXIS == 1 else one[None, :] - one[:, None]
    return tl.gather(x, by & (TILE - 1), AXIS)


@triton.jit
def _further(TILE: tl.constexpr, AXIS: tl.constexpr):
    """Mask of the larger distances in a tile of scores by distance: those on and below the diagonal."""
    one = tl.arange(0, TILE)
    return one[None, :] <= one[:, None] if AXIS == 1 else one[:, None] <= one[None, :]


@triton.jit
def _forward_kernel(
    y_ptr, f_ptr, v_ptr, k_ptr, out_ptr, lse_ptr, heads, length, width,
    y_b, y_h, y_t, f_h, f_r, v_b, v_h, v_t, k_b, k_h, k_t, out_b, out_h, out_t,
    R: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr, RELATIVE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """out: [B, H, SHIFT + length, width]; lse: [B H, length] float32, written by the first chunk."""
    chunks = tl.cdiv(width, CHUNK)
    tiles = tl.cdiv(length, ROWS)
    tile = tiles - 1 - tl.program_id(0) // chunks  # the tiles with the most columns first
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
    f_ptr += head * f_h
    k_ptr += batch * k_b + head * k_h
    if RELATIVE:
        F = _load_columns(f_ptr, ranks, tile * ROWS, f_r, R, length, COLUMNS)
        further = tl.dot(y, F, input_precision=PRECISE)
    for start in range(0, tl.minimum((tile + 1) * ROWS, length), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        if RELATIVE:
            F = _load_columns(f_ptr, ranks, tile * ROWS - start - COLUMNS, f_r, R, length, COLUMNS)
            nearer = tl.dot(y, F, input_precision=PRECISE)
            scores = _turned(tl.where(_further(COLUMNS, 1), further, nearer), 1, COLUMNS)
            further = nearer  # the nearer distances are the further ones of the next tile
            if KEYS:
                k = _load_keys(k_ptr, columns, ranks, k_t, length, R)
                scores = tl.dot(y, k, scores, input_precision=PRECISE)
        else:
            F = _load(f_ptr, ranks, columns, f_r, R, length).to(tl.float32)
            if KEYS:
                F += _load_keys(k_ptr, columns, ranks, k_t, length, R)
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
    """delta: [B H, length] float32, the sum over j of A_tj dA_tj, which equals out_t . grad_t"""
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
    y_ptr, f_ptr, v_ptr, k_ptr, grad_ptr, lse_ptr, delta_ptr, grad_y_ptr, grad_j_ptr, grad_d_ptr,
    heads, length, width,
    y_b, y_h, y_t, f_h, f_r, v_b, v_h, v_t, k_b, k_h, k_t, grad_b, grad_h, grad_t,
    R: tl.constexpr, RANK: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr, RELATIVE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of dS = A (dP - delta), dP = dO v^T, and what it adds to dS F^T and dS^T y.

    grad_y: [tiles of columns, B H, length, R]; grad_j, by position: [tiles of rows, B H, length, R];
    grad_d, by distance: [2, tiles of rows, B H, length, R], for the further and the nearer distances. All
    are float32.
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
        scaled = y * LOG2E
        lse = tl.load(lse_ptr + sequence * length + rows, rows < length, other=float("inf"))
        delta = tl.load(delta_ptr + sequence * length + rows, rows < length, other=0.0)
        f_ptr += head * f_h
        k_ptr += batch * k_b + head * k_h
        if KEYS:
            k = _load_keys(k_ptr, columns, ranks, k_t, length, R)
        if RELATIVE:
            distance = (below - left) * TILE
            F = _load_columns(f_ptr, ranks, distance, f_r, R, length, TILE)
            near = _load_columns(f_ptr, ranks, distance - TILE, f_r, R, length, TILE)
            further = tl.dot(scaled, F, input_precision=PRECISE)
            nearer = tl.dot(scaled, near, input_precision=PRECISE)
            scores = _turned(tl.where(_further(TILE, 1), further, nearer), 1, TILE)
            if KEYS:
                scores = tl.dot(scaled, k, scores, input_precision=PRECISE)
        else:
            F = _load(f_ptr, ranks, columns, f_r, R, length).to(tl.float32)
            if KEYS:
                F += k
            scores = tl.dot(scaled, F, input_precision=PRECISE)
        scores -= lse[:, None]
        weights = tl.where(columns[None, :] <= rows[:, None], tl.exp2(scores), 0.0)
        through = weights * (through - delta[:, None])
        place = tl.num_programs(1) * length
        if RELATIVE:
            by_distance = _turned(through, 1, TILE)
            further = tl.where(_further(TILE, 1), by_distance, 0.0)
            nearer = tl.where(_further(TILE, 1), 0.0, by_distance)
            y_share = tl.dot(further, tl.trans(F), input_precision=PRECISE)
            y_share = tl.dot(nearer, tl.trans(near), y_share, input_precision=PRECISE)
            if KEYS:
                y_share = tl.dot(through, tl.trans(k), y_share, input_precision=PRECISE)
        else:
            y_share = tl.dot(through, tl.trans(F), input_precision=PRECISE)
        grad_y_ptr += (left.to(tl.int64) * place + sequence * length) * R
        _store(grad_y_ptr, y_share, rows, ranks, length, R)
        if RELATIVE:
            grad_d_ptr += (below.to(tl.int64) * place + sequence * length) * R
            distances = distance + tl.arange(0, TILE)
            share = tl.dot(tl.trans(further), y, input_precision=PRECISE)
            _store(grad_d_ptr, share, distances, ranks, length, R)
            share = tl.dot(tl.trans(nearer), y, input_precision=PRECISE)
            _store(grad_d_ptr + tiles.to(tl.int64) * place * R, share, distances - TILE, ranks, length, R)
        if KEYS or not RELATIVE:
            share = tl.dot(tl.trans(through), y, input_precision=PRECISE)
            grad_j_ptr += (below.to(tl.int64) * place + sequence * length) * R
            _store(grad_j_ptr, share, columns, ranks, length, R)


@triton.jit
def _values_backward_kernel(
    y_ptr, f_ptr, k_ptr, grad_ptr, lse_ptr, grad_v_ptr, heads, length, width,
    y_b, y_h, y_t, f_h, f_r, k_b, k_h, k_t, grad_b, grad_h, grad_t, v_b, v_h, v_t,
    R: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr, RELATIVE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """A tile of grad_v = A^T dO, ROWS x CHUNK, summed over tiles of COLUMNS tokens that attend to it."""
    chunks = tl.cdiv(width, CHUNK)
    tile, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    sequence = tl.program_id(1).to(tl.int64)
    batch, head = sequence // heads, sequence % heads
    rows = tile * ROWS + tl.arange(0, ROWS)
    ranks = tl.arange(0, RANK)
    values = chunk * CHUNK + tl.arange(0, CHUNK)
    f_ptr += head * f_h
    k_ptr += batch * k_b + head * k_h
    columns = tl.zeros((ROWS, RANK), tl.float32)  # columns by position, stored as rows
    if KEYS:
        columns = tl.trans(_load_keys(k_ptr, rows, ranks, k_t, length, R)) * LOG2E
    if not RELATIVE:
        columns += tl.trans(_load(f_ptr, ranks, rows, f_r, R, length)).to(tl.float32) * LOG2E
    y_ptr += batch * y_b + head * y_h + SHIFT * y_t
    grad_ptr += batch * grad_b + head * grad_h + SHIFT * grad_t
    out = tl.zeros((ROWS, CHUNK), tl.float32)
    for start in range(tile * ROWS // COLUMNS * COLUMNS, length, COLUMNS):
        tokens = start + tl.arange(0, COLUMNS)
        y = tl.trans(_load(y_ptr, tokens, ranks, y_t, length, R)).to(tl.float32)
        # inf beyond the end gives a weight of 0
        lse = tl.load(lse_ptr + sequence * length + tokens, tokens < length, other=float("inf"))
        if RELATIVE:
            distance = start - tile * ROWS
            F = _load_columns(f_ptr, ranks, distance, f_r, R, length, ROWS) * LOG2E
            further = tl.dot(tl.trans(F), y, input_precision=PRECISE)
            F = _load_columns(f_ptr, ranks, distance - ROWS, f_r, R, length, ROWS) * LOG2E
            nearer = tl.dot(tl.trans(F), y, input_precision=PRECISE)
            scores = _turned(tl.where(_further(ROWS, 0), further, nearer), 0, ROWS)
            if KEYS:
                scores = tl.dot(columns, y, scores, input_precision=PRECISE)
        else:
            scores = tl.dot(columns, y, input_precision=PRECISE)
        scores -= lse[None, :]
        weights = tl.where(rows[:, None] <= tokens[None, :], tl.exp2(scores), 0.0)
        grad = _load(grad_ptr, tokens, values, grad_t, length, width)
        out = _dot(weights, grad, out, WIDE)
    grad_v_ptr += batch * v_b + head * v_h
    mask = (rows < length)[:, None] & (values < width)[None, :]
    v_ptrs = grad_v_ptr + rows.to(tl.int64)[:, None] * v_t + values[None, :]
    tl.store(v_ptrs, out.to(grad_v_ptr.dtype.element_ty), mask)


def _blocks(y, v, relative):
    """Returns ((rows, columns, chunk of values) of a tile, its warps, the side of a tile of dS, its warps).

    A wider chunk recomputes scores less often. The sizes are chosen so that registers hardly spill and
    shared memory suffices (227 KiB on Hopper and data-centre Blackwell, 99 KiB elsewhere). They are not
    tuned.
    """
    roomy = v.device.type != "cuda" or torch.cuda.get_device_capability(v.device)[0] in (9, 10)
    return _sizes(v.dtype.itemsize == 2, roomy, v.shape[-1], _padded(y.shape[-1]), relative)


def _sizes(half, roomy, width, rank, relative=False):
    width = max(16, triton.next_power_of_2(width))
    if relative:  # square, so that a row can be rotated within its tile
        if half and rank <= 32:
            return (64, 64, min(width, 128)), 8, 64 if roomy else 32, 8
        warps = 8 if half else 4
        return (32, 32, min(width, 64)), warps, 32, warps
    if rank > 32:
        return (64, 32, min(width, 64)), 4, 32, 4
    if not half:
        return (64, 32, min(width, 64)), 4, 64, 4
    chunk = min(width, 256 if roomy else 128)
    warps = 8 if chunk > 64 else 4
    return ((128, 64, chunk), warps, 128, 8) if roomy else ((128, 32, chunk), warps, 64, 4)


def _padded(rank):
    """The rank, padded to a size that tensor cores take."""
    return max(16, triton.next_power_of_2(rank))


def _dense(x):
    """Returns x if its last dimension is contiguous, else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _empty(x, zeros):
    """Like x [B, H, T, P], but with the memory layout [B, T, H, P], so that joining heads takes no copy."""
    batch, heads, length, width = x.shape
    new = x.new_zeros if zeros else x.new_empty
    return new((batch, length, heads, width)).transpose(1, 2)


@triton_op(f"{NAMESPACE}::shared_attention_triton", mutates_args=())
def _forward(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor | None,
    strict: bool,
    relative: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> out [B, H, T, P], log-sum-exp [B H, T - strict] float32 in base 2"""
    (batch, heads, length, width), rank, shift = v.shape, y.shape[-1], int(strict)
    y, F, v, k = _inputs(y, F, v, keys, strict, relative)
    out = _empty(v, zeros=strict)
    length -= shift
    lse = v.new_empty((batch * heads, length), dtype=torch.float32)
    (rows, columns, chunk), warps, *_ = _blocks(y, v, relative)
    programs = triton.cdiv(length, rows) * triton.cdiv(width, chunk)
    if programs * batch * heads:
        wrap_triton(_forward_kernel)[(programs, batch * heads)](
            y, F, v, k, out, lse, heads, length, width,
            *y.stride()[:3], *F.stride()[:2], *v.stride()[:3], *k.stride()[:3], *out.stride()[:3],
            R=rank, RANK=_padded(rank), ROWS=rows, COLUMNS=columns, CHUNK=chunk,
            SHIFT=shift, WIDE=INTERPRETED, RELATIVE=relative, KEYS=keys is not None, num_warps=warps,
        )  # fmt: skip
    return out, lse


@triton_op(f"{NAMESPACE}::shared_attention_triton_backward", mutates_args=())
def _backward(
    y: torch.Tensor, F: torch.Tensor, v: torch.Tensor, keys: torch.Tensor | None, grad: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor, strict: bool, relative: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """-> gradients of y, F, v and the keys (empty without keys), each in its tensor's dtype"""
    (batch, heads, length, width), rank, shift = v.shape, y.shape[-1], int(strict)
    y, F, v, k = _inputs(y, F, v, keys, strict, relative)
    grad, out = _dense(grad), _dense(out)
    grad_v = _empty(v, zeros=strict)
    length -= shift
    (rows, columns, chunk), warps, side, side_warps = _blocks(y, v, relative)
    tiles, sequences, ranks = triton.cdiv(length, side), batch * heads, _padded(rank)
    by_position, by_distance = keys is not None or not relative, relative
    partial_y, partial_j, partial_d = (
        y.new_zeros((count * max(tiles, 1), batch, heads, length, rank), dtype=torch.float32)
        for count in (1, int(by_position), 2 * by_distance)
    )
    options = {"SHIFT": shift, "WIDE": INTERPRETED, "RELATIVE": relative, "KEYS": keys is not None}
    if tiles * width * sequences:
        delta = torch.empty_like(lse)
        wrap_triton(_delta_kernel)[(triton.cdiv(length, 16), sequences)](
            out, grad, delta, heads, length, width, *out.stride()[:3], *grad.stride()[:3],
            ROWS=16, CHUNK=chunk, SHIFT=shift,
        )  # fmt: skip
        wrap_triton(_scores_backward_kernel)[(tiles * tiles, sequences)](
            y, F, v, k, grad, lse, delta, partial_y, partial_j, partial_d, heads, length, width,
            *y.stride()[:3], *F.stride()[:2], *v.stride()[:3], *k.stride()[:3], *grad.stride()[:3],
            R=rank, RANK=ranks, TILE=side, CHUNK=min(chunk, side // 2), **options, num_warps=side_warps,
        )  # fmt: skip
        programs = triton.cdiv(length, rows) * triton.cdiv(width, chunk)
        wrap_triton(_values_backward_kernel)[(programs, sequences)](
            y, F, k, grad, lse, grad_v, heads, length, width,
            *y.stride()[:3], *F.stride()[:2], *k.stride()[:3], *grad.stride()[:3], *grad_v.stride()[:3],
            R=rank, RANK=ranks, ROWS=rows, COLUMNS=columns, CHUNK=chunk, **options, num_warps=warps,
        )  # fmt: skip
    pad = torch.nn.functional.pad
    grad_y = pad(partial_y.sum(0), (0, 0, shift, 0))
    # strict: the last token (relative: distance 0) is never a column
    of_F = (partial_d if relative else partial_j).sum((0, 1)).mT
    grad_F = pad(of_F, (shift, 0) if relative else (0, shift))
    grad_keys = y.new_empty(0) if keys is None else pad(partial_j.sum(0), (0, 0, 0, shift)).to(keys.dtype)
    return grad_y.to(y.dtype), grad_F.to(F.dtype), grad_v, grad_keys


def _inputs(y, F, v, keys, strict, relative):
    """The tensors that the kernels read. Without keys they get y instead, and do not use it."""
    F = F[..., int(strict and relative) :]
    return _dense(y), _dense(F), _dense(v), _dense(y if keys is None else keys)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.strict, ctx.relative = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward_of_forward(ctx, grad, grad_lse):
    y, F, v, keys, out, lse = ctx.saved_tensors
    *grads, of_keys = _backward(y, F, v, keys, grad, out, lse, ctx.strict, ctx.relative)
    return *grads, None if keys is None else of_keys, None, None


_forward.register_autograd(_backward_of_forward, setup_context=_setup_context)


def shared_attention_triton(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    strict: bool,
    relative: bool = False,
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """y: [B, H, T, R], F: [H, R, T], v: [B, H, T, P], keys: like y or None -> [B, H, T, P] in v's dtype.

    Each tensor is bfloat16, float16 or float32; R <= 64. Differentiable once.
    """
    return _forward(y, F, v, keys, strict, relative)[0]
