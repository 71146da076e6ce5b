"""One decoder: answers each line of its input, a number of steps, with the median milliseconds of a step.

    echo 9 | python results/speed/decoding_worker.py ours eager float32 1 2 config/gpt2.py

DECODER PATH DTYPE SEQUENCES THREADS FILE... [--key=value]: decoders are those of DECODERS, of the model of
these config files, whose weights are random. Each step is that of a half-full cache.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from host import openmp  # noqa: F401 (before torch)

import importlib.util
import os
import statistics
import time

import torch

import configurator
from decoding.decoder import Decoder
from model import GPT
from models.architecture import ModelConfig
from training import hugging_face


def ours(model: GPT, sequences: int, compiled: bool):
    """(forward, rewind) as all decoders here. forward: tokens [B, T], which join the cache -> logits
    [B, vocab_size] of what follows; rewind(length) forgets all later tokens.
    """
    cache = model.new_cache(sequences)
    decode = Decoder(model, "inductor" if compiled else None)
    return lambda tokens: decode(tokens, cache), cache.filled.fill_


def gpt2_static(model: GPT, sequences: int, compiled: bool):
    """The same weights in transformers, with the cache that `cache_implementation="static"` has."""
    from transformers import StaticCache

    theirs = _gpt2(model)
    cache = StaticCache(config=theirs.config, max_cache_len=model.config.block_size)

    def rewind(length):
        for layer in cache.layers:
            layer.cumulative_length.fill_(length)

    return _forward(theirs, cache, compiled), rewind


def gpt2_dynamic(model: GPT, sequences: int, compiled: bool):
    """The same weights in transformers, with the cache that `generate` has by default."""
    from transformers import DynamicCache

    theirs = _gpt2(model)
    cache = DynamicCache(config=theirs.config)
    forward = _forward(theirs, cache, compiled)
    return forward, lambda length: cache.crop(length - cache.get_seq_length())


def _gpt2(model: GPT):
    from transformers import GPT2Config, GPT2LMHeadModel

    content = hugging_face.config_json(model.config)
    theirs = GPT2LMHeadModel(GPT2Config(**content)).to(model.embedding.weight.dtype).eval()
    weights = hugging_face.their_weights(model.state_dict(), model.config)
    theirs.load_state_dict(weights, strict=False)  # the head is the embedding
    return theirs


def _forward(theirs, cache, compiled):
    step = torch.compile(theirs) if compiled else theirs

    def forward(tokens):
        run = step if tokens.shape[1] == 1 else theirs
        return run(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    return forward


def gpt_fast(model: GPT, sequences: int, compiled: bool):
    """The Transformer of $GPT_FAST/model.py, whose forward takes (tokens, positions): a block of Llama. A
    hidden width of 8/3 n_embd gives its blocks as many weights as those of GPT-2.
    """
    spec = importlib.util.spec_from_file_location("gpt_fast", Path(os.environ["GPT_FAST"], "model.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    config, dtype = model.config, model.embedding.weight.dtype
    sizes = {"dim": config.n_embd, "intermediate_size": 8 * config.n_embd // 3}
    sizes |= {key: getattr(config, key) for key in ("block_size", "vocab_size", "n_layer", "n_head")}
    theirs = module.Transformer(module.ModelArgs(**sizes)).to(dtype).eval()
    theirs.setup_caches(sequences, config.block_size)
    step = torch.compile(theirs, fullgraph=True, mode="reduce-overhead") if compiled else theirs
    filled = torch.zeros((), dtype=torch.int64)

    def forward(tokens):
        new = tokens.shape[1]
        positions = filled + torch.arange(new)
        filled.add_(new)
        return (step if new == 1 else theirs)(tokens, positions)[:, -1]

    return forward, filled.fill_


DECODERS = {form.__name__: form for form in (ours, gpt2_static, gpt2_dynamic, gpt_fast)}


@torch.no_grad()
def main(decoder: str, path: str, dtype: str, sequences: str, threads: str, *model: str):
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    config = configurator.resolve(ModelConfig, ["--vocab_size=50257", *model])
    model = GPT(config).init_weights().eval().to(getattr(torch, dtype))
    half, batch = config.block_size // 2, int(sequences)
    forward, rewind = DECODERS[decoder](model, batch, path == "compiled")
    forward(torch.randint(config.vocab_size, (batch, half)))
    token = torch.randint(config.vocab_size, (batch, 1))
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            rewind(half)
            start = time.perf_counter()
            forward(token)
            times.append(time.perf_counter() - start)
        print(1e3 * statistics.median(times), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
