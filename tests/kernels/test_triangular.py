"""Packed triangles and their causal product, against loops."""

import pytest
import torch

from kernels.triangular import (
    causal_linear,
    lower_rows,
    packed_size,
    unpack_lower,
    unpack_lower_naive,
)

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 1), (2, 2), (17, 13), (17, 17)])
def test_unpacks_like_the_loop(rows, size, batch, dtype):
    torch.manual_seed(0)
    packed = torch.randn(*batch, packed_size(rows)).to(dtype).requires_grad_()
    found, expected = unpack_lower(packed, size), unpack_lower_naive(packed, size)
    assert torch.equal(found, expected)
    upstream = torch.randn_like(found)
    (grad,) = torch.autograd.grad(found, packed, upstream)
    (expected,) = torch.autograd.grad(expected, packed, upstream)
    assert torch.equal(grad, expected)


def test_order_of_the_entries():
    assert unpack_lower(torch.arange(1.0, 7.0), 3).tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (17, 1), (17, 13), (17, 17)])
def test_rows_are_those_of_the_loop(rows, size, dtype):
    packed = torch.randn(2, packed_size(rows)).to(dtype)
    dense = unpack_lower_naive(packed, size)
    for pos in ([0], [size - 1], list(range(size)), list(range(size // 2, size))):
        assert torch.equal(lower_rows(packed, torch.tensor(pos), size), dense[:, pos])


def test_rows_select_what_is_not_finite():
    packed = torch.full((packed_size(5),), NAN)
    packed[packed_size(2) : packed_size(3)] = 1.0
    assert lower_rows(packed, torch.tensor([2]), 5).tolist() == [[1, 1, 1, 0, 0]]


def test_an_entry_that_is_not_finite_stays_in_its_place():
    packed = torch.ones(packed_size(5))
    packed[3] = NAN  # M_20
    packed[14] = INF  # M_44
    dense = unpack_lower(packed, 5)
    assert dense[2, 0].isnan()
    assert dense[4, 4].isinf()
    assert (~dense.isfinite()).sum() == 2
    grad = torch.full((5, 5), NAN).triu(1)  # above the diagonal: nobody's gradient
    packed.requires_grad_()
    (found,) = torch.autograd.grad(unpack_lower(packed, 5), packed, grad)
    assert (found == 0).all()


def test_gradcheck():
    packed = torch.randn(2, packed_size(5), dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: unpack_lower(p, 4), packed)
    assert torch.autograd.gradcheck(lambda y, p: causal_linear(y, unpack_lower(p[0], 4)), (y, packed))


def test_refuses_a_block_beyond_the_triangle():
    with pytest.raises(ValueError, match=r"10 packed entries .* 5 rows"):
        unpack_lower(torch.zeros(2, 10), 5)


@pytest.mark.parametrize("length", [1, 2, 13])
def test_product_by_a_loop(length):
    torch.manual_seed(0)
    packed = torch.randn(packed_size(length), dtype=torch.float64)
    y = torch.randn(2, 3, length, dtype=torch.float64)
    M = unpack_lower(packed, length)
    expected = torch.stack([(M[t, : t + 1] * y[..., : t + 1]).sum(-1) for t in range(length)], dim=-1)
    torch.testing.assert_close(causal_linear(y, M), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("length", [256, 257, 259])
@pytest.mark.parametrize("batch", [(), (3,), (2, 5)])
def test_strips_equal_the_dense_product(any_device, batch, length, autocast, dtype):
    torch.manual_seed(0)
    y = torch.randn(*batch, length).to(any_device, dtype).requires_grad_()
    M = torch.randn(length, length).tril().to(any_device, dtype).requires_grad_()
    upstream = torch.randn_like(y)
    with torch.autocast(any_device, torch.bfloat16, enabled=autocast):
        out = causal_linear(y, M)
    exact = [x.detach().double().requires_grad_() for x in (y, M)]
    expected = exact[0] @ exact[1].mT
    grads = torch.autograd.grad(out, (y, M), upstream.to(out.dtype))
    expected_grads = torch.autograd.grad(expected, exact, upstream.double())
    assert out.dtype == (torch.bfloat16 if autocast else dtype)
    tolerance = 3e-2 if autocast or dtype == torch.bfloat16 else 1e-5
    for found, wanted in zip(
        (out, *grads), (expected, expected_grads[0], expected_grads[1].tril()), strict=True
    ):
        lower = found.tril() if found.shape == M.shape else found
        torch.testing.assert_close(
            lower.double(), wanted, rtol=0, atol=tolerance * wanted.abs().max().item()
        )
    if any_device == "cpu":
        step = -(-length // 4)
        assert (grads[1][:step, step:] == 0).all()
        assert (grads[1][step : 2 * step, 2 * step :] == 0).all()


def test_strips_keep_what_is_not_finite_in_its_own_future_and_compile():
    torch.manual_seed(0)
    packed = torch.randn(packed_size(300), requires_grad=True)
    y = torch.randn(4, 300)
    before = causal_linear(y, unpack_lower(packed, 300))
    y[2, 140] = INF
    torch._dynamo.reset()
    run = torch.compile(
        lambda y, p: causal_linear(y, unpack_lower(p, 300)), fullgraph=True, backend="aot_eager"
    )
    for function in (run, run._torchdynamo_orig_callable):
        after = function(y, packed)
        assert torch.equal(before[:, :140], after[:, :140])
        assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])
        assert after[2, 140:].isnan().all()
        (grad,) = torch.autograd.grad(after[:, :140].sum(), packed)
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [NAN, INF, -INF, 3.4e38, 1e30])
def test_a_number_beyond_all_bounds_stays_in_its_own_future(value, dtype):
    torch.manual_seed(0)
    M = unpack_lower(torch.randn(packed_size(13)), 13)
    y = torch.randn(4, 13)
    changed = y.clone()
    changed[2, 8] = value
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        before, after = causal_linear(y, M), causal_linear(changed, M)
    assert torch.equal(before[:, :8], after[:, :8])
    assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])  # and with its own feature
    seen = torch.tensor(value).to(dtype)
    assert seen.isfinite() or after[2, 8:].isnan().all()
    assert not torch.equal(before[2, 8:], after[2, 8:])


