"""float32 products on bfloat16 tensor cores: each number in a high and a low part.

x = high + low + rest, where high is x rounded to bfloat16, low is the remainder rounded to bfloat16, and
|rest| <= 2^-18 |x|. The products of the parts with each other, summed in float32, have an error of 2^-17 of
|a| |b| at most, where rounding both factors to bfloat16 has 2^-8.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from kernels.autocast import product_dtype, without_autocast

# mantissa bits of float32 that a dtype lacks
DROPPED = {torch.bfloat16: 16, torch.float16: 13}


def high_and_low(x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    """x: any floating type -> its high and its low part in dtype. Only the high part carries the gradient.

    The parts of an infinite x are NaN. The high part is rounded in its bits, because torch.compile leaves
    out a cast to dtype and back, and the low part would be 0.
    """
    x = x.float()
    if dtype == torch.float32:
        return x, torch.zeros_like(x)
    dropped = DROPPED[dtype]
    bits = x.detach().view(torch.int32)
    to_even = (bits >> dropped) & 1
    rounded = (bits + (1 << dropped - 1) - 1 + to_even) & -(1 << dropped)
    low = x.detach() - rounded.view(torch.float32)
    return (x - low).to(dtype), low.to(dtype)  # x - low is the rounded number, without an error


# which parts stand side by side in the factors of a product of 2 x 2 parts
LEFT, RIGHT = (0, 1, 1, 0), (0, 1, 0, 1)


def side_by_side(x: torch.Tensor, order: tuple[int, ...], width: int) -> torch.Tensor:
    """High (0) and low (1) parts of x in one row, each padded with zeros to `width`.

    x: [..., R], R <= width -> [..., len(order) width] bfloat16. The product of a LEFT and a RIGHT row is
    that of the two float32 rows.
    """
    parts = high_and_low(functional.pad(x, (0, width - x.shape[-1])))
    return torch.cat([parts[part] for part in order], dim=-1)


def in_parts(x: torch.Tensor) -> bool:
    """Whether float32 products with x run in parts: on a GPU, under autocast to half precision."""
    return x.is_cuda and product_dtype(x).itemsize == 2


def summed_in_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b for bfloat16 matrices, [M, K] and [K, N] or batches of them, with a float32 result."""
    if a.device.type != "cuda":  # the same numbers without tensor cores
        return a.float() @ b.float()
    return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=torch.float32)


def batched_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b of high and low parts, without their low low: [N, M, K] and [N, K, L] -> [N, M, L] float32"""
    width = -(-a.shape[-1] // 8) * 8  # aligned for tensor cores
    left = side_by_side(a, (0, 1, 0), width)
    return summed_in_float32(left, side_by_side(b.mT, (0, 0, 1), width).mT)


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """weight @ x.T of high and low parts, without their low low, for any autocast.

    weight: [M, K] float32, x: [N, K] float32 or half precision -> [M, N] float32. In the gradients, all
    factors are rounded to bfloat16, as they are in other linear maps. Differentiable once.
    """
    return _Product.apply(weight, x)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, x):
        ctx.save_for_backward(weight, x)
        (high, low), (x_high, x_low) = high_and_low(weight), high_and_low(x)
        with without_autocast(x):
            both = summed_in_float32(torch.cat((high, low)), x_high.T)
            out = both[: len(weight)] + both[len(weight) :]
            return out if x.dtype == torch.bfloat16 else out + summed_in_float32(high, x_low.T)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, x = ctx.saved_tensors
        grad = grad.bfloat16()
        with without_autocast(x):
            of_weight = summed_in_float32(grad, x.bfloat16())
            return of_weight, summed_in_float32(grad.T, weight.bfloat16()).to(x.dtype)
