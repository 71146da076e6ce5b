"""Attention through PyTorch's scaled_dot_product_attention: by rank, where it can express it; of few rows.

y are the queries, the columns by position are the keys: `kernels.shared_attention` states the equation. Any
difference in width between the scores and the values is filled with zeros, so this pays where values are
narrow.
"""

import torch
from torch.nn import functional

from kernels.autocast import without_autocast
from kernels.split import high_and_low

FEW = 16  # rows of q
WIDEST = 256  # the largest width of a head that PyTorch's fused kernels take


def fits(y: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether `attention_by_position` runs in a fused kernel: half precision, narrow parts and values."""
    return v.dtype in (torch.bfloat16, torch.float16) and max(3 * y.shape[-1], v.shape[-1]) <= WIDEST


def attention_by_position(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    strict: bool = False,
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """`shared_attention` for v in half precision and columns by position. F: [H, R, T].

    y and the columns enter in a high and a low part of v's dtype each, [y_hi y_lo y_hi] and
    [F_hi F_hi F_lo], so that the scores are nearly those of the float32 numbers.
    """
    columns = F.mT[None] if keys is None else F.mT + keys
    (y, y_low), (columns, columns_low) = (high_and_low(x, v.dtype) for x in (y, columns))
    # low parts carry no gradient: that of y is dS (F_hi + F_lo) by its high parts alone
    q = torch.cat((y, y_low, y), -1)
    k = torch.cat((columns, columns, columns_low), -1)
    return attention_by_rank(q, k, v, strict)


def attention_of_few(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float = 0.0
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D) + mask) v, as PyTorch computes it, for q: [B, H, T, D] of a step of decoding.

    A CPU multiplies in float32: for few rows of q, PyTorch's kernel for bfloat16 is slower and less exact.
    """
    half = q.dtype in (torch.bfloat16, torch.float16)
    if not half or q.device.type != "cpu" or q.shape[-2] > FEW:
        return functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.float()
    with without_autocast(q):
        out = functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout)
    return out.to(q.dtype)


def attention_by_rank(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, strict: bool = False
) -> torch.Tensor:
    """Causal softmax(q k^T) v, in v's dtype. strict: a token does not attend to itself.

    q: [B, H, T, R], k: the same or [1, H, T, R], v: [B, H, T, P] -> [B, H, T, P] in v's dtype.
    All are padded with zeros to a common width, a multiple of 8.
    """
    if strict:  # shifted by one token and causal; the first token's output is 0
        out = attention_by_rank(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1])
        return torch.cat((torch.zeros_like(v[:, :, :1]), out), dim=2)
    rank, width = q.shape[-1], v.shape[-1]
    common = -(-max(rank, width) // 8) * 8
    q, k = (functional.pad(one.to(v.dtype), (0, common - rank)) for one in (q, k))
    k = k.expand_as(q)
    v = functional.pad(v, (0, common - width))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    return out[..., :width]