def test_gradient_of_the_past_is_untouched_by_a_future_nan_and_a_nan_is_not_hidden():
    torch.manual_seed(0)
    packed = torch.randn(packed_size(6), requires_grad=True)
    y = torch.randn(4, 6)
    y[1, 4] = NAN

    def gradient(upto):
        return torch.autograd.grad(causal_linear(y, unpack_lower(packed, 6))[:, :upto].sum(), packed)[0]

    assert gradient(4).isfinite().all()
    upstream = torch.ones(4, 6)
    upstream[1, 4] = NAN  # what a loss of NaN sends back
    out = causal_linear(y, unpack_lower(packed, 6))
    (grad,) = torch.autograd.grad(out, packed, upstream)
    assert grad[packed_size(4) : packed_size(5)].isnan().all()
    assert grad[: packed_size(4)].isfinite().all()


def test_compiles():
    packed = torch.randn(2, packed_size(9), requires_grad=True)
    y = torch.randn(3, 7, requires_grad=True)

    def run(y, packed):
        return causal_linear(y, unpack_lower(packed, 7)[1])

    torch._dynamo.reset()
    out = torch.compile(run, fullgraph=True, backend="aot_eager")(y, packed)
    torch.testing.assert_close(out, run(y, packed))
    grads = torch.autograd.grad(out.square().sum(), (y, packed))
    expected = torch.autograd.grad(run(y, packed).square().sum(), (y, packed))
    torch.testing.assert_close(grads, expected)
