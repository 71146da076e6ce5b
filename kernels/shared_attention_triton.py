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
from kernels.backend import INTERPRETED

LARGEST_RANK = 32
LOG2E = 1.4426950408889634
REGISTERS = 128  # per thread, so that an SM holds at least 512 threads


class Launch(NamedTuple):
    """Sizes of a kernel's tiles, its warps, and how many tiles it loads ahead."""

    rows: int
    columns: int
    chunk: int
    warps: int
    stages: int

    @property
    def options(self):
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": REGISTERS}


def launches(half: bool, roomy: bool, width: int, rank: int, by_distance: bool) -> tuple[Launch, Launch]:
    """The forward and the backward launch. roomy: 227 KiB of shared memory, not 99.

    Chosen so that registers and shared memory suffice. Not tuned: no GPU has run them.
    """
    chunk = max(16, triton.next_power_of_2(width))
    if not half:
        side = Launch(32, 32, min(chunk, 64), 4, 2)
        return side, side
    backward = Launch(64, 64, min(chunk, 64), 4, 2)
    if by_distance:
        return Launch(64, 64, min(chunk, 64), 4, 2), backward
    return Launch(128, 64, min(chunk, 128), 8, 2), backward


def launches_on(device: torch.device, half, width, rank, by_distance):
    roomy = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)
    return launches(half, roomy, width, rank, by_distance)


def padded_rank(rank: int, half: bool) -> int:
    """Width of a row of operands: four parts of at least 8 numbers, or one of at least 16."""
    return 4 * max(8, triton.next_power_of_2(rank)) if half else max(16, triton.next_power_of_2(rank))


