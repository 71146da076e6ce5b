"""Attention (ours) with scores from continued fractions that address tokens by distance and content.

CAttnM's rank-L scores (layers/cattn_m.py) with other columns:

    S_tj = y_t . (F_{t-j} + G x_j + H x_{j-1}),    y_t = W_0 x_t + z(W x_t) in R^L

F_{t-j} addresses token j by its distance; CAttnM's F_j addresses it by its absolute position. With
cattn_content, G x_j addresses it by its content. With token_shift, H x_{j-1} addresses it by the content of
the token before it, so that one layer can find what followed the last occurrence of a token.
"""

from dataclasses import dataclass

import torch
from torch import nn

from kernels.autocast import without_autocast
from kernels.shared_attention import distances, shared_attention
from layers.attention import TokenShift
from layers.cache import of_token_before, products
from layers.cattn_m import CAttnM, HeadKeys, heads_of


@dataclass
class Keys(HeadKeys, TokenShift):
    # cattn_relative
    cattn_content: bool = False  # cattn_relative: columns hold a linear map of their token too


class CAttnRelative(CAttnM):
    """x: [B, T, C] -> [B, T, C], T <= block_size. Keys as in CAttnM, and

    - cattn_content: each head has a C x L map G and adds G x_j to the column of token j.
    - token_shift: with cattn_content, each head has a second map H and adds H x_{j-1} too.
    """

    Keys = Keys

    def hold_content(self, config, ladders):
        maps = maps_of(config)
        self.content = nn.Linear(config.n_embd, ladders, bias=False) if maps > 0 else None
        self.previous = nn.Linear(config.n_embd, ladders, bias=False) if maps > 1 else None

    def new_cache(self, batch, length, device, dtype):
        """v as in CAttnM.

        With cattn_content also the columns, stored as rows: [B, heads, length, L]. With token_shift also
        what the last token adds to the next token's column: [B, 1, heads L].
        """
        shapes = []
        if self.content is not None:
            shapes.append((batch, self.heads, length, self.columns.shape[1]))
        if self.previous is not None:
            shapes.append((batch, 1, self.previous.out_features))
        more = (torch.empty(shape, device=device, dtype=dtype) for shape in shapes)
        return (*super().new_cache(batch, length, device, dtype), *more)

    def attend_undropped(self, y, v, columns):
        return shared_attention(y, self.columns, v, False, self.backend, True, columns)

    def cached_scores(self, y, columns, length, pos):
        by_distance = self.scores(y, length, pos)
        if columns is None:
            return by_distance
        y = y.to(torch.promote_types(y.dtype, torch.float32))
        with without_autocast(y):
            return products(y, columns.to(y.dtype)) + by_distance

    def content_columns(self, x, pos=None, cache=None):
        """[B, T, C] -> G x_j + H x_{j-1}: [B, heads, T, L], or None without cattn_content."""
        if self.content is None:
            return None
        columns = self.content(x)
        if self.previous is not None:
            last = None if cache is None else cache[2]
            columns = columns + of_token_before(self.previous(x), pos, last)
        return columns.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def scores(self, y, length, pos=None):
        scores = super().scores(y, length)
        return scores.gather(-1, distances(length, y.device, pos).expand_as(scores))

    @classmethod
    def is_collapsed(cls, config):
        return False

    @classmethod
    def is_strict(cls, config):
        return False

    @classmethod
    def idle_keys(cls, config):
        return super().idle_keys(config) | (set() if config.cattn_content else {"token_shift"})

    @classmethod
    def parameter_count(cls, config):
        """CAttnM's; cattn_content and token_shift add L p each, with L the ladders of all heads."""
        ladders = heads_of(config) * config.cf_ladders
        return super().parameter_count(config) + maps_of(config) * ladders * config.n_embd

    @classmethod
    def cached_values(cls, config):
        """Numbers per past token: v, and with cattn_content its columns."""
        return super().cached_values(config) + config.cattn_content * heads_of(config) * config.cf_ladders

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the matrix products; the causal mask is not subtracted."""
        ladders = heads_of(config) * config.cf_ladders
        of_content = config.cattn_content * context + maps_of(config) * config.n_embd
        return super().flops_per_token(config, context) + 2 * ladders * of_content


def maps_of(config) -> int:
    """The number of linear maps in a column: one of its token, one of the previous token."""
    return config.cattn_content * (1 + config.token_shift)
