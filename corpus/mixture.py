"""Several prepared data sets, mixed by weight.

    data/a/gpt2                           one folder: a Dataset
    data/a/gpt2:0.7,data/b/gpt2:0.3       a Mixture: seven of ten samples come from data/a/gpt2

A folder of pairs is a PairDataset, one of MQAR an MqarDataset. A mixture is of folders of one kind.

Weights are positive decimal numbers or fractions (2/3), read exactly and divided by their sum. In lowest
terms they are m_j / M, and the sequence of sources repeats every M samples. Within such a period the k-th
sample (k = 0, 1, ...) of source j has one of the places

    floor(k M / m_j) .. ceil((k + 1) M / m_j) - 1.

This is equivalent to: after any number n of samples, source j has had floor or ceil of n m_j / M samples.
Each place goes to the source whose next range ends first (of equals, the one named first). With one sample
per place, this rule is known to satisfy every range. A table of one period gives the source of sample i,
and the number of earlier samples of each source. So sample i is a pure function of (data sets, weights,
seed, block size, i).
"""

import itertools
import math
import os
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from corpus import DataError
from corpus.loader import Dataset, read_meta
from corpus.mqar import MqarDataset
from corpus.pairs import PairDataset
from corpus.tokenizer import Tokenizer

LONGEST_PERIOD = 100_000  # samples; its table takes a fraction of a second and a megabyte


def parse(text: str) -> tuple[list[str], "Shares"]:
    """ "folder" or "folder:weight,folder:weight" -> the folders and their shares. Raises DataError."""
    if not text.strip():
        raise DataError("dataset is empty: give the folder of a prepared data set")
    if ("," not in text and ":" not in text) or os.path.exists(text):
        return [text], Shares([Fraction(1)])
    folders, weights = [], []
    for part in text.split(","):
        folder, _, number = (piece.strip() for piece in part.rpartition(":"))
        if not folder:
            raise DataError(f"dataset: {part.strip()!r} has no weight; write folder:weight,folder:weight")
        try:
            if len(number.lower().partition("e")[2]) > 3:
                raise ValueError  # 1e99999999 would be computed to its last digit
            weight = Fraction(number)
        except (ValueError, ZeroDivisionError):
            raise DataError(f"dataset: the weight {number!r} of {folder} is not a number") from None
        if weight <= 0:
            raise DataError(f"dataset: the weight of {folder} must be above 0, not {number}")
        if os.path.realpath(folder) in map(os.path.realpath, folders):
            raise DataError(f"dataset names {folder} twice: add up its weights")
        folders.append(folder)
        weights.append(weight)
    return folders, Shares(weights)


def open_dataset(
    text: str,
    split: str,
    block_size: int,
    vocab_size: int | None = None,
    batch_size: int = 1,
    score_source: bool = False,
) -> "Dataset | Mixture":
    """Opens the data sets named by `text`, see `parse`; else as the Dataset of its kind. Raises DataError,
    also if score_source is set and they are not of pairs.
    """
    folders, shares = parse(text)
    kinds = [kind_of(read_meta(Path(folder))) for folder in folders]
    if others := [number for number, kind in enumerate(kinds) if kind != kinds[0]]:
        raise DataError(
            f"{folders[0]} holds {HELD[kinds[0]]} and {folders[others[0]]} holds {HELD[kinds[others[0]]]}, "
            "which cannot be mixed: all samples are of one kind"
        )
    if score_source and kinds[0] is not PairDataset:
        raise DataError(
            f"score_source=True, but {folders[0]} holds {HELD[kinds[0]]}, not pairs with a source: leave "
            "score_source out, or take a data set of pairs"
        )
    further = (score_source,) if kinds[0] is PairDataset else ()
    opened = [
        kinds[0](*keys, *further)
        for folder, weight in zip(folders, shares.weights, strict=True)
        for keys in [(folder, split, block_size, vocab_size, math.ceil(weight * batch_size))]
    ]
    return opened[0] if len(opened) == 1 else Mixture(opened, shares)


