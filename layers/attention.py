"""Multi-head causal softmax attention (Vaswani et al. 2017)."""

from torch import nn
from torch.nn import functional as F


class SoftmaxAttention(nn.Module):
    """softmax(q k^T / sqrt(C / n_head)) v over the past and the present. x: [B, T, C] -> [B, T, C]."""

    def __init__(self, config, layer=0):
        super().__init__()
        self.n_head = config.n_head
        self.dropout_rate = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.proj.residual_output = True
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        return self.dropout(self.proj(self.attend(q, k, v).transpose(1, 2).flatten(-2)))

    def attend(self, q, k, v):
        """[B, n_head, T, C / n_head] each -> the same shape"""
        dropout = self.dropout_rate if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)

    @staticmethod
    def complaints(config):
        if config.n_head > 0 and config.n_embd % config.n_head:
            return [f"n_head={config.n_head} does not divide n_embd={config.n_embd}"]
        return []

    @staticmethod
    def parameter_count(config):
        return 4 * config.n_embd**2 + config.bias * 4 * config.n_embd

    @staticmethod
    def flops_per_token(config, context):
        """Forward FLOPs of the matrix products; the causal mask is not subtracted."""
        return 8 * config.n_embd**2 + 4 * config.n_embd * context
