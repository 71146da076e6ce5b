"""The continued fraction near a pole: clamps, other treatments, and the gradients there."""

import pytest
import torch

from kernels.continued_fraction import (
    continued_fraction,
    continued_fraction_ladder,
    denominator,
)
from tests.kernels.ladders import EPS, clampless, continuants_by_autograd, fraction


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


def clamped_by_autograd(a, eps):
    """K_{d-1} / (s max(|K_d|, eps)), whose gradient autograd makes of the quotient rule."""
    numerator, K_d = continuants_by_autograd(a)
    z = numerator / (torch.where(K_d < 0, -1.0, 1.0) * K_d.abs().clamp_min(eps))
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


@pytest.mark.parametrize("depth", range(1, 8))
def test_gradient_at_the_pole_equals_autograd(depth):
    a = ladders_around_the_pole(depth, 0.3)
    _, K_d = continuants_by_autograd(a)
    # on the edge and at the sign's jump rounding decides
    a = a[:, ((K_d.abs() - 0.3).abs() > 1e-12) & (K_d.abs() > 1e-12)].requires_grad_()
    assert 0.2 < (denominator(a).abs() < 0.3).float().mean() < 0.8
    z = continued_fraction(a, eps=0.3)
    expected = clamped_by_autograd(a, 0.3)
    weight = torch.randn_like(z)
    (grad,) = torch.autograd.grad((z * weight).sum(), a)
    (by_autograd,) = torch.autograd.grad((expected * weight).sum(), a)
    torch.testing.assert_close(z, expected, rtol=1e-12, atol=1e-12)
    scale = by_autograd.abs().amax().item()
    torch.testing.assert_close(grad, by_autograd, rtol=1e-11, atol=1e-13 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_at_the_pole_in_lower_precision(dtype):
    """Against float64 of the same, rounded partial denominators."""
    for depth in (1, 3, 4, 7):
        a = ladders_around_the_pole(depth, 0.3, dtype=dtype)
        edge = (denominator(a.double()).abs() - 0.3).abs() < 1e-3
        jump = denominator(a.double()).abs() < 1e-3  # the sign of s
        a = a[:, ~(edge | jump)].requires_grad_()
        exact = a.detach().double().requires_grad_()
        z = continued_fraction(a, eps=0.3)
        z.sum().backward()
        clamped_by_autograd(exact, 0.3).sum().backward()
        assert z.dtype == a.grad.dtype == dtype
        tolerance = max(torch.finfo(dtype).eps, 1e-4)
        torch.testing.assert_close(a.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def gradient(*partial, dtype=torch.float64, **options):
    a = torch.tensor(partial, dtype=dtype)[:, None].requires_grad_()
    continued_fraction(a, **options).sum().backward()
    return a.grad.flatten().tolist()


def test_gradients_where_the_denominator_is_zero_or_on_the_edge():
    for K_1 in (0.0, -0.0, EPS / 2, -EPS / 2, EPS, -EPS):  # at |K_d| = eps nothing is clamped
        assert gradient(K_1) == pytest.approx([-1 / EPS**2])
    assert gradient(0.0, 0.0, 0.0) == pytest.approx([-1 / EPS**2, 0, -1 / EPS**2])  # K_3 = 0, K_2 = 1
    # (-1/2, 1, 1) has K_2 = 2 and K_3 = 0
    assert fraction(-0.5, 1.0, 1.0) == pytest.approx(2 / EPS)
    assert fraction(-0.5 - EPS / 4, 1.0, 1.0) == pytest.approx(-2 / EPS)  # K_3 = -eps/2


def test_nan_stays_in_the_gradient():
    for place in range(3):
        partial = [1.0, 1.0, 1.0]
        partial[place] = float("nan")
        assert any(g != g for g in gradient(*partial))


@pytest.mark.parametrize("depth", range(1, 8))
def test_gradcheck_where_nothing_is_clamped(depth):
    a = ladders_around_the_pole(depth, 0.3, count=10)
    a = a[:, denominator(a).abs() > 0.31].requires_grad_()
    assert torch.autograd.gradcheck(lambda a: continued_fraction(a, eps=0.3), a)


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
