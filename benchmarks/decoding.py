"""Decoding with a cache: one model on one device, with all weights in the dtype of the benchmark.

step     one token per sequence, with half of the cache filled; a compiled step reads the whole cache
prefill  a prompt of block_size - 1 tokens
"""

import dataclasses
from collections.abc import Callable

import torch

from architecture import ModelConfig
from benchmarks.training_step import build
from model import GPT

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
    step, prefill = functions(model, options)
    drawn = torch.Generator().manual_seed(1)
    shape = (options.batch_size, config.block_size - 1)
    prompt = torch.randint(config.vocab_size, shape, generator=drawn).to(device)
    token = prompt[:, :1].clone()
    cache = model.new_cache(options.batch_size)

    def one_step():
        cache.filled.fill_(config.block_size // 2)
        step(token, cache)

    def whole_prompt():
        cache.filled.zero_()
        prefill(prompt, cache)

    return {"step": one_step, "prefill": whole_prompt}


def functions(model: GPT, options: DecodeOptions) -> tuple[Callable, Callable]:
    """(step, prefill): separate functions, so that each compiles to its own graph"""

    def step(tokens, cache):
        return model.decode(tokens, cache)

    def prefill(tokens, cache):
        return model.decode(tokens, cache)

    if not options.compile:
        return step, prefill
    return tuple(torch.compile(f, fullgraph=True, dynamic=False) for f in (step, prefill))


# largest relative distance of the logits from those of a float32 forward pass without a cache
GATE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}


def gate(config: ModelConfig, options: DecodeOptions, device: torch.device) -> dict[str, Callable]:
    """Compares a prompt and two steps with a float32 forward pass, for two layers of the model.

    block_size must be at least SHORTEST. Returns no sections. Raises ValueError if the logits differ.
    """
    config = dataclasses.replace(config, n_layer=min(2, config.n_layer))
    model = build(config, device).eval()
    length = min(config.block_size, 66)
    tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    tokens = tokens.to(device)
    with torch.no_grad():
        exact = model(tokens)[:, -3:].float()
    model.to(getattr(torch, options.dtype))
    step, prefill = functions(model, options)
    cache = model.new_cache(2)
    found = [prefill(tokens[:, :-2], cache)]
    found += [step(tokens[:, i : i + 1], cache) for i in (length - 2, length - 1)]
    distance = float((torch.stack(found, 1).float() - exact).norm() / exact.norm())
    if not distance <= GATE[options.dtype]:
        raise ValueError(
            f"wrong logits: {distance:.2g} away from a forward pass in float32 (relative; at most "
            f"{GATE[options.dtype]} in {options.dtype})"
        )
    return {}
