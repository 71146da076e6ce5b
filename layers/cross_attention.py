"""Attention of a target's tokens to its source (Vaswani et al. 2017, section 3.2.3).

    O_t = sum_{j < S} A_tj v_j,    A_t = softmax over j < S of q_t . k_j / sqrt(C / n_head)

q comes from the decoder, k and v from the output of the encoder. Nothing is causal here: S is the length of
the source, and each token of the target sees it whole.
"""

from torch import nn
from torch.nn import functional as F

from layers.attention import key_value_width
from layers.cache import key_mask
from layers.protocol import Mixer


class CrossAttention(Mixer):
    """x: [B, T, C], memory: [B, S, C] -> [B, T, C]. Heads are those of softmax attention: see n_kv_head."""

    def __init__(self, config):
        super().__init__(config)
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head or config.n_head
        self.dropout_rate = config.dropout
        self.query = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.key_value = nn.Linear(config.n_embd, 2 * key_value_width(config), bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def residual_outputs(self):
        return [self.proj]

    def forward(self, x, memory, lengths):
        """memory: the encoder's output, or what `keys_and_values` made of it. lengths: [B] int64, how many
        tokens each source has, at least 1. What stands behind them is not seen.
        """
        k, v = memory if isinstance(memory, tuple) else self.keys_and_values(memory)
        q = self.query(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        dropout = self.dropout_rate if self.training else 0.0
        mask, grouped = key_mask(lengths, k.shape[-2]), self.n_kv_head != self.n_head
        out = F.scaled_dot_product_attention(q.to(v.dtype), k, v, mask, dropout, enable_gqa=grouped)
        return self.dropout(self.proj(out.to(x.dtype).transpose(1, 2).flatten(-2)))

    def keys_and_values(self, memory):
        """[B, S, C] -> k and v, [B, n_kv_head, S, C / n_head] each. In decoding, the same in every step."""
        parts = self.key_value(memory).unflatten(-1, (2, self.n_kv_head, -1))
        return tuple(part.transpose(1, 2) for part in parts.unbind(-3))

    @classmethod
    def parameter_count(cls, config):
        """2 p^2 + 2 p p_kv, as softmax attention; biases add 2 p + 2 p_kv."""
        return 2 * (config.n_embd + key_value_width(config)) * (config.n_embd + config.bias)

    @classmethod
    def cached_values(cls, config):
        """Numbers per token of the source: k and v."""
        return 2 * key_value_width(config)

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs for one token of the target and one of the source, of `context` tokens each."""
        width = config.n_embd
        return 4 * width * (width + key_value_width(config) + context)
