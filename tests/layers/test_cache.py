"""Rows of a cache: written in place, read up to the newest."""

import pytest
import torch

from layers.cache import past, written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_after_the_newest_are_zeros_whatever_they_held(dtype):
    held = torch.full((2, 3, 7, 4), float("nan"), dtype=dtype)
    first, second = torch.randn(2, 3, 3, 4), torch.randn(2, 3, 1, 4)
    found = written(held, first, torch.arange(3))
    assert found.dtype == dtype
    assert torch.equal(found[..., :3, :], first.to(dtype))
    assert (found[..., 3:, :] == 0).all()
    found = written(held, second, torch.tensor([3]))
    assert torch.equal(found[..., :4, :], torch.cat((first, second), dim=-2).to(dtype))
    assert (found[..., 4:, :] == 0).all()
    assert torch.equal(held[..., :4, :], found[..., :4, :])
    assert held[..., 4:, :].isnan().all()  # nothing is spent on rows that come later


def test_what_was_there_before_a_second_text_is_not_seen():
    held = torch.randn(1, 5, 2)
    assert (written(held, torch.ones(1, 2, 2), torch.arange(2))[:, 2:] == 0).all()


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(IndexError):
        written(torch.zeros(1, 5, 2), torch.ones(1, 1, 2), torch.tensor([5]))


def test_a_token_sees_itself_and_what_stands_before():
    assert past(torch.tensor([0, 2]), 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
