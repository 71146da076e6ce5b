"""CAttnM: causal attention whose scores come from continued fractions (CoFrGeNet, section 4.1.1).

    A_t = softmax over j <= t of S_tj,    O_t = sum_{j <= t} A_tj (W^v x_j)

Two readings of the scores; column j scores absolute position j in both:

    cattn_scores=rank:       S_t = y_t F,  y_t = W_0 x_t + z(W x_t) in R^L,  F in R^{L x block_size}
    cattn_scores=collapsed:  S_t = U x_t + V z(W x_t),  U in R^{block_size x C},  V in R^{block_size x L}

For the first speaks F, L x l, in the paper's figure 2; for the second its section 4.2, by which equation 8
implements the ensembles of that figure: F W_0 becomes a free U. There are no queries and keys: attention is
addressed by absolute position. Only the values are needed from the past. As printed ("a convex combination
of the first i-1 tokens") a token does not attend to itself: cattn_strict.

Other columns, ours: with cattn_content G x_j is added, which addresses a token by what it is, too; with
key_shift beside that H x_{j-1}, which addresses it by what stood before it, so that a single layer can find
what followed the last token before. With cattn_relative F_{t-j} takes the place of F_j, which addresses a
token by its distance.
"""

import torch
from torch import nn

from kernels.shared_attention import attention_by_rank, distances, shared_attention
from kernels.wide_attention import wide_attention
from layers.cache import of_previous, products, weighted_sum, written
from layers.ladder import LadderEnsemble


