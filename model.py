"""The language model: embedding -> blocks -> norm -> head, and exact counts of its parameters and FLOPs.

A block is x + attention(norm(x)), then x + ffn(norm(x)). Where there is an encoder (encoder_layers),
x + cross(norm(x)) stands between the two: attention to the encoder's output. The encoder's blocks read a
source and see it whole (Vaswani et al. 2017). Sources of a batch are padded on the right, to [B, S] tokens;
lengths: [B] int64, the tokens of each source, at least 1. Padding is a key to no token, so that it changes
no output that is read, except through the ranges of ladders in training (`cf_eval_clip`), which hold it.

What stands behind `attention`, `ffn` and `position` is looked up by name in the registries of `layers`.
`python count.py config/gpt2.py` prints the counts of any config.
"""

import contextlib
import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels.embedding import embedding
from layers import POSITION
from layers.cross_attention import CrossAttention
from layers.norm import norm_of
from layers.protocol import Drawn, Layers, Mixer, Part, built, has_nan, keep_constructor_values
from layers.value_embedding import ValueEmbedding
from models.architecture import ModelConfig
from models.cache import ROWS, Cache
from models.language_model import LanguageModel


class Block(nn.Module):
    """x: [B, T, C], the model's positional encoding, pos: [T] int64 -> [B, T, C]. tokens: [B, T] int64, for
    value embeddings.
    """

    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.norm1 = norm_of(config)
        self.attention = built(config.of_layer("attention", layer), config, layer)
        self.values, self.cross = None, None
        if layer in config.value_layers():
            self.values = ValueEmbedding(config)
        if config.encoder_layers:
            self.norm_cross = norm_of(config)
            self.cross = built(CrossAttention, config)
        self.norm2 = norm_of(config)
        self.ffn = built(config.of_layer("ffn", layer), config)

    def forward(self, x, position, pos, cache=None, memory=None, lengths=None, tokens=None):
        """cache: the attention's, as `Cache.in_use` gives it; x follows the tokens that are in it. memory,
        lengths: with an encoder, see `CrossAttention.forward`.
        """
        attention, h = self.attention, self.norm1(x)
        hooks = {"position": position, "layer": self.layer} if attention.queries_and_keys else {}
        if self.values is not None:
            hooks["values"] = self.values(h, tokens)
        if cache is not None:
            x = x + attention.decode(h, pos, cache, **hooks)
        else:
            x = x + (attention(h, pos=pos, **hooks) if hooks else attention(h))
        if self.cross is not None:
            x = x + self.cross(self.norm_cross(x), memory, lengths)
        return x + self.ffn(self.norm2(x))


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

    def forward(self, x, position, pos, lengths, checkpointing=False):
        """checkpointing: keep only the blocks' inputs."""
        for block in self.blocks:
            if checkpointing:
                x = checkpoint(block, x, position, pos, lengths, use_reentrant=False)
            else:
                x = block(x, position, pos, lengths)
        return self.norm(x)


