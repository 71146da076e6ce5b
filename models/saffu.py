"""SAFFU, a shallow and wide language model whose weights can be written down from counts.

Two units of layers/saffu.py, one on a block of absolute places, one on a radius of relative places, each
decoded to a distribution over hidden bits. Both distributions together are decoded to the vocabulary:

    g = [softmax(H_block U_block), softmax(H_radius U_radius)],    P(next token) = softmax(g M).

Without hidden bits (saffu_hidden=None), H_block and H_radius together are decoded by one U. A unit is left
out by saffu_block=None or saffu_radius=None. training/explicit_start.py writes the weights down.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from kernels.autocast import without_autocast
from layers.saffu import SPECIAL, Unit, extended, last_ends
from models.architecture import ModelConfig
from models.language_model import LanguageModel


@dataclass
class ContextCache:
    """What decoding keeps: the tokens so far, of which each step reads the last few."""

    tokens: torch.Tensor  # [B, length] int64
    filled: torch.Tensor  # tokens that are in it, int64 scalar on the CPU

    def extended(self, new: torch.Tensor) -> torch.Tensor:
        """Takes in `new` [B, T] -> all tokens so far. Raises ValueError where there is no room."""
        begin = int(self.filled)
        end = begin + new.shape[1]
        if end > self.tokens.shape[1]:
            raise ValueError(f"{end} tokens do not fit into a cache of length {self.tokens.shape[1]}")
        self.tokens[:, begin:end] = new
        self.filled.fill_(end)
        return self.tokens[:, :end]

    def clear(self):
        self.filled.zero_()

    def of_rows(self, rows: torch.Tensor) -> "ContextCache":
        """A cache of these rows of the batch, each as often as it is named. rows: int64."""
        return ContextCache(self.tokens[rows], self.filled.clone())

    def reorder(self, rows: torch.Tensor):
        """Row i of the batch becomes that of row rows[i], in place. rows: [B] int64."""
        self.tokens = self.tokens[rows]


class Saffu(LanguageModel):
    """A causal language model, like `model.GPT` for all that reads or trains it. Its products are float32
    whatever autocast says: scores add up to hundreds, and bfloat16 would round them by whole nats.

    `counts`: [vocab_size] int64, the targets that the explicit start counted; they decide which bits a
    token has. Raises ValueError where the config is not sound or has no vocab_size.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        if wrong := config.check() or ([] if config.vocab_size else ["vocab_size is not set"]):
            raise ValueError("; ".join(wrong))
        self.config = config
        self.units = nn.ModuleList(_units(config))
        self.blocks = nn.ModuleList()  # it has none; what walks through the blocks of a model finds none
        self.head = nn.Parameter(torch.empty(config.vocab_size, _inputs_of_head(config)))
        self.register_buffer("counts", torch.zeros(config.vocab_size, dtype=torch.int64))
        for unit in self.units:
            unit.embedding.requires_grad_(config.saffu_train_embeddings)

    def init_weights(self, holding: Callable = contextlib.nullcontext):
        """Draws all weights from N(0, 0.02), and returns the model."""
        with torch.no_grad(), holding(self):
            for parameter in self.parameters():
                parameter.normal_(std=0.02)
            self.counts.zero_()
        return self

    def hidden(self, tokens, cache=None, source=None, lengths=None):
        new = tokens.shape[1]
        self.check_length(new)
        if cache is not None:
            tokens = cache.extended(tokens)
        with without_autocast(tokens):
            features = self.features(tokens, new)
            if self.config.saffu_hidden is not None:
                pairs = zip(features, self.units, strict=True)
                features = [(h @ unit.decoder).softmax(-1) for h, unit in pairs]
            return torch.cat(features, -1)

    def features(self, tokens, new: int | None = None) -> list[torch.Tensor]:
        """H of each unit for the last `new` tokens (None: for all): [B, new, inputs] each."""
        ids, places = self.contexts(tokens)
        first = 0 if new is None else tokens.shape[1] - new
        return [unit(ids, place[:, first:]) for unit, place in zip(self.units, places, strict=True)]

    def contexts(self, tokens) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """tokens: [B, T] -> (ids [B, 3 + T], the places [B, T, K] of each unit's contexts)"""
        ends = last_ends(tokens, self.config.saffu_end_of_text)
        return extended(tokens, self.config.vocab_size), [unit.places(ends) for unit in self.units]

    def scores(self, h):
        with without_autocast(h):
            return super().scores(h)

    def loss(self, h, targets):
        with without_autocast(h):
            return super().loss(h, targets)

    def head_weight(self):
        return self.head

    def new_cache(self, batch, length=None, dtype=None, source=None, lengths=None) -> ContextCache:
        """As in `LanguageModel`; dtype has no effect, because tokens are kept."""
        length = self.config.block_size if length is None else length
        tokens = torch.zeros(batch, length, dtype=torch.int64, device=self.device)
        return ContextCache(tokens, torch.zeros((), dtype=torch.int64, device="cpu"))


def kinds(config: ModelConfig) -> list[dict]:
    """The units of a model, as keywords of `Unit`."""
    found = []
    rows = None if config.vocab_size is None else config.vocab_size + SPECIAL
    for kind in ("block", "radius"):
        slots = getattr(config, f"saffu_{kind}")
        if slots is not None:
            head = getattr(config, f"saffu_{kind}_head") or (1 if kind == "block" else slots)
            keys = {"kind": kind, "slots": slots, "width": getattr(config, f"saffu_{kind}_width")}
            keys |= {"head": head - 1, "cat": getattr(config, f"saffu_{kind}_mode") == "cat"}
            found.append(keys | {"rows": rows, "bits": config.saffu_hidden})
    return found


def _units(config):
    return [Unit(**keys) for keys in kinds(config)]


def _inputs(keys: dict) -> int:
    """Columns of a unit's H."""
    return keys["width"] * (keys["slots"] if keys["cat"] else 1)


def _inputs_of_head(config) -> int:
    found = kinds(config)
    return sum(config.saffu_hidden or _inputs(keys) for keys in found)


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, in closed form: the attention is W, the ffn U. The head M counts with the
    embeddings, as that of a GPT does; without hidden bits it is all of U.
    """
    units = kinds(config)
    rows = config.vocab_size + SPECIAL
    return {
        "embedding": rows * sum(keys["width"] for keys in units)
        + config.vocab_size * _inputs_of_head(config),
        "position": 0,
        "attention": sum(keys["slots"] ** 2 for keys in units),
        "ffn": (config.saffu_hidden or 0) * sum(map(_inputs, units)),
        "norm": 0,
    }


def flops_per_token(config: ModelConfig, context: int | None = None) -> int:
    """Forward model FLOPs per token: matrix products only, as of `model.flops_per_token`, each prediction
    with the K vectors of its contexts. They do not depend on the context length.
    """
    flops = 2 * config.vocab_size * _inputs_of_head(config)
    for keys in kinds(config):
        slots, width = keys["slots"], keys["width"]
        products = 1 if keys["cat"] else 2  # the queries and, in sum mode, the weighted sum
        flops += 2 * slots * (products * width + slots) + 2 * _inputs(keys) * (config.saffu_hidden or 0)
    return flops


def cache_bytes_per_token(config: ModelConfig) -> int:
    """Bytes that decoding keeps for each token of the past: its id."""
    return 8
