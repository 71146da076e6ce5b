"""The continued fraction against closed forms, exact rational arithmetic and the ladder as written."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.continued_fraction import (
    POLE_GRADS,
    continued_fraction,
    continued_fraction_and_range,
    continued_fraction_ladder,
    continued_fraction_naive,
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


def test_ones_give_ratios_of_fibonacci_numbers():
    previous, current = 1, 1
    for depth in range(1, 31):
        assert fraction(*[1.0] * depth) == pytest.approx(previous / current, rel=1e-14)
        previous, current = current, previous + current
    assert fraction(*[1.0] * 30) == pytest.approx(0.6180339887496, abs=1e-12)


def test_one_two_three_four():
    assert fraction(1, 2, 3, 4) == pytest.approx(30 / 43, rel=1e-15)


def test_depth_one_is_the_reciprocal_and_depth_two_its_formula():
    a = torch.tensor([[2.0, -0.5, 4.0]], dtype=torch.float64, requires_grad=True)
    z = continued_fraction(a)
    z.sum().backward()
    assert torch.equal(z, 1 / a[0])
    torch.testing.assert_close(a.grad, -1 / a.detach() ** 2)
    a1, a2 = 0.7, -1.9
    assert fraction(a1, a2) == pytest.approx(a2 / (a1 * a2 + 1), rel=1e-14)


@pytest.mark.parametrize("depth", range(1, 9))
def test_identities(depth):
    a = random_ladders(depth)
    z = continued_fraction(a)
    torch.testing.assert_close(continued_fraction(-a), -z)  # odd
    scale = torch.tensor([[3.0] if k % 2 == 0 else [1 / 3] for k in range(depth)], dtype=torch.float64)
    torch.testing.assert_close(continued_fraction(a * scale, eps=1e-9), z / 3)
    if depth > 1:
        tail = continued_fraction_naive(a[1:])
        torch.testing.assert_close(z, 1 / (a[0] + tail), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("pole", ["clamp", "positive"])
@pytest.mark.parametrize("depth", range(1, 10))
def test_equals_the_ladder_as_written_in_value_and_gradient(depth, pole):
    a = random_ladders(depth).requires_grad_()
    z, naive = continued_fraction(a, pole), continued_fraction_naive(a, pole)
    weight = torch.randn_like(z)
    (grad,) = torch.autograd.grad((z * weight).sum(), a)
    (expected,) = torch.autograd.grad((naive * weight).sum(), a)
    torch.testing.assert_close(z, naive, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grad, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("pole", ["absolute", "smooth", "soft_clamp"])
@pytest.mark.parametrize("depth", range(1, 8))
def test_other_poles_in_value_and_gradient(depth, pole):
    """Against the same function of K_{d-1} and K_d, which are here those of two ladders as written."""
    a, eps, floor = random_ladders(depth, count=100).requires_grad_(), 0.3, 0.1
    partial = a.abs() + floor if pole == "absolute" else a
    z = continued_fraction_naive(partial)
    K = 1.0  # K_d, the product of all tails' denominators
    for k in range(depth):
        K = K / continued_fraction_naive(partial[k:])
    factor = {
        "absolute": 1.0,
        "smooth": K**2 / (K**2 + eps**2),
        "soft_clamp": abs(K) / (K**2 + eps**2) ** 0.5,
    }
    expected, found = z * factor[pole], continued_fraction(a, pole, eps, floor)
    weight = torch.randn_like(z)
    gradients = [torch.autograd.grad((y * weight).sum(), a)[0] for y in (found, expected)]
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)
    single = continued_fraction(a.detach().bfloat16(), pole, eps, floor)
    assert single.dtype == torch.bfloat16
    exact = continued_fraction(a.detach().bfloat16().double(), pole, eps, floor)
    torch.testing.assert_close(single.double(), exact, rtol=2e-2, atol=1e-3)
    K_found = denominator(a, pole, floor)
    torch.testing.assert_close(K_found, K if isinstance(K, torch.Tensor) else torch.full_like(z, K))


def test_other_poles_at_the_pole():
    assert fraction(0.0, pole="smooth") == 0
    assert fraction(0.0, pole="soft_clamp", eps=0.5) == 2
    assert fraction(-0.0, pole="absolute", floor=0.5) == 2
    with pytest.raises(ValueError, match="a ladder of d divisions takes cf_pole=clamp or positive"):
        continued_fraction_ladder(torch.ones(2, 1), "smooth")


@pytest.mark.parametrize("depth", [2, 3, 5, 8])
def test_denominator_is_the_determinant(depth):
    """z = K_{d-1} / K_d, both as determinants of tridiagonal matrices."""

    def continuant(a):
        n = len(a)
        off = torch.ones(n - 1, dtype=torch.float64)
        return torch.linalg.det(torch.diag(a) + torch.diag(off, 1) - torch.diag(off, -1))

    for a in random_ladders(depth, count=20).T:
        assert fraction(*a.tolist()) == pytest.approx((continuant(a[1:]) / continuant(a)).item(), rel=1e-8)


def test_clamped_denominators():
    assert fraction(0.0) == pytest.approx(1 / EPS)  # K_1 = 0: sgn(0) is +1
    assert fraction(-0.0) == pytest.approx(1 / EPS)
    assert fraction(-EPS / 2) == pytest.approx(-1 / EPS)  # K_1 = -eps/2
    assert fraction(0.0, 0.0, 0.0) == pytest.approx(1 / EPS)  # odd depth at 0: K_2 = 1, K_3 = 0
    assert fraction(0.0, 0.0) == 0.0  # even depth at 0: K_1 = 0, K_2 = 1
    assert fraction(-EPS / 2, 1.0, -1.0, eps=EPS) == pytest.approx(fraction(-EPS / 2, 1.0, -1.0, eps=1e-9))


def test_gradient_where_clamped_uses_the_clamped_denominator():
    a = torch.full((3, 1), 0.05, dtype=torch.float64, requires_grad=True)
    continued_fraction(a, eps=0.5).sum().backward()
    tails = [1.0, 0.05, 0.05**2 + 1]
    expected = [-((tails[2] / 0.5) ** 2), (tails[1] / 0.5) ** 2, -((tails[0] / 0.5) ** 2)]
    assert a.grad.flatten().tolist() == pytest.approx(expected)
    assert expected == pytest.approx([-4.02, 0.010, -4.00], abs=5e-3)


def test_nan_is_not_hidden():
    for place in range(3):
        a = torch.ones(3, 1)
        a[place] = float("nan")
        assert continued_fraction(a).isnan().all()
        assert continued_fraction(a, "positive").isnan().all()


@pytest.mark.parametrize("pole", ["clamp", "positive"])
@pytest.mark.parametrize("depth", range(1, 9))
def test_gradcheck(depth, pole):
    a = random_ladders(depth, count=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: continued_fraction(a, pole), a)


@pytest.mark.parametrize("depth", range(1, 9))
def test_signs_of_the_gradient_alternate(depth):
    a = random_ladders(depth).requires_grad_()
    continued_fraction(a).sum().backward()
    signs = torch.where(torch.arange(1, depth + 1) % 2 == 0, 1.0, -1.0)[:, None]
    assert (a.grad * signs >= 0).all()
    assert (a.grad != 0).float().mean() > 0.99


@pytest.mark.parametrize("pole", ["clamp", "positive"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_computed_in_float32(dtype, pole):
    """Only the input and the result are rounded: 1/2 ulp of the type, whatever the depth."""
    a = random_ladders(7).to(dtype)
    a = a[:, away_from_the_pole(a, 0.05)].requires_grad_()
    exact = a.detach().double().requires_grad_()
    z, reference = continued_fraction(a, pole), continued_fraction(exact, pole)
    z.sum().backward()
    reference.sum().backward()
    assert z.dtype == dtype
    assert a.grad.dtype == dtype
    tolerance = max(torch.finfo(dtype).eps, 1e-4)
    torch.testing.assert_close(z.double(), reference, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 3, 7), (1, 17, 8, 33), (0, 3, 2)])
def test_shapes(shape):
    a = torch.randn(shape).abs() + 0.1
    torch.testing.assert_close(continued_fraction(a), continued_fraction_naive(a))
    assert continued_fraction(a).shape == (*shape[:-2], shape[-1])


def test_non_contiguous_input():
    a = torch.rand(7, 5, 3) + 0.1
    torch.testing.assert_close(
        continued_fraction(a.transpose(1, 2)), continued_fraction(a.transpose(1, 2).contiguous())
    )


@pytest.mark.parametrize("pole", ["clamp", "positive"])
@pytest.mark.parametrize("memory", [(0, 1, 2, 3), (2, 3, 0, 1), (1, 2, 0, 3), (3, 2, 1, 0)])
def test_any_order_of_memory_gives_the_same(memory, pole):
    """Values, gradients and ranges of [5, 4, 3, 2] with d = 3, whatever lies first in memory."""
    torch.manual_seed(0)
    plain = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    laid_out = plain.permute(memory).contiguous().permute([memory.index(i) for i in range(4)])
    upstream = torch.randn(5, 4, 2, dtype=torch.float64)
    results = []
    for a in (plain, laid_out):
        a.requires_grad_()
        z, low, high = continued_fraction_and_range(a, pole, eps=0.3)
        results.append((z, torch.autograd.grad(z, a, upstream)[0], low, high))
    torch.testing.assert_close(*results, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("depth_first", [True, False])
@pytest.mark.parametrize("pole", ["clamp", "positive"])
def test_one_graph_for_all_batch_sizes(pole, depth_first):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(continued_fraction, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (4, 9, 33, 130):
        a = torch.rand(3, 7, tokens).permute(2, 0, 1) if depth_first else torch.rand(tokens, 3, 7)
        a.requires_grad_()
        results = []
        for function in (compiled, continued_fraction):
            z = function(a, pole)
            results.append((z, torch.autograd.grad(z.square().sum(), a)[0]))
        torch.testing.assert_close(*results)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("function", [continued_fraction, continued_fraction_ladder, denominator])
def test_depth_may_be_another_dimension(function):
    torch.manual_seed(0)
    a = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    for dim in (-1, -3, -4):
        torch.testing.assert_close(
            function(a, dim=dim), function(a.movedim(dim, -1)[..., None]).squeeze(-1)
        )
    with pytest.raises(ValueError, match="partial denominators"):
        function(a, dim=0)


@pytest.mark.parametrize("dim", [-1, -2, -3, -4])
def test_ladders_are_what_comes_after_depth(dim):
    a = torch.randn(5, 4, 3, 2)
    z, low, high = continued_fraction_and_range(a, dim=dim)
    tokens = tuple(range(4 + dim))
    assert torch.equal(low, z.amin(tokens) if tokens else z)
    assert torch.equal(high, z.amax(tokens) if tokens else z)


def test_refuses_what_is_no_continued_fraction():
    with pytest.raises(ValueError, match=r"cf_pole must be one of clamp, positive, .*, not 'klamp'"):
        continued_fraction(torch.ones(3, 1), "klamp")
    with pytest.raises(ValueError, match="cf_pole_grad must be one of formula, exact, zero, not 'exakt'"):
        continued_fraction(torch.ones(3, 1), pole_grad="exakt")
    for function in (continued_fraction, continued_fraction_ladder, denominator):
        with pytest.raises(ValueError, match="cf_pole must be one of"):
            function(torch.ones(3, 1), "klamp")
        for shape in ((0, 3), (5,)):
            with pytest.raises(ValueError, match="partial denominators"):
                function(torch.ones(shape))


def continuants_by_autograd(a):
    previous, current = torch.zeros_like(a[0]), torch.ones_like(a[0])
    for a_k in reversed(a):
        previous, current = current, a_k * current + previous
    return previous, current


def clamped_by_autograd(a, eps, pole_grad):
    """K_{d-1} / (s max(|K_d|, eps)) with each meaning of its gradient, differentiated by autograd."""
    numerator, K_d = continuants_by_autograd(a)
    z = numerator / (torch.where(K_d < 0, -1.0, 1.0) * K_d.abs().clamp_min(eps))
    if pole_grad == "exact":
        return z
    if pole_grad == "zero":
        return torch.where(K_d.abs() < eps, z.detach(), z)
    # the quotient rule, with the reciprocal that the forward pass has saved
    reciprocal = 1 / (torch.where(K_d < 0, -1.0, 1.0) * K_d.abs().clamp_min(eps)).detach()
    slope = (K_d.detach() * numerator - numerator.detach() * K_d) * reciprocal.square()
    return z.detach() + slope - slope.detach()


def ladders_around_the_pole(depth, eps, count=400, dtype=torch.float64):
    """[d, 3 count + 5]: clamped ones, ones beyond, and K_d = 0, -0, eps/2, -eps/2, eps to rounding."""
    torch.manual_seed(depth)
    a = torch.randn(depth, 3 * count + 5, dtype=torch.float64)
    numerator, K_d = continuants_by_autograd(a)
    wanted = torch.rand(3 * count + 5, dtype=torch.float64) * 4 * eps - 2 * eps
    wanted[:5] = torch.tensor([0.0, -0.0, eps / 2, -eps / 2, eps * (1 + 1e-9)], dtype=torch.float64)
    wanted[-count:] = K_d[-count:]
    a[0] += (wanted - K_d) / numerator  # K_d = a_1 K_{d-1} + K_{d-2}
    return a[:, a[0].abs() < 20].to(dtype)


@pytest.mark.parametrize("pole_grad", POLE_GRADS)
@pytest.mark.parametrize("depth", range(1, 8))
def test_gradient_at_the_pole_equals_autograd(depth, pole_grad):
    a = ladders_around_the_pole(depth, 0.3)
    _, K_d = continuants_by_autograd(a)
    # on the edge and at the sign's jump rounding decides
    a = a[:, ((K_d.abs() - 0.3).abs() > 1e-12) & (K_d.abs() > 1e-12)].requires_grad_()
    assert 0.2 < (denominator(a).abs() < 0.3).float().mean() < 0.8
    z = continued_fraction(a, eps=0.3, pole_grad=pole_grad)
    expected = clamped_by_autograd(a, 0.3, pole_grad)
    weight = torch.randn_like(z)
    (grad,) = torch.autograd.grad((z * weight).sum(), a)
    (by_autograd,) = torch.autograd.grad((expected * weight).sum(), a)
    torch.testing.assert_close(z, expected, rtol=1e-12, atol=1e-12)
    scale = by_autograd.abs().amax().item()
    torch.testing.assert_close(grad, by_autograd, rtol=1e-11, atol=1e-13 * scale)


@pytest.mark.parametrize("pole_grad", POLE_GRADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_at_the_pole_in_lower_precision(dtype, pole_grad):
    """Against float64 of the same, rounded partial denominators."""
    for depth in (1, 3, 4, 7):
        a = ladders_around_the_pole(depth, 0.3, dtype=dtype)
        edge = (denominator(a.double()).abs() - 0.3).abs() < 1e-3
        jump = denominator(a.double()).abs() < 1e-3  # the sign of s
        a = a[:, ~(edge | jump)].requires_grad_()
        exact = a.detach().double().requires_grad_()
        z = continued_fraction(a, eps=0.3, pole_grad=pole_grad)
        z.sum().backward()
        clamped_by_autograd(exact, 0.3, pole_grad).sum().backward()
        assert z.dtype == a.grad.dtype == dtype
        tolerance = max(torch.finfo(dtype).eps, 1e-4)
        torch.testing.assert_close(a.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def gradient(*partial, dtype=torch.float64, **options):
    a = torch.tensor(partial, dtype=dtype)[:, None].requires_grad_()
    continued_fraction(a, **options).sum().backward()
    return a.grad.flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_three_gradients_of_one_clamped_ladder(dtype):
    tolerance = {"rel": 1e-2 if dtype == torch.bfloat16 else 1e-3, "abs": 1e-12}
    expected = {"formula": [-4.02, 0.01, -4.0], "exact": [0, 0.1, 0.1], "zero": [0, 0, 0]}
    for pole_grad, values in expected.items():
        found = gradient(0.05, 0.05, 0.05, eps=0.5, pole_grad=pole_grad, dtype=dtype)
        assert found == pytest.approx(values, **tolerance)


def test_gradients_where_the_denominator_is_zero_or_on_the_edge():
    for K_1 in (0.0, -0.0, EPS / 2, -EPS / 2):
        assert gradient(K_1) == pytest.approx([-1 / EPS**2])
        assert gradient(K_1, pole_grad="exact") == gradient(K_1, pole_grad="zero") == [0]
    for pole_grad in POLE_GRADS:  # at |K_d| = eps nothing is clamped
        assert gradient(EPS, pole_grad=pole_grad) == pytest.approx([-1 / EPS**2])
        assert gradient(-EPS, pole_grad=pole_grad) == pytest.approx([-1 / EPS**2])
    # K_3 = 0 with K_2 = 1: dK_2 / d(a_2, a_3) = (a_3, a_2) = 0
    assert gradient(0.0, 0.0, 0.0, pole_grad="exact") == [0, 0, 0]
    assert gradient(0.0, 0.0, 0.0) == pytest.approx([-1 / EPS**2, 0, -1 / EPS**2])
    # (-1/2, 1, 1) has K_2 = 2, K_3 = 0, and dK_2 = (a_3, a_2)
    assert gradient(-0.5, 1.0, 1.0, pole_grad="exact") == pytest.approx([0, 1 / EPS, 1 / EPS])
    assert fraction(-0.5, 1.0, 1.0) == pytest.approx(2 / EPS)
    assert fraction(-0.5 - EPS / 4, 1.0, 1.0) == pytest.approx(-2 / EPS)  # K_3 = -eps/2


@pytest.mark.parametrize("pole_grad", POLE_GRADS)
def test_nan_stays_in_the_gradient(pole_grad):
    for place in range(3):
        partial = [1.0, 1.0, 1.0]
        partial[place] = float("nan")
        assert any(g != g for g in gradient(*partial, pole_grad=pole_grad))


@pytest.mark.parametrize("pole_grad", ["exact", "zero"])
@pytest.mark.parametrize("depth", range(1, 8))
def test_gradcheck_at_the_pole(depth, pole_grad):
    """exact: everywhere but at |K_d| = eps and 0; zero: where nothing is clamped."""
    a = ladders_around_the_pole(depth, 0.3, count=10)
    size = denominator(a).abs()
    smooth = ((size - 0.3).abs() > 1e-2) & (size > 1e-2)
    if pole_grad == "zero":
        smooth &= size > 0.3
    a = a[:, smooth].requires_grad_()
    assert torch.autograd.gradcheck(lambda a: continued_fraction(a, eps=0.3, pole_grad=pole_grad), a)


@pytest.mark.parametrize("depth", range(1, 9))
def test_unclamped_denominator(depth):
    torch.manual_seed(depth)
    a = torch.randn(2, depth, 5, dtype=torch.float64)
    numerator, K_d = continuants_by_autograd(a[0])
    a[0, 0, 0] -= K_d[0] / numerator[0]
    off = torch.ones(depth - 1, dtype=torch.float64)
    matrices = torch.diag_embed(a.mT) + torch.diag(off, 1) - torch.diag(off, -1)
    torch.testing.assert_close(denominator(a), torch.linalg.det(matrices), rtol=1e-9, atol=1e-12)
    assert abs(denominator(a)[0, 0].item()) < 1e-12  # not clamped
    positive = torch.nn.functional.softplus(a) + 0.2
    torch.testing.assert_close(denominator(a, "positive", 0.2), denominator(positive))
    half = denominator(a.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), denominator(a.bfloat16().double()), rtol=1e-5, atol=1e-5)


def clampless(a, eps):
    """Which columns of a [d, L] meet no denominator near eps on the way up the ladder, nor K_d."""
    z, smallest = torch.zeros_like(a[0]), torch.full_like(a[0], float("inf"))
    for a_k in reversed(a):
        smallest = torch.minimum(smallest, (a_k + z).abs())
        z = 1 / (a_k + z)
    return (smallest > 2 * eps) & (denominator(a).abs() > 2 * eps)


@pytest.mark.parametrize("pole", ["clamp", "positive"])
@pytest.mark.parametrize("depth", range(1, 9))
def test_the_ladder_equals_the_continuants_where_nothing_is_clamped(depth, pole):
    torch.manual_seed(depth)
    a = torch.randn(depth, 500, dtype=torch.float64) * (1 if pole == "clamp" else 10)
    if pole == "clamp":
        a = a[:, clampless(a, EPS)]
    assert a.shape[1] > 300
    a.requires_grad_()
    found, expected = continued_fraction_ladder(a, pole), continued_fraction(a, pole)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    weight = torch.randn_like(found)
    (grad,) = torch.autograd.grad((found * weight).sum(), a)
    (expected,) = torch.autograd.grad((expected * weight).sum(), a)
    torch.testing.assert_close(grad, expected, rtol=1e-8, atol=1e-10)


def test_the_ladder_clamps_each_of_its_denominators():
    def ladder(*partial, **options):
        return continued_fraction_ladder(
            torch.tensor(partial, dtype=torch.float64)[:, None], **options
        ).item()

    # a_3 = 0 is clamped to eps on the way, while K_3 = 1 is far from it
    assert fraction(1.0, 1.0, 0.0) == pytest.approx(1)
    assert ladder(1.0, 1.0, 0.0) == pytest.approx(1 / (1 + 1 / (1 + 1 / EPS)))
    assert ladder(1.0, 1.0, -0.001) == pytest.approx(1 / (1 + 1 / (1 - 1 / EPS)))
    # the middle one: a_2 + 1/a_3 = 0
    assert ladder(2.0, -1.0, 1.0) == pytest.approx(1 / (2 + 1 / EPS))
    assert ladder(0.0) == ladder(-0.0) == pytest.approx(1 / EPS)  # sgn(0) is +1
    assert ladder(-EPS / 2) == pytest.approx(-1 / EPS)
    assert ladder(1.0, 1.0, 0.0, eps=0.5) == pytest.approx(1 / (1 + 1 / (1 + 2)))
    for place in range(3):
        partial = [1.0, 1.0, 1.0]
        partial[place] = float("nan")
        assert ladder(*partial) != ladder(*partial)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_ladder_is_computed_in_float32(dtype):
    torch.manual_seed(0)
    a = torch.randn(7, 500, dtype=torch.float64).to(dtype)
    a = a[:, clampless(a.double(), 0.05)].requires_grad_()
    exact = a.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        z = continued_fraction_ladder(a)
    z.sum().backward()
    continued_fraction_ladder(exact).sum().backward()
    assert z.dtype == a.grad.dtype == dtype
    tolerance = max(torch.finfo(dtype).eps, 1e-4)
    torch.testing.assert_close(z.double(), continued_fraction_ladder(exact), rtol=tolerance, atol=tolerance)
    scale = exact.grad.abs().max().item()
    torch.testing.assert_close(a.grad.double(), exact.grad, rtol=tolerance, atol=1e-5 * scale)


def test_a_second_derivative_is_refused():
    a = torch.rand(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(continued_fraction(a).square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# a_k = n/16 with |n| <= 64: every continuant up to depth 8 is exact in float64
sixteenths = st.lists(st.integers(-64, 64), min_size=1, max_size=8)


def exact_continuants(partial):
    tails = [Fraction(1)]
    previous = Fraction(0)
    for a in reversed(partial):
        previous, current = tails[-1], a * tails[-1] + previous
        tails.append(current)
    return tails


@given(sixteenths)
def test_exact_rational_arithmetic(numerators):
    partial = [Fraction(n, 16) for n in numerators]
    depth = len(partial)
    a = torch.tensor([float(p) for p in partial], dtype=torch.float64)[:, None].requires_grad_()
    z = continued_fraction(a, eps=EPS)
    z.sum().backward()
    tails = exact_continuants(partial)
    eps = Fraction(EPS)
    denominator = (-1 if tails[depth] < 0 else 1) * max(abs(tails[depth]), eps)
    assert z.item() == pytest.approx(float(tails[depth - 1] / denominator), rel=1e-15, abs=0)
    expected = [float((-1) ** k * (tails[depth - k] / denominator) ** 2) for k in range(1, depth + 1)]
    assert a.grad.flatten().tolist() == pytest.approx(expected, rel=1e-14, abs=0)


@given(sixteenths.map(lambda ns: [Fraction(n, 16) for n in ns]))
def test_float32_stays_close_to_exact_arithmetic(partial):
    """Backward error of the recursion: a few ulp of the same recursion on absolute values."""
    tails, bound = exact_continuants(partial), exact_continuants([abs(p) for p in partial])
    if abs(tails[-1]) < Fraction(1, 10):
        return
    z = continued_fraction(torch.tensor([float(p) for p in partial])[:, None]).item()
    condition = bound[-1] / abs(tails[-1]) + (bound[-2] / abs(tails[-2]) if tails[-2] else 0)
    exact = tails[-2] / tails[-1]
    slack = bound[-2] / abs(tails[-1])
    assert abs(z - float(exact)) <= 1e-6 * len(partial) * float(slack * condition + abs(exact))


@given(st.lists(st.floats(-60, 60), min_size=1, max_size=8), st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_positive_denominators_bound_value_and_gradient(partial, floor):
    a = torch.tensor(partial, dtype=torch.float64)[:, None].requires_grad_()
    z = continued_fraction(a, "positive", floor=floor)
    z.sum().backward()
    assert 0 < z.item() <= 1 / floor * (1 + 1e-12)
    assert a.grad.abs().max().item() <= max(1 / (4 * floor), 1) * (1 + 1e-12)
