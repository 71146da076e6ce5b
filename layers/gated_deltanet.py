"""Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024): linear attention whose state forgets and overwrites.

    q_t, k_t = l2(silu(conv(W_q x))), l2(silu(conv(W_k x))),    v_t = silu(conv(W_v x))
    S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t / sqrt(K)
    y_t = W_o (rmsnorm(o_t) * silu(W_g x_t))

beta_t = sigmoid(W_b x_t); alpha_t = exp(-a softplus(W_a x_t + c)) as in Mamba2, with a and c of each head.
The convolutions are causal, one for each column. `kernels.gated_delta` is the recurrence.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from config_keys import Count, CountOrNone, Natural
from kernels.gated_delta import gated_delta
from layers.protocol import TokenMixer


@dataclass
class Keys:
    # gated_deltanet
    delta_heads: CountOrNone = None  # gated_deltanet: heads; None: n_head
    delta_key: CountOrNone = None  # gated_deltanet: columns of q and k in a head; None: 3/4 n_embd / heads
    delta_expand: Count = 2  # gated_deltanet: columns of v in a head, in those of k
    delta_conv: Natural = 4  # gated_deltanet: tokens that the convolutions of q, k, v see; 0: none
    delta_gate: bool = True  # gated_deltanet: the output is gated by silu(W_g x)


class GatedDeltaNet(TokenMixer):
    """x: [B, T, C] -> [B, T, C], with K = delta_key and V = delta_expand K columns in a head.

    Decoding keeps S [B, heads, K, V] in float32 and the last tokens that the convolutions see.
    """

    Keys = Keys
    any_length = True
    cache_rows = 0

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.heads, self.key = heads_and_key(config)
        self.taps, keys, values = config.delta_conv, *widths(config)
        self.qkv = nn.Linear(config.n_embd, 2 * keys + values, bias=False)
        self.conv = None
        if self.taps:
            width = self.qkv.out_features
            self.conv = nn.Conv1d(width, width, self.taps, groups=width, bias=False)
        self.rates = nn.Linear(config.n_embd, 2 * self.heads, bias=False)  # W_a above W_b
        self.log_a = nn.Parameter(torch.empty(self.heads))
        self.c = nn.Parameter(torch.empty(self.heads))
        self.gate = nn.Linear(config.n_embd, values, bias=False) if config.delta_gate else None
        self.norm = nn.RMSNorm(values // self.heads, eps=config.norm_eps)
        self.out = nn.Linear(values, config.n_embd, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    @torch.no_grad()
    def init_weights(self):
        """As Mamba2: a is uniform in [1, 16], softplus(c) log-uniform in [0.001, 0.1]."""
        self.log_a.uniform_(1, 16).log_()
        start = self.c.uniform_(math.log(0.001), math.log(0.1)).exp()
        self.c.copy_(start + torch.log(-torch.expm1(-start)))  # softplus backwards

    def residual_outputs(self):
        return [self.out]

    def undecayed(self):
        return [] if self.conv is None else [self.conv.weight]

    def new_cache(self, batch, length, device, dtype):
        wide, values = torch.promote_types(dtype, torch.float32), self.out.in_features // self.heads
        state = torch.zeros(batch, self.heads, self.key, values, device=device, dtype=wide)
        if self.taps < 2:
            return (state,)
        before = (batch, self.taps - 1, self.qkv.out_features)
        return state, torch.zeros(before, device=device, dtype=dtype)

    def forward(self, x):
        cache = self.new_cache(len(x), 0, x.device, x.dtype)
        return self._mixed(x, *cache)[0]

    def decode(self, x, pos, cache):
        known = pos[:1] > 0  # else the cache holds another text
        out, *held = self._mixed(x, *(torch.where(known, one, 0) for one in cache))
        for old, new in zip(cache, held, strict=True):
            old.copy_(new)
        return out

    def _mixed(self, x, state, before=None):
        """x: [B, T, C], after the tokens of this cache -> [B, T, C], and the cache after x"""
        mapped = self.qkv(x)
        if self.conv is not None:
            if before is not None:
                mapped = torch.cat((before.to(mapped.dtype), mapped), 1)
                before = mapped[:, mapped.shape[1] - self.taps + 1 :]
            mapped = self.conv(mapped.mT).mT
        keys = self.heads * self.key
        wide = torch.promote_types(x.dtype, torch.float32)
        parts = F.silu(mapped).to(wide).split((keys, keys, self.out.in_features), -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        a, b = self.rates(x).to(wide).mT.chunk(2, 1)  # [B, heads, T]
        log_alpha = -self.log_a.exp()[:, None] * F.softplus(a + self.c[:, None])
        q, k = F.normalize(q, dim=-1) * self.key**-0.5, F.normalize(k, dim=-1)
        out, state = gated_delta(q, k, v, log_alpha, b.sigmoid(), state)
        out = self.norm(out.to(self.norm.weight.dtype)).transpose(1, 2).flatten(-2)
        if self.gate is not None:
            out = out * F.silu(self.gate(x))
        out = self.dropout(self.out(out.to(x.dtype)))
        return (out, state) if before is None else (out, state, before)

    @classmethod
    def validate(cls, config):
        if config.n_head < 1 or (config.delta_heads is not None and config.delta_heads < 1):
            return []
        heads, key = heads_and_key(config)
        if key < 1:
            return [
                f"attention=gated_deltanet has no column of keys for each of {heads} heads: give delta_key"
            ]
        return []

    @classmethod
    def parameter_count(cls, config):
        """With h heads: p (2 h K + (3 or 2) h V + 2 h), convolutions, 2 h + V"""
        heads, _ = heads_and_key(config)
        return (
            cls._maps(config)
            + config.delta_conv * sum(_qkv(config))
            + 2 * heads
            + widths(config)[1] // heads
        )

    @classmethod
    def cached_values(cls, config):
        """Per past token: none. The state has h K V numbers."""
        return 0

    @classmethod
    def flops_per_token(cls, config, context):
        """Two for each weight, and for each head 6 K V of the recurrence; `context` is unused. Chunks take
        more products than the recurrence.
        """
        heads, key = heads_and_key(config)
        recurrence = 6 * heads * key * key * config.delta_expand
        return 2 * (cls._maps(config) + config.delta_conv * sum(_qkv(config))) + recurrence

    @classmethod
    def _maps(cls, config):
        """Weights of the linear maps."""
        values = widths(config)[1]
        others = (1 + config.delta_gate) * values + 2 * heads_and_key(config)[0]
        return config.n_embd * (sum(_qkv(config)) + others)


def heads_and_key(config) -> tuple[int, int]:
    """Heads, and columns of k in each."""
    heads = config.delta_heads or config.n_head
    return heads, config.delta_key or 3 * config.n_embd // (4 * heads)


def widths(config) -> tuple[int, int]:
    """Columns of k and of v in all heads."""
    heads, key = heads_and_key(config)
    return heads * key, heads * key * config.delta_expand


def _qkv(config) -> tuple[int, int, int]:
    keys, values = widths(config)
    return keys, keys, values
