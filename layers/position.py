"""Positional encodings."""

from torch import nn


class LearnedPosition(nn.Module):
    """One learned vector for each absolute position, added to the embedding (GPT-2)."""

    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.block_size, config.n_embd)

    def embed(self, x, positions):
        """x: [B, T, C], positions: [T] int64, below block_size -> [B, T, C]"""
        return x + self.table(positions)

    @staticmethod
    def parameter_count(config):
        return config.block_size * config.n_embd
