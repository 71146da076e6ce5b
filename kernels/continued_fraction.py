"""The continued fraction of d partial denominators, for every ladder and token at once.

    f(a_1..a_d) = 1/(a_1 + 1/(a_2 + ... + 1/a_d)) = K_{d-1} / K_d

with the continuants of the tails (CoFrGeNet, equations 4 to 6),

    K_0 = 1,   K_1 = a_d,   K_k = a_{d-k+1} K_{k-1} + K_{k-2},

where K_k belongs to the last k partial denominators. This takes one division at every depth. The gradient
(Proposition 1, equation 9) needs only the continuants that the forward pass has computed:

    df/da_k = (-1)^k (K_{d-k} / K_d)^2.

`continued_fraction` is the function to call. `continued_fraction_and_range` also returns the smallest and
largest value of each ladder. `continued_fraction_ladder` computes the same with d divisions, and
`denominator` returns K_d alone. `continued_fraction_naive` is the reference for tests. On a GPU,
`kernels.continued_fraction_triton` computes the first two.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from kernels import backend as backends

if backends.AVAILABLE:
    from kernels.continued_fraction_triton import continued_fraction_triton

POLES = ("clamp", "positive")


def continued_fraction(
    a: torch.Tensor,
    pole: str = "clamp",
    eps: float = 0.01,
    floor: float = 0.1,
    backend: str = "auto",
    dim: int = -2,
) -> torch.Tensor:
    """f(a_1..a_d) along one dimension, by default the last but one.

    a: [..., d, L], any floating type; a[..., k-1, :] is a_k of the L ladders. dim: the dimension of d, as a
    negative number. It is fastest if d comes first in memory, as in a view of [d, L, tokens].
    Returns z: [..., L] in a's dtype. The computation is in float32 (float64 for float64): in bfloat16 the
    99th percentile of the relative error would be 8 % at d=3 and 19 % at d=7.

    pole selects what happens when the denominator K_d comes near zero:
    - "clamp", as printed in the papers: K_d is replaced by s max(|K_d|, eps), s = -1 if K_d < 0, else 1
      (printed is sgn, which is 0 at 0).
      The gradient there is equation 9 with the clamped denominator, (-1)^k (K_{d-k} / (s eps))^2.
    - "positive": every a_k passes through softplus(a_k) + floor, so that no continuant changes its
      sign. Then |z| <= 1/floor and |dz/da_k| <= max(1/(4 floor), 1).

    backend: "torch", "triton" (no float64), or "auto", which is Triton on a GPU.

    A NaN in a stays a NaN in z and in the gradient. Products of d partial denominators must fit the
    floating type: in float32, |a| < 3e5 at d=7. The result is differentiable once.
    Raises ValueError for an unknown pole or backend, if Triton is requested and cannot run, and if d < 1.
    """
    options = _checked(a, pole, eps, floor, dim)
    first, in_order = _depth_first(a, dim)
    if backends.use_triton(backend, a):
        z, _, _ = continued_fraction_triton(first.flatten(1).unsqueeze(1), *options)
        return in_order(z.view(first.shape[1:]))
    return in_order(_ContinuedFraction.apply(first, *options))


def continued_fraction_and_range(
    a: torch.Tensor,
    pole: str = "clamp",
    eps: float = 0.01,
    floor: float = 0.1,
    backend: str = "auto",
    dim: int = -2,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`continued_fraction` and, in the same pass, `finite_range` of its result: (z, low, high).

    The dimensions after `dim` are ladders, those before it are tokens.
    """
    options = _checked(a, pole, eps, floor, dim)
    if not backends.use_triton(backend, a):
        z = continued_fraction(a, pole, eps, floor, backend, dim)
        return z, *finite_range(z, dims=-1 - dim)
    where = a.dim() + dim
    tokens, ladders = a.shape[:where], a.shape[where + 1 :]
    ladders_first = a.permute(where, *range(where + 1, a.dim()), *range(where))
    flat = ladders_first.reshape(len(ladders_first), math.prod(ladders), math.prod(tokens))
    z, low, high = continued_fraction_triton(flat, *options, ranged=True)
    z = z.view(*ladders, *tokens).permute(*range(len(ladders), a.dim() - 1), *range(len(ladders)))
    return z, low.view(ladders), high.view(ladders)


