"""y = x W^T + b for weights that never change, in the layout that oneDNN reads fastest on a CPU.

The operators that do it are private to PyTorch: this file alone names them, and without them `packed`
returns None.
"""

import torch

from kernels.backend import NAMESPACE


def packed(weight: torch.Tensor, rows: int) -> torch.Tensor | None:
    """W: [n_out, n_in] of float32 or bfloat16 -> a copy in the layout for products with so many rows of x,
    or None where that cannot be had or gains nothing.
    """
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype == torch.float32:
        if rows == 1:  # MKL's product of a matrix and a vector reads the memory as fast
            return None
    elif weight.dtype != torch.bfloat16:
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
    except (AttributeError, RuntimeError):  # another PyTorch; a CPU without AVX-512, for bfloat16
        return None


def packed_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, n_out: int):
    """x: [.., n_in] in the dtype of W, weight: of `packed` -> [.., n_out]"""
    if torch.compiler.is_compiling():
        return _packed_linear(x, weight, bias, n_out)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@torch.library.custom_op(f"{NAMESPACE}::packed_linear", mutates_args=())
def _packed_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, n_out: int
) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@_packed_linear.register_fake
def _(x, weight, bias, n_out):
    return x.new_empty((*x.shape[:-1], n_out))
