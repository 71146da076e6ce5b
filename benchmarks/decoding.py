"""Decoding with a cache: one model on one device, with all weights in the dtype of the benchmark.

step        one token per sequence after half a block, by a copy of the model that is prepared for it
tuned step  the same, compiled as `decoding.decoder.TUNED` says, on a GPU
fused step  the same by kernels of our own, on a GPU and for the models that these know
prefill     a prompt of block_size - 1 tokens, by the model itself
"""

import dataclasses
from collections.abc import Callable

import torch

from benchmarks.training_step import build, shallow
from decoding.decoder import Decoder
from kernels import backend as kernels
from models.architecture import ModelConfig
from models.cache import Cache
from models.compilation import compile_parts
from models.kinds import built, cache_bytes_per_token, parameter_counts

SHORTEST = 4  # smallest block_size that `gate` can check


@dataclasses.dataclass
class DecodeOptions:
    batch_size: int
    dtype: str
    compile: bool


def backends(config: ModelConfig, options: DecodeOptions, device: torch.device) -> dict[str, str | None]:
    """{section: backend of its `Decoder`}"""
    found = {"step": "inductor" if options.compile else None}
    if device.type == "cuda" and options.compile:
        found["tuned step"] = "tuned"
    if device.type == "cuda" and kernels.AVAILABLE:
        from decoding.fused import unfit
        from kernels.gemv_triton import MOST_ROWS

        if options.batch_size <= MOST_ROWS and not unfit(config):
            found["fused step"] = "fused"
    return found


def names(config: ModelConfig, options: DecodeOptions, device: torch.device) -> list[str]:
    """The sections."""
    return [*backends(config, options, device), "prefill"]


def sections(config: ModelConfig, options: DecodeOptions, device: torch.device) -> dict[str, Callable]:
    """{section: function of one iteration}"""
    model = build(config, device).eval().to(getattr(torch, options.dtype))
    if options.compile:
        compile_parts(model)
    drawn = torch.Generator().manual_seed(1)
    shape = (options.batch_size, config.block_size - 1)
    prompt = torch.randint(config.vocab_size, shape, generator=drawn).to(device)
    token = prompt[:, :1].clone()
    longest = model.new_cache(options.batch_size)

    def whole_prompt():
        longest.filled.zero_()
        model.decode(prompt, longest)

    made = {
        section: one_step(Decoder(model, backend), model.new_cache(options.batch_size), token)
        for section, backend in backends(config, options, device).items()
    }
    return {**made, "prefill": whole_prompt}


def one_step(step: Decoder, cache: Cache, token: torch.Tensor) -> Callable:
    half = cache.length // 2
    cache.reserve(half + 1)  # the rows that a text of this length has

    def function():
        cache.filled.fill_(half)
        step(token, cache)

    return function


def step_bytes(config: ModelConfig, options: DecodeOptions) -> int:
    """The least that a step reads: each weight once, but for tables of which it reads rows, and for each
    sequence the cache of half a block of tokens, windows and states.
    """
    counts = parameter_counts(config)
    weights = sum(counts.values()) - counts["position"] - counts["embedding"]
    weights += config.padded_vocab_size * config.n_embd  # the head
    cached = options.batch_size * (config.block_size // 2) * cache_bytes_per_token(config) // 2
    with torch.device("meta"):
        cache = built(config).new_cache(options.batch_size)
    growing = {id(tensor) for tensor in cache.with_rows()}
    held = sum(t.numel() for block in cache.blocks for t in block if id(t) not in growing)
    return (weights + cached + held) * getattr(torch, options.dtype).itemsize


# largest relative distance of the logits from those of a float32 forward pass without a cache
GATE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}


def gate(config: ModelConfig, options: DecodeOptions, device: torch.device) -> dict[str, str]:
    """Compares a prompt and two steps with a float32 forward pass, for two layers of the model.

    block_size must be at least SHORTEST. Returns {section: why it must not be timed}, of those that fail
    or whose logits differ.
    """
    model = build(shallow(config), device).eval()
    length = min(config.block_size, 66)
    tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    tokens = tokens.to(device)
    with torch.no_grad():
        exact = model(tokens)[:, -3:].float()
    model.to(getattr(torch, options.dtype))
    parts = tokens[:, :-2], tokens[:, -2:-1], tokens[:, -1:]
    refused = {}
    for section, backend in backends(config, options, device).items():
        try:
            decode, cache = Decoder(model, backend), model.new_cache(2)
            # cloned, as the next step overwrites the logits of a captured one
            found = [decode(part, cache).clone() for part in parts]
        except Exception as error:  # of one way to decode; the others are timed
            refused[section] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        distance = float((torch.stack(found, 1).float() - exact).norm() / exact.norm())
        if not distance <= GATE[options.dtype]:
            refused[section] = (
                f"wrong logits of a {section}: {distance:.2g} away from a forward pass in float32 "
                f"(relative; at most {GATE[options.dtype]} in {options.dtype})"
            )
    return refused
