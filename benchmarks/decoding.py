"""Decoding with a cache: one model on one device, with all weights in the dtype of the benchmark.

step     one token per sequence after half a block, by a copy of the model that is prepared for it
prefill  a prompt of block_size - 1 tokens, by the model itself
"""

import dataclasses
from collections.abc import Callable

import torch

from benchmarks.training_step import build, shallow
from decoding.decoder import Decoder
from models.architecture import ModelConfig
from models.compilation import compile_parts
from models.kinds import cache_bytes_per_token, parameter_counts

SECTIONS = ("step", "prefill")
SHORTEST = 4  # smallest block_size that `gate` can check


@dataclasses.dataclass
class DecodeOptions:
    batch_size: int
    dtype: str
    compile: bool


def sections(config: ModelConfig, options: DecodeOptions, device: torch.device) -> dict[str, Callable]:
    """{section: function of one iteration}"""
    model = build(config, device).eval().to(getattr(torch, options.dtype))
    step = Decoder(model, "inductor" if options.compile else None)
    if options.compile:
        compile_parts(model)
    drawn = torch.Generator().manual_seed(1)
    shape = (options.batch_size, config.block_size - 1)
    prompt = torch.randint(config.vocab_size, shape, generator=drawn).to(device)
    token = prompt[:, :1].clone()
    cache, longest = (model.new_cache(options.batch_size) for _ in range(2))
    cache.reserve(config.block_size // 2 + 1)  # the rows that a text of this length has

    def one_step():
        cache.filled.fill_(config.block_size // 2)
        step(token, cache)

    def whole_prompt():
        longest.filled.zero_()
        model.decode(prompt, longest)

    return {"step": one_step, "prefill": whole_prompt}


def step_bytes(config: ModelConfig, options: DecodeOptions) -> int:
    """The least that a step reads: each weight once, but for tables of which it reads rows, and for each
    sequence the cache of half a block of tokens.
    """
    counts = parameter_counts(config)
    if not config.tie_embeddings:
        counts["embedding"] //= 2
    weights = sum(counts.values()) - counts["position"]
    cached = options.batch_size * (config.block_size // 2) * cache_bytes_per_token(config) // 2
    return (weights + cached) * getattr(torch, options.dtype).itemsize


# largest relative distance of the logits from those of a float32 forward pass without a cache
GATE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}


def gate(config: ModelConfig, options: DecodeOptions, device: torch.device) -> dict[str, Callable]:
    """Compares a prompt and two steps with a float32 forward pass, for two layers of the model.

    block_size must be at least SHORTEST. Returns no sections. Raises ValueError if the logits differ.
    """
    model = build(shallow(config), device).eval()
    length = min(config.block_size, 66)
    tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    tokens = tokens.to(device)
    with torch.no_grad():
        exact = model(tokens)[:, -3:].float()
    model.to(getattr(torch, options.dtype))
    decode = Decoder(model, "inductor" if options.compile else None)
    cache = model.new_cache(2)
    parts = tokens[:, :-2], tokens[:, -2:-1], tokens[:, -1:]
    # cloned, as the next step overwrites the logits of a captured one
    found = [decode(part, cache).clone() for part in parts]
    distance = float((torch.stack(found, 1).float() - exact).norm() / exact.norm())
    if not distance <= GATE[options.dtype]:
        raise ValueError(
            f"wrong logits: {distance:.2g} away from a forward pass in float32 (relative; at most "
            f"{GATE[options.dtype]} in {options.dtype})"
        )
    return {}
