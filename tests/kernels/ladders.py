"""Ladders for the tests of the continued fraction, and oracles."""

import torch

from kernels.continued_fraction import (
    continued_fraction,
    denominator,
)

EPS = 0.01


def fraction(*partial, **options):
    """One ladder in float64, from a_1 to a_d."""
    a = torch.tensor(partial, dtype=torch.float64)[:, None]
    return continued_fraction(a, **options).item()


def away_from_the_pole(a, eps=EPS):
    """Which columns of a [d, L] have |K_d| well above eps, by the determinant of A7.6."""
    depth = a.shape[0]
    matrices = torch.diag_embed(a.T.double())
    upper = torch.diag_embed(torch.ones(a.shape[1], depth - 1), offset=1) if depth > 1 else 0
    lower = torch.diag_embed(-torch.ones(a.shape[1], depth - 1), offset=-1) if depth > 1 else 0
    return torch.linalg.det(matrices + upper + lower).abs() > 2 * eps


def random_ladders(depth, count=500, scale=1.0, dtype=torch.float64):
    torch.manual_seed(depth)
    a = torch.randn(depth, 4 * count, dtype=dtype) * scale
    return a[:, away_from_the_pole(a)][:, :count]


def continuants_by_autograd(a):
    previous, current = torch.zeros_like(a[0]), torch.ones_like(a[0])
    for a_k in reversed(a):
        previous, current = current, a_k * current + previous
    return previous, current


def clampless(a, eps):
    """Which columns of a [d, L] meet no denominator near eps on the way up the ladder, nor K_d."""
    z, smallest = torch.zeros_like(a[0]), torch.full_like(a[0], float("inf"))
    for a_k in reversed(a):
        smallest = torch.minimum(smallest, (a_k + z).abs())
        z = 1 / (a_k + z)
    return (smallest > 2 * eps) & (denominator(a).abs() > 2 * eps)
