"""Weights of a softmax layer written down from co-occurrences, without a gradient.

"Explicit Foundation Model Optimization with Self-Attentive Feed-Forward Neural Units" (sections 2.2 to 2.4,
appendices A and B). For inputs H_m >= 0 of 1-norm K (the priming number) and target distributions Y_m, the
layer phi(H U) with phi = softmax has (equations 2, 3 and 7)

    F = H^T Y,    U[j,i] = log F[j,i] - (K - 1) / K log sum_d F[d,i].

With log P(j|i) = log F[j,i] - log sum_d F[d,i] this is naive Bayes: the evidence of all inputs, and one
log prior. For K = 1 it is the exact conditional distribution. F is a sum over predictions, so that data may
come in any order and in shares.
"""

import math

import torch

FLOOR = 1e-12  # of F, as a share of its largest entry: pairs that never occurred


def decoder(
    F: torch.Tensor, priming: float, floor: float = FLOOR, temperature: float = 1.0
) -> torch.Tensor:
    """U of a layer: F [inputs, outputs], not negative -> [inputs, outputs].

    priming: K. floor: F is at least this share of its largest entry. temperature: a factor on log P(j|i),
    not on the prior (ours; 1 is the paper's). Raises ValueError where F has no positive entry.
    """
    largest = F.max()
    if not largest > 0:
        raise ValueError("nothing was counted: F has no entry above 0")
    F = F.clamp(min=floor * largest.item())
    prior = F.sum(0).log()
    return temperature * (F.log() - prior) + prior / priming


def attention(F: torch.Tensor) -> torch.Tensor:
    """W of an attention over K slots: F(Q, V) = Q^T V [K, K], of positive entries -> [K, K].

        W[j,i] = log F[j,i] - (K_W - 1) / K_W log sum_k F[k,i],    K_W = log K     (equation 22)

    Raises ValueError for K < 2, and where an entry is not positive.
    """
    if len(F) < 2:
        raise ValueError(f"an attention over {len(F)} slot has no explicit solution: it needs at least 2")
    if not (F > 0).all():
        raise ValueError(
            f"F(Q, V) has entries that are not positive (the least is {F.min().item():.3g}), as happens "
            "with few different tokens: count fewer of them (saffu_tokens), use a larger vocabulary, or "
            "take saffu_attention=uniform"
        )
    return decoder(F, math.log(len(F)), floor=0.0)


def offset(slots: int, vocabulary: int) -> float:
    """c = 2 (1 + 1/K) log N, which is added to an attention's targets so that F(Q, V) is positive.

    vocabulary: N. The paper does not say whether its N counts special tokens. training/saffu_passes.py
    counts <sod>, <frg> and <pad> too: N + 3 in place of N.
    """
    return 2 * (1 + 1 / slots) * math.log(vocabulary)


def decoder_priming(slots: int) -> float:
    """K log K: K vectors of norm 1, each weighted by up to log K."""
    return slots * math.log(slots)
