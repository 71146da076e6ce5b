"""The kinds of models, by the key `model`: their class, and exact counts in closed form."""

from collections.abc import Callable
from dataclasses import dataclass

import model
from models import saffu
from models.architecture import ModelConfig
from models.language_model import LanguageModel


@dataclass
class Kind:
    """See the functions below."""

    build: type[LanguageModel]
    parameter_counts: Callable
    flops_per_token: Callable
    cache_bytes_per_token: Callable


MODELS = {
    "gpt": Kind(
        model.GPT, model.parameter_counts, model.flops_per_token, model.cache_bytes_per_token
    ),
    "saffu": Kind(
        saffu.Saffu, saffu.parameter_counts, saffu.flops_per_token, saffu.cache_bytes_per_token
    ),
}  # fmt: skip


def built(config: ModelConfig) -> LanguageModel:
    """The model of a config, without its weights; raises ValueError as its class does."""
    return MODELS[config.model].build(config)


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part (embedding, position, attention, ffn, norm), in closed form."""
    return MODELS[config.model].parameter_counts(config)


def flops_per_token(config: ModelConfig, context: int | None = None) -> int:
    """Forward model FLOPs per token at a context length (block_size unless given)."""
    return MODELS[config.model].flops_per_token(config, context)


def cache_bytes_per_token(config: ModelConfig) -> int:
    """Bytes that decoding keeps for each token of the past; of numbers in bfloat16."""
    return MODELS[config.model].cache_bytes_per_token(config)


def without_embeddings(counts: dict[str, int]) -> int:
    """Parameters without token and position embeddings; counts: of `parameter_counts`."""
    return sum(counts.values()) - counts["embedding"] - counts["position"]
