"""The norm before each mixer and behind each stack."""

from torch import nn


def norm_of(config):
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019), which has no bias."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.n_embd, eps=config.norm_eps)
    return nn.LayerNorm(config.n_embd, eps=config.norm_eps, bias=config.bias)
