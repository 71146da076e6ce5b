"""The language model: embedding -> blocks -> norm -> head, and exact counts of its parameters and FLOPs.

A block is x + attention(norm(x)), then x + ffn(norm(x)). What stands behind `attention`, `ffn` and
`position` is looked up by name in the registries of `layers`. `python count.py config/gpt2.py` prints the
counts of any config.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from architecture import ModelConfig
from kernels.embedding import embedding
from language_model import LanguageModel
from layers import ATTENTION, FFN, POSITION
from layers.cache import in_use
from layers.protocol import Drawn, Mixer, Part, built, has_nan, keep_constructor_values


def _norm(config):
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019), which has no bias."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.n_embd, eps=config.norm_eps)
    return nn.LayerNorm(config.n_embd, eps=config.norm_eps, bias=config.bias)


class Block(nn.Module):
    """x: [B, T, C], the model's positional encoding, pos: [T] int64 -> [B, T, C]"""

    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.norm1 = _norm(config)
        self.attention = built(ATTENTION[config.attention], config, layer)
        self.norm2 = _norm(config)
        self.ffn = built(FFN[config.ffn], config)

    def forward(self, x, position, pos, cache=None):
        """cache: the attention's, as `Cache.in_use` gives it; x follows the tokens that are in it"""
        attention, h = self.attention, self.norm1(x)
        hooks = {"position": position, "layer": self.layer} if attention.queries_and_keys else {}
        if cache is not None:
            x = x + attention.decode(h, pos, cache, **hooks)
        else:
            x = x + (attention(h, pos=pos, **hooks) if hooks else attention(h))
        return x + self.ffn(self.norm2(x))


@dataclass
class Cache:
    """What decoding keeps of a batch of equally long sequences: see `GPT.new_cache` and `GPT.decode`."""

    blocks: list[tuple[torch.Tensor, ...]]  # one of the attention's new_cache for each block
    filled: torch.Tensor  # tokens that are in it, int64 scalar on the device: a number would be compiled in

    def in_use(self, new):
        """`blocks`, narrowed to what they hold with `new` more tokens. Raises ValueError where there is no
        room.
        """
        end, length = int(self.filled) + new, self.blocks[0][0].shape[-2]
        if end > length:
            raise ValueError(f"{end} tokens do not fit into a cache of length {length}")
        return [in_use(held, end) for held in self.blocks]

    def clear(self):
        self.filled.zero_()


class GPT(LanguageModel):
    """A decoder-only language model; its head is tied to the embedding unless tie_embeddings=False.

    Build it under `torch.device("meta")` for its shapes alone; call `init_weights()` to draw the
    weights. Raises ValueError where the config is not sound or has no vocab_size.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        if wrong := config.check() or ([] if config.vocab_size else ["vocab_size is not set"]):
            raise ValueError("; ".join(wrong))
        self.config = config
        self.activation_checkpointing = False  # True: keep only the blocks' inputs for the backward pass
        self.embedding = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.position = built(POSITION[config.position], config)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = _norm(config)
        if not config.tie_embeddings:
            self.head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)

    def init_weights(self, holding: Callable = contextlib.nullcontext):
        """Draws all weights, module by module, and returns the model.

        GPT-2's rule: N(0, 0.02), for what writes to the residual stream N(0, 0.02 / sqrt(2 n_layer)), for
        biases 0. The deviation of the embedding is `embedding_std` of the positional encoding. A module of
        `layers.protocol.Drawn` draws what is its own. What nobody draws keeps its constructor's values.
        holding(module): a context in which the module's parameters are there, for models of which no
        process holds all (training/sharding.py). Raises ValueError, naming the parameter, where one is
        still without a value.
        """
        mixers = [module for module in self.modules() if isinstance(module, Mixer)]
        residual = {id(output) for mixer in mixers for output in mixer.residual_outputs()}
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(float("nan"))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                scale = (2 * self.config.n_layer) ** -0.5 if id(module) in residual else 1.0
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

    def embed(self, tokens, pos):
        """tokens: [B, T] int64, pos: [T] int64 -> [B, T, C], what the first block reads."""
        return self.dropout(self.position.embed(embedding(self.embedding.weight, tokens), pos))

    def run_blocks(self, x, pos, held=None, run=Block.__call__):
        """x: [B, T, C], pos: [T] int64 -> [B, T, C], through all blocks. held: their caches, as
        `Cache.in_use` gives them. run: calls a block, by default without a compiler.
        """
        checkpointing = self.activation_checkpointing and self.training and held is None
        for block, of_block in zip(self.blocks, held or [None] * len(self.blocks), strict=True):
            if checkpointing:
                x = checkpoint(run, block, x, self.position, pos, use_reentrant=False)
            else:
                x = run(block, x, self.position, pos, of_block)
        return x

    def hidden(self, tokens, cache=None):
        length = tokens.shape[1]
        self.check_length(length)
        pos, held = torch.arange(length, device=tokens.device), None
        if cache is not None:
            pos, held = cache.filled + pos, cache.in_use(length)
        x = self.run_blocks(self.embed(tokens, pos), pos, held)
        if cache is not None:
            cache.filled.add_(length)
        return self.norm(x)

    def new_cache(self, batch, length=None, dtype=None) -> Cache:
        length = self.config.block_size if length is None else length
        self.check_length(length)
        weight = self.embedding.weight
        keys = (batch, length, weight.device, dtype or weight.dtype)
        filled = torch.zeros((), dtype=torch.int64, device=weight.device)
        return Cache([block.attention.new_cache(*keys) for block in self.blocks], filled)

    def head_weight(self):
        return self.embedding.weight if self.config.tie_embeddings else self.head.weight


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, in closed form; the values add up to `GPT(config).parameter_count()`."""
    norm = config.n_embd * (1 + (config.bias and config.norm == "layernorm"))
    return {
        # a head of its own counts here: it is no part of the body either
        "embedding": (2 - config.tie_embeddings) * config.padded_vocab_size * config.n_embd,
        "position": POSITION[config.position].parameter_count(config),
        "attention": config.n_layer * ATTENTION[config.attention].parameter_count(config),
        "ffn": config.n_layer * FFN[config.ffn].parameter_count(config),
        "norm": (2 * config.n_layer + 1) * norm,
    }


def flops_per_token(config: ModelConfig, context: int | None = None) -> int:
    """Forward model FLOPs per token at a context length (block_size unless given); training takes
    three times as many. Matrix products only, the head included, causal attention counted in full, as
    nanoGPT and PaLM count.
    """
    context = context or config.block_size
    block = ATTENTION[config.attention].flops_per_token(config, context)
    block += FFN[config.ffn].flops_per_token(config, context)
    return config.n_layer * block + 2 * config.n_embd * config.padded_vocab_size


def cache_bytes_per_token(config: ModelConfig) -> int:
    """Bytes in bfloat16 that decoding keeps for each token of the past, in all layers."""
    return 2 * config.n_layer * ATTENTION[config.attention].cached_values(config)


def without_embeddings(counts: dict[str, int]) -> int:
    """Parameters without token and position embeddings; counts: of `parameter_counts`."""
    return sum(counts.values()) - counts["embedding"] - counts["position"]
