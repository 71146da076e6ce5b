"""Position-wise feed-forward networks (Vaswani et al. 2017; GELU as in GPT-2)."""

from torch import nn
from torch.nn import functional as F


class MLP(nn.Module):
    """y = W_2 gelu(W_1 x), four times as wide inside. x: [B, T, C] -> [B, T, C]."""

    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.down.residual_output = True
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.down(F.gelu(self.up(x))))

    @staticmethod
    def parameter_count(config):
        return 8 * config.n_embd**2 + config.bias * 5 * config.n_embd

    @staticmethod
    def flops_per_token(config, context):
        """Forward FLOPs of the matrix products; `context` plays no part here."""
        return 16 * config.n_embd**2