class CAttnM(nn.Module):
    """x: [B, T, C] -> [B, T, C], T <= block_size.

    cattn_heads: each head has L ladders, its own F and C / cattn_heads columns of W^v; its U sees as many
    of x. None: n_head.
    F of collapsed scores holds U above V, turned: [heads, C / heads + L, block_size]. The intercepts of the
    linear part (cf_linear_intercept) are one for each position there, and one for each ladder in y_t.
    cattn_value_heads: V has this many times C / n_head columns, and C is r times as many. Each group of r
    heads shares its columns, as the heads of grouped-query attention do; a single head's output is repeated
    r times.
    cattn_content: a C x L map G in each head, whose product with token j is added to its column.
    key_shift: with cattn_content a further map H, whose product with token j - 1 is added too.
    cattn_relative: columns of F belong to distances from the token, not to positions.
    cattn_proj: a C x C map on the output (the paper counts none).
    cattn_strict: token t attends to j < t only, and the first token's output is 0.
    dropout: where weights are dropped, in training, all T x T of them are in memory.
    """

    has_ladders = True
    undecayed = ("intercept",)  # a shift, though it lies in a matrix

    def __init__(self, config, layer=0):
        super().__init__()
        self.heads, self.strict = heads_of(config), config.cattn_strict
        self.collapsed = config.cattn_scores == "collapsed"
        self.relative, self.backend = config.cattn_relative, config.cf_backend
        width, ladders = config.n_embd, self.heads * config.cf_ladders
        self.ladders = LadderEnsemble(
            config, width, ladders, ladders, config.cf_depth, linear=not self.collapsed, project=False
        )
        self.F = nn.Parameter(torch.empty(self.heads, rank_of(config), config.block_size))
        affine = self.collapsed and config.cf_linear_intercept
        self.intercept = nn.Parameter(torch.empty(self.heads, config.block_size)) if affine else None
        value_width = value_width_of(config)
        self.content = nn.Linear(width, ladders, bias=False) if config.cattn_content else None
        self.previous = nn.Linear(width, ladders, bias=False) if keys_of(config) > 1 else None
        self.repeats = width // value_width
        self.value = nn.Linear(width, value_width, bias=False)
        self.proj = nn.Linear(width, width, bias=False) if config.cattn_proj else None
        (self.proj or self.value).residual_output = True
        self.weight_dropout = nn.Dropout(config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def init_weights(self):
        nn.init.normal_(self.F, std=0.02)
        if self.intercept is not None:
            nn.init.zeros_(self.intercept)

    def new_cache(self, batch, length, device, dtype):
        """v: [B, heads that differ in v, length, their width]; with content also the columns as rows,
        [B, heads, length, L], and with key_shift what the last token adds to the next one's, [B, 1, all L].
        Else scores need nothing of the past.
        """
        groups = max(1, self.heads // self.repeats)
        shapes = [(batch, groups, length, self.value.out_features // groups)]
        if self.content is not None:
            shapes.append((batch, self.heads, length, self.F.shape[1]))
        if self.previous is not None:
            shapes.append((batch, 1, self.previous.out_features))
        return tuple(torch.empty(shape, device=device, dtype=dtype) for shape in shapes)

    def forward(self, x, pos=None, cache=None):
        """With a cache x is what follows the tokens in it, at pos: [T] int64."""
        length, block_size = x.shape[1] if cache is None else cache[0].shape[-2], self.F.shape[-1]
        if length > block_size:
            raise ValueError(f"{length} tokens do not fit into CAttnM's block_size of {block_size} columns")
        y = self._rows(x)
        v = self.value(x).unflatten(-1, (max(1, self.heads // self.repeats), -1)).transpose(1, 2)
        keys = None
        if self.content is not None:
            keys = self.content(x)
            if self.previous is not None:
                last = None if cache is None else cache[2]
                keys = keys + of_previous(self.previous(x), pos, last)
            keys = keys.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            if not self.relative:  # both belong to the token that is looked at: one column
                keys = keys + (self.F[..., :length] if cache is None else self.F[..., pos]).mT
        if cache is not None:
            v_all = written(cache[0], v, pos)
            wide = y.to(torch.promote_types(y.dtype, torch.float32))
            scores = 0.0 if keys is None else products(wide, written(cache[1], keys, pos).to(wide.dtype))
            if keys is None or self.relative:
                scores = scores + self._scores(y, length, pos)
            weights = self._causal_softmax(scores, pos)
            # heads that share v as further rows: a copy of the cache for each head would cost more
            rows = weights.unflatten(1, (v_all.shape[1], -1)).flatten(2, 3)
            out = weighted_sum(rows, v_all).unflatten(2, (-1, x.shape[1])).flatten(1, 2).to(v.dtype)
        else:
            if self.heads > 1 < self.repeats:
                v = v.repeat_interleave(self.repeats, dim=1)
            dropout = self.weight_dropout.p if self.training else 0.0
            if keys is not None and not self.relative:
                out = attention_by_rank(y, keys, v, dropout)
            elif dropout:
                scores = self._scores(y, length)
                scores = scores if keys is None else scores + y @ keys.to(y.dtype).mT
                out = self.weight_dropout(self._causal_softmax(scores).to(v.dtype)) @ v
            elif self.collapsed:
                out = wide_attention(y, self.F, v, self.strict, self.intercept)
            else:
                options = (self.strict, self.backend, self.relative, keys)
                out = shared_attention(y, self.F, v, *options)
        out = out.transpose(1, 2).flatten(-2)
        if self.heads == 1:
            out = out.repeat(1, 1, self.repeats)
        return self.dropout(out if self.proj is None else self.proj(out))

    def _rows(self, x):
        """x: [B, T, C] -> what the columns are multiplied with, [B, H, T, rank]; collapsed: x and z."""
        z = self.ladders(x)
        if not self.collapsed:
            return z.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        parts = [x.to(torch.promote_types(x.dtype, torch.float32))]
        if torch.is_tensor(z):  # 0.0 where the fractions are left out
            parts.append(z.to(parts[0].dtype).expand(*x.shape[:-1], -1))
        return torch.cat([p.unflatten(-1, (self.heads, -1)) for p in parts], dim=-1).transpose(1, 2)

    def _scores(self, y, length, pos=None):
        """y: [B, H, T, rank] of the tokens at pos ([T] int64, None: all) -> scores [B, H, T, length]."""
        scores = y @ self.F[..., :length].to(y.dtype)
        if self.intercept is not None:
            scores = scores + self.intercept[:, None, :length].to(y.dtype)
        if not self.relative:
            return scores
        return scores.gather(-1, distances(length, y.device, pos).expand_as(scores))

    def _causal_softmax(self, scores, pos=None):
        """scores: [B, H, T, length] -> weights, at least float32, zero after pos (strict: at pos too).

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

    @staticmethod
    def cropped(name, weight, config, block_size):
        """The named weight for a smaller block_size: F loses the last positions' columns."""
        return weight[..., :block_size] if name in ("F", "intercept") else weight

    @staticmethod
    def complaints(config):
        wrong = complaints_about_heads(config)
        heads, of_values = config.n_head, config.cattn_value_heads
        if of_values is not None and min(heads, of_values, heads_of(config)) > 0:
            if config.n_embd % heads or heads % of_values:
                wrong.append(
                    f"cattn_value_heads={of_values} must divide n_head={heads}, and that "
                    f"n_embd={config.n_embd}"
                )
            elif heads_of(config) > 1 and heads_of(config) % (heads // of_values):
                wrong.append(
                    f"cattn_value_heads={of_values} of n_head={heads} go with cattn_heads=1 and multiples "
                    f"of {heads // of_values}, not with {heads_of(config)}"
                )
        if config.cattn_content and config.cattn_strict:
            wrong.append("cattn_content goes without cattn_strict: a token may attend to itself")
        if config.cattn_scores == "collapsed" and (config.cattn_content or config.cattn_relative):
            wrong.append(
                "cattn_scores=collapsed is the paper's, with a column for each position: leave out "
                "cattn_relative and cattn_content, or take cattn_scores=rank"
            )
        if config.cf_ladder == "elementwise":
            wrong.append("attention=cattn_m needs cf_ladder=inner: its scores are not a map of coordinates")
        return wrong

    @staticmethod
    def parameter_count(config):
        """With L ladders in all: L (p (d + 1) + d) + L l + p p_v; collapsed: L d (p + 1) + (L + p) l
        + p p_v; content L p, its key_shift L p and a projection p^2 more. cf_linear_intercept: L
        more (collapsed: l for each head).
        """
        width, ladders = config.n_embd, heads_of(config) * config.cf_ladders
        collapsed = config.cattn_scores == "collapsed"
        ensemble = LadderEnsemble.parameter_count(
            config, width, ladders, ladders, config.cf_depth, linear=not collapsed, project=False
        )
        maps = value_width_of(config) * width + config.cattn_proj * width**2
        maps += keys_of(config) * ladders * width
        columns = heads_of(config) * (rank_of(config) + collapsed * config.cf_linear_intercept)
        return ensemble + columns * config.block_size + maps

    @staticmethod
    def cached_values(config):
        """Per token of the past: v alone, and its columns with content."""
        return value_width_of(config) + config.cattn_content * heads_of(config) * config.cf_ladders

    @staticmethod
    def flops_per_token(config, context):
        """Forward FLOPs of the matrix products; the causal mask is not subtracted."""
        width, ladders = config.n_embd, heads_of(config) * config.cf_ladders
        linear = config.cattn_scores == "rank"
        ensemble = LadderEnsemble.flops_per_token(
            config, width, ladders, ladders, config.cf_depth, linear=linear, project=False
        )
        value_width = value_width_of(config)
        mixed = value_width if heads_of(config) == 1 else width
        maps = value_width * width + config.cattn_proj * width**2 + keys_of(config) * ladders * width
        rank = rank_of(config) * (2 if config.cattn_content and config.cattn_relative else 1)
        return ensemble + 2 * (heads_of(config) * rank + mixed) * context + 2 * maps


def heads_of(config) -> int:
    """Heads of CAttnM and CAttnC."""
    return config.n_head if config.cattn_heads is None else config.cattn_heads


def rank_of(config) -> int:
    """Rows of CAttnM's F in each head: what the scores of a token are a linear map of."""
    if config.cattn_scores == "rank":
        return config.cf_ladders
    of_z = 0 if config.cf_control and not config.cf_control_constant else config.cf_ladders
    return config.n_embd // heads_of(config) + of_z


def keys_of(config) -> int:
    """Linear maps in a column: of its token, and of the one before."""
    return config.cattn_content * (1 + config.key_shift)


def complaints_about_heads(config) -> list[str]:
    heads = heads_of(config)
    if heads < 1 or config.n_embd % heads == 0:
        return []
    key = "n_head" if config.cattn_heads is None else "cattn_heads"
    return [f"{key}={heads} does not divide n_embd={config.n_embd}"]


def value_width_of(config) -> int:
    """Columns of CAttnM's V."""
    if config.cattn_value_heads is None:
        return config.n_embd
    return config.n_embd // config.n_head * config.cattn_value_heads
