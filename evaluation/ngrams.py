"""N-gram models of training tokens, the baselines that count instead of training.

With c the counts, N the number of targets, V the size of the vocabulary, and w given u, v before it:

    unigram  p1(w)     = l1 c(w) / N                 + (1 - l1) / V
    bigram   p2(w|v)   = l2 c(v w) / sum_x c(v x)    + (1 - l2) p1(w)
    trigram  p3(w|u v) = l3 c(u v w) / sum_x c(u v x) + (1 - l3) p2(w|v)

(Jelinek, Mercer: Interpolated estimation of Markov source parameters from sparse data, 1980.) The weight l
of an order depends on the number of times that its context was counted: contexts with the same number of
binary digits in that count share one, and it is 0 for a context that was never counted. The weights are
those of the highest likelihood on held-out tokens, given the lower orders. Held out are 20 stretches
of the training tokens, evenly spaced, 5 % together; the other tokens are counted. Then all are counted.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from evaluation import EvaluationError
from evaluation.perplexity import check_tokens, scored_bytes

NAMES = ("unigram", "bigram", "trigram")
ORDERS = len(NAMES)
PORTION = 1 << 20  # targets that are looked up at once
HELD_OUT = 20  # stretches, each one of as many of the training tokens
LEAST = 1e-6  # share of the lower order: no probability is 0
ROUNDS = 40  # of bisection: to 1e-12


@dataclass
class Level:
    """The counts of one order. An n-gram is one number: its tokens are the digits in base `vocab_size`.

    grams, contexts: uint64, sorted; counts, context_counts: int64; weights: float64 [65], by the binary
    digits of a context's count.
    """

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    context_counts: np.ndarray
    weights: np.ndarray

    def estimates(self, grams: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """(c(gram) / c(context), binary digits of c(context)) of each n-gram."""
        seen = _look_up(self.contexts, self.context_counts, grams // np.uint64(vocab_size))
        share = _look_up(self.grams, self.counts, grams) / np.maximum(seen, 1)
        return share, np.frexp(seen.astype(np.float64))[1]


class Ngrams:
    """The three models of `pieces`, arrays of tokens. Each token but the first of a piece is a target.

    Counting takes at most 60 bytes of memory for each token. progress: the label of a progress bar, None
    for no bar. Raises EvaluationError if there are too few tokens, or tokens outside the vocabulary.
    """

    def __init__(self, pieces: Sequence[np.ndarray], vocab_size: int, progress: str | None = None):
        if vocab_size**ORDERS >= 2**64:
            raise EvaluationError(f"a vocabulary of {vocab_size:,} tokens is too large to count trigrams")
        self.vocab_size = vocab_size
        self.targets = sum(max(0, len(piece) - 1) for piece in pieces)
        if self.targets < HELD_OUT:
            raise EvaluationError(f"{self.targets} training tokens are too few to count n-grams")
        self._bar = tqdm(
            total=2 * ORDERS * self.targets,
            unit=" tokens",
            unit_scale=True,
            desc=progress,
            disable=progress is None,
        )
        with self._bar:
            self._levels = [self._count(pieces, order, part=True) for order in range(1, ORDERS + 1)]
            weights = self._fitted(pieces)
            del self._levels
            self._levels = [self._count(pieces, order, part=False) for order in range(1, ORDERS + 1)]
        for level, fitted in zip(self._levels, weights, strict=True):
            level.weights = fitted

    def probabilities(self, stream: np.ndarray) -> np.ndarray:
        """Of each token of a stream but the first, given those before it: float64 [3, len(stream) - 1]."""
        parts = [
            np.stack(self._interpolated(*self._estimates(tokens, context)))
            for tokens, context, _ in _portions([stream])
        ]
        return np.concatenate([np.empty((ORDERS, 0)), *parts], axis=1)

    def weights(self) -> dict[str, dict[str, float]]:
        """{name: {"2-3": weight of contexts counted two or three times}}."""
        found = {}
        for name, level in zip(NAMES, self._levels, strict=True):
            digits = np.unique(np.frexp(level.context_counts.astype(np.float64))[1])
            found[name] = {_range(int(d)): float(level.weights[d]) for d in digits}
        return found

    def _count(self, pieces, order: int, part: bool) -> Level:
        """part: without the held-out targets."""
        grams = np.empty(self.targets, dtype=np.uint64)
        filled = 0
        for tokens, context, number in _portions(pieces):
            check_tokens(int(tokens.max()), self.vocab_size)
            found, missing = _grams(tokens, context, order, self.vocab_size)
            if part:
                found = found[~self._held_out(number + missing, len(found))]
            grams[filled : filled + len(found)] = found
            filled += len(found)
            self._bar.update(len(tokens) - context)
        grams = grams[:filled]
        grams.sort()
        starts = _starts(grams)
        counts = np.diff(starts, append=filled)
        grams = grams[starts]
        contexts = grams // np.uint64(self.vocab_size)
        starts = _starts(contexts)
        sums = np.add.reduceat(counts, starts) if len(counts) else counts
        return Level(grams, counts, contexts[starts], sums, np.zeros(65))

    def _held_out(self, first: int, count: int) -> np.ndarray:
        """Which of the targets first .. first + count - 1 are held out."""
        length = max(1, self.targets // HELD_OUT**2)
        return (np.arange(first, first + count) // length) % HELD_OUT == HELD_OUT // 2

    def _fitted(self, pieces) -> list[np.ndarray]:
        """The weights of each order."""
        found = []
        for tokens, context, number in _portions(pieces):
            held_out = self._held_out(number, len(tokens) - context)
            found.append(self._estimates(tokens, context, held_out))
        shares, digits = (
            [np.concatenate([part[i][order] for part in found]) for order in range(ORDERS)] for i in (0, 1)
        )
        lower = np.full(len(shares[0]), 1 / self.vocab_size)
        weights = []
        for share, digit in zip(shares, digits, strict=True):
            weights.append(_most_likely(share, lower, digit))
            lower = _mixed(weights[-1], share, digit, lower)
        return weights

    def _estimates(self, tokens, context, chosen=slice(None)) -> tuple[list, list]:
        """(shares, digits) of each order: those of the chosen targets, 0 where the context is too short."""
        shares, digits = [], []
        for order, level in enumerate(self._levels, 1):
            count = len(tokens) - context
            grams, missing = _grams(tokens, context, order, self.vocab_size)
            wanted = np.zeros(count, dtype=bool)
            wanted[chosen] = True
            share, digit = np.zeros(count), np.zeros(count, dtype=np.int64)
            known = np.flatnonzero(wanted[missing:])
            share[known + missing], digit[known + missing] = level.estimates(grams[known], self.vocab_size)
            shares.append(share[chosen])
            digits.append(digit[chosen])
        return shares, digits

    def _interpolated(self, shares, digits) -> list[np.ndarray]:
        lower = np.full(len(shares[0]), 1 / self.vocab_size)
        found = []
        for level, share, digit in zip(self._levels, shares, digits, strict=True):
            lower = _mixed(level.weights, share, digit, lower)
            found.append(lower)
        return found


def score(
    model: Ngrams,
    streams: Sequence[np.ndarray],
    byte_counts: np.ndarray | None,
    sizes: Sequence[float] | None = None,
) -> dict[str, dict]:
    """{name: what `perplexity.perplexity` returns} of each of the three models on the same streams.

    byte_counts, sizes: see `perplexity.scored_bytes`.
    """
    scored = [stream for stream in streams if len(stream) > 1]
    tokens = sum(len(stream) - 1 for stream in scored)
    if not tokens:
        raise EvaluationError("there is no token to score: the text is empty; name another with --texts")
    nats = np.zeros(ORDERS)
    for stream in scored:
        check_tokens(int(stream.max()), model.vocab_size)
        nats -= np.log(model.probabilities(stream)).sum(axis=1)
    size = scored_bytes(byte_counts, streams, sizes)
    return {
        name: {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),
            "bits_per_byte": loss * tokens / math.log(2) / size if size else None,
            "tokens": tokens,
            "bytes": size,
            "streams": len(scored),
            "windows": tokens,
            "window": order,  # it sees order - 1 tokens and scores one
            "stride": 1,
        }
        for order, (name, loss) in enumerate(zip(NAMES, (nats / tokens).tolist(), strict=True), 1)
    }


def _portions(pieces: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, int, int]]:
    """(tokens, how many of them are context only, the number of the first target) of each portion."""
    number = 0
    for piece in pieces:
        for start in range(1, len(piece), PORTION):
            begin = max(0, start - ORDERS + 1)
            tokens = piece[begin : start + PORTION].astype(np.uint64)
            yield tokens, start - begin, number
            number += len(tokens) - (start - begin)


def _grams(tokens: np.ndarray, context: int, order: int, vocab_size: int) -> tuple[np.ndarray, int]:
    """(the n-grams that end with a target, the targets at the beginning that have too short a context)"""
    first = max(context, order - 1)
    grams = np.zeros(max(0, len(tokens) - first), dtype=np.uint64)
    for back in range(order - 1, -1, -1):
        grams *= np.uint64(vocab_size)
        grams += tokens[first - back : len(tokens) - back]
    return grams, min(first, len(tokens)) - context


def _starts(ordered: np.ndarray) -> np.ndarray:
    """The indices at which another number begins."""
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)])


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where there is none."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def _mixed(weights, share, digits, lower) -> np.ndarray:
    weight = weights[digits]
    return weight * share + (1 - weight) * lower


def _most_likely(share: np.ndarray, lower: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """The weights [65] of the highest likelihood: its derivative falls with the weight, so bisect."""
    gain = share - lower
    low, high = np.zeros(65), np.full(65, 1 - LEAST)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        slope = np.bincount(digits, gain / (lower + middle[digits] * gain), minlength=65)
        low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
    weights = (low + high) / 2
    weights[0] = 0.0  # a context that was never counted
    known = np.flatnonzero(np.bincount(digits, minlength=65)[1:]) + 1
    if len(known):  # contexts with other counts: between their neighbours
        weights[1:] = np.interp(np.arange(1, 65), known, weights[known])
    return weights


def _range(digits: int) -> str:
    low, high = 1 << (digits - 1), (1 << digits) - 1
    return str(low) if low == high else f"{low}-{high}"
