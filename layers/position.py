"""Common positional encodings. ExPE and ExQPE are in layers/expe.py.

A positional encoding overrides one or more of four hooks:

    embed(x, pos)                 edits the token embeddings
    before_qkv(h, pos, layer)     edits the inputs of the projections to queries and keys, and to values
    rotate(q, k, pos)             edits queries and keys
    bias(pos, keys, causal)       is added to the scores of softmax attention

pos: [T] int64, the same for all sequences of a batch. Only attention with queries and keys calls the last
three hooks. An encoding that depends on them sets `needs_queries_and_keys`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from config_keys import Count, Positive, names
from layers.protocol import Part


class NoPosition(Part):
    """No positional encoding; the base class of all others. The causal mask alone carries some order."""

    any_length = True  # whether positions from block_size on have an encoding too
    needs_queries_and_keys = False
    only_in: tuple[str, ...] = ()  # names of the attentions that it acts in; (): all with queries and keys
    embedding_std = 0.02  # standard deviation of the token embedding at initialisation
    # number of first columns of h_qk that are the same in all sequences and must not be rounded to bfloat16
    exact_columns = 0

    def __init__(self, config):
        super().__init__(config)

    def at(self, pos):
        """What blocks take for tokens at pos: this encoding, or one that holds what all blocks share."""
        return self

    def embed(self, x, pos):
        """Edits the token embeddings. x: [B, T, C], pos: [T] int64 -> [B, T, C]"""
        return x

    def before_qkv(self, h, pos, layer):
        """h: [B, T, C], the normalised input of block `layer` -> (h_qk, h_v), [B, T, C] each"""
        return h, h

    def rotate(self, q, k, pos):
        """q: [B, H, T, D], k: [B, H_kv, T, D] -> the same shapes and dtypes"""
        return q, k

    def bias(self, pos, keys, causal=True):
        """pos: [T], keys: [S] int64, places of queries and keys -> [n_head, T, S], or None for none.

        causal: in the decoder, where a query sees no key behind it.
        """

    @classmethod
    def parameter_count(cls, config) -> int:
        return 0


class LearnedPosition(NoPosition):
    """One learned vector per absolute position, added to the embedding (GPT-2)."""

    any_length = False

    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Embedding(config.block_size, config.n_embd)

    def embed(self, x, pos):
        """Adds the table's rows. pos must be below block_size."""
        return x + self.table(pos)

    @classmethod
    def cropped(cls, name, weight, config, block_size):
        return weight[:block_size]

    @classmethod
    def parameter_count(cls, config):
        return config.block_size * config.n_embd


class SinusoidalPosition(NoPosition):
    """Sines and cosines added to the embedding (Vaswani et al. 2017, sections 3.4 and 3.5).

    x sqrt(C) + PE,   PE(n, 2i) = sin(n / 10000^(2i / C)),   PE(n, 2i + 1) = cos(n / 10000^(2i / C))

    A tied head uses the embedding without the factor. The embedding is initialised with standard deviation
    1 / sqrt(C), so that x sqrt(C) has variance 1. If it were much smaller, the blocks
    would see little but the sines.
    """

    def __init__(self, config):
        super().__init__(config)
        self.embedding_std = config.n_embd**-0.5

    def embed(self, x, pos):
        return x * x.shape[-1] ** 0.5 + sinusoids(pos, x.shape[-1]).to(x.dtype)

    @classmethod
    def validate(cls, config):
        if config.n_embd % 2:
            return [f"position=sinusoidal pairs columns: n_embd={config.n_embd} is odd and must be even"]
        return []


