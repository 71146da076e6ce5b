"""Value embeddings: a table of its own gives a token's values something of the token itself.

    v_t <- v_t + 3 sigmoid(G x_t[:12]) E[token_t],    a factor for each head of v

Zhou et al. 2024 ("Value residual learning") add the first layer's values to those of later layers; in
modded-nanogpt this became an embedding, in nanochat with this gate, which is what is here.
"""

import torch
from torch import nn

from kernels.embedding import embedding
from layers.attention import key_value_width

GATE = 12  # columns of x that the gate reads


class ValueEmbedding(nn.Module):
    """x: [B, T, C], tokens: [B, T] int64 -> [B, n_kv_head, T, D], what is added to v"""

    def __init__(self, config):
        super().__init__()
        heads = config.n_kv_head or config.n_head
        self.table = nn.Embedding(config.padded_vocab_size, key_value_width(config))
        self.gate = nn.Linear(min(GATE, config.n_embd), heads, bias=False)

    def forward(self, x, tokens):
        factor = 3 * torch.sigmoid(self.gate(x[..., : self.gate.in_features]))
        values = embedding(self.table.weight, tokens).unflatten(-1, (self.gate.out_features, -1))
        return (factor[..., None] * values).transpose(1, 2)

    @classmethod
    def parameter_count(cls, config) -> tuple[int, int]:
        """(of the table, of the gate)"""
        heads = config.n_kv_head or config.n_head
        return config.padded_vocab_size * key_value_width(config), min(GATE, config.n_embd) * heads
