"""A block of the decoder, and what decoding keeps of a text.

A block is x + attention(norm(x)), then x + ffn(norm(x)). Where there is an encoder (encoder_layers),
x + cross(norm(x)) stands between the two: attention to the encoder's output.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from layers.cache import in_use
from layers.cross_attention import CrossAttention
from layers.norm import norm_of
from layers.protocol import Mixer, built


class Block(nn.Module):
    """x: [B, T, C], the model's positional encoding, pos: [T] int64 -> [B, T, C]"""

    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.norm1 = norm_of(config)
        self.attention = built(config.of_layer("attention", layer), config, layer)
        self.cross = None
        if config.encoder_layers:
            self.norm_cross = norm_of(config)
            self.cross = built(CrossAttention, config)
        self.norm2 = norm_of(config)
        self.ffn = built(config.of_layer("ffn", layer), config)

    def forward(self, x, position, pos, cache=None, memory=None, lengths=None):
        """cache: the attention's, as `Cache.in_use` gives it; x follows the tokens that are in it. memory,
        lengths: with an encoder, see `CrossAttention.forward`.
        """
        attention, h = self.attention, self.norm1(x)
        hooks = {"position": position, "layer": self.layer} if attention.queries_and_keys else {}
        if cache is not None:
            x = x + attention.decode(h, pos, cache, **hooks)
        else:
            x = x + (attention(h, pos=pos, **hooks) if hooks else attention(h))
        if self.cross is not None:
            x = x + self.cross(self.norm_cross(x), memory, lengths)
        return x + self.ffn(self.norm2(x))


@dataclass
class Cache:
    """What decoding keeps of a batch of equally long sequences: see `GPT.new_cache` and `GPT.decode`."""

    blocks: list[tuple[torch.Tensor, ...]]  # one of the attention's new_cache for each block
    filled: torch.Tensor  # tokens that are in it, int64 scalar on the device: a number would be compiled in
    length: int  # tokens that it has room for
    rows: list[int | None]  # `TokenMixer.cache_rows` of each block
    # of an encoder-decoder: each block's keys and values of the source, and the lengths of the sources
    source: tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor] | None = None

    def in_use(self, new):
        """`blocks`, narrowed to what they hold with `new` more tokens. Raises ValueError where there is no
        room.
        """
        if (end := int(self.filled) + new) > self.length:
            raise ValueError(f"{end} tokens do not fit into a cache of length {self.length}")
        return self.first(end)

    def first(self, end: int) -> list[tuple[torch.Tensor, ...]]:
        """`blocks`, narrowed to their first `end` tokens."""
        return [in_use(held, end, rows) for held, rows in zip(self.blocks, self.rows, strict=True)]

    def clear(self):
        self.filled.zero_()

    def repeated(self, times: int) -> "Cache":
        """A cache in which each row of the batch stands `times` times, one after the other."""

        def repeat(blocks):
            return [tuple(held.repeat_interleave(times, 0) for held in block) for block in blocks]

        source = None
        if self.source is not None:
            source = repeat(self.source[0]), self.source[1].repeat_interleave(times, 0)
        return replace(self, blocks=repeat(self.blocks), source=source)

    def reorder(self, rows: torch.Tensor):
        """Row i of the batch becomes that of row rows[i], in place. rows: [B] int64, of equal sources,
        which therefore stay where they are.
        """
        if torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return
        for block in self.first(int(self.filled)):
            for held in block:
                held.copy_(held.index_select(0, rows))


def residual_outputs(blocks, scale: float) -> dict[int, float]:
    """{id of a linear map that writes to the residual stream: scale}"""
    mixers = [module for module in blocks.modules() if isinstance(module, Mixer)]
    return {id(output): scale for mixer in mixers for output in mixer.residual_outputs()}
