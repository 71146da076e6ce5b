"""What decoding keeps of a batch of equally long sequences."""

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from layers.cache import in_use

ROWS = 128  # by which a cache on a CPU grows: a compiled step reads all rows that there are


@dataclass
class Cache:
    """See `GPT.new_cache` and `GPT.decode`. Rows that hold no token yet hold zeros, or finite numbers of an
    earlier text.
    """

    blocks: list[tuple[torch.Tensor, ...]]  # one of the attention's new_cache for each block
    filled: torch.Tensor  # tokens that are in it, int64 scalar on the device: a number would be compiled in
    room: int  # tokens that `blocks` has rows for
    length: int  # tokens that it may grow to
    rows: list[int | None]  # `TokenMixer.cache_rows` of each block
    # of an encoder-decoder: each block's keys and values of the source, and the lengths of the sources
    source: tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor] | None = None
    whole: bool = False  # each step reads all rows: its shapes stay as they are, and it waits for no device

    def in_use(self, new: int) -> list[tuple[torch.Tensor, ...]]:
        """`blocks`, narrowed to what they hold with `new` more tokens; `whole`: all rows, which must have
        been reserved. Raises ValueError where they are more than `length`.
        """
        return self.blocks if self.whole else self.first(self.reserve(new))

    def reserve(self, new: int) -> int:
        """Makes room for `new` more tokens, and returns how many there will be. Raises ValueError as
        `in_use` does.
        """
        if (end := int(self.filled) + new) > self.length:
            raise ValueError(f"{end} tokens do not fit into a cache of length {self.length}")
        if end > self.room:
            more = min(self.length, -(-end // ROWS) * ROWS) - self.room
            for block, rows in enumerate(self.rows):
                held = self.blocks[block]
                grown = [F.pad(t, (0, 0, 0, more)) if self._has_rows(t) else t for t in held[:rows]]
                self.blocks[block] = (*grown, *held[len(grown) :])
            self.room += more
        return end

    def with_rows(self) -> list[torch.Tensor]:
        """The tensors that grow; neither what is kept of the last token alone nor a state."""
        held = (t for block, rows in zip(self.blocks, self.rows, strict=True) for t in block[:rows])
        return list(filter(self._has_rows, held))

    def _has_rows(self, tensor: torch.Tensor) -> bool:
        return 1 < tensor.shape[-2] == self.room

    def first(self, end: int) -> list[tuple[torch.Tensor, ...]]:
        """`blocks`, narrowed to their first `end` tokens."""
        return [in_use(held, end, rows) for held, rows in zip(self.blocks, self.rows, strict=True)]

    def clear(self):
        self.filled.zero_()

    def of_rows(self, rows: torch.Tensor) -> "Cache":
        """A cache of these rows of the batch, each as often as it is named. rows: int64."""

        def select(blocks):
            return [tuple(held.index_select(0, rows) for held in block) for block in blocks]

        source = None
        if self.source is not None:
            source = select(self.source[0]), self.source[1][rows]
        return replace(self, blocks=select(self.blocks), source=source, filled=self.filled.clone())

    def reorder(self, rows: torch.Tensor):
        """Row i of the batch becomes that of row rows[i], in place. rows: [B] int64, of equal sources,
        which therefore stay where they are.
        """
        if torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return
        for block in self.first(int(self.filled)):
            for held in block:
                held.copy_(held.index_select(0, rows))