def _operands(y, F, v, keys, strict, relative):
    """-> queries q [B, H, padded, S], columns by position k [B or 1, H, padded, S] or None and columns by
    distance f [H, TILE + padded, S] or None, as `kernels.attention_tiles_triton` takes them.
    """
    half, rank, length = v.dtype.itemsize == 2, y.shape[-1], y.shape[2] - strict
    forward, _ = launches_on(v.device, half, v.shape[-1], rank, relative)
    size = padded_rank(rank, half)
    rows = triton.cdiv(length, forward.rows) * forward.rows

    def operand(x, order, before=0):
        x = pad(x.float(), (0, 0, before, rows - x.shape[-2]))
        if not half:
            return pad(x, (0, size - rank)).contiguous()
        x = split.side_by_side(x, order, size // 4)
        return x.float() if INTERPRETED else x  # the interpreter has no bfloat16 products

    q = operand(y[:, :, strict:].float() * LOG2E, split.LEFT)
    F, k, f = F.float().mT, None, None
    if relative:
        f = operand(F[:, int(strict) :], split.RIGHT, before=forward.columns)
    if keys is not None:
        keys = keys[:, :, :length].float()
    if not relative:
        keys = F[None, :, :length] if keys is None else keys + F[:, :length]
    if keys is not None:
        k = operand(keys, split.RIGHT)
    return q, k, f


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
    pointers = [q, q if k is None else k, q if f is None else f, _dense(v)]
    of_k = (0, 0) if k is None else (k.stride(0) if k.shape[0] > 1 else 0, k.stride(1))
    strides = [*of_k, 0 if f is None else f.stride(0), *pointers[3].stride()[:3]]
    sizes = [v.shape[1], v.shape[2] - shift, v.shape[3], q.shape[2]]
    flags = {"S": q.shape[3], "SHIFT": shift, "BY_POSITION": k is not None, "BY_DISTANCE": f is not None}
    return pointers, sizes, strides, {**flags, "WIDE": INTERPRETED}


@torch.library.custom_op("cofrgenet::shared_attention_triton", mutates_args=())
def _forward(
    q: torch.Tensor,
    k: torch.Tensor | None,
    f: torch.Tensor | None,
    v: torch.Tensor,
    rank: int,
    strict: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> out [B, H, T, P], log-sum-exp [B H, T - strict] float32 in base 2"""
    batch, heads, length, width = v.shape
    out = _empty(v, zeros=strict)
    lse = v.new_empty((batch * heads, length - strict), dtype=torch.float32)
    launch, _ = launches_on(v.device, v.dtype.itemsize == 2, width, rank, f is not None)
    pointers, sizes, strides, flags = _common(q, k, f, v, int(strict))
    if lse.numel() and width:
        programs = triton.cdiv(length - strict, launch.rows) * triton.cdiv(width, launch.chunk)
        tiles.forward_kernel[(programs, batch * heads)](
            *pointers, out, lse, *sizes, *strides, *out.stride()[:3],
            **flags, ROWS=launch.rows, COLUMNS=launch.columns, CHUNK=launch.chunk, **launch.options,
        )  # fmt: skip
    return out, lse


@_forward.register_fake
def _(q, k, f, v, rank, strict):
    batch, heads, length, _ = v.shape
    return _empty(v, False), v.new_empty((batch * heads, length - strict), dtype=torch.float32)


@torch.library.custom_op("cofrgenet::shared_attention_triton_backward", mutates_args=())
def _backward(
    q: torch.Tensor, k: torch.Tensor | None, f: torch.Tensor | None, v: torch.Tensor, rank: int, strict: bool,
    grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """-> grad_v like v; grad_y [B, H, T - strict, R]; grad_k, by position, like it; grad_d, by distance, two
    of it (see `diagonals_kernel`). All but grad_v are float32; grad_k and grad_d are empty without k and f.
    """
    (batch, heads, _, width), shift = v.shape, int(strict)
    grad, out, grad_v = _dense(grad), _dense(out), _empty(v, zeros=strict)
    grad_y, grad_k, grad_d = _partial(q, k, f, v, rank, strict)
    _, launch = launches_on(v.device, v.dtype.itemsize == 2, width, rank, f is not None)
    pointers, sizes, strides, flags = _common(q, k, f, v, shift)
    length = lse.shape[1]
    if lse.numel() and width:
        delta = torch.empty_like(lse)
        tiles.delta_kernel[(triton.cdiv(length, 16), batch * heads)](
            out, grad, delta, *sizes[:3], *out.stride()[:3], *grad.stride()[:3],
            ROWS=16, CHUNK=launch.chunk, SHIFT=shift,
        )  # fmt: skip
        common = [*sizes, rank, *strides, *grad.stride()[:3]]
        flags |= {"PARTS": 4 if v.dtype.itemsize == 2 else 1, "TILE": launch.rows, "CHUNK": launch.chunk}
        count, chunks = triton.cdiv(length, launch.rows), triton.cdiv(width, launch.chunk)
        # dS needs all values, their gradient only a chunk: one kernel for both where one chunk is all
        for of_v, of_k in (
            [(True, k is not None)] if chunks == 1 else [(True, False), (False, k is not None)]
        ):
            if of_v or of_k:
                tiles.columns_kernel[(count * (chunks if of_v else 1), batch * heads)](
                    *pointers, grad, lse, delta, grad_v, grad_k, *common, *grad_v.stride()[:3],
                    **flags, OF_V=of_v, OF_K=of_k, **launch.options,
                )  # fmt: skip
        tiles.rows_kernel[(count, batch * heads)](
            *pointers, grad, lse, delta, grad_y, *common, **flags, **launch.options
        )
        if flags.pop("BY_DISTANCE"):
            tiles.diagonals_kernel[(count, batch * heads)](
                *pointers, grad, lse, delta, *grad_d, *common, **flags, **launch.options
            )
    return grad_v, grad_y, grad_k, grad_d


def _partial(q, k, f, v, rank, strict):
    """Memory for the sums of one sequence: of y, of columns by position and twice by distance."""
    shape = (*v.shape[:2], v.shape[2] - strict, rank)
    counts = (1,), (int(k is not None),), (2 * (f is not None),)
    grad_y, grad_k, grad_d = (q.new_empty((*count, *shape), dtype=torch.float32) for count in counts)
    return grad_y[0], grad_k[:1].flatten(0, 1), grad_d


@_backward.register_fake
def _(q, k, f, v, rank, strict, grad, out, lse):
    return _empty(v, False), *_partial(q, k, f, v, rank, strict)


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
        if relative:
            whole = max(0, (lse.shape[1] - 1) // _tile(v, y) * _tile(v, y))
            of_F = of_d[0].sum(0) + pad(of_d[1, :, :, :whole].sum(0), (0, 0, 0, lse.shape[1] - whole))
        else:
            of_F = of_k.sum(0)
        # strict: the last token (relative: distance 0) is never a column
        grad_F = pad(of_F.mT, (int(strict), 0) if relative else (0, int(strict)))
        grad_keys = None if keys is None else pad(of_k, (0, 0, 0, int(strict))).to(keys.dtype)
        grad_y = pad(grad_y, (0, 0, int(strict), 0))
        return grad_y.to(y.dtype), grad_F.to(F.dtype), grad_v, grad_keys, None, None


def _tile(v, y):
    return launches_on(v.device, v.dtype.itemsize == 2, v.shape[-1], y.shape[-1], True)[1].rows


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
