"""The continued fraction of d partial denominators, for every ladder and token at once.

    f(a_1..a_d) = 1/(a_1 + 1/(a_2 + ... + 1/a_d)) = K_{d-1} / K_d

with the continuants of the tails (CoFrGeNet, equations 4 to 6),

    K_0 = 1,   K_1 = a_d,   K_k = a_{d-k+1} K_{k-1} + K_{k-2},

where K_k belongs to the last k partial denominators. One division whatever the depth; the gradient
(Proposition 1, equation 9) needs only the continuants that the forward pass has computed:

    df/da_k = (-1)^k (K_{d-k} / K_d)^2.

`continued_fraction` is the function to call, `continued_fraction_and_range` also gives the extremes of each
ladder, `continued_fraction_ladder` is the same with d divisions, and `denominator` gives K_d alone.
`continued_fraction_naive` is the oracle. On a GPU `kernels.continued_fraction_triton` does the work.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from kernels import backend as backends

if backends.AVAILABLE:
    from kernels.continued_fraction_triton import continued_fraction_triton

POLES = ("clamp", "positive")
POLE_GRADS = ("formula", "exact", "zero")


def continued_fraction(
    a: torch.Tensor,
    pole: str = "clamp",
    eps: float = 0.01,
    floor: float = 0.1,
    pole_grad: str = "formula",
    backend: str = "auto",
) -> torch.Tensor:
    """f(a_1..a_d) along the last but one dimension.

    a: [..., d, L], any floating type; a[..., k-1, :] is a_k of the L ladders (depth-major).
    Returns z: [..., L] in a's type. Inside, everything is float32 (float64 for float64): in bfloat16
    the 99th percentile of the relative error would be 8 % at d=3 and 19 % at d=7.

    pole says what happens where the denominator K_d comes near zero:
    - "clamp", as printed in the papers: K_d is replaced by s max(|K_d|, eps), s = -1 if K_d < 0, else 1.
    - "positive": every a_k passes through softplus(a_k) + floor, so that no continuant changes its
      sign. Then |z| <= 1/floor and |dz/da_k| <= max(1/(4 floor), 1).

    pole_grad says what the gradient is where |K_d| < eps, with pole="clamp":
    - "formula": equation 9 with the clamped denominator, (-1)^k (K_{d-k} / (s eps))^2.
    - "exact": the derivative of the clamped function K_{d-1} / (s eps), which is 0 for k=1.
    - "zero": none.

    backend: "torch", "triton" (no float64), or "auto", which is Triton on a GPU.

    A NaN in a stays a NaN in z and in the gradient. Products of d partial denominators must fit the
    floating type: in float32, |a| < 3e5 at d=7. The result is differentiable once.
    Raises ValueError for an unknown pole, pole_grad or backend, where Triton is asked for and cannot run,
    and where a has no depth.
    """
    options = _checked(a, pole, eps, floor, pole_grad)
    if backends.use_triton(backend, a):
        return continued_fraction_triton(a, *options)[0]
    return _ContinuedFraction.apply(a, *options)


def continued_fraction_and_range(
    a: torch.Tensor,
    pole: str = "clamp",
    eps: float = 0.01,
    floor: float = 0.1,
    pole_grad: str = "formula",
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`continued_fraction`, and `finite_range` of its result in the same pass over it."""
    options = _checked(a, pole, eps, floor, pole_grad)
    if backends.use_triton(backend, a):
        return continued_fraction_triton(a, *options, ranged=True)
    z = _ContinuedFraction.apply(a, *options)
    return z, *finite_range(z)


