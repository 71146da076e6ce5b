"""A prepared data set of multi-query associative recall (MQAR; Arora et al. 2023, "Zoology") -> its rows.

data/recall/prepare.py writes rows of equal length: key-value pairs, and later each key again, with its
value behind it, between fillers. A sample is one row with a filler in front, as before every document, and
never a window across rows. The loss scores the answers alone:

    row_t is an answer   iff   row_{t-1} is a key and also stands in row_0 .. row_{t-2}

Token 0 is the filler, tokens 1 .. V/2 - 1 are keys, and V/2 .. V - 1 are values.
"""

import numpy as np

from corpus import DataError
from corpus.loader import Dataset


class MqarDataset(Dataset):
    """One split of a data set folder of MQAR; `Dataset` says more. `length`: the tokens of a row.

    Samples are int64 [count, length + 1], masked where they are not scored. Raises DataError where
    block_size does not hold a row.
    """

    unit = "rows"

    @property
    def stride(self) -> int:
        return self.length

    def size(self) -> str:
        return f"{self.n_windows:,} training rows of {self.length} tokens"

    def targets(self, first_sample: int, count: int, seed: int = 0) -> int:
        return int(self.windows(first_sample, count, seed).count())

    def _count(self) -> int:
        rows = self.meta["mqar"]
        self.length = rows.get("length") if isinstance(rows, dict) else None
        if not isinstance(self.length, int) or self.length < 1 or len(self.tokens) % self.length:
            raise DataError(
                f"{self.folder / self.split}.bin does not hold rows of {self.length} tokens, which "
                "meta.json says: it is damaged or of another data set; prepare it again"
            )
        if self.block_size < self.length:
            raise DataError(
                f"a row of {self.folder} has {self.length} tokens and is never cut, but "
                f"block_size={self.block_size}: take block_size={self.length} or more"
            )
        return len(self.tokens) // self.length

    def _too_few(self) -> str:
        return f"{self.n_windows:,} rows"

    def _shift(self, seed: int, epoch: int) -> int:
        return 0  # rows stay whole

    def _gather(self, starts: np.ndarray) -> np.ndarray:
        rows = self.tokens.reshape(-1, self.length)[starts // self.length]
        windows = np.pad(rows.astype(np.int64), ((0, 0), (1, 0)))
        mask = np.pad(~answers(rows, self.meta["vocab_size"]), ((0, 0), (1, 0)), constant_values=True)
        return self._checked(np.ma.MaskedArray(windows, mask))


def answers(rows: np.ndarray, vocab_size: int) -> np.ndarray:
    """Which tokens of rows [n, T] are answers: bool [n, T]."""
    order = np.argsort(rows, axis=1, kind="stable")  # equal tokens stand side by side, the first one first
    ordered = np.take_along_axis(rows, order, axis=1)
    again = np.zeros(rows.shape, dtype=bool)
    np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    asked = again & (rows > 0) & (rows < vocab_size // 2)
    return np.pad(asked[:, :-1], ((0, 0), (1, 0)))