def sinusoids(pos, width):
    """pos: [T] int64 -> PE: [T, width] float32"""
    angles = pos[:, None].float() * inverse_frequencies(width, 10_000.0, pos.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@dataclass
class Llama3Keys:
    # rope_scaling=llama3
    rope_factor: Positive = 32.0  # llama3: the slowest frequencies are divided by this
    rope_low_freq_factor: Positive = 1.0  # llama3: fewer turns than this in that length are slow
    rope_high_freq_factor: float = 4.0  # llama3: frequencies with at least this many turns stay as they are
    rope_original_max_position_embeddings: Count = 8192  # llama3: the original length, in tokens


@dataclass
class Keys(Llama3Keys):
    # rope
    rope_base: Positive = 10_000.0  # rope: the slowest columns turn by about 1 / rope_base a token
    rope_scaling: Literal["none", "llama3"] = "none"  # rope: llama3 divides the slow frequencies


class RotaryPosition(NoPosition):
    """RoPE (Su et al. 2021): rotates pair i of columns of each head's q and k by n rope_base^(-2i / D).

    Column i of D is paired with column i + D / 2, as in Hugging Face's Llama. q_m . k_n depends on m - n
    only. Angles and products are float32. rope_scaling=llama3 stretches the low frequencies.
    """

    Keys = Keys
    needs_queries_and_keys = True

    @classmethod
    def idle_keys(cls, config):
        return set() if config.rope_scaling == "llama3" else {*names(Llama3Keys)}

    def __init__(self, config):
        super().__init__(config)
        self.base, self.head_width = config.rope_base, config.n_embd // config.n_head
        self.scaling = None
        if config.rope_scaling == "llama3":
            self.scaling = tuple(getattr(config, key) for key in names(Llama3Keys))

    def at(self, pos):
        return RotationAt(self, *self.cos_and_sin(pos))

    def cos_and_sin(self, pos):
        """pos: [T] int64 -> cosines and sines of the angles, [T, D / 2] float32 each"""
        frequencies = inverse_frequencies(self.head_width, self.base, pos.device)
        if self.scaling:
            frequencies = llama3_scaled(frequencies, *self.scaling)
        angles = pos[:, None].float() * frequencies
        return angles.cos(), angles.sin()

    def rotate(self, q, k, pos):
        return self.at(pos).rotate(q, k, pos)

    @classmethod
    def validate(cls, config):
        wrong = []
        if config.n_head > 0 and config.n_embd % (2 * config.n_head):
            wrong.append(
                f"position=rope pairs columns of a head: n_embd / n_head = "
                f"{config.n_embd / config.n_head:g} must be even"
            )
        if config.rope_scaling == "llama3" and config.rope_low_freq_factor >= config.rope_high_freq_factor:
            wrong.append(
                f"rope_low_freq_factor={config.rope_low_freq_factor:g} must be below "
                f"rope_high_freq_factor={config.rope_high_freq_factor:g}"
            )
        return wrong


class RotationAt:
    """RoPE at given positions, for all blocks. A compiler given the angles alone would compute sines and
    cosines anew for every head of every sequence.
    """

    def __init__(self, encoding: RotaryPosition, cos: torch.Tensor, sin: torch.Tensor):
        self.encoding, self.cos, self.sin = encoding, cos, sin
        self.exact_columns = encoding.exact_columns

    def before_qkv(self, h, pos, layer):
        return self.encoding.before_qkv(h, pos, layer)

    def rotate(self, q, k, pos):
        return _turned(q, self.cos, self.sin), _turned(k, self.cos, self.sin)

    def bias(self, pos, keys, causal=True):
        return self.encoding.bias(pos, keys, causal)


def _turned(x, cos, sin):
    """Rotates x: [B, H, T, D] by cos and sin: [T, D / 2] -> [B, H, T, D] in x's dtype."""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    # concatenated last: then the compiler stores the result on a CPU, and does not rotate q again per key
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def inverse_frequencies(width, base, device):
    """base^(-2i / width) for i = 0 .. width / 2 - 1, float32: [width / 2]"""
    return 1.0 / base ** (torch.arange(0, width, 2, device=device).float() / width)


def llama3_scaled(frequencies, factor, low_freq_factor, high_freq_factor, original_length):
    """Llama 3.1's rule: [F] float32 -> [F] float32.

    Wavelengths above original_length / low_freq_factor become `factor` times as long. Wavelengths below
    original_length / high_freq_factor are unchanged. In between, the rule interpolates the frequency
    linearly in original_length / wavelength.
    """
    turns = original_length / (2 * math.pi / frequencies)
    stays = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return (1 - stays) * frequencies / factor + stays * frequencies