class GPT(LanguageModel):
    """A language model; its head is tied to the embedding unless tie_embeddings=False.

    With encoder_layers, it is an encoder-decoder, and the embedding and the positional encoding serve both.
    Methods then take `source` ([B, S] int64, padded on the right with any token) and `lengths` ([B] int64,
    the tokens of each source, at least 1), and raise ValueError without them.

    Build it under `torch.device("meta")` for its shapes alone; call `init_weights()` to draw the
    weights. Raises ValueError where the config is not sound or has no vocab_size. try_out=False: where it
    was found sound before, modules are not run to see whether that holds.
    """

    def __init__(self, config: ModelConfig, try_out: bool = True):
        super().__init__()
        if wrong := config.check(try_out) or ([] if config.vocab_size else ["vocab_size is not set"]):
            raise ValueError("; ".join(wrong))
        self.config = config
        self.activation_checkpointing = False  # True: keep only the blocks' inputs for the backward pass
        self.embedding = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.position = built(POSITION[config.position], config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config) if config.encoder_layers else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = norm_of(config)
        if not config.tie_embeddings:
            self.head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self._check_counts()

    def _check_counts(self):
        """Raises ValueError, naming the class, where a part has not as many parameters as it says."""
        said, kinds = {}, {*itertools.chain.from_iterable(self.config.parts().values())}
        for name, part in self.named_modules():
            cls = type(part)
            if cls in kinds and (not issubclass(cls, Mixer) or cls.counts_itself()):
                if cls not in said:
                    said[cls] = cls.parameter_count(self.config)
                if (held := sum(parameter.numel() for parameter in part.parameters())) != said[cls]:
                    raise ValueError(
                        f"{name} has {held:,} parameters, and {cls.__name__}.parameter_count says "
                        f"{said[cls]:,}: mend that method; without it, each layer is counted by itself"
                    )

    def init_weights(self, holding: Callable = contextlib.nullcontext):
        """Draws all weights, module by module, and returns the model.

        GPT-2's rule: weights of linear maps are from N(0, 0.02), biases 0. The m maps that write to the
        residual stream are from N(0, 0.02 / sqrt(m)); m is 2 n_layer, or with an encoder 3 n_layer in the
        decoder and 2 encoder_layers in the encoder. The embedding is from N(0, position.embedding_std).
        Modules with an `init_weights` of their own (layers.protocol.Drawn) then draw their parameters.
        A parameter that nothing draws keeps the value that its constructor gave it; ValueError, with its
        name, where that gave none. holding(module): a context that gathers a sharded module's parameters.
        """
        residual = residual_outputs(self.blocks, self.config.residual_scale)
        if self.encoder is not None:
            residual |= residual_outputs(self.encoder, (2 * self.config.encoder_layers) ** -0.5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(float("nan"))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                scale = residual.get(id(module), 1.0)
                std = self.position.embedding_std if module is self.embedding else 0.02
                with holding(module):
                    nn.init.normal_(module.weight, std=std * scale)
                    if isinstance(module, nn.Linear) and module.bias is not None:
                        nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                with holding(module):
                    module.reset_parameters()
        for module in self.modules():
            if isinstance(module, Drawn) and module.draws():
                with holding(module):
                    module.init_weights()
        if self.embedding.weight.is_meta:
            return self
        missing = []
        for prefix, part in self.named_modules():
            if isinstance(part, Part):
                with holding(part):
                    keep_constructor_values(part)
                    named = part.named_parameters(prefix)
                    missing += [name for name, parameter in named if has_nan(parameter)]
        if missing:
            missing = list(dict.fromkeys(missing))  # a part may hold another one
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(
                f"nothing gives a value to {', '.join(missing[:3])}{more}: set it in the module's __init__ "
                "(torch.empty sets none), or draw it in its init_weights()"
            )
        return self

    def stacks(self):
        """All blocks: those of the encoder, and those of the decoder."""
        return [*(self.encoder.blocks if self.encoder is not None else []), *self.blocks]

    def embed(self, tokens, pos):
        """tokens: [B, T] int64, or rows of the embedding [B, T, C]; pos: [T] int64 -> [B, T, C], what the
        first block reads.
        """
        rows = tokens if tokens.is_floating_point() else embedding(self.embedding.weight, tokens)
        return self.dropout(self.position.embed(rows, pos))

    def encode(self, source, lengths):
        """source: [B, S] int64, lengths: [B] int64 -> [B, S, C], what cross-attention reads. Raises
        ValueError as `forward` does.
        """
        if source is None or lengths is None:
            raise ValueError(
                f"this model has encoder_layers={self.config.encoder_layers}: give source and lengths"
            )
        self.check_length(source.shape[1])
        pos = torch.arange(source.shape[1], device=source.device)
        checkpointing = self.activation_checkpointing and self.training
        return self.encoder(self.embed(source, pos), self.position.at(pos), pos, lengths, checkpointing)

    def run_blocks(self, x, pos, held=None, memory=None, lengths=None, tokens=None):
        """x: [B, T, C], pos: [T] int64 -> [B, T, C], through all blocks. held: their caches, as
        `Cache.in_use` gives them. memory: of `encode`, or a list of one for each block, as `Cache.source`
        has it. tokens: [B, T] int64, needed for value_embeddings alone.
        """
        tokens = tokens if self.config.value_embeddings else None
        checkpointing = self.activation_checkpointing and self.training and held is None
        position = self.position.at(pos)
        for number, block in enumerate(self.blocks):
            memory_of = (None, None) if memory is None else (memory[number] if held else memory, lengths)
            of_block = held[number] if held else None
            if checkpointing:
                x = checkpoint(block, x, position, pos, None, *memory_of, tokens, use_reentrant=False)
            else:
                x = block(x, position, pos, of_block, *memory_of, tokens)
        return x

    def hidden(self, tokens, cache=None, source=None, lengths=None):
        length = tokens.shape[1]
        self.check_length(length)
        pos, held, memory = torch.arange(length, device=tokens.device), None, None
        if cache is not None:
            pos, held = cache.filled + pos, cache.in_use(length)
        if self.encoder is not None:
            memory, lengths = cache.source if cache else (self.encode(source, lengths), lengths)
        x = self.run_blocks(self.embed(tokens, pos), pos, held, memory, lengths, tokens)
        if cache is not None:
            cache.filled.add_(length)
        return self.norm(x)

    def new_cache(self, batch, length=None, dtype=None, source=None, lengths=None) -> Cache:
        length = self.config.block_size if length is None else length
        self.check_length(length)
        weight = self.embedding.weight
        room = min(length, ROWS)
        keys = (batch, room, weight.device, dtype or weight.dtype)
        filled = torch.zeros((), dtype=torch.int64, device=weight.device)
        mixers = [block.attention for block in self.blocks]
        rows = [mixer.cache_rows for mixer in mixers]
        held = [tuple(tensor.zero_() for tensor in mixer.new_cache(*keys)) for mixer in mixers]
        cache = Cache(held, filled, room, length, rows)
        if self.encoder is not None:
            with torch.no_grad():
                memory = self.encode(source, lengths)
                held = [block.cross.keys_and_values(memory) for block in self.blocks]
            cache.source = [tuple(part.to(keys[-1]) for part in one) for one in held], lengths
        return cache

    def head_weight(self):
        return self.embedding.weight if self.config.tie_embeddings else self.head.weight


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, in closed form; the values add up to `GPT(config).parameter_count()`. Those of an
    encoder and of cross-attention are in the parts of the same kind.
    """
    norm = config.n_embd * (1 + (config.bias and config.norm == "layernorm"))
    norms = 2 * config.n_layer + 1
    attention = of_layers(config, "attention", lambda layers: layers.parameters())
    if config.encoder_layers:
        attention += config.n_layer * CrossAttention.parameter_count(config)
        norms += config.n_layer + 2 * config.encoder_layers + 1
    table, gate = (len(config.value_layers()) * n for n in ValueEmbedding.parameter_count(config))
    return {
        # a head of its own counts here: it is no part of the body either
        "embedding": (2 - config.tie_embeddings) * config.padded_vocab_size * config.n_embd + table,
        "position": POSITION[config.position].parameter_count(config),
        "attention": attention + gate,
        "ffn": of_layers(config, "ffn", lambda layers: layers.parameters()),
        "norm": norms * norm,
    }


def flops_per_token(config: ModelConfig, context: int | None = None) -> int:
    """Forward model FLOPs per token at a context length (block_size unless given); training takes
    three times as many. Matrix products only, the head included, causal attention counted in full, as
    nanoGPT and PaLM count. Of an encoder-decoder: for one token of the source and one of the target, of
    `context` tokens each.
    """
    context = context or config.block_size
    total = sum(
        of_layers(config, key, lambda layers: layers.flops(context)) for key in ("attention", "ffn")
    )
    if config.encoder_layers:
        total += config.n_layer * CrossAttention.flops_per_token(config, context)
    total += 2 * len(config.value_layers()) * ValueEmbedding.parameter_count(config)[1]
    return total + 2 * config.n_embd * config.padded_vocab_size


def cache_bytes_per_token(config: ModelConfig) -> int:
    """Bytes in bfloat16 that decoding keeps for each token of the past, in all layers; of an
    encoder-decoder, for each of the source and of the past together.
    """
    values = of_layers(config, "attention", lambda layers: layers.cached_values(), encoder=False)
    if config.encoder_layers:
        values += config.n_layer * CrossAttention.cached_values(config)
    return 2 * values


def of_layers(config: ModelConfig, key: str, count: Callable, encoder: bool = True) -> int:
    """The sum of count(Layers) over the kinds of attention or ffn; encoder: with its layers."""
    numbers = [*range(config.n_layer), *range(config.encoder_layers if encoder else 0)]
    kinds: dict[type, list[int]] = {}
    for number in numbers:
        kinds.setdefault(config.of_layer(key, number), []).append(number)
    return sum(count(Layers(cls, config, numbers)) for cls, numbers in kinds.items())


def residual_outputs(blocks, scale: float) -> dict[int, float]:
    """{id of a linear map that writes to the residual stream: scale}"""
    mixers = [module for module in blocks.modules() if isinstance(module, Mixer)]
    return {id(output): scale for mixer in mixers for output in mixer.residual_outputs()}
