"""Shared attention on a GPU: operands, launches and sums around `kernels.attention_tiles_triton`.

`kernels.shared_attention` states the equations and selects this code for CUDA tensors. What is elementwise
stands in plain PyTorch, where torch.compile fuses it. The launches are operators of their own: a kernel in
the compiler's own graph would lose the limit on registers, which decides how many programs run at a time.
"""

from typing import NamedTuple

import torch
import triton
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from kernels import attention_tiles_triton as tiles
from kernels import split
from kernels.backend import INTERPRETED, NAMESPACE, on_its_device

LOG2E = 1.4426950408889634
PADDING = 128  # operands are padded to a multiple, which every height of a tile divides
BEFORE = 64  # rows of zeros before distance 0, for tiles on the diagonal: the largest tile by distance
# Bytes of the scores' gradient that exist at a time: beyond it, heads run in slices, of one head at least.
# In half precision, slices of up to 32,768 tokens have at least 512 programs, which fill a GPU.
SLICE = 2**30


class Launch(NamedTuple):
    """Rows, columns and chunk of values of a kernel's tiles, its warps, the registers of a thread, and how
    many tiles are in shared memory at a time.
    """

    rows: int
    columns: int
    chunk: int
    warps: int
    registers: int
    stages: int = 2

    @property
    def options(self):
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


def launches(
    half: bool, hopper: bool, width: int, rank: int, by_position: bool, by_distance: bool
) -> tuple[Launch, Launch, Launch]:
    """Launches of forward_kernel, of columns_kernel for values in several chunks, and of the other kernels.

    Chosen by the registers and the shared memory that the compiler reports: with at most 8 ranks and half
    precision, forward keeps to 128 registers, so that four programs of 128 threads fit on an SM, and
    nothing spills. They are not tuned.
    """
    width = max(16, triton.next_power_of_2(width))
    if not half:
        backward = Launch(32, 32, min(width, 32), 4, 255)
        return Launch(32, 32, min(width, 64), 4, 255), backward, backward
    registers = 128 if rank <= 8 else 168
    side = 64 if hopper and rank <= 8 else 32
    backward = Launch(side, side, min(width, 64), 4, 168)
    if by_distance:
        side = 64 if hopper else 32
        # with 2, two numbers may spill; with 3, Hopper has room for fewer programs if there is content too
        stages = 2 if hopper and by_position else 3
        return Launch(side, side, min(width, 64), 4, registers, stages), backward, backward
    forward = Launch(128, 64 if hopper else 32, min(width, 128), 8, registers)
    return forward, Launch(64, 64, min(width, 128), 8, registers), backward


def _launches(v, rank, k, f):
    hopper = v.device.type != "cuda" or torch.cuda.get_device_capability(v.device)[0] == 9
    half, width = v.dtype.itemsize == 2, v.shape[-1]
    return launches(half, hopper, width, rank, k is not None, f is not None)


def operand_width(rank: int, half: bool) -> int:
    """Numbers in a row of operands: four parts of at least 8, or one of at least 16."""
    rank = 1 << (rank - 1).bit_length()  # torch.compile does not trace triton.next_power_of_2
    return 4 * max(8, rank) if half else max(16, rank)


