"""A prepared data set of pairs -> samples that begin at position 0 with one pair each.

A pair lies in the split as `source end-of-text target end-of-text`. A sample puts one more end-of-text in
front, as before every document. Pairs are never packed into windows: a token mixer with a column for each
position would see a pair at other columns each time. What a sample's row has beyond its pair is padding, on
the right, where a causal model's other tokens do not see it. Padding is not scored. Rows are as wide as the
longest pair of a batch needs, rounded up to a multiple of 16, so that a GPU sees few shapes. Pairs longer
than block_size are left out.

An epoch has the pairs of a keyed permutation, cut to a multiple of CHUNK: up to 63 pairs are left out,
others in each epoch. Pools of POOL pairs are sorted by length and cut into chunks, which another keyed
permutation orders. So batches of a size that divides CHUNK hold pairs of similar lengths, and sample i is a
pure function of (data set, seed, block size, i).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from corpus import DataError
from corpus.loader import Dataset, batch_of, keys_of, permute
from kernels.linear_cross_entropy import IGNORED

CHUNK = 64  # samples of similar length, one after the other
POOL = 64 * CHUNK  # samples that are sorted by length
MULTIPLE = 16  # of the width of rows


class PairDataset(Dataset):
    """One split of a data set folder of pairs; `Dataset` says more.

    score_source: the loss is of the source's tokens too, and of the end-of-text behind it. `n_windows`: the
    pairs that fit into block_size; `left_out`: the number of those that do not.
    """

    of_pairs = True
    unit = "pairs"

    def __init__(
        self,
        folder: str | Path,
        split: str,
        block_size: int,
        vocab_size: int | None = None,
        batch_size: int = 1,
        score_source: bool = False,
    ):
        self.score_source = score_source
        self._pool = (None, None)  # (seed, epoch, number), order
        super().__init__(folder, split, block_size, vocab_size, batch_size)

    @property
    def shapes(self) -> int:
        return -(-self.block_size // MULTIPLE)

    def size(self) -> str:
        out = f" ({self.left_out:,} longer than block_size={self.block_size} are left out)"
        return f"{self.n_windows:,} training pairs{out if self.left_out else ''}"

    def epochs(self, samples: int) -> float:
        return samples / self.epoch

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of both sides of a pair, without end-of-text; index: 0 .. n_windows - 1."""
        start, middle, end = self._places[index]
        return self.tokens[start:middle], self.tokens[middle + 1 : end]

    def targets(self, first_sample: int, count: int, seed: int = 0) -> int:
        return int(self._targets[self._order(first_sample, count, seed)].sum())

    def windows(self, first_sample: int, count: int, seed: int = 0) -> np.ndarray:
        """Samples first_sample .. first_sample + count - 1 of a run: int64 [count, T + 1]."""
        return self._rows(self._order(first_sample, count, seed))

    def validation_windows(self, count: int) -> np.ndarray:
        """At most `count` evenly spaced pairs, the longest first, the same at every call."""
        count = min(count, self.n_windows)
        if count < 1:
            raise DataError(f"{count} validation pairs: at least one is needed")
        chosen = np.arange(count) * self.n_windows // count
        return self._rows(chosen[np.argsort(-self._lengths[chosen], kind="stable")])

    def pieces(self, samples: int, seed: int = 0) -> list[np.ndarray]:
        """The pairs among a run's first `samples` samples, each once and with the end-of-text before it."""
        order = np.sort(self._order(0, min(samples, self.epoch), seed))
        return [self.tokens[max(0, start - 1) : end + 1] for start, _, end in self._places[order]]

    @property
    def epoch(self) -> int:
        """The samples of an epoch."""
        return self.n_windows - self.n_windows % CHUNK or self.n_windows

    def _count(self) -> int:
        ends = np.flatnonzero(self.tokens == self.meta["end_of_text"])
        if len(ends) % 2 or not len(ends) or ends[-1] != len(self.tokens) - 1:
            raise DataError(
                f"{self.folder / self.split}.bin does not hold pairs, {len(ends):,} ends of texts: it is "
                "damaged or of another data set; prepare it again"
            )
        middles, ends = ends[::2], ends[1::2]
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends + 1 - starts
        fits = lengths <= self.block_size
        self.left_out = int((~fits).sum())
        if not fits.any():
            raise DataError(
                f"no pair in the {self.split} split of {self.folder} fits into "
                f"block_size={self.block_size}: the shortest has {lengths.min():,} tokens with both ends, "
                "and the model needs at least such a block_size"
            )
        self._places = np.stack([starts, middles, ends], axis=1)[fits]
        self._lengths = lengths[fits]
        self._targets = self._lengths if self.score_source else (ends - middles)[fits]
        return len(self._lengths)

    def _too_few(self) -> str:
        return f"{self.n_windows:,} pairs that fit into block_size={self.block_size}"

    def _order(self, first_sample: int, count: int, seed: int) -> np.ndarray:
        """The pairs of these samples, int64 [count]."""
        parts = [np.empty(0, dtype=np.int64)]
        while count:
            epoch, place = divmod(first_sample, self.epoch)
            number, place = divmod(place, POOL)
            parts.append(self._sorted_pool(seed, epoch, number)[place : place + count])
            first_sample += len(parts[-1])
            count -= len(parts[-1])
        return np.concatenate(parts)

    def _sorted_pool(self, seed: int, epoch: int, number: int) -> np.ndarray:
        """The pairs of a pool in the order of its samples. The last pool is kept."""
        key = seed, epoch, number
        kept, order = self._pool
        if kept == key:
            return order
        places = np.arange(number * POOL, min((number + 1) * POOL, self.epoch), dtype=np.uint64)
        order = permute(places, self.n_windows, keys_of("order", seed, epoch)).astype(np.int64)
        order = order[np.argsort(self._lengths[order], kind="stable")]
        if len(order) > CHUNK:
            chunks = order.reshape(-1, CHUNK)
            places = np.arange(len(chunks), dtype=np.uint64)
            order = chunks[permute(places, len(chunks), keys_of(f"chunks {number}", seed, epoch))].reshape(
                -1
            )
        self._pool = key, order
        return order

    def _rows(self, pairs: np.ndarray) -> np.ndarray:
        """The rows of these pairs: int64 [count, T + 1], masked where they are not scored."""
        width = -(-int(self._lengths[pairs].max(initial=1)) // MULTIPLE) * MULTIPLE
        shape = len(pairs), min(width, self.block_size) + 1
        rows, mask = np.full(shape, self.meta["end_of_text"], dtype=np.int64), np.ones(shape, dtype=bool)
        for row, (start, middle, end) in enumerate(self._places[pairs]):
            rows[row, 1 : end - start + 2] = self.tokens[start : end + 1]
            scored = start if self.score_source else middle + 1
            mask[row, scored - start + 1 : end - start + 2] = False
        return self._checked(np.ma.MaskedArray(rows, mask))


def batches_for(encoder_layers: int) -> Callable[[np.ndarray], tuple[torch.Tensor, ...]]:
    """What makes batches of samples for a model with so many encoder layers."""
    return source_and_target if encoder_layers else batch_of


def source_and_target(windows: np.ma.MaskedArray) -> tuple[torch.Tensor, ...]:
    """Rows of pairs whose targets alone are scored, [B, T + 1] -> what an encoder-decoder takes.

    tokens and targets: [B, N] int64 each: end-of-text and the target, and the target and end-of-text.
    source: [B, N] int64, lengths: [B] int64, without end-of-text. All are padded on the right with
    end-of-text and, in targets, IGNORED. N is the longest of all, rounded up to a multiple of MULTIPLE.
    """
    scored, ids = torch.from_numpy(~windows.mask), torch.from_numpy(windows.data)
    # a row is end-of-text, source, end-of-text, and then what is scored
    first, count = scored.int().argmax(1, keepdim=True), scored.sum(1, keepdim=True)
    lengths = first - 2
    longest = int(torch.maximum(lengths, count).max())
    column = torch.arange(min(-(-longest // MULTIPLE) * MULTIPLE, ids.shape[1] - 1))

    def piece(start, length, padding):
        place = (start + column).clamp(max=ids.shape[1] - 1)
        return torch.where(column < length, ids.gather(1, place), padding)

    end_of_text = ids[:, :1]
    return (
        piece(first - 1, count, end_of_text),
        piece(first, count, torch.full_like(end_of_text, IGNORED)),
        piece(torch.ones_like(first), lengths, end_of_text),
        lengths[:, 0],
    )
