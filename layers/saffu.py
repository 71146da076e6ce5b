"""The self-attentive feed-forward unit (SAFFU), and the two contexts that it is given.

"Explicit Foundation Model Optimization with Self-Attentive Feed-Forward Neural Units", equation 1. The
vectors X_m [K, D] of a context have one query, that of slot h:

    Q_m[k] = X_m[h] . X_m[k],    A_m = -log softmax(Q_m W),
    H_m = sum_k A_m[k] X_m[k]  (sum)  or the concatenation of A_m[k] X_m[k]  (cat),
    SAFFU(X_m) = softmax(H_m U).

A is not normalised: a slot with little probability weighs much. K vectors of 1-norm 1 give H a 1-norm of
about K log K.

Contexts are places in an extended sequence: three special tokens, then the window. With n tokens of the
target's document before the target (those of the window alone):

    block   absolute places: a document is cut into blocks. Slot 1 is <sod> in its first block, <frg> in
            later ones. The next m slots hold the tokens of the block before the target, m = (n - 1) mod
            (K - 1) + 1, and the rest <pad>.
    radius  relative places: the K tokens before the target, the nearest last. Before a document's first
            token comes <sod>, or <frg> where its beginning is not in the window, and <pad> before that.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from config_keys import Count, CountOrNone
from kernels.embedding import embedding


@dataclass
class Keys:
    # model=saffu
    saffu_block: int | None = 128  # b, slots of the block unit; None: no block unit
    saffu_radius: int | None = 8  # r, slots of the radius unit; None: no radius unit
    saffu_block_width: Count = 128  # D_b, width of the block unit's embedding
    saffu_radius_width: Count = 32  # D_r, width of the radius unit's embedding
    saffu_block_mode: Literal["sum", "cat"] = "sum"  # add up the block's weighted vectors, or concatenate
    saffu_radius_mode: Literal["sum", "cat"] = "cat"  # the same for the radius
    saffu_block_head: int | None = None  # slot of the block's query, from 1; None: the first
    saffu_radius_head: int | None = None  # slot of the radius's query, from 1; None: the last, the nearest
    saffu_hidden: CountOrNone = 256  # D_H, hidden bits of each unit; None: decode to the vocabulary
    saffu_train_embeddings: bool = False  # train the embeddings too
    saffu_end_of_text: int | None = None  # token that ends a document; None: that of the data set


def mistakes(config) -> list[str]:
    """What is wrong with the keys of a SAFFU, one sentence each."""
    wrong = []
    if config.saffu_block is None and config.saffu_radius is None:
        wrong.append("saffu_block and saffu_radius are both None: a SAFFU needs at least one of them")
    widths = {} if config.saffu_hidden is None else {"saffu_hidden": 0}
    for unit in ("saffu_block", "saffu_radius"):
        slots, head = getattr(config, unit), getattr(config, f"{unit}_head")
        if slots is None:
            continue
        widths[f"{unit}_width"] = 3  # special tokens have embeddings and are no targets
        if slots < 2:
            wrong.append(f"{unit} must be at least 2, not {slots}: one slot has no attention")
        elif head is not None and not 1 <= head <= slots:
            wrong.append(f"{unit}_head must be a slot from 1 to {unit}={slots}, not {head}")
    for key, more in widths.items():
        tokens, width = (config.vocab_size or 0) + more, getattr(config, key)
        if 1 <= width <= 40 and tokens > 2**width - 1:
            least = tokens.bit_length()
            wrong.append(
                f"{key}={width} gives 2^{width} - 1 bit-vectors, fewer than the {tokens:,} tokens that "
                f"need one: take at least {least}"
            )
    end = config.saffu_end_of_text
    if end is not None and not 0 <= end < (config.vocab_size or end + 1):
        known = f"a vocabulary of {config.vocab_size}" if config.vocab_size else "any vocabulary"
        wrong.append(f"saffu_end_of_text={end} is no token of {known}")
    return wrong


START, FURTHER, PADDING = range(3)  # <sod>, <frg>, <pad>: the first places of the extended sequence
SPECIAL = 3


def last_ends(tokens: torch.Tensor, end_of_text: int | None) -> torch.Tensor:
    """tokens: [B, T] int64 -> [B, T] int64: the place of the last end-of-text up to each token, or -1."""
    at = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    if end_of_text is None:
        return torch.full_like(tokens, -1)
    return torch.where(tokens == end_of_text, at, -1).cummax(1).values


def extended(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """tokens: [B, T] int64 below `vocabulary` -> [B, 3 + T], with the ids of the special tokens first."""
    special = vocabulary + torch.arange(SPECIAL, device=tokens.device)
    return torch.cat((special.expand(len(tokens), SPECIAL), tokens), 1)


def block_places(ends: torch.Tensor, slots: int) -> torch.Tensor:
    """ends: [B, T] of `last_ends` -> [B, T, slots] int64, the block that predicts the token after each."""
    at = torch.arange(ends.shape[1], device=ends.device)
    before = (at - ends)[..., None]  # n; 0 behind an end-of-text
    held = torch.where(before > 0, (before - 1) % (slots - 1) + 1, 0)
    slot = torch.arange(slots, device=ends.device)
    token = at[:, None] - held + slot
    first = torch.where((ends[..., None] >= 0) & (before < slots), START, FURTHER)
    places = torch.where(slot <= held, SPECIAL + token, PADDING)
    return torch.where(slot == 0, first, places)


def radius_places(ends: torch.Tensor, slots: int) -> torch.Tensor:
    """As `block_places`, for the radius."""
    at = torch.arange(ends.shape[1], device=ends.device)[:, None]
    token = at + torch.arange(1 - slots, 1, device=ends.device)
    ends = ends[..., None]
    first = torch.where(ends >= 0, START, FURTHER)
    places = torch.where(token > ends, SPECIAL + token, PADDING)
    return torch.where(token == ends, first, places)


PLACES = {"block": block_places, "radius": radius_places}


class Unit(nn.Module):
    """A unit without its decoder's softmax: ids [B, S] int64 of the extended sequence, places [B, T, K]
    int64 in it -> H [B, T, D] (sum) or [B, T, K D] (cat).

    kind: block or radius. rows: of the embedding, [rows, width]. head: the slot of the query, from 0. bits:
    outputs of the decoder U, None for no decoder of its own.
    """

    def __init__(
        self, kind: str, slots: int, width: int, head: int, cat: bool, rows: int, bits: int | None
    ):
        super().__init__()
        self.kind, self.slots, self.width, self.head, self.cat = kind, slots, width, head, cat
        self.embedding = nn.Parameter(torch.empty(rows, width))
        self.attention = nn.Parameter(torch.empty(slots, slots))  # W
        if bits is not None:
            self.decoder = nn.Parameter(torch.empty(self.inputs, bits))  # U

    @property
    def inputs(self) -> int:
        return self.slots * self.width if self.cat else self.width

    def places(self, ends: torch.Tensor) -> torch.Tensor:
        return PLACES[self.kind](ends, self.slots)

    def keys(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [B, S] -> [B, S, D]"""
        return embedding(self.embedding, ids)

    def queries(self, keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Q: keys [B, S, D], places [B, T, K] -> [B, T, K]"""
        where = places[..., self.head, None].expand(-1, -1, self.width)
        return products(keys.gather(1, where), keys, places)

    def weights(self, q: torch.Tensor) -> torch.Tensor:
        """A: q [B, T, K] -> [B, T, K], at least 0"""
        return -(q @ self.attention).log_softmax(-1)

    def mixed(self, a: torch.Tensor, keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """H: a, places [B, T, K], keys [B, S, D] -> [B, T, inputs]"""
        if self.cat:
            return (a[..., None] * vectors(keys, places)).flatten(2)
        padding = places == PADDING
        mix = a.new_zeros(*places.shape[:2], keys.shape[1])
        # places but that of <pad> occur once, so that sums in any order are the same to the bit
        mix = mix.scatter_add(-1, places, a.masked_fill(padding, 0))
        mix = mix + torch.nn.functional.pad(
            (a * padding).sum(-1, keepdim=True), (PADDING, keys.shape[1] - PADDING - 1)
        )
        return mix @ keys

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        keys = self.keys(ids)
        return self.mixed(self.weights(self.queries(keys, places)), keys, places)


def vectors(keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """X: keys [B, S, D], places [B, T, K] -> [B, T, K, D]"""
    rows = places + keys.shape[1] * torch.arange(len(keys), device=keys.device)[:, None, None]
    return embedding(keys.flatten(0, 1), rows)


def products(queries: torch.Tensor, keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """queries: [B, T, D], keys: [B, S, D], places: [B, T, K] -> [B, T, K], each with its K vectors."""
    return (queries @ keys.mT).gather(-1, places)