def _operands(y, F, v, keys, strict, relative):
    """-> queries q [B, H, padded, S], columns by position k [B or 1, H, padded, S] or None and columns by
    distance f [H, BEFORE + padded, S] or None, as `kernels.attention_tiles_triton` takes them.
    """
    half, rank, length = v.dtype.itemsize == 2, y.shape[-1], y.shape[2] - strict
    size = operand_width(rank, half)
    rows = -(-length // PADDING) * PADDING

    def operand(x, order, before=0):
        x = pad(x, (0, 0, before, rows - length))
        if not half:
            return pad(x, (0, size - rank)).contiguous()
        x = split.side_by_side(x, order, size // 4)
        return x.float() if INTERPRETED else x  # the interpreter has no bfloat16 products

    q = operand(y[:, :, strict:].float() * LOG2E, split.LEFT)
    F = F.float().mT
    by_position = None if keys is None else keys[:, :, :length].float()
    if relative:
        f = operand(F[:, int(strict) :], split.RIGHT, BEFORE)
    else:
        f, F = None, F[None, :, :length]
        by_position = F if by_position is None else F + by_position
    return q, None if by_position is None else operand(by_position, split.RIGHT), f


def _dense(x):
    """Returns x if its last dimension is contiguous, else a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _empty(x, zeros):
    """Like x [B, H, T, P], but with the memory layout [B, T, H, P], so that joining heads takes no copy."""
    batch, heads, length, width = x.shape
    new = x.new_zeros if zeros else x.new_empty
    return new((batch, length, heads, width)).transpose(1, 2)


def _common(q, k, f, v, shift):
    """Arguments that kernels share: operands (q in place of one that there is not), sizes and strides."""
    pointers = [q, q if k is None else k, q if f is None else f[:, BEFORE:], _dense(v)]
    of_k = (0, 0) if k is None else (k.stride(0) if k.shape[0] > 1 else 0, k.stride(1))
    strides = [*of_k, 0 if f is None else f.stride(0), *pointers[3].stride()[:3]]
    sizes = [v.shape[1], v.shape[2] - shift, v.shape[3], q.shape[2]]
    flags = {"S": q.shape[3], "BY_POSITION": k is not None, "BY_DISTANCE": f is not None}
    return pointers, sizes, strides, {**flags, "WIDE": INTERPRETED}


@torch.library.custom_op(f"{NAMESPACE}::shared_attention_triton", mutates_args=())
@on_its_device
def _forward(
    q: torch.Tensor,
    k: torch.Tensor | None,
    f: torch.Tensor | None,
    v: torch.Tensor,
    rank: int,
    strict: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """-> out [B, H, T, P], log-sum-exp [B H, T - strict] float32 in base 2"""
    batch, heads, length, width = v.shape
    out = _empty(v, zeros=strict)
    lse = v.new_empty((batch * heads, length - strict), dtype=torch.float32)
    launch, *_ = _launches(v, rank, k, f)
    pointers, sizes, strides, flags = _common(q, k, f, v, int(strict))
    if lse.numel():
        programs = triton.cdiv(length - strict, launch.rows) * triton.cdiv(width, launch.chunk)
        tiles.forward_kernel[(programs * batch * heads,)](
            *pointers, out, lse, *sizes, *strides, *out.stride()[:3],
            **flags, SHIFT=int(strict), ROWS=launch.rows, COLUMNS=launch.columns, CHUNK=launch.chunk,
            **launch.options,
        )  # fmt: skip
    return out, lse


@_forward.register_fake
def _(q, k, f, v, rank, strict):
    batch, heads, length, _ = v.shape
    return _empty(v, False), v.new_empty((batch * heads, length - strict), dtype=torch.float32)


@torch.library.custom_op(f"{NAMESPACE}::shared_attention_triton_backward", mutates_args=())
@on_its_device
def _backward(
    q: torch.Tensor, k: torch.Tensor | None, f: torch.Tensor | None, v: torch.Tensor,
    rank: int, strict: bool, grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """-> grad_v like v, and in float32 [B, H, T - strict, R] grad_y and what each sequence adds to the
    gradients of the columns by position and by distance; empty without k or f.
    """
    (_, heads, _, width), shift = v.shape, int(strict)
    grad, out, grad_v = _dense(grad), _dense(out), _empty(v, zeros=strict)
    grad_y, grad_k, grad_f = _gradients(k, f, v, rank, strict)
    _, of_values, launch = _launches(v, rank, k, f)
    pointers, sizes, strides, flags = _common(q, k, f, v, shift)
    all_heads, length = lse.shape
    if lse.numel():
        delta = torch.empty_like(lse)
        tiles.delta_kernel[(triton.cdiv(length, 16) * all_heads,)](
            out, grad, delta, *sizes[:3], *out.stride()[:3], *grad.stride()[:3],
            ROWS=16, CHUNK=launch.chunk, SHIFT=shift,
        )  # fmt: skip
        flags |= {"PARTS": 4 if v.dtype.itemsize == 2 else 1}
        more = {"TILE": launch.rows, **launch.options}
        # dS needs all values, their gradient only a chunk: one kernel for both where one chunk is all
        both, apart = [(launch, True, True)], [(of_values, True, False), (launch, False, True)]
        count = triton.cdiv(length, launch.rows)
        triangle = count * (count + 1) // 2 * launch.rows**2
        at_once = min(all_heads, max(1, SLICE // (triangle * q.element_size())))
        dS = q.new_empty(at_once * triangle)
        for first in range(0, all_heads, at_once):
            number = min(at_once, all_heads - first)
            for one, of_v, of_s in both if width <= launch.chunk else apart:
                chunks = triton.cdiv(width, one.chunk) if of_v else 1
                tiles.columns_kernel[(triton.cdiv(length, one.rows) * chunks * number,)](
                    *pointers, grad, lse, delta, dS, grad_v, grad_k, first, *sizes, rank,
                    *strides, *grad.stride()[:3], *grad_v.stride()[:3], **flags, SHIFT=shift,
                    TILE=one.rows, CHUNK=one.chunk, OF_V=of_v, OF_S=of_s, **one.options,
                )  # fmt: skip
            tiles.rows_kernel[(count * number,)](
                dS, *pointers[1:3], grad_y, first, heads, length, rank, *strides[:3], **flags, **more
            )
            if f is not None:
                tiles.diagonals_kernel[(count * number,)](
                    dS, q, grad_f, first, heads, length, q.shape[2], rank,
                    S=flags["S"], PARTS=flags["PARTS"], WIDE=flags["WIDE"], **more,
                )  # fmt: skip
    return grad_v, grad_y, grad_k, grad_f


def _gradients(k, f, v, rank, strict):
    """Empty gradients: of y, and of each sequence's columns by position and by distance, if any."""
    shape, nothing = (*v.shape[:2], v.shape[2] - strict, rank), (0,)
    shapes = shape, nothing if k is None else shape, nothing if f is None else shape
    return [v.new_empty(one, dtype=torch.float32) for one in shapes]


@_backward.register_fake
def _(q, k, f, v, rank, strict, grad, out, lse):
    return _empty(v, False), *_gradients(k, f, v, rank, strict)


class _SharedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, F, v, keys, strict, relative):
        out, lse = _forward(*_operands(y, F, v, keys, strict, relative), v, y.shape[-1], strict)
        ctx.save_for_backward(y, F, v, keys, out, lse)
        ctx.strict, ctx.relative = strict, relative
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        y, F, v, keys, out, lse = ctx.saved_tensors
        strict, relative = ctx.strict, ctx.relative
        operands = _operands(y, F, v, keys, strict, relative)
        grad_v, grad_y, of_k, of_d = _backward(*operands, v, y.shape[-1], strict, grad, out, lse)
        of_F = (of_d if relative else of_k).sum(0)
        # strict: the last token (relative: distance 0) is never a column
        grad_F = pad(of_F.mT, (int(strict), 0) if relative else (0, int(strict)))
        grad_keys = None if keys is None else pad(of_k, (0, 0, 0, int(strict))).to(keys.dtype)
        grad_y = pad(grad_y, (0, 0, int(strict), 0))
        return grad_y.to(y.dtype), grad_F.to(F.dtype), grad_v, grad_keys, None, None


def shared_attention_triton(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    strict: bool,
    relative: bool = False,
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """y: [B, H, T, R], F: [H, R, T], v: [B, H, T, P], keys: like y or None -> [B, H, T, P] in v's dtype.

    Each tensor is bfloat16, float16 or float32; R <= 32. Differentiable once.
    """
    return _SharedAttention.apply(y, F, v, keys, strict, relative)