@torch.no_grad()
def finite_range(z: torch.Tensor, dims: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest finite z of each ladder, without gradient.

    z: [..., L] -> low, high: [L] float32. A ladder without a finite z has low = inf and high = -inf.
    dims: the number of trailing dimensions that index ladders.
    """
    ladders = z.shape[z.dim() - dims :]
    rows = z.detach().reshape(-1, *ladders).float()
    if not rows.shape[0]:
        rows = rows.new_full((1, *ladders), float("nan"))
    finite = rows.isfinite()
    low = rows.where(finite, float("inf")).amin(0)
    return low, rows.where(finite, float("-inf")).amax(0)


def continued_fraction_ladder(
    a: torch.Tensor, pole: str = "clamp", eps: float = 0.01, floor: float = 0.1, dim: int = -2
) -> torch.Tensor:
    """f(a_1..a_d) by d divisions one after the other, differentiated by autograd (CoFrGeNet_B).

    Shapes and dtypes as in `continued_fraction`. The pole "clamp" clamps each of the d denominators
    a_k + 1/(...). Both functions give the same result wherever no denominator is clamped.
    """
    _check(a, pole, dim)
    partial = _partial_denominators(a, pole == "positive", floor).unbind(dim)
    z = torch.zeros_like(partial[0])
    for a_k in reversed(partial):
        r = a_k + z
        if pole == "clamp":  # written so that the gradient is fast too
            r = torch.where(r < 0, -1.0, 1.0) * r.abs().clamp_min(eps)
        z = r.reciprocal()
    return z.to(a.dtype)


def denominator(a: torch.Tensor, pole: str = "clamp", floor: float = 0.1, dim: int = -2) -> torch.Tensor:
    """K_d(a_1..a_d) before any clamp, which measures how near a ladder is to its pole.

    a: [..., d, L], any floating type -> [..., L], float32 (float64 for float64). With pole="positive" it is
    K_d of softplus(a) + floor. Raises ValueError for an unknown pole and if d < 1.
    """
    _check(a, pole, dim)
    return _continuants(_partial_denominators(a, pole == "positive", floor).unbind(dim))[-1]


def _depth_first(a, dim):
    """Returns a view of a, and a function that restores a's order of dimensions in a result.

    The view has d as its first dimension and the others in the order in which they lie in memory.
    """
    first = a.movedim(dim, 0)
    order = []
    for one in range(1, a.dim()):  # torch.compile cannot trace `sorted` with symbolic sizes
        larger = [other for other in order if first.stride(other) >= first.stride(one)]
        order.insert(len(larger), one)
    back = [order.index(one) for one in range(1, a.dim())]
    return first.permute(0, *order), lambda z: z.permute(back)


class _ContinuedFraction(torch.autograd.Function):
    """a: [d, ...] -> [...].

    Saves only `a`: recomputing the continuants costs d multiply-adds, storing them d more words. Operations
    are in place where possible, because without a compiler each one is a pass over memory.
    """

    @staticmethod
    def forward(ctx, a, positive, constant):
        ctx.save_for_backward(a)
        ctx.positive, ctx.constant = positive, constant
        *_, numerator, K_d = _continuants(_partial_denominators(a, positive, constant).unbind())
        z = numerator / (K_d if positive else _clamp(K_d, constant))
        # no `to` that returns z itself: the compiler of PyTorch 2.11 would make the gradient 0
        # (github.com/pytorch/pytorch/issues/180642)
        return z if z.dtype == a.dtype else z.to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z):
        (a,) = ctx.saved_tensors
        *tails, K_d = _continuants(_partial_denominators(a, ctx.positive, ctx.constant).unbind())
        reciprocal = (K_d if ctx.positive else _clamp(K_d, ctx.constant)).reciprocal()
        grad_z = grad_z.to(K_d.dtype)
        signed = (-grad_z, grad_z)
        # tails[d-k] is K_{d-k}; k runs from 1 to d
        ratios = [tail * reciprocal for tail in reversed(tails)]
        grad = torch.stack([ratio.square_().mul_(signed[k % 2]) for k, ratio in enumerate(ratios)])
        if ctx.positive:
            grad.mul_(torch.sigmoid(a.to(grad.dtype)))
        return grad.to(a.dtype), None, None


def _checked(a, pole, eps, floor, dim):
    """Returns (positive, constant): whether pole is "positive", and floor if so, else eps."""
    _check(a, pole, dim)
    positive = pole == "positive"
    return positive, floor if positive else eps


def _check(a, pole, dim):
    if pole not in POLES:
        raise ValueError(f"cf_pole must be one of {', '.join(POLES)}, not {pole!r}")
    if dim >= 0 or a.dim() < -dim or a.shape[dim] < 1:
        raise ValueError(
            f"a continued fraction needs partial denominators [..., d >= 1, L], not {list(a.shape)}"
        )


def _partial_denominators(a, positive, floor):
    a = a.to(torch.promote_types(a.dtype, torch.float32))
    return F.softplus(a).add_(floor) if positive else a


def _clamp(denominator, eps):
    # + 0.0 turns -0 into 0, so that it counts as positive
    return denominator.abs().clamp_min_(eps).copysign_(denominator + 0.0)


def _continuants(partial):
    """[a_1, ..., a_d] -> [K_0, ..., K_d]"""
    tails = [torch.ones_like(partial[-1]), partial[-1]]
    for a_k in reversed(partial[:-1]):
        tails.append(torch.addcmul(tails[-2], a_k, tails[-1]))
    return tails


def continued_fraction_naive(a: torch.Tensor, pole: str = "clamp", floor: float = 0.1) -> torch.Tensor:
    """The reference for tests: d divisions, no clamp, differentiated by autograd.

    Same shapes as `continued_fraction`, and the same result wherever no denominator is clamped.
    """
    if pole == "positive":
        a = F.softplus(a) + floor
    z = torch.zeros_like(a[..., 0, :])
    for a_k in reversed(a.unbind(-2)):
        z = 1 / (a_k + z)
    return z
