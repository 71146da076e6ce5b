"""Products of high and low parts against float64."""

import pytest
import torch

from kernels.split import LEFT, RIGHT, high_and_low, product, side_by_side


def factors(rank, count=200):
    torch.manual_seed(rank)
    # of any size, also such that the low part is subnormal in float16
    return [torch.randn(count, rank) * 10 ** torch.randn(count, 1) for _ in range(2)]


def error(product, a, b):
    """Largest error in parts of the sum of |a| |b|."""
    exact = a.double() @ b.double().T
    return ((product.double() - exact).abs() / (a.abs().double() @ b.abs().double().T)).max().item()


def tf32(x):
    """x rounded to the 10 bits of mantissa that tf32 has."""
    bits = x.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_a_number_is_its_parts():
    x, _ = factors(7)
    high, low = high_and_low(x)
    assert high.dtype == low.dtype == torch.bfloat16
    assert torch.equal(high, x.bfloat16())
    assert ((high.double() + low.double() - x.double()).abs() <= 2**-17 * x.abs().double()).all()
    high, low = high_and_low(x, torch.float16)
    assert ((high.double() + low.double() - x.double()).abs() <= 2**-21 * x.abs().double() + 2**-24).all()
    assert high_and_low(torch.tensor([float("inf")]))[1].isnan().all()
    high, low = high_and_low(x, torch.float32)
    assert torch.equal(high, x)
    assert not low.count_nonzero()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_compiler_keeps_the_parts(dtype):
    """It leaves out casts to half precision and back, which would make the low part 0."""
    x, _ = factors(7)
    compiled = torch.compile(lambda x: high_and_low(x, dtype), fullgraph=True)
    for found, part in zip(compiled(x), high_and_low(x, dtype), strict=True):
        assert torch.equal(found, part)
    assert part.count_nonzero() > 1000
    naive = torch.compile(lambda x: (x - x.to(dtype).float()).to(dtype), fullgraph=True)
    assert not naive(x).count_nonzero()  # if this fails, a cast in PyTorch's own terms would do


@pytest.mark.parametrize("compiled", [False, True])
def test_products_stay_exact_when_compiled(compiled):
    a, b = factors(40)
    function = torch.compile(product, fullgraph=True) if compiled else product
    assert error(function(a, b), a, b) < 2**-15


@pytest.mark.parametrize("rank", [1, 7, 32])
def test_the_product_of_parts(rank):
    a, b = factors(rank)
    left, right = side_by_side(a, LEFT, 32), side_by_side(b, RIGHT, 32)
    assert left.shape == (200, 128)
    assert error(left.double() @ right.double().T, a, b) < 2**-16
    assert error(a.bfloat16().double() @ b.bfloat16().double().T, a, b) > 2**-11


def test_float32_needs_more_than_two_parts():
    """So float32 values take three tf32 products instead: those err about as one float32 product does."""
    a, b = factors(7)
    large, small = (tf32(a), tf32(a - tf32(a))), (tf32(b), tf32(b - tf32(b)))
    three = sum(x.double() @ y.double().T for x, y in ((large[0], small[0]), (large[1], small[0])))
    three = (three + large[0].double() @ small[1].double().T).float()
    own = error(a @ b.T, a, b)
    two = side_by_side(a, LEFT, 8).double() @ side_by_side(b, RIGHT, 8).double().T
    assert error(three, a, b) < 4 * own
    assert error(two, a, b) > 20 * own


@pytest.mark.parametrize("rank", [7, 32])
def test_gradients_of_scores_may_be_rounded(rank):
    """dS in bfloat16 times both parts: as exact as a product of bfloat16 numbers is, in each direction."""
    a, b = factors(rank)
    upstream = torch.randn(200, 200)
    parts = side_by_side(b, RIGHT, 32).double().unflatten(1, (4, 32)).sum(1)[:, :rank] / 2
    found = upstream.bfloat16().double() @ parts
    assert error(found, upstream, b.T) < 2**-8
    parts = side_by_side(a, LEFT, 32).double().unflatten(1, (4, 32)).sum(1)[:, :rank] / 2
    assert error(upstream.T.bfloat16().double() @ parts, upstream.T, a.T) < 2**-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_product(any_device, dtype):
    """On a CPU the same parts in float32; a GPU adds them up on tensor cores."""
    torch.manual_seed(0)
    weight, x, upstream = torch.randn(6, 65), torch.randn(11, 65).to(dtype), torch.randn(6, 11)
    inputs = [one.to(any_device).requires_grad_() for one in (weight, x)]
    with torch.autocast(any_device, torch.bfloat16):
        out = product(*inputs)
    grads = torch.autograd.grad(out, inputs, upstream.to(any_device))
    assert out.dtype == grads[0].dtype == torch.float32
    assert grads[1].dtype == dtype
    assert error(out.detach().cpu(), weight, x.float()) < 2**-16
    assert error(grads[0].cpu(), upstream, x.float().T) < 2**-7
    assert error(grads[1].float().cpu(), upstream.T, weight.T) < 2**-6
