"""Positional encodings that are published elsewhere; ExPE and ExQPE stand in layers/expe.py.

A positional encoding has three hooks, which do nothing unless it needs them:

    embed(x, pos)                 edits the token embeddings
    before_qkv(h, pos, layer)     edits what the projections of queries and keys, and of values, read
    rotate(q, k, pos)             edits queries and keys

pos: [T] int64, the same for all sequences of a batch. The last two hooks act in attention that has
queries and keys only; `needs_queries_and_keys` says that an encoding is nothing without them.
"""

import math

import torch
from torch import nn

from layers.protocol import Drawn


class NoPosition(Drawn):
    """No positions at all (a causal mask alone tells a model something); the hooks of the others."""

    keys: tuple[str, ...] = ()  # config keys that the class reads, but for sizes
    any_length = True  # positions from block_size on have an encoding too
    needs_queries_and_keys = False
    embedding_std = 0.02  # of the token embedding at the start
    exact_columns = 0  # first columns of h_qk that are the same in each sequence and must not be rounded

    def __init__(self, config):
        super().__init__()
        self.built_from = (config,)

    def embed(self, x, pos):
        """x: [B, T, C], pos: [T] int64 -> [B, T, C]"""
        return x

    def before_qkv(self, h, pos, layer):
        """h: [B, T, C], the normalised input of block `layer` -> (h_qk, h_v), [B, T, C] each"""
        return h, h

    def rotate(self, q, k, pos):
        """q: [B, H, T, D], k: [B, H_kv, T, D] -> the same shapes and dtypes"""
        return q, k

    @classmethod
    def keys_read(cls, config) -> tuple[str, ...]:
        """Those of `keys` that have an effect with this config."""
        return cls.keys

    @classmethod
    def validate(cls, config) -> list[str]:
        """What is wrong with the config, one sentence each."""
        return []

    @classmethod
    def cropped(cls, name, weight, config, block_size):
        """The named weight of a module built from `config` for a smaller block_size."""
        return weight

    @classmethod
    def parameter_count(cls, config) -> int:
        return 0


class LearnedPosition(NoPosition):
    """One learned vector for each absolute position, added to the embedding (GPT-2)."""

    any_length = False

    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Embedding(config.block_size, config.n_embd)

    def embed(self, x, pos):
        """pos below block_size"""
        return x + self.table(pos)

    @classmethod
    def cropped(cls, name, weight, config, block_size):
        return weight[:block_size]

    @classmethod
    def parameter_count(cls, config):
        return config.block_size * config.n_embd


class SinusoidalPosition(NoPosition):
    """Sines and cosines added to the embedding, once (Vaswani et al. 2017, sections 3.4 and 3.5).

    x sqrt(C) + PE,   PE(n, 2i) = sin(n / 10000^(2i / C)),   PE(n, 2i + 1) = cos(n / 10000^(2i / C))

    The head reads the embedding without the factor. The embedding starts as N(0, 1 / sqrt(C)), so that its
    part of the sum has variance 1: beside a smaller one the sines would be all that the blocks see.
    """

    def __init__(self, config):
        super().__init__(config)
        self.embedding_std = config.n_embd**-0.5

    def embed(self, x, pos):
        return x * x.shape[-1] ** 0.5 + sinusoids(pos, x.shape[-1]).to(x.dtype)

    @classmethod
    def validate(cls, config):
        if config.n_embd % 2:
            return [f"position=sinusoidal pairs columns: n_embd={config.n_embd} is odd"]
        return []


def sinusoids(pos, width):
    """pos: [T] int64 -> PE: [T, width] float32"""
    angles = pos[:, None].float() * inverse_frequencies(width, 10_000.0, pos.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


LLAMA3 = ("rope_factor", "rope_low_freq_factor", "rope_high_freq_factor")
LLAMA3 += ("rope_original_max_position_embeddings",)


class RotaryPosition(NoPosition):
    """RoPE (Su et al. 2021): pairs of columns of each head's q and k turn by n rope_base^(-2i / D).

    Column i of D is paired with column i + D / 2, as in Hugging Face's Llama, and q_m . k_n depends on
    m - n only. Angles and products are float32. rope_scaling=llama3 stretches the slow frequencies.
    """

    keys = ("n_head", "rope_base", "rope_scaling", *LLAMA3)
    needs_queries_and_keys = True

    @classmethod
    def keys_read(cls, config):
        return cls.keys if config.rope_scaling == "llama3" else cls.keys[: -len(LLAMA3)]

    def __init__(self, config):
        super().__init__(config)
        self.base = config.rope_base
        self.scaling = None
        if config.rope_scaling == "llama3":
            self.scaling = tuple(getattr(config, key) for key in LLAMA3)

    def rotate(self, q, k, pos):
        frequencies = inverse_frequencies(q.shape[-1], self.base, pos.device)
        if self.scaling:
            frequencies = llama3_scaled(frequencies, *self.scaling)
        angles = pos[:, None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        return _turned(q, cos, sin), _turned(k, cos, sin)

    @classmethod
    def validate(cls, config):
        wrong = []
        if config.n_head > 0 and config.n_embd % (2 * config.n_head):
            wrong.append(
                f"position=rope pairs columns of a head: n_embd / n_head = "
                f"{config.n_embd / config.n_head:g} must be even"
            )
        if config.rope_scaling == "llama3" and config.rope_low_freq_factor >= config.rope_high_freq_factor:
            wrong.append("rope_low_freq_factor must be below rope_high_freq_factor")
        return wrong


def _turned(x, cos, sin):
    """x: [B, H, T, D], cos and sin: [T, D / 2] -> the shape and type of x"""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    # put together last: that a compiler for the CPU writes to memory, and does not turn q anew for each key
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def inverse_frequencies(width, base, device):
    """base^(-2i / width) for i = 0 .. width / 2 - 1, float32: [width / 2]"""
    return 1.0 / base ** (torch.arange(0, width, 2, device=device).float() / width)


def llama3_scaled(frequencies, factor, low_freq_factor, high_freq_factor, original_length):
    """Llama 3.1's rule: [F] float32 -> [F] float32.

    Wavelengths above original_length / low_freq_factor become `factor` times as long, those below
    original_length / high_freq_factor stay, and between them the share that stays grows linearly with
    original_length / wavelength.
    """
    turns = original_length / (2 * math.pi / frequencies)
    stays = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return (1 - stays) * frequencies / factor + stays * frequencies
