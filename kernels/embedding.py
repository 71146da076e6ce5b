"""Token embedding whose gradient is deterministic to the bit.

Inductor turns the gradient of an embedding lookup into atomic additions. Their order depends on the timing
of threads, so two runs of the same compiled model differ from about the third step on. On a CPU, PyTorch's
own kernel adds the rows of each token in order; on a GPU, `kernels.embedding_triton` does. A custom
operator keeps the compiler from replacing them.
"""

import torch
import torch.nn.functional as F

from kernels import backend
from kernels.backend import NAMESPACE

if backend.AVAILABLE:
    from kernels import embedding_triton


def embedding(weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """F.embedding: weight [rows, C] floating type, tokens [...] int64 below rows -> [..., C]."""
    return _Embedding.apply(weight, tokens)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, tokens):
        ctx.save_for_backward(tokens)
        ctx.rows = weight.shape[0]
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx, grad):
        (tokens,) = ctx.saved_tensors
        return _embedding_backward(grad.contiguous(), tokens, ctx.rows), None


@torch.library.custom_op(f"{NAMESPACE}::embedding_backward", mutates_args=())
def _embedding_backward(grad: torch.Tensor, tokens: torch.Tensor, rows: int) -> torch.Tensor:
    if backend.use_triton("auto", grad):
        return embedding_triton.embedding_backward(grad, tokens, rows)
    return torch.ops.aten.embedding_dense_backward(grad, tokens, rows, -1, False)


@_embedding_backward.register_fake
def _(grad, tokens, rows):
    return grad.new_empty(rows, grad.shape[-1])
