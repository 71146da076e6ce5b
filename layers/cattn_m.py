"""CAttnM: causal attention whose scores come from continued fractions (CoFrGeNet, section 4.1.1).

    A_t = softmax over j <= t of S_tj,    O_t = sum_{j <= t} A_tj (W^v x_j)

Two readings of the scores. Column j scores absolute position j in both:

    cattn_scores=rank:       S_t = y_t F,  y_t = W_0 x_t + z(W x_t) in R^L,  F in R^{L x block_size}
    cattn_scores=collapsed:  S_t = U x_t + V z(W x_t),  U in R^{block_size x C},  V in R^{block_size x L}

The paper's figure 2, with F of L x l, speaks for the first. Its section 4.2 speaks for the second: there
equation 8 implements the ensembles of that figure, and F W_0 becomes a free U. There are no queries and
keys: attention is addressed by absolute position, and only the values are needed from the past. As printed
("a convex combination of the first i-1 tokens") a token does not attend to itself: cattn_strict.

Columns by distance and by content, which are ours, stand in layers/cattn_relative.py.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from config_keys import CountOrNone
from kernels.autocast import without_autocast
from kernels.shared_attention import shared_attention
from kernels.wide_attention import wide_attention
from layers import ladder
from layers.cache import begins_text, products, update_cache, weighted_sum
from layers.ladder import LadderEnsemble
from layers.protocol import TokenMixer


@dataclass
class HeadKeys(ladder.Keys):
    # cattn_m, cattn_relative
    cattn_heads: CountOrNone = 1  # cattn_*: heads, each with its ladders; None: n_head
    cattn_value_heads: CountOrNone = None  # columns of W^v, in n_embd / n_head; None: n_head
    cattn_proj: bool = False  # cattn_m, cattn_relative: a linear map on the output


@dataclass
class Keys(HeadKeys):
    # cattn_m
    cattn_scores: Literal["rank", "collapsed"] = "rank"  # cattn_m: F (W_0 x + z), or U x + V z
    cattn_strict: bool = False  # cattn_m: a token does not attend to itself


class CAttnM(TokenMixer):
    """x: [B, T, C] -> [B, T, C], T <= block_size.

    cattn_heads: each head has L ladders, its own columns and C / cattn_heads columns of W^v; its U sees as
    many of x. None: n_head.
    `columns` is F: [heads, L, block_size]. With collapsed scores it holds U above V, transposed: [heads,
    C / heads + L, block_size]. The intercepts of the linear part (cf_linear_intercept) are one for each
    position there, and one for each ladder in y_t.
    cattn_value_heads: W^v has this many times C / n_head columns, and C is r times as many. Each group of r
    heads shares its columns, as the heads of grouped-query attention do; a single head's output is repeated
    r times.
    cattn_proj: a C x C map on the output (the paper counts none).
    cattn_strict: token t attends to j < t only, and the first token's output is 0.
    dropout: where weights are dropped, in training, all T x T of them are in memory.
    """

    Keys = Keys
    has_ladders = True

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.heads, self.collapsed = heads_of(config), self.is_collapsed(config)
        self.strict, self.backend = self.is_strict(config), config.cf_backend
        width, ladders = config.n_embd, self.heads * config.cf_ladders
        self.ladders = LadderEnsemble(
            config, width, ladders, ladders, config.cf_depth, linear=not self.collapsed, project=False
        )
        self.columns = nn.Parameter(torch.empty(self.heads, self.rank_of(config), config.block_size))
        self.by_column = None  # [heads, block_size, rank], to decode
        affine = self.collapsed and config.cf_linear_intercept
        self.intercept = nn.Parameter(torch.empty(self.heads, config.block_size)) if affine else None
        self.hold_content(config, ladders)
        value_width = value_width_of(config)
        self.repeats = width // value_width
        self.value = nn.Linear(width, value_width, bias=False)
        self.proj = nn.Linear(width, width, bias=False) if config.cattn_proj else None
        self.weight_dropout = nn.Dropout(config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def hold_content(self, config, ladders):
        """Where a subclass makes its maps: the order of modules is that of saved optimizer states."""

    def prepare_to_decode(self):
        """Lays each column out by itself, in float32 on a CPU."""
        self.by_column = self.columns.mT.contiguous()
        if not self.columns.is_cuda:
            self.by_column = self.by_column.to(torch.promote_types(self.columns.dtype, torch.float32))

    def init_weights(self):
        nn.init.normal_(self.columns, std=0.02)
        if self.intercept is not None:
            nn.init.zeros_(self.intercept)

    def residual_outputs(self):
        return [self.proj or self.value]

    def undecayed(self):
        """The intercept is a shift, though it lies in a matrix."""
        return [] if self.intercept is None else [self.intercept]

    def new_cache(self, batch, length, device, dtype):
        """v: [B, heads that differ in v, length, their width]. Scores need nothing of the past."""
        groups = max(1, self.heads // self.repeats)
        shape = (batch, groups, length, self.value.out_features // groups)
        return (torch.empty(shape, device=device, dtype=dtype),)

    def forward(self, x):
        self.check_length(x.shape[1])
        return self.joined(self.attend(self.rows(x), self.values(x), self.content_columns(x)))

    def decode(self, x, pos, cache):
        self.check_length(length := cache[0].shape[-2])
        y, v, columns = self.rows(x), self.values(x), self.content_columns(x, pos, cache)
        v_all = update_cache(cache[0], v, pos)
        columns_all = None if columns is None else update_cache(cache[1], columns, pos)
        if begins_text(v_all, pos):
            return self.joined(self.attend(y, v, columns))
        weights = self.causal_softmax(self.cached_scores(y, columns_all, length, pos), pos)
        # heads that share v as further rows: a copy of the cache for each head would cost more
        rows = weights.unflatten(1, (v_all.shape[1], -1)).flatten(2, 3)
        out = weighted_sum(rows, v_all).unflatten(2, (-1, x.shape[1])).flatten(1, 2)
        return self.joined(out.to(v.dtype))

    def check_length(self, length):
        if length > (block_size := self.columns.shape[-1]):
            raise ValueError(f"{length} tokens do not fit into CAttnM's block_size of {block_size} columns")

    def values(self, x):
        """[B, T, C] -> [B, heads that differ in v, T, their width]"""
        return self.value(x).unflatten(-1, (max(1, self.heads // self.repeats), -1)).transpose(1, 2)

    def content_columns(self, x, pos=None, cache=None):
        """Where a subclass has them: what tokens add to their columns, [B, heads, T, L]."""
        return None

    def attend(self, y, v, columns=None):
        """y: `rows`, v: `values`, columns: `content_columns` of a whole text -> [B, heads, T, P]"""
        if self.heads > 1 < self.repeats:
            # a single group is not copied
            v = v.unsqueeze(2).expand(-1, -1, self.repeats, -1, -1).flatten(1, 2)
        if self.weight_dropout.p and self.training:
            scores = self.scores(y, y.shape[2])
            if columns is not None:
                with without_autocast(y):
                    scores = scores + y @ columns.to(y.dtype).mT
            return self.weight_dropout(self.causal_softmax(scores).to(v.dtype)) @ v
        return self.attend_undropped(y, v, columns)

    def attend_undropped(self, y, v, columns):
        """As `attend`; v: [B, heads, T, P]"""
        if self.collapsed:
            return wide_attention(y, self.columns, v, self.strict, self.intercept)
        return shared_attention(y, self.columns, v, self.strict, self.backend)

    def cached_scores(self, y, columns, length, pos):
        """y: `rows` of tokens at pos, columns: all that the cache holds -> scores, [B, heads, T, length]"""
        return self.scores(y, length, pos)

    def joined(self, out):
        """[B, heads, T, P] -> [B, T, C]"""
        out = out.transpose(1, 2).flatten(-2)
        if self.heads == 1:
            out = out.repeat(1, 1, self.repeats)
        return self.dropout(out if self.proj is None else self.proj(out))

    def rows(self, x):
        """[B, T, C] -> what the columns are multiplied with, [B, heads, T, rank]; collapsed: x and z."""
        z = self.ladders(x)
        if not self.collapsed:
            return z.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        parts = [x.to(torch.promote_types(x.dtype, torch.float32))]
        if torch.is_tensor(z):  # 0.0 where the fractions are left out
            parts.append(z.to(parts[0].dtype).expand(*x.shape[:-1], -1))
        return torch.cat([p.unflatten(-1, (self.heads, -1)) for p in parts], dim=-1).transpose(1, 2)

    def scores(self, y, length, pos=None):
        """y: [B, heads, T, rank] of the tokens at pos ([T] int64, None: all) -> [B, heads, T, length]

        In y's dtype, as the kernels have them: scores may be large, and autocast would round them.
        """
        columns = self.columns.mT if self.by_column is None else self.by_column
        # sequences as further rows: the columns are not copied for each of them
        rows = y.transpose(0, 1).flatten(1, 2)
        with without_autocast(y):
            scores = products(rows, columns[:, :length].to(y.dtype))
        scores = scores.unflatten(1, (len(y), -1)).transpose(0, 1)
        return scores if self.intercept is None else scores + self.intercept[:, None, :length].to(y.dtype)

    def causal_softmax(self, scores, pos=None):
        """scores: [B, heads, T, length] -> weights, at least float32, zero after pos (strict: at pos too).

        pos: [T] int64, the positions of the rows; None: 0 .. T - 1.
        """
        column = torch.arange(scores.shape[-1], device=scores.device)
        row = (column if pos is None else pos)[:, None]
        past = column < row if self.strict else column <= row
        # the first row of the strict mask is empty: its softmax would be 0/0
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = scores.masked_fill(~past, float("-inf"))
        if not self.strict:
            return weights.softmax(-1)
        first = row == 0
        return weights.masked_fill(first, 0.0).softmax(-1).masked_fill(first, 0.0)

    @classmethod
    def cropped(cls, name, weight, config, block_size):
        """The columns of the last positions are lost."""
        return weight[..., :block_size] if name in ("columns", "intercept") else weight

    @classmethod
    def is_collapsed(cls, config) -> bool:
        return config.cattn_scores == "collapsed"

    @classmethod
    def is_strict(cls, config) -> bool:
        return config.cattn_strict

    @classmethod
    def rank_of(cls, config) -> int:
        """Rows of the columns in each head: what the scores of a token are a linear map of."""
        if not cls.is_collapsed(config):
            return config.cf_ladders
        of_z = 0 if config.cf_control == "zero" else config.cf_ladders
        return config.n_embd // heads_of(config) + of_z

    @classmethod
    def idle_keys(cls, config):
        """cf_ladders is also the rank of the scores, which remains where there are no ladders. Collapsed
        scores run in PyTorch whatever cf_backend says.
        """
        if cls.is_collapsed(config):
            read = set() if config.cf_control == "zero" else {"cf_ladders"}
            return ladder.idle_keys(config) - read
        return ladder.idle_keys(config, sums=True) - {"cf_ladders", "cf_backend"}

    @classmethod
    def validate(cls, config):
        heads, of_values = heads_of(config), config.cattn_value_heads
        if heads < 1 or config.n_head < 1:
            return []
        wrong = []
        if config.n_embd % heads:
            key = "n_head" if config.cattn_heads is None else "cattn_heads"
            wrong.append(f"{key}={heads} does not divide n_embd={config.n_embd}")
        if of_values is not None and of_values > 0:
            if config.n_embd % config.n_head or config.n_head % of_values:
                wrong.append(
                    f"cattn_value_heads={of_values} must divide n_head={config.n_head}, and that "
                    f"n_embd={config.n_embd}"
                )
            elif heads > 1 and heads % (config.n_head // of_values):
                wrong.append(
                    f"cattn_value_heads={of_values} of n_head={config.n_head} needs cattn_heads=1 or a "
                    f"multiple of {config.n_head // of_values}, not {heads}"
                )
        return wrong

    @classmethod
    def parameter_count(cls, config):
        """With L ladders in all: L (p (d + 1) + d) + L l + p p_v; collapsed: L d (p + 1) + (L + p) l
        + p p_v; a projection p^2 more. cf_linear_intercept: L more (collapsed: l for each head).
        """
        width, collapsed = config.n_embd, cls.is_collapsed(config)
        columns = heads_of(config) * (cls.rank_of(config) + collapsed * config.cf_linear_intercept)
        maps = value_width_of(config) * width + config.cattn_proj * width**2
        return LadderEnsemble.parameter_count(*cls._ensemble(config)) + columns * config.block_size + maps

    @classmethod
    def cached_values(cls, config):
        """Per token of the past: v alone."""
        return value_width_of(config)

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the matrix products; the causal mask is not subtracted."""
        width, value_width = config.n_embd, value_width_of(config)
        mixed = value_width if heads_of(config) == 1 else width
        maps = value_width * width + config.cattn_proj * width**2
        tokens = (heads_of(config) * cls.rank_of(config) + mixed) * context
        return LadderEnsemble.flops_per_token(*cls._ensemble(config)) + 2 * (tokens + maps)

    @classmethod
    def _ensemble(cls, config):
        """The arguments with which the ensemble counts its parameters and FLOPs."""
        ladders = heads_of(config) * config.cf_ladders
        linear = not cls.is_collapsed(config)
        return config, config.n_embd, ladders, ladders, config.cf_depth, linear, False


def heads_of(config) -> int:
    return config.n_head if config.cattn_heads is None else config.cattn_heads


def value_width_of(config) -> int:
    """Columns of W^v."""
    if config.cattn_value_heads is None:
        return config.n_embd
    return config.n_embd // config.n_head * config.cattn_value_heads
