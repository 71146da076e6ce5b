"""Dense Synthesizer (Tay et al. 2021): a small network predicts attention weights from each token alone.

In each head, with h_t the head's slice of x_t, of width d_k = C / n_head:

    S_t = W_2 relu(W_1 h_t + b_1) + b_2   in R^block_size     row j of W_2 scores absolute position j
    A_t = softmax over j <= t of S_tj
    O_t = sum_{j <= t} A_tj (W^v x_j)

There are no queries and keys. An output projection joins the heads, as in softmax attention.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from layers.cache import begins_text, causal_mask, update_cache, weighted_sum
from layers.protocol import TokenMixer


@dataclass
class Keys:
    # synthesizer
    synthesizer_proj: bool = True  # synthesizer: a linear map on the output


class Synthesizer(TokenMixer):
    """x: [B, T, C] -> [B, T, C], T <= block_size. synthesizer_proj: the output projection."""

    Keys = Keys

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.n_head, self.block_size = config.n_head, config.block_size
        width = config.n_embd // config.n_head
        self.dropout_rate = config.dropout
        self.W1 = nn.Parameter(torch.empty(self.n_head, width, width))
        self.W2 = nn.Parameter(torch.empty(self.n_head, self.block_size, width))
        # all heads' biases in one dimension: the optimizer would decay a tensor of two dimensions
        self.b1 = nn.Parameter(torch.empty(self.n_head * width))
        self.b2 = nn.Parameter(torch.empty(self.n_head * self.block_size))
        self.value = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.proj = None
        if config.synthesizer_proj:
            self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def init_weights(self):
        for matrix, bias in ((self.W1, self.b1), (self.W2, self.b2)):
            nn.init.normal_(matrix, std=0.02)
            nn.init.zeros_(bias)

    def residual_outputs(self):
        return [self.proj or self.value]

    def new_cache(self, batch, length, device, dtype):
        """v: [B, n_head, length, C / n_head]. Scores do not depend on past tokens."""
        shape = (batch, self.n_head, length, self.W1.shape[-1])
        return (torch.empty(shape, device=device, dtype=dtype),)

    def forward(self, x):
        return self._joined(self._attend(*self._hidden_and_values(x, x.shape[1])))

    def decode(self, x, pos, cache):
        hidden, v = self._hidden_and_values(x, cache[0].shape[-2])
        v_all = update_cache(*cache, v, pos)
        if begins_text(v_all, pos):
            return self._joined(self._attend(hidden, v))
        return self._joined(self._attend_cached(hidden, v_all, pos).to(v.dtype))

    def _hidden_and_values(self, x, length):
        """-> relu(W_1 h + b_1) and v, [B, H, T, C / n_head] each. length: number of tokens seen so far."""
        if length > self.block_size:
            raise ValueError(
                f"{length} tokens do not fit into Synthesizer's block_size of {self.block_size} columns"
            )
        h, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in (x, self.value(x)))
        return F.relu(h @ self.W1.mT + self.b1.view(self.n_head, 1, -1)), v

    def _joined(self, out):
        out = out.transpose(1, 2).flatten(-2)
        return self.dropout(out if self.proj is None else self.proj(out))

    def _attend(self, hidden, v):
        """Uses SDPA, which never stores the [B, H, T, T] scores: hidden units are queries, W_2 the keys.

        b_2 is the weight of one more hidden unit that is always 1. Zeros pad to a width that kernels take.
        """
        length, width = v.shape[-2:]
        zeros = 7 - width % 8
        q = F.pad(F.pad(hidden, (0, 1), value=1.0), (0, zeros))
        b2 = self.b2.view(self.n_head, -1, 1)
        k = F.pad(torch.cat([self.W2, b2], dim=-1)[:, :length], (0, zeros))
        k, v = k.to(q.dtype).expand_as(q), F.pad(v, (0, zeros + 1))
        dropout = self.dropout_rate if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=1.0)
        return out[..., :width]

    def _attend_cached(self, hidden, v, pos):
        """Computes the equation directly: with few rows scores are small, and W_2 is not copied."""
        length = v.shape[-2]
        scores = hidden @ self.W2[:, :length].mT + self.b2.view(self.n_head, 1, -1)[..., :length]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = scores.masked_fill(~causal_mask(pos, length), float("-inf")).softmax(-1)
        return weighted_sum(F.dropout(weights, self.dropout_rate, self.training), v)

    @classmethod
    def cropped(cls, name, weight, config, block_size):
        """Crops the named weight to a smaller block_size: W2 and b2 lose the rows of the last positions."""
        if name == "b2":
            return weight.unflatten(0, (config.n_head, -1))[:, :block_size].flatten()
        return weight[:, :block_size] if name == "W2" else weight

    @classmethod
    def validate(cls, config):
        if config.n_head > 0 and config.n_embd % config.n_head:
            return [f"n_head={config.n_head} does not divide n_embd={config.n_embd}"]
        return []

    @classmethod
    def parameter_count(cls, config):
        """With H heads: W_1 p^2 / H, b_1 p, W_2 l p, b_2 l H, and p^2 each for W^v and the projection."""
        width, heads, length = config.n_embd, config.n_head, config.block_size
        scores = width * (width // heads) + width + length * (width + heads)
        return scores + (1 + config.synthesizer_proj) * (width**2 + config.bias * width)

    @classmethod
    def cached_values(cls, config):
        """Numbers per past token: v alone."""
        return config.n_embd

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the equation's matrix products; the causal mask is not subtracted."""
        width = config.n_embd
        linear = width * (width // config.n_head) + (1 + config.synthesizer_proj) * width**2
        return 2 * linear + 4 * width * context