HELD = {Dataset: "texts", PairDataset: "pairs", MqarDataset: "rows of MQAR"}


def kind_of(meta: dict) -> type[Dataset]:
    """The class that reads a folder with this meta.json."""
    return MqarDataset if "mqar" in meta else PairDataset if "pairs" in meta else Dataset


class Shares:
    """The source of each sample. `weights` are Fractions with sum 1, in the given order."""

    def __init__(self, weights: list[Fraction]):
        total = sum(weights)
        self.weights = tuple(weight / total for weight in weights)
        self.period = math.lcm(*(weight.denominator for weight in self.weights))
        if self.period > LONGEST_PERIOD:
            raise DataError(
                f"dataset: the weights repeat after {self.period:,} samples only, and {LONGEST_PERIOD:,} "
                "are the limit: round them, to thousandths of the whole say"
            )
        self.per_period = [int(weight * self.period) for weight in self.weights]

    @cached_property
    def table(self) -> np.ndarray:
        """The source of each sample of a period, int64 [period]."""
        sources = range(len(self.weights))
        given = [0] * len(self.weights)
        begins, ends = ([0] * len(self.weights) for _ in range(2))

        def next_range(j):
            begins[j] = given[j] * self.period // self.per_period[j]
            ends[j] = -(-(given[j] + 1) * self.period // self.per_period[j])

        for j in sources:
            next_range(j)
        table = np.empty(self.period, dtype=np.int64)
        for place in range(self.period):
            chosen = min((j for j in sources if begins[j] <= place), key=lambda j: ends[j])
            table[place] = chosen
            given[chosen] += 1
            next_range(chosen)
        return table

    @cached_property
    def _places(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.table == j) for j in range(len(self.weights))]

    def sources(self, first: int, count: int) -> np.ndarray:
        """The sources of samples first .. first + count - 1, int64 [count]."""
        return self.table[(first % self.period + np.arange(count)) % self.period]

    def before(self, sample: int) -> list[int]:
        """The number of samples of each source among the samples 0 .. sample - 1."""
        periods, place = divmod(sample, self.period)
        return [
            periods * each + int(np.searchsorted(places, place))
            for each, places in zip(self.per_period, self._places, strict=True)
        ]

    def sample(self, source: int, number: int) -> int:
        """The index in the mixture of a source's sample `number`, counted from 0."""
        periods, rest = divmod(number, self.per_period[source])
        return periods * self.period + int(self._places[source][rest])