@torch.no_grad()
def finite_range(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """z: [..., L] -> low, high: [L] float32, the smallest and largest finite z of each ladder, inf and -inf
    where there is none. They have no gradient.
    """
    rows = z.detach().reshape(-1, z.shape[-1]).float()
    if not rows.shape[0]:
        rows = rows.new_full((1, z.shape[-1]), float("nan"))
    finite = rows.isfinite()
    low = rows.where(finite, float("inf")).amin(0)
    return low, rows.where(finite, float("-inf")).amax(0)


def continued_fraction_ladder(
    a: torch.Tensor, pole: str = "clamp", eps: float = 0.01, floor: float = 0.1
) -> torch.Tensor:
    """f(a_1..a_d) as the ladder is written, d divisions, differentiated by autograd (CoFrGeNet_B).

    Shapes, types and poles as in `continued_fraction`, but "clamp" clamps each of the d denominators
    a_k + 1/(...). The two are equal wherever no denominator is clamped.
    """
    _check(a, pole)
    z = torch.zeros_like(a[..., 0, :], dtype=torch.promote_types(a.dtype, torch.float32))
    for a_k in reversed(_partial_denominators(a, pole == "positive", floor).unbind(-2)):
        z = (_clamp(a_k + z, eps) if pole == "clamp" else a_k + z).reciprocal()
    return z.to(a.dtype)


def denominator(a: torch.Tensor, pole: str = "clamp", floor: float = 0.1) -> torch.Tensor:
    """K_d(a_1..a_d) before any clamp: how near a ladder is to its pole.

    a: [..., d, L], any floating type -> [..., L], float32 (float64 for float64). With pole="positive"
    of softplus(a) + floor. Raises ValueError for an unknown pole and where a has no depth.
    """
    _check(a, pole)
    return _continuants(_partial_denominators(a, pole == "positive", floor))[-1]


class _ContinuedFraction(torch.autograd.Function):
    """Keeps only `a`: recomputing the continuants costs d multiply-adds, storing them d more words."""

    @staticmethod
    def forward(ctx, a, positive, constant, pole_grad):
        ctx.save_for_backward(a)
        ctx.positive, ctx.constant, ctx.pole_grad = positive, constant, pole_grad
        *_, numerator, K_d = _continuants(_partial_denominators(a, positive, constant))
        return (numerator * (K_d if positive else _clamp(K_d, constant)).reciprocal()).to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z):
        (a,) = ctx.saved_tensors
        partial = _partial_denominators(a, ctx.positive, ctx.constant)
        *tails, K_d = _continuants(partial)
        reciprocal = (K_d if ctx.positive else _clamp(K_d, ctx.constant)).reciprocal()
        # tails[d-k] is K_{d-k}; k runs from 1 to d
        squares = [(tail * reciprocal).square() for tail in reversed(tails)]
        grads = [g if k % 2 else -g for k, g in enumerate(squares)]
        if not ctx.positive and ctx.pole_grad != "formula":
            clamped = K_d.abs() < ctx.constant  # a NaN is not, and stays
            inside = [torch.zeros_like(K_d)] * len(tails)
            if ctx.pole_grad == "exact":
                heads = _heads(partial)
                inside = [h * t * reciprocal for h, t in zip(heads, reversed(tails), strict=True)]
            grads = [torch.where(clamped, i, g) for i, g in zip(inside, grads, strict=True)]
        grad = torch.stack(grads, dim=-2) * grad_z.to(partial.dtype).unsqueeze(-2)
        if ctx.positive:
            grad = grad * torch.sigmoid(a.to(partial.dtype))
        return grad.to(a.dtype), None, None, None


def _checked(a, pole, eps, floor, pole_grad):
    """-> positive, constant, pole_grad"""
    _check(a, pole)
    if pole_grad not in POLE_GRADS:
        raise ValueError(f"cf_pole_grad must be one of {', '.join(POLE_GRADS)}, not {pole_grad!r}")
    positive = pole == "positive"
    return positive, floor if positive else eps, pole_grad


def _check(a, pole):
    if pole not in POLES:
        raise ValueError(f"cf_pole must be one of {', '.join(POLES)}, not {pole!r}")
    if a.dim() < 2 or a.shape[-2] < 1:
        raise ValueError(
            f"a continued fraction needs partial denominators [..., d >= 1, L], not {list(a.shape)}"
        )


def _partial_denominators(a, positive, floor):
    a = a.to(torch.promote_types(a.dtype, torch.float32))
    return F.softplus(a) + floor if positive else a


def _clamp(denominator, eps):
    return torch.where(denominator < 0, -1.0, 1.0) * denominator.abs().clamp_min(eps)


def _continuants(a):
    """[K_0, ..., K_d]"""
    previous, current = torch.zeros_like(a[..., 0, :]), torch.ones_like(a[..., 0, :])
    tails = [current]
    for a_k in reversed(a.unbind(-2)):
        previous, current = current, a_k * current + previous
        tails.append(current)
    return tails


def _heads(a):
    """The continuants of (a_2..a_{k-1}) for k = 1..d: dK_{d-1}/da_k is this one times K_{d-k}."""
    heads = [torch.zeros_like(a[..., 0, :]), torch.ones_like(a[..., 0, :])]
    for a_k in a.unbind(-2)[1:-1]:
        heads.append(a_k * heads[-1] + heads[-2])
    return heads[: a.shape[-2]]


def continued_fraction_naive(a: torch.Tensor, pole: str = "clamp", floor: float = 0.1) -> torch.Tensor:
    """The oracle: the ladder as it is written, d divisions, no clamp, differentiated by autograd.

    Same shapes as `continued_fraction`; equal to it wherever no denominator is clamped.
    """
    if pole == "positive":
        a = F.softplus(a) + floor
    z = torch.zeros_like(a[..., 0, :])
    for a_k in reversed(a.unbind(-2)):
        z = 1 / (a_k + z)
    return z
