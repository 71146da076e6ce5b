"""The encoder of an encoder-decoder: blocks that read a source and see it whole (Vaswani et al. 2017).

Sources of a batch are padded on the right, to [B, S] tokens. lengths: [B] int64, the tokens of each source,
at least 1. Padding is a key to no token, so that it changes no output that is read.
"""

from torch import nn
from torch.utils.checkpoint import checkpoint

from layers.norm import norm_of
from layers.protocol import built


class EncoderBlock(nn.Module):
    """x: [B, S, C], the model's positional encoding, pos: [S] int64, lengths -> [B, S, C]"""

    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.norm1 = norm_of(config)
        self.attention = built(config.of_layer("attention", layer), config, layer)
        self.norm2 = norm_of(config)
        self.ffn = built(config.of_layer("ffn", layer), config)

    def forward(self, x, position, pos, lengths):
        x = x + self.attention.encode(self.norm1(x), lengths, position, pos, self.layer)
        return x + self.ffn(self.norm2(x))


class Encoder(nn.Module):
    """config.encoder_layers blocks and a norm. x: [B, S, C], as the model embeds a source -> [B, S, C]"""

    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(config, layer) for layer in range(config.encoder_layers))
        self.norm = norm_of(config)

    def forward(self, x, position, pos, lengths, run=EncoderBlock.__call__, checkpointing=False):
        """run: calls a block, by default uncompiled. checkpointing: keep only the blocks' inputs."""
        for block in self.blocks:
            if checkpointing:
                x = checkpoint(run, block, x, position, pos, lengths, use_reentrant=False)
            else:
                x = run(block, x, position, pos, lengths)
        return self.norm(x)
