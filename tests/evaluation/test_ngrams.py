"""N-gram models against counts in dictionaries."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from evaluation import EvaluationError, ngrams
from evaluation.ngrams import HELD_OUT, NAMES, Ngrams, score

VOCAB = 7


def chain(n, seed=0, vocab=VOCAB):
    """n tokens that depend on the two before them, with gaps: some n-grams never occur."""
    random = np.random.default_rng(seed)
    follows = random.integers(0, vocab, (vocab, vocab, 3))
    tokens = [0, 1]
    while len(tokens) < n:
        tokens.append(int(follows[tokens[-2], tokens[-1], random.integers(0, 3)]))
    return np.array(tokens[:n], dtype=np.uint16)


def targets_of(pieces):
    """(order, context, token, number of the target) of all n-grams that end with a target."""
    number = 0
    for piece in pieces:
        for place in range(1, len(piece)):
            for order in (1, 2, 3):
                if place >= order - 1:
                    context = tuple(int(i) for i in piece[place - order + 1 : place])
                    yield order, context, int(piece[place]), number
            number += 1


class Naive:
    """The equations, with a dictionary for each count; takes the weights of the other one."""

    def __init__(self, pieces, weights, chosen=lambda number: True):
        self.counts = defaultdict(Counter)
        for _, context, token, number in targets_of(pieces):
            if chosen(number):
                self.counts[context][token] += 1
        self.weights = weights

    def probability(self, token, context, order=3):
        if order == 0:
            return 1 / VOCAB
        lower = self.probability(token, context[1:] if order > 1 else (), order - 1)
        if len(context) < order - 1:
            return self.probability(token, context, order - 1)
        counts = self.counts[tuple(context[len(context) - order + 1 :])]
        total = sum(counts.values())
        weight = self.weights[order - 1][total.bit_length()]
        return weight * counts[token] / max(total, 1) + (1 - weight) * lower


PIECES = [chain(400), chain(3, 1), chain(2, 2), chain(1, 3), chain(230, 4)]


def levels(model):
    return [level.weights for level in model._levels]


@pytest.mark.parametrize("portion", [1 << 20, 5, 1])
def test_equal_to_dictionaries(monkeypatch, portion):
    monkeypatch.setattr(ngrams, "PORTION", portion)
    model = Ngrams(PIECES, VOCAB)
    naive = Naive(PIECES, levels(model))
    assert model.targets == 399 + 2 + 1 + 229
    stream = np.concatenate([[0], chain(60, 9), [VOCAB - 1, 0, VOCAB - 1]]).astype(np.int64)
    found = model.probabilities(stream)
    for order in (1, 2, 3):
        expected = [
            naive.probability(int(stream[place]), tuple(stream[max(0, place - order + 1) : place]), order)
            for place in range(1, len(stream))
        ]
        np.testing.assert_allclose(found[order - 1], expected, rtol=1e-12)
    assert found.min() > 0


def test_probabilities_sum_to_one():
    model = Ngrams(PIECES, VOCAB)
    for context in ([0], [3], [0, 1], [2, 2], [5, 6], [6, 0]):
        total = sum(model.probabilities(np.array([*context, token]))[:, -1] for token in range(VOCAB))
        np.testing.assert_allclose(total, 1.0, rtol=1e-12)


def test_weights_are_those_of_the_highest_likelihood_on_held_out_targets():
    model = Ngrams(PIECES, VOCAB)
    length = model.targets // HELD_OUT**2

    def held_out(number):
        return number // length % HELD_OUT == HELD_OUT // 2

    share = sum(held_out(number) for number in range(model.targets)) / model.targets
    assert share == pytest.approx(1 / HELD_OUT, rel=0.1)
    naive = Naive(PIECES, [weights.copy() for weights in levels(model)], lambda n: not held_out(n))

    def nats(order):
        return math.fsum(
            -math.log(naive.probability(token, context, order))
            for at, context, token, number in targets_of(PIECES)
            if at == order and held_out(number)
        )

    for order in (1, 2, 3):
        best = nats(order)
        weights = naive.weights[order - 1]
        used = {
            sum(naive.counts[c].values()).bit_length() for at, c, *_ in targets_of(PIECES) if at == order
        }
        assert len(used - {0}) >= (1, 1, 3)[order - 1]
        for digits in used - {0}:
            fitted = weights[digits]
            for change in (-0.02, 0.02):
                weights[digits] = min(max(fitted + change, 0), 1 - 1e-6)
                assert nats(order) >= best - 1e-9
            weights[digits] = fitted
        assert weights[0] == 0


def test_measure():
    model = Ngrams(PIECES, VOCAB)
    streams = [np.array([0, *chain(40, 11)]), np.array([0]), np.array([0, *chain(7, 12)])]
    sizes = np.arange(VOCAB)
    found = score(model, streams, sizes)
    assert list(found) == list(NAMES)
    for number, result in enumerate(found.values()):
        nats = -sum(np.log(model.probabilities(stream)[number]).sum() for stream in streams)
        size = sum(int(stream[1:].sum()) for stream in streams)
        assert (result["tokens"], result["bytes"], result["streams"]) == (47, size, 2)
        assert result["loss"] == pytest.approx(nats / 47)
        assert result["perplexity"] == pytest.approx(math.exp(nats / 47))
        assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / size)
        assert result["window"] == number + 1
    # the made-up language depends on two tokens
    losses = [
        result["loss"] for result in score(Ngrams([chain(20_000)], VOCAB), [chain(500)], sizes).values()
    ]
    assert losses[0] > losses[1] + 0.1 > losses[2] + 0.2
    assert losses[2] == pytest.approx(math.log(3), abs=0.25)


def test_more_of_a_context_is_trusted_more():
    told = Ngrams([chain(20_000)], VOCAB).weights()["trigram"]
    assert all(0 < weight < 1 for weight in told.values())
    assert told["256-511"] > 0.95


def test_refusals():
    with pytest.raises(EvaluationError, match=r"5 training tokens .*n-grams"):
        Ngrams([chain(6)], VOCAB)
    with pytest.raises(EvaluationError, match=r"token 6.* 5 tokens"):
        Ngrams([chain(600)], 5)
    with pytest.raises(EvaluationError, match="3,000,000 tokens is too large"):
        Ngrams([chain(600)], 3_000_000)
    model = Ngrams(PIECES, VOCAB)
    with pytest.raises(EvaluationError, match="no token to score"):
        score(model, [np.array([0])], np.arange(VOCAB))
    with pytest.raises(EvaluationError, match=r"token 7.* 7 tokens"):
        score(model, [np.array([0, 7])], np.arange(VOCAB))