class Mixture:
    """One split of several data sets, with the methods that Loader and Trainer use of a Dataset.

    Each source keeps its own order and epochs: its k-th sample in the mixture is its sample k. All have the
    same tokenizer and block size. `names` are the parts of their paths in which they differ.
    """

    def __init__(self, sources: list[Dataset], shares: Shares):
        self.sources, self.shares = sources, shares
        first = sources[0]
        for other in sources[1:]:
            if other.meta["tokenizer"]["hash"] != first.meta["tokenizer"]["hash"]:
                names = [source.meta["tokenizer"].get("name", "?") for source in (first, other)]
                raise DataError(
                    f"{first.folder} and {other.folder} have different tokenizers ({' and '.join(names)}), "
                    "so that a token means other text in each; prepare both with one --tokenizer (a "
                    "tokenizer.json that one of them holds will do), rows of MQAR with one --vocab_size"
                )
        self.names = short_names([source.folder for source in sources])
        self.meta = first.meta
        self.block_size = first.block_size
        self.of_pairs, self.unit, self.shapes = first.of_pairs, first.unit, first.shapes

    def tokenizer(self) -> Tokenizer:
        return self.sources[0].tokenizer()

    def target_bytes(self, windows: np.ndarray) -> int:
        """`Dataset.target_bytes` of the windows that `validation_windows` gave."""
        parts = zip(self.sources, self.parts(len(windows)).values(), strict=True)
        return sum(source.target_bytes(windows[rows]) for source, rows in parts)

    def verified(self) -> Iterator[int]:
        """`Dataset.verified` for all data sets."""
        return itertools.chain.from_iterable(source.verified() for source in self.sources)

    def targets(self, first_sample: int, count: int, seed: int = 0) -> int:
        """The tokens that the loss scores in these samples."""
        return sum(source.targets(*span, seed) for source, span in self._spans(first_sample, count))

    def windows(self, first_sample: int, count: int, seed: int = 0) -> np.ndarray:
        """Samples first_sample .. first_sample + count - 1 of a run: int64 [count, T + 1].

        T is block_size; of pairs, the width of the longest.
        """
        parts = [source.windows(*span, seed) for source, span in self._spans(first_sample, count)]
        return self._merge(parts, self.shares.sources(first_sample, count))

    def pieces(self, samples: int, seed: int = 0) -> list[np.ndarray]:
        """`Dataset.pieces` of all sources: their windows among the mixture's first `samples` samples."""
        taken = zip(self.sources, self.shares.before(samples), strict=True)
        return [piece for source, count in taken for piece in source.pieces(count, seed)]

    def validation_windows(self, count: int) -> np.ndarray:
        """At most `count` windows, the same at every call, in the order of the mixture's first samples.

        Each source gives its share, evenly spaced. If one has too few, all give fewer.
        """
        count = min(
            count,
            *(self.shares.sample(j, source.n_windows) for j, source in enumerate(self.sources)),
        )
        shares = self.shares.before(count)
        if 0 in shares:
            least = 1 + max(self.shares.sample(j, 0) for j in range(len(self.sources)))
            raise DataError(
                f"of {count:,} validation windows none would be from "
                f"{self.sources[shares.index(0)].folder}: at least {least:,} are needed, which is "
                f"--eval_tokens={least * self.block_size} and as much text in every validation split"
            )
        parts = [source.validation_windows(n) for source, n in zip(self.sources, shares, strict=True)]
        return self._merge(parts, self.shares.sources(0, count))

    def parts(self, count: int) -> dict[str, np.ndarray]:
        """{name: the indices of that source among the mixture's first `count` samples}."""
        sources = self.shares.sources(0, count)
        return {name: np.flatnonzero(sources == j) for j, name in enumerate(self.names)}

    def describe(self, samples: int) -> list[str]:
        """One line per source: its share, and its number of epochs in a run of so many samples."""
        return [
            f"{float(weight):.4g} {source.folder}, {source.size()} ({taken / source.n_windows:.2f} epochs)"
            for source, weight, taken in zip(
                self.sources, self.shares.weights, self.shares.before(samples), strict=True
            )
        ]

    def _spans(self, first_sample: int, count: int) -> list[tuple[Dataset, tuple[int, int]]]:
        """(source, (its first sample, their number)) of the sources' shares of these samples."""
        begins, ends = (self.shares.before(sample) for sample in (first_sample, first_sample + count))
        return [
            (source, (begin, end - begin))
            for source, begin, end in zip(self.sources, begins, ends, strict=True)
        ]

    def _merge(self, parts: list[np.ndarray], sources: np.ndarray) -> np.ndarray:
        width = max(part.shape[1] for part in parts)
        # beyond a narrower row, padding that is not scored
        windows = np.full((len(sources), width), self.meta["end_of_text"], dtype=np.int64)
        mask = np.ones(windows.shape, dtype=bool)
        for j, part in enumerate(parts):
            windows[sources == j, : part.shape[1]] = np.ma.getdata(part)
            mask[sources == j, : part.shape[1]] = np.ma.getmaskarray(part)
        return windows if self.unit == "tokens" else np.ma.MaskedArray(windows, mask)


def short_names(folders: list[Path]) -> list[str]:
    """The paths without the leading and trailing folders that all have in common."""
    paths = [Path(os.path.normpath(folder)).parts for folder in folders]
    begin, end = shared(paths), shared([path[::-1] for path in paths])
    names = ["/".join(path[begin : len(path) - end]) for path in paths]
    return names if all(names) else [str(folder) for folder in folders]


def shared(paths: list[tuple[str, ...]]) -> int:
    """The number of leading parts that all paths have in common."""
    return sum(
        1 for _ in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    )
