"""Multi-head causal softmax attention (Vaswani et al. 2017), grouped-query too (Ainslie et al. 2023)."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from config_keys import CountOrNone
from kernels.autocast import without_autocast
from kernels.sdpa import attention_of_few
from layers.cache import (
    begins_text,
    causal_mask,
    key_mask,
    of_token_before,
    products,
    update_cache,
    weighted_sum,
)
from layers.protocol import TokenMixer


@dataclass
class TokenShift:
    # softmax, sliding_window, bigbird, cattn_relative
    token_shift: bool = False  # and of cattn_relative: each key has a map of the token before


@dataclass
class Keys(TokenShift):
    # softmax, sliding_window, bigbird
    n_kv_head: CountOrNone = None  # heads of keys and values; None: n_head, fewer: grouped-query attention
    qk_norm: bool = False  # RMSNorm of each head's queries and keys, with weights that all heads share


class SoftmaxAttention(TokenMixer):
    """Causal softmax(q k^T / sqrt(D)) v with D = C / n_head. x: [B, T, C] -> [B, T, C].

    With n_kv_head = G < n_head, each head of k and v serves n_head / G heads of q. With token_shift, a
    linear map of the previous token is added to k before rotation: k_j = W x_j + H x_{j-1}. So one layer
    can find what followed the last occurrence of a token (smeared keys, Olsson et al. 2022, but with a map
    H of their own). With qk_norm (Henry et al. 2020; as in Qwen3, RMSNorm with weights), q and k are
    normalised before rotation.
    """

    Keys = Keys
    any_length = True
    bidirectional = True
    queries_and_keys = True
    takes_values = True

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head or config.n_head
        kv = key_value_width(config)
        self.widths = (config.n_embd, kv, kv)
        self.dropout_rate = config.dropout
        self.qkv = nn.Linear(config.n_embd, sum(self.widths), bias=config.bias)
        self.previous = nn.Linear(config.n_embd, kv, bias=False) if config.token_shift else None
        self.q_norm, self.k_norm = None, None
        if config.qk_norm:
            head = config.n_embd // config.n_head
            self.q_norm, self.k_norm = (nn.RMSNorm(head, eps=config.norm_eps) for _ in range(2))
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def residual_outputs(self):
        return [self.proj]

    def new_cache(self, batch, length, device, dtype):
        """k (after the positional encoding) and v: [B, n_kv_head, length, D] each.

        With token_shift also what the last token adds to the next token's k: [B, 1, n_kv_head D].
        """
        shapes = [(batch, self.n_kv_head, length, self.widths[0] // self.n_head)] * 2
        if self.previous is not None:
            shapes.append((batch, 1, self.widths[1]))
        return tuple(torch.empty(shape, device=device, dtype=dtype) for shape in shapes)

    def forward(self, x, position=None, pos=None, layer=0, values=None):
        """position: the model's positional encoding, pos: [T] int64, layer: the block's number, values:
        [B, n_kv_head, T, D] to add to v.

        Without `position`, no hooks of layers/position.py are called.
        """
        q, k, v = self.project(x, position, pos, layer, values=values)
        return self.joined(self.attend_text(q, k, v, position, pos))

    def decode(self, x, pos, cache, position=None, layer=0, values=None):
        """As `forward`, for tokens at pos that follow the cache. Attention runs in the cache's dtype."""
        q, k, v = self.project(x, position, pos, layer, *cache[2:], values=values)
        k_all, v_all = (update_cache(held, new, pos) for held, new in zip(cache[:2], (k, v), strict=True))
        if begins_text(k_all, pos):
            return self.joined(self.attend_text(q, k, v, position, pos))
        bias = None
        if position is not None:
            bias = position.bias(pos, torch.arange(k_all.shape[-2], device=pos.device))
        return self.joined(self.attend_cached(q.to(v_all.dtype), k_all, v_all, pos, bias).to(v.dtype))

    def encode(self, x, lengths, position=None, pos=None, layer=0):
        """As `forward`, but every token sees all `lengths` ([B] int64) tokens of its sequence."""
        q, k, v = self.project(x, position, pos, layer)
        mask = key_mask(lengths, x.shape[1])
        bias = None if position is None else position.bias(pos, pos, causal=False)
        if bias is not None:
            mask = added(bias, mask, v.dtype)
        return self.joined(self.attend_masked(q.to(v.dtype), k.to(v.dtype), v, mask))

    def joined(self, out):
        """[B, n_head, T, D] -> [B, T, C]"""
        return self.dropout(self.proj(out.transpose(1, 2).flatten(-2)))

    def project(self, x, position=None, pos=None, layer=0, last=None, values=None):
        """-> q: [B, n_head, T, D], k and v: [B, n_kv_head, T, D].

        q and k may have a wider floating type than v. last: with token_shift, the cache's row of the last
        token.
        """
        h_qk, h_v, exact = x, x, 0
        if position is not None:
            (h_qk, h_v), exact = position.before_qkv(x, pos, layer), position.exact_columns
        if h_v is h_qk and not exact:
            parts = self.qkv(h_v).split(self.widths, dim=-1)
        else:
            rows = (sum(self.widths[:2]), self.widths[2])
            of_qk, of_v = self.qkv.weight.split(rows)
            bias_qk, bias_v = (None, None) if self.qkv.bias is None else self.qkv.bias.split(rows)
            q, k = _linear(h_qk, of_qk, bias_qk, exact).split(self.widths[:2], dim=-1)
            parts = q, k, F.linear(h_v.to(of_v.dtype), of_v, bias_v)
        heads = (self.n_head, self.n_kv_head, self.n_kv_head)
        q, k, v = (p.unflatten(-1, (n, -1)).transpose(1, 2) for p, n in zip(parts, heads, strict=True))
        if values is not None:
            v = v + values.to(v.dtype)
        if self.previous is not None:
            added = of_token_before(self.previous(x), pos, last)
            k = k + added.unflatten(-1, (self.n_kv_head, -1)).transpose(1, 2)
        if self.q_norm is not None:
            q, k = (norm(x.to(norm.weight.dtype)) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        return (q, k, v) if position is None else (*position.rotate(q, k, pos), v)

    def attend_text(self, q, k, v, position, pos):
        """q, k, v: of `project` for a whole text at pos -> [B, n_head, T, D] in v's dtype"""
        q, k = q.to(v.dtype), k.to(v.dtype)
        bias = None if position is None else position.bias(pos, pos)
        if bias is None:
            return self.attend(q, k, v)
        return self.attend_masked(q, k, v, added(bias, pos <= pos[:, None], q.dtype)[None])

    def attend(self, q, k, v):
        """q: [B, n_head, T, D], k and v: [B, n_kv_head, T, D] -> [B, n_head, T, D]"""
        dropout = self.dropout_rate if self.training else 0.0
        grouped = self.n_kv_head != self.n_head
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped
        )

    def attend_masked(self, q, k, v, mask):
        """As `attend`. mask: who sees whom (bool), or what is added to scores [B, n_head, T, T]."""
        dropout, grouped = self.dropout_rate if self.training else 0.0, self.n_kv_head != self.n_head
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, enable_gqa=grouped)

    def attend_cached(self, q, k, v, pos, bias=None):
        """q: [B, n_head, T, D] at pos: [T], k and v: [B, n_kv_head, length, D] -> [B, n_head, T, D]

        bias: [n_head, T, length], added to the scores, or None. Heads that share k and v become further
        rows of q, so that k and v are not copied.
        """
        groups = (self.n_kv_head, self.n_head // self.n_kv_head)
        q, mask = q.unflatten(1, groups).flatten(2, 3), self.visible(pos, k.shape[-2])
        if bias is not None:
            mask = bias.to(q.dtype) if mask is None else added(bias, mask, q.dtype)
        if mask is not None:
            mask = mask.expand(self.n_head, -1, -1).unflatten(0, groups).flatten(1, 2)
        dropout = self.dropout_rate if self.training else 0.0
        if torch.compiler.is_compiling() and pos.shape[0] == 1:
            scores = products(q, k) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(~mask, float("-inf")) if bias is None else scores + mask
            weights = scores.softmax(-1)
            out = weighted_sum(F.dropout(weights, dropout), v)
        else:
            out = attention_of_few(q, k, v, mask, dropout)
        return out.unflatten(2, (groups[1], -1)).flatten(1, 2)

    def visible(self, pos, length):
        """[n_head or 1, T, length] bool: whether the token at pos sees the row of the cache; None: each
        does.
        """
        if len(pos) == 1 and not torch.compiler.is_compiling():
            return None  # the last row is that of the token
        return causal_mask(pos, length)[None]

    @classmethod
    def validate(cls, config):
        if config.n_head < 1:
            return []
        if config.n_embd % config.n_head:
            return [f"n_head={config.n_head} does not divide n_embd={config.n_embd}"]
        if config.n_kv_head and config.n_head % config.n_kv_head:
            return [f"n_kv_head={config.n_kv_head} does not divide n_head={config.n_head}"]
        return []

    @classmethod
    def parameter_count(cls, config):
        """2 p^2 + 2 p p_kv, with p_kv = p n_kv_head / n_head.

        Biases add 2 p + 2 p_kv, token_shift adds p p_kv, and qk_norm 2 p / n_head.
        """
        width, kv = config.n_embd, key_value_width(config)
        norms = 2 * config.qk_norm * (width // config.n_head)
        return 2 * (width + kv) * (width + config.bias) + config.token_shift * width * kv + norms

    @classmethod
    def cached_values(cls, config):
        """Numbers per past token: k and v."""
        return 2 * key_value_width(config)

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the matrix products; the causal mask is not subtracted.

        The products of ExPE's columns are counted in full, although all sequences of a batch share them.
        """
        width, kv = config.n_embd, key_value_width(config)
        return 4 * width * (width + kv + context) + 2 * config.token_shift * width * kv


def added(bias, mask, dtype):
    """bias [n_head, T, S], and -inf where the mask is False, in this dtype: what is added to the scores."""
    return bias.masked_fill(~mask, float("-inf")).to(dtype)


def key_value_width(config) -> int:
    """The width of k, and of v, over all heads."""
    return config.n_embd // config.n_head * (config.n_kv_head or config.n_head)


def _linear(h, weight, bias, exact):
    """h W^T + b, with the product of h's first `exact` columns in h's dtype even under autocast.

    h: [B, T, C], weight: [N, C] -> [B, T, N] in h's dtype. The first columns must be the same in all
    sequences. Rounded to bfloat16, neighbouring positions would become equal.
    """
    rest = F.linear(h[..., exact:].to(weight.dtype), weight[:, exact:], bias)
    columns = h[0, :, :exact]
    with without_autocast(h):
        return rest + F.linear(columns, weight[:, :exact].to(columns.dtype))
