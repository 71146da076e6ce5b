"""Recall against a loop over tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from corpus.file_tokenizer import BpeTokenizer
from corpus.tokenizer import BytesTokenizer
from evaluation import EvaluationError
from evaluation.perplexity import perplexity, windows
from evaluation.recall import LONGEST, check_comparable, recall, repeats


def naive(window, longest=LONGEST):
    """By the definition: the longest piece that ends here and ended at an earlier token too."""
    found = []
    for t in range(len(window)):
        lengths = [n for n in range(1, longest + 1) if n <= t + 1]
        pieces = {n: list(window[t - n + 1 : t + 1]) for n in lengths}
        there = [
            n for n in lengths for j in range(n - 1, t) if list(window[j - n + 1 : j + 1]) == pieces[n]
        ]
        found.append(max(there, default=0))
    return found


def test_repeats_by_hand():
    assert repeats(np.array([7, 8, 9, 7, 8, 9, 8, 5])).tolist() == [0, 0, 0, 1, 2, 3, 1, 0]
    assert repeats(np.array([3, 3, 3, 3, 3, 3])).tolist() == [0, 1, 2, 3, 4, 4]
    assert repeats(np.array([3])).tolist() == [0]


@pytest.mark.parametrize("seed", range(20))
def test_repeats_are_those_of_the_definition(seed):
    random = np.random.default_rng(seed)
    window = random.integers(0, 1 + seed % 7, random.integers(1, 60))
    assert repeats(window).tolist() == naive(window)
    assert repeats(window, 2).tolist() == naive(window, 2)


@torch.no_grad()
@pytest.mark.parametrize(("window", "stride"), [(17, 8), (17, 16), (9, 3)])
def test_equal_to_a_loop(loaded, stream, window, stride):
    tiny = loaded(position="rope")
    streams = [stream(40) % 5, stream(3), stream(60, seed=1) % 3]  # few different bytes: many repeats
    nats = {length: [] for length in range(LONGEST + 1)}
    for one in streams:
        for begin, first, end in windows(len(one), window, stride):
            lengths = naive(one[begin:end])
            for t in range(first, end):
                logits = tiny.model(torch.tensor(one[None, begin:t]))[0, -1].double()
                nats[lengths[t - begin]].append(-logits.log_softmax(-1)[one[t]].item())
    found = recall(tiny, streams, stride, window, batch_size=3)
    assert [r["length"] for r in found["repeats"]] == list(nats)
    assert [r["tokens"] for r in found["repeats"]] == [len(part) for part in nats.values()]
    assert min(len(part) for part in nats.values()) > 1
    for result, part in zip(found["repeats"], nats.values(), strict=True):
        assert result["loss"] == pytest.approx(np.mean(part), abs=1e-5)
    assert found["tokens"] == sum(len(one) - 1 for one in streams)
    whole = perplexity(tiny, streams, stride, window)
    assert found["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert (found["window"], found["stride"]) == (whole["window"], whole["stride"])
    one_by_one = recall(tiny, streams, stride, window, batch_size=1)
    assert one_by_one["loss"] == pytest.approx(found["loss"], abs=1e-6)


def test_lengths_that_no_token_has(loaded):
    found = recall(loaded(position="rope"), [np.array([256, 65, 66, 65])], stride=8)
    assert [r["tokens"] for r in found["repeats"]] == [2, 1, 0, 0, 0]
    assert [r["loss"] is None for r in found["repeats"]] == [False, False, True, True, True]


def test_one_tokenizer():
    tokenizers = BytesTokenizer(), BytesTokenizer(), BpeTokenizer.train(["ab ab ab"], 258)
    models = [
        SimpleNamespace(name=name, tokenizer=tokenizer)
        for name, tokenizer in zip(("one", "two", "three"), tokenizers, strict=True)
    ]
    check_comparable(models[:2])
    with pytest.raises(EvaluationError) as error:
        check_comparable(models)
    told = f"(one: bytes, 257 tokens, {tokenizers[0].hash[:8]}; three: bpe, 258 tokens, "
    assert f"different tokenizers {told}" in str(error.value)
