"""Rows of a cache: update_cache in place, read up to the newest."""

import pytest
import torch

from layers.cache import (
    MOST_ROWS,
    causal_mask,
    in_use,
    of_token_before,
    products,
    update_cache,
    weighted_sum,
)


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def call(request):
    """call(function, *arguments), compiled or not; a cache is narrowed by the caller unless it is."""
    torch._dynamo.reset()

    def run(function, *arguments):
        if request.param:
            function = torch.compile(function, fullgraph=True, dynamic=False, backend="eager")
        return function(*arguments)

    run.compiled = request.param
    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_written_in_place(call, dtype):
    held = torch.full((2, 3, 7, 4), 5.0, dtype=dtype)
    rows = torch.randn(2, 3, 4, 4)
    for new in (slice(0, 3), slice(3, 4)):
        (narrowed,) = (held,) if call.compiled else in_use((held,), new.stop)
        found = call(update_cache, narrowed, rows[..., new, :], torch.arange(new.start, new.stop))
        assert found.dtype == dtype
        assert torch.equal(found[..., : new.stop, :], rows[..., : new.stop, :].to(dtype))
        assert found.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
        assert found.shape[-2] == (7 if call.compiled else new.stop)
    assert torch.equal(held[..., :4, :], rows.to(dtype))
    assert (held[..., 4:, :] == 5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 3, MOST_ROWS + 1])
def test_products(call, dtype, count):
    """Factors and results in bfloat16 are each rounded by up to 2^-8 of themselves."""
    share = 1e-6 if dtype == torch.float32 else 2**-7
    q, k = torch.randn(2, 3, count, 8).to(dtype), torch.randn(2, 3, 7, 8).to(dtype)
    weights = torch.randn(2, 3, count, 7)
    for product, left, right in ((products, q, k.mT), (weighted_sum, weights, k)):
        left, right = left.double(), right.double()
        found = call(product, q if product is products else weights, k).double()
        assert ((found - left @ right).abs() <= share * (left.abs() @ right.abs())).all()


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(IndexError):
        update_cache(torch.zeros(1, 5, 2), torch.ones(1, 1, 2), torch.tensor([5]))


def test_a_token_sees_itself_and_what_stands_before():
    assert causal_mask(torch.tensor([0, 2]), 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]


def test_the_token_before(call):
    new = torch.arange(1.0, 13).view(2, 3, 2)
    expected = torch.tensor([[[0.0, 0], [1, 2], [3, 4]], [[0, 0], [7, 8], [9, 10]]])
    assert torch.equal(call(of_token_before, new), expected)
    last = torch.full((2, 1, 2), float("nan"))
    (narrowed,) = (last,) if call.compiled else in_use((last,), 3)
    for part in (slice(0, 1), slice(1, 3)):
        found = call(of_token_before, new[:, part], torch.arange(part.start, part.stop), narrowed)
        assert torch.equal(found, expected[:, part])
    assert torch.equal(last, new[:, 2:])
