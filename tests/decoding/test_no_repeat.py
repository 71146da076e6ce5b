"""No n-gram twice: beside a loop over the text."""

from functools import partial

import pytest
import torch

from decoding.beam import beam_search
from decoding.no_repeat import without_repeats


def grams(text, size):
    return [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("start", [0, 4])
def test_bans_what_would_be_a_second_time(size, start):
    torch.manual_seed(0)
    for length in (1, 3, 4, 5, 12, 40):
        text, logits = torch.randint(0, 5, (3, length)), torch.randn(3, 5)
        found = without_repeats(text, logits, size, end=4, start=start)
        for row, seen in enumerate(text[:, start:].tolist()):
            for token in range(5):
                again = token != 4 and grams([*seen, token], size)[-1:] and grams([*seen, token], size)[-1]
                banned = bool(again) and again in grams(seen, size)
                assert found[row, token] == (float("-inf") if banned else logits[row, token])


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("how", ["greedy", "sampled", "beams"])
def test_no_gram_twice(build, how, size):
    """In the prompt and the new tokens together, beyond the window too; without the rule there are some."""
    model = build(vocab_size=60, position="rope").eval()
    forbid = partial(without_repeats, size=size, end=59)

    def written(forbid):
        if how == "beams":
            return [3, 8, 1, *beam_search(model, [[3, 8, 1]], 3, 50, 59, forbid=forbid)[0][0].tokens]
        keys = {"temperature": 0} if how == "greedy" else {"top_k": 3}
        keys["generator"] = torch.Generator().manual_seed(0)
        return [3, 8, 1, *model.generate([3, 8, 1], 50, forbid=forbid, **keys)]

    assert len(set(grams(written(None), size))) < len(grams(written(None), size))
    found = [token for token in written(forbid) if token != 59]
    assert len(found) > 20
    assert len(set(grams(found, size))) == len(grams(found, size))
