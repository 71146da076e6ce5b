"""Causal products with lower triangular matrices that are stored without their zeros.

A triangle [n, n] is stored row by row, M_00 M_10 M_11 M_20 ..., so that its leading t x t block is a prefix
of the storage.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from kernels.autocast import product_dtype


def packed_size(n: int) -> int:
    """Entries of a lower triangle [n, n], the diagonal included."""
    return n * (n + 1) // 2


def unpack_lower(packed: torch.Tensor, size: int) -> torch.Tensor:
    """The leading block of a packed triangle, with zeros above the diagonal.

    packed: [..., n (n + 1) / 2] -> [..., size, size], size <= n, in packed's dtype. The gradient is a
    gather and thus deterministic; autograd's scatter-add would depend on the timing of threads. It is 0 for
    rows beyond the block. Differentiable once. Raises ValueError if packed holds too few rows.
    """
    if packed.shape[-1] < packed_size(size):
        raise ValueError(
            f"{packed.shape[-1]} packed entries do not hold {size} rows, which need {packed_size(size)}"
        )
    return _UnpackLower.apply(packed, size)


def lower_rows(packed: torch.Tensor, pos: torch.Tensor, size: int) -> torch.Tensor:
    """Rows `pos` of the leading block, with zeros above the diagonal.

    packed: [..., n (n + 1) / 2], pos: [T] int64 below size <= n -> [..., T, size] in packed's dtype.
    """
    column = torch.arange(size, device=packed.device)
    pos = pos[:, None]
    # above the diagonal the index points to some later entry, which `where` drops
    return torch.where(column <= pos, packed[..., pos * (pos + 1) // 2 + column], 0)


class _UnpackLower(torch.autograd.Function):
    @staticmethod
    def forward(ctx, packed, size):
        ctx.unused = packed.shape[-1] - packed_size(size)
        index = torch.arange(size, device=packed.device)
        # above the diagonal the index points to some later entry, which tril drops
        return packed[..., index[:, None] * (index[:, None] + 1) // 2 + index].tril()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, columns = torch.tril_indices(*grad.shape[-2:], device=grad.device)
        return F.pad(grad[..., rows, columns], (0, ctx.unused)), None


def unpack_lower_naive(packed: torch.Tensor, size: int) -> torch.Tensor:
    """The reference for tests: row after row, differentiated by autograd."""
    rows = [F.pad(packed[..., packed_size(t) : packed_size(t + 1)], (0, size - t - 1)) for t in range(size)]
    return torch.stack(rows, dim=-2)


def causal_linear(y: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """out_t = sum over s <= t of M_ts y_s.

    y: [..., T], matrix: [T, T] of y's dtype, with zeros above the diagonal -> [..., T] in y's dtype, or in
    autocast's if it is enabled. Differentiable once.

    For long sequences the outputs are cut into four strips, each a dense product with the inputs up to its
    end. This takes 5/8 of the FLOPs. The gradient of the matrix is 0 to the right of the strips.

    In a dense product, 0 * inf = NaN would carry an infinite or NaN y_s to outputs before s. So such a y_s
    enters the product as 0, and outputs from s on are set to NaN. This is decided after y is rounded to
    autocast's dtype, because rounding can make a large float32 infinite.
    """
    y = y.to(product_dtype(y))
    position = torch.arange(y.shape[-1], dtype=torch.int32, device=y.device)
    first = position.masked_fill(y.isfinite(), y.shape[-1]).amin(-1, keepdim=True)
    poison = torch.where(position >= first, float("nan"), 0.0).to(y.dtype)
    # the NaNs are added, not filled in, so that a NaN in the gradient reaches M and y
    y = _ZeroUnlessFinite.apply(y)
    if y.shape[-1] < _LONG.get(y.device.type, float("inf")):
        return F.linear(y, matrix) + poison
    return _Strips.apply(y, matrix.to(y.dtype)) + poison


class _Strips(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, matrix):
        ctx.save_for_backward(y, matrix)
        return torch.cat([F.linear(y[..., :t], matrix[s:t, :t]) for s, t in _strips(y)], dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        y, matrix = ctx.saved_tensors
        strips, length = _strips(y), y.shape[-1]
        grad_y = torch.cat([grad[..., s:] @ matrix[s:, s:t] for s, t in strips], dim=-1)
        grad, y = grad.reshape(-1, length), y.reshape(-1, length)
        rows = [F.pad(grad[..., s:t].mT @ y[..., :t], (0, length - t)) for s, t in strips]
        return grad_y, torch.cat(rows, dim=-2)


# length from which strips are faster: measured on a CPU; estimated on a GPU, where joining the strips costs
# a pass over memory; not on the meta device, where the FLOPs of the whole square are counted
_LONG = {"cpu": 256, "cuda": 2048}


def _strips(y):
    """[(first output, end)] of the four strips; the last one may be shorter."""
    length = y.shape[-1]
    step = -(-length // 4)
    return [(s, min(s + step, length)) for s in range(0, length, step)]


class _ZeroUnlessFinite(torch.autograd.Function):
    """Replaces infinite and NaN entries by 0; the gradient passes unchanged.

    Masking the gradient too would make the compiler recompute y in the backward pass, and no gradient is
    right where y is not finite.
    """

    @staticmethod
    def forward(ctx, y):
        return y.nan_to_num(0.0, 0.0, 0.0)

    @staticmethod
    def backward(ctx, grad):
        return grad
