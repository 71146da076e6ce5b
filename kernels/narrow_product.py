"""z W^T for rows z of a few numbers, as a sum that torch.compile fuses with what follows it on a GPU.

The rows are narrow and the result is wide, so that a matrix product would spend its time on writing the
result. The compiler unrolls a sum of up to 7 terms into the kernel that reads the result, and nothing is
written. The gradients are matrix products of columns that are padded to 8, as tensor cores want them.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from kernels.autocast import product_dtype, without_autocast

WIDEST = 7  # below torch._inductor.config.unroll_reductions_threshold


def fuses(z: torch.Tensor) -> bool:
    """Whether `narrow_product` is faster than a matrix product: compiled for a GPU, for few columns."""
    return z.is_cuda and z.shape[-1] <= WIDEST and torch.compiler.is_compiling()


def narrow_product(z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """z: [..., L], weight: [C, L] -> z weight^T: [..., C], in the dtype that a linear map has, also under
    autocast. Only the gradients round their factors to it. Differentiable once.
    """
    return _NarrowProduct.apply(z, weight)


class _NarrowProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, weight):
        ctx.save_for_backward(z, weight)
        return (z[..., None, :] * weight).sum(-1).to(product_dtype(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        z, weight = ctx.saved_tensors
        spare = (0, -weight.shape[1] % 8)
        grad = grad.flatten(0, -2)
        rows, columns = (pad(x, spare).to(grad.dtype) for x in (z.flatten(0, -2), weight))
        with without_autocast(z):
            of_z, of_weight = grad @ columns, (rows.T @ grad).T
        of_z = of_z[:, : z.shape[-1]].view(z.shape)
        return of_z.to(z.dtype), of_weight[:, : z.shape[-1]].to(weight.dtype)
