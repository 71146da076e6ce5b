"""The gradient of an embedding on a GPU, the same to the bit in each run.

PyTorch's own kernel adds the rows of frequent tokens in an order that changes from run to run. Here tokens
are sorted, and one program adds all rows of a token, in the order of their positions.
"""

import torch
import triton
import triton.language as tl

from kernels.backend import on_its_device

ROWS, COLUMNS = 32, 64  # that a program reads at a time


@triton.jit
def _sum_kernel(
    grad_ptr, token_ptr, order_ptr, end_ptr, out_ptr, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """grad [N, width], in sorted order tokens [N], their places in grad [N] and the end of the run of equal
    tokens [N] -> out [V, width], whose other rows are left as they are.
    """
    first = tl.program_id(0)
    token = tl.load(token_ptr + first)
    begins = first == 0
    if first > 0:
        begins = tl.load(token_ptr + first - 1) != token
    if begins:
        end = tl.load(end_ptr + first)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = columns < width
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(first, end, ROWS):
            rows = start + tl.arange(0, ROWS)
            place = tl.load(order_ptr + rows, rows < end, other=0)
            mask = (rows < end)[:, None] & inside[None, :]
            total += tl.load(grad_ptr + place[:, None] * width + columns[None, :], mask, other=0.0).to(
                tl.float32
            )
        out = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * width + columns, out, inside)


@on_its_device
def embedding_backward(grad: torch.Tensor, tokens: torch.Tensor, rows: int) -> torch.Tensor:
    """grad: [..., C] float32 or half precision, tokens: [...] int64 -> [rows, C] in grad's dtype; sums are
    float32.
    """
    width = grad.shape[-1]
    grad, out = grad.reshape(-1, width).contiguous(), grad.new_zeros(rows, width)
    if not grad.numel():
        return out
    tokens, order = tokens.flatten().sort(stable=True)
    end = torch.searchsorted(tokens, tokens, right=True)
    grid = (len(tokens), triton.cdiv(width, COLUMNS))
    _sum_kernel[grid](grad, tokens, order, end, out, width, ROWS=ROWS, COLUMNS=COLUMNS)
    return out
