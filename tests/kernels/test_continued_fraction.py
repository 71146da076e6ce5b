"""The continued fraction against closed forms, exact rational arithmetic and the ladder as written."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.continued_fraction import (
    continued_fraction,
    continued_fraction_and_range,
    continued_fraction_ladder,
    continued_fraction_naive,
    denominator,
)
from tests.kernels.ladders import (
    EPS,
    away_from_the_pole,
    clampless,
    continuants_by_autograd,
    fraction,
    random_ladders,
)


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


@pytest.mark.parametrize("depth", [2, 3, 5, 8])
def test_denominator_is_the_determinant(depth):
    """z = K_{d-1} / K_d, both as determinants of tridiagonal matrices."""

    def continuant(a):
        n = len(a)
        off = torch.ones(n - 1, dtype=torch.float64)
        return torch.linalg.det(torch.diag(a) + torch.diag(off, 1) - torch.diag(off, -1))

    for a in random_ladders(depth, count=20).T:
        assert fraction(*a.tolist()) == pytest.approx((continuant(a[1:]) / continuant(a)).item(), rel=1e-8)


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
    with pytest.raises(ValueError, match=r"cf_pole.*klamp"):
        continued_fraction(torch.ones(3, 1), "klamp")
    for function in (continued_fraction, continued_fraction_ladder, denominator):
        with pytest.raises(ValueError, match="cf_pole must be one of"):
            function(torch.ones(3, 1), "klamp")
        for shape in ((0, 3), (5,)):
            with pytest.raises(ValueError, match="partial denominators"):
                function(torch.ones(shape))


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
