"""Causal BigBird: block-sparse softmax attention (Zaheer et al. 2020, below the diagonal).

    O_t = sum_{j in N(t)} A_tj v_j,    A_t = softmax over j in N(t) of q_t . k_j / sqrt(C / n_head)

Tokens are grouped into blocks of `bigbird_block`. For t in block i, N(t) has the tokens up to t of

- the first g blocks (global, `bigbird_global`),
- blocks i - (w - 1) / 2 .. i (the past half of a window of w blocks around block i, `bigbird_window`),
- r further past blocks (random, `bigbird_random`), or all of them if fewer than r remain.

The paper's global rows and the right half of its window see the future, so they are left out. Random blocks
are drawn once per layer and head, among past blocks that are neither global nor in the window.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from config_keys import Count, Natural
from layers import attention
from layers.attention import SoftmaxAttention


@dataclass
class Keys(attention.Keys):
    # bigbird
    bigbird_block: Count = 64  # bigbird: tokens in a block
    bigbird_global: Natural = 1  # bigbird: g, first blocks that every token attends to
    bigbird_window: Count = 3  # bigbird: w, odd, blocks around a token's own; not the future ones
    bigbird_random: Natural = 3  # bigbird: r, further blocks of the past, drawn for each layer and head
    bigbird_seed: Natural = 0  # bigbird: seed of the random blocks


class BigBird(SoftmaxAttention):
    """x: [B, T, C] -> [B, T, C], T <= block_size. Parameters are those of softmax attention.

    Compiled for CUDA and without dropout, it uses FlexAttention, which skips tiles in which no block is
    attended. Otherwise it uses SDPA with a mask: FlexAttention has no backward pass on the CPU, has no
    dropout, and without a compiler holds all scores in memory.
    """

    Keys = Keys
    bidirectional = False  # the pattern holds past blocks only
    any_length = False  # the pattern of blocks ends at block_size
    same_weights = ("softmax",)

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.block, self.block_size = config.bigbird_block, config.block_size
        self.register_buffer("blocks", torch.tensor(attended_blocks(config, layer)), persistent=False)

    def init_weights(self):
        """Draws the blocks again, because `to_empty` discards the values of buffers."""
        with torch.no_grad():
            self.blocks.copy_(torch.tensor(attended_blocks(*self.built_from), device=self.blocks.device))

    def attend(self, q, k, v):
        length = q.shape[-2]
        if length > self.block_size:
            raise ValueError(f"{length} tokens do not fit into BigBird's block_size of {self.block_size}")
        dropout = self.dropout_rate if self.training else 0.0
        if q.is_cuda and torch.compiler.is_compiling() and not dropout:
            return self.attend_by_tiles(q, k, v)
        grouped = self.n_kv_head != self.n_head
        mask = self.dense_mask(length)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, enable_gqa=grouped)

    def visible(self, pos, length):
        """[n_head, T, length] bool. The cache keeps the whole past: a later row may attend to any block."""
        head = torch.arange(self.n_head, device=pos.device)[:, None, None]
        return self.mask(None, head, pos[:, None], torch.arange(length, device=pos.device))

    def attend_by_tiles(self, q, k, v):
        block_mask = self.tile_mask(q.shape[-2])
        grouped = self.n_kv_head != self.n_head
        return flex_attention(q, k, v, block_mask=block_mask, enable_gqa=grouped)

    def mask(self, batch, head, query, key):
        """Whether a query sees a key. Indices are int tensors that broadcast; `batch` is unused."""
        return self.blocks[head, query // self.block, key // self.block] & (key <= query)

    def dense_mask(self, length):
        """[n_head, T, T] bool"""
        return self.visible(torch.arange(length, device=self.blocks.device), length)

    def tile_mask(self, length):
        """FlexAttention's BlockMask.

        Tiles are at least 128 wide, because Hopper's backward pass takes no smaller ones. So a tile has
        several blocks unless `bigbird_block` is a multiple of 128, and it is computed if one of them is
        attended.
        """
        tile = math.lcm(self.block, 128)
        count, tiles, inside = -(-length // self.block), -(-length // tile), tile // self.block
        blocks = F.pad(self.blocks[:, :count, :count], 2 * (0, tiles * inside - count))
        blocks = blocks.view(self.n_head, tiles, inside, tiles, inside)
        past = torch.ones(tiles, tiles, dtype=torch.bool, device=blocks.device).tril(-1)
        whole = blocks.all(4).all(2) & past
        part = blocks.any(4).any(2) & ~whole
        return BlockMask.from_kv_blocks(
            *_ordered(part[None]),
            *_ordered(whole[None]),
            BLOCK_SIZE=tile,
            mask_mod=self.mask,
            seq_lengths=(length, length),
        )

    @classmethod
    def validate(cls, config):
        wrong = super().validate(config)
        if config.bigbird_window % 2 == 0:
            wrong.append(f"bigbird_window must be odd, not {config.bigbird_window}")
        return wrong

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the matrix products, averaged over the tokens.

        An attended block below the diagonal counts twice, because dense attention's count includes the
        future too. So the count equals that of dense attention if every block is attended.
        """
        size, pairs = config.bigbird_block, 0
        for row in range(-(-context // size)):
            tokens = min(size, context - row * size)  # the last block may be shorter, in rows and columns
            before_window = max(0, row - config.bigbird_window // 2)
            free = max(0, before_window - config.bigbird_global)
            attended = row + 1 - free + min(config.bigbird_random, free)
            pairs += tokens * (2 * size * (attended - 1) + tokens)
        projections = super().flops_per_token(config, 0)
        return projections + 4 * config.n_embd * pairs // context


def attended_blocks(config, layer):
    """[n_head, n, n] bool: whether block i attends to block j.

    It depends on the config and the layer alone. Rows are drawn one after the other, so that a smaller
    block_size has the leading part of the same pattern.
    """
    count = -(-config.block_size // config.bigbird_block)
    i, j = np.indices((count, count))
    fixed = (j <= i) & ((j < config.bigbird_global) | (j >= i - config.bigbird_window // 2))
    free = (j <= i) & ~fixed
    attended = []
    for head in range(config.n_head):
        # checkpoints need the same pattern: NumPy guarantees these raw numbers in every version
        numbers = np.random.PCG64([config.bigbird_seed, layer, head]).random_raw(count * (count + 1) // 2)
        lots = np.zeros((count, count), dtype=np.uint64)
        lots[np.tril_indices(count)] = numbers
        drawn = np.zeros((count, count), dtype=bool)
        highest = (lots * free).argsort(1)[:, max(0, count - config.bigbird_random) :]
        np.put_along_axis(drawn, highest, True, axis=1)
        attended.append(fixed | drawn & free)
    return np.stack(attended)


def _ordered(tiles):
    """[1, H, n, n] bool -> the count of set columns per row, and all columns with the set ones first."""
    order = tiles.int().argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.int()
