"""Prepares MQAR, multi-query associative recall (Arora et al. 2023, "Zoology"): rows drawn at random.

    python data/recall/prepare.py
    python data/recall/prepare.py --pairs=2,4 --length=32 --vocab_size=64 --out=data/recall/small

Of a vocabulary of V tokens, 0 is filler, 1 .. V/2 - 1 are keys and V/2 .. V - 1 values. A row has D pairs:

    k_1 v_1 k_2 v_2 .. k_D v_D   and then S = (length - 2 D) / 2 slots of two tokens.

Keys are distinct within a row, values are drawn with replacement. Each key is asked once: `k_i v_i` stands
again in a slot of its own, and other slots hold two fillers. The slots of keys 1, 2, .. D are drawn one
after the other without replacement, slot s = 1 .. S with weight s^(exponent - 1), the paper's power law:
queries stand dense behind the pairs and thin out. Each number of pairs has the same share of the rows.

Departures from Zoology's code: values are drawn with replacement there without; a value stands behind its
query, where Zoology has it as a label alone; the vocabulary is 256 by default, there 8,192.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import numpy as np  # noqa: E402

from config_keys import Count, Positive, Seed  # noqa: E402
from configurator import parse  # noqa: E402
from corpus import DataError, binary  # noqa: E402
from corpus.tokenizer import MqarTokenizer  # noqa: E402

CHUNK = 4096  # rows drawn at once
STREAMS = {"train": 0, "val": 1}  # of the random generator, one for each split


@dataclass
class PrepareConfig:
    """Rows of MQAR -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/recall/mqar"  # folder to write
    pairs: list[int] = field(default_factory=lambda: [4, 8, 16, 32, 64])  # numbers of pairs
    vocab_size: Count = 256  # keys, values and the filler together, even
    length: Count = 256  # tokens of a row, even; D pairs need at least 4 D
    exponent: Positive = 0.01  # of the power law of the queries' slots; 1: all slots alike
    train_rows: Count = 64_000  # rows for training
    val_rows: Count = 1920  # other rows for validation
    seed: Seed = 0  # of all draws

    def check(self) -> list[str]:
        wrong = [
            f"{key} must be even, not {getattr(self, key)}"
            for key in ("vocab_size", "length")
            if getattr(self, key) % 2
        ]
        if not self.pairs or min(self.pairs) < 1 or len(set(self.pairs)) < len(self.pairs):
            told = ",".join(map(str, self.pairs))
            return [*wrong, f"pairs must be different numbers from 1 on, such as 4,8,16, not {told}"]
        most = max(self.pairs)
        if 4 * most > self.length:
            wrong.append(
                f"pairs: {most} pairs and as many queries have {4 * most} tokens, and a row only "
                f"length={self.length}: take --length={4 * most} or more, or fewer pairs"
            )
        if (keys := self.vocab_size // 2 - 1) < most:
            wrong.append(
                f"pairs: {most} pairs need as many keys, and vocab_size={self.vocab_size} has {keys}: take "
                f"--vocab_size={2 * most + 2} or more, or fewer pairs"
            )
        for key in ("train_rows", "val_rows"):
            if getattr(self, key) < len(self.pairs):
                wrong.append(f"{key}={getattr(self, key)} is less than a row for each of pairs")
        return wrong


def main(config: PrepareConfig) -> None:
    keys = ("pairs", "vocab_size", "length", "exponent", "train_rows", "val_rows", "seed")
    source = {"task": "mqar", **{key: getattr(config, key) for key in keys}}
    tokenizer = MqarTokenizer(config.vocab_size)
    splits = {"train": rows(config, "train"), "val": rows(config, "val")}
    about = {"mqar": {"length": config.length}}
    binary.prepare_tokens(splits, source, tokenizer, Path(config.out), about)
    print(f"vocabulary {config.vocab_size:,}, {', '.join(map(str, config.pairs))} pairs in a row")
    print(
        f"{config.train_rows:,} training and {config.val_rows:,} validation rows of {config.length} tokens"
    )
    print(f"data set: {config.out}")


def rows(config: PrepareConfig, split: str) -> Iterator[np.ndarray]:
    """The rows of a split: int64 [at most CHUNK, length] each."""
    random = np.random.Generator(np.random.PCG64([config.seed, STREAMS[split]]))
    count = {"train": config.train_rows, "val": config.val_rows}[split]
    pairs = random.permutation(np.resize(config.pairs, count))
    for start in range(0, count, CHUNK):
        yield drawn(random, pairs[start : start + CHUNK], config)


def drawn(random: np.random.Generator, pairs: np.ndarray, config: PrepareConfig) -> np.ndarray:
    """Rows with these numbers of pairs [n]: int64 [n, length]."""
    half, found = config.vocab_size // 2, np.zeros((len(pairs), config.length), dtype=np.int64)
    for number in np.unique(pairs):
        these = np.flatnonzero(pairs == number)
        count, slots = len(these), (config.length - 2 * number) // 2
        keys = 1 + random.random((count, half - 1)).argsort(axis=1)[:, :number]
        values = random.integers(half, config.vocab_size, (count, number))
        # the order of exponential times with these rates is that of draws without replacement
        rates = np.arange(1, slots + 1) ** (config.exponent - 1.0)
        order = (random.standard_exponential((count, slots)) / rates).argsort(axis=1)[:, :number]
        first, asked = 2 * np.arange(number), 2 * number + 2 * order
        for place, tokens in ((first, keys), (first + 1, values), (asked, keys), (asked + 1, values)):
            found[these[:, None], place] = tokens
    return found


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
