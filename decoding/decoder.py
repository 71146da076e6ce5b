"""Decoding with a cache, one token at a time, by a copy of the model that is prepared for it once."""

from collections.abc import Callable
from dataclasses import replace

import torch

from decoding.prepared import prepared
from kernels import backend as kernels
from models.cache import Cache
from models.compilation import compile_parts
from models.cuda_graph import captured
from models.language_model import LanguageModel

if kernels.AVAILABLE:
    from decoding.fused import FusedStep

# products with one row become sums, which norms, activations and residuals are fused with; on Hopper each
# kernel may begin before the one before it has ended
TUNED = {"coordinate_descent_tuning": True, "triton.enable_pdl": True}


class Decoder:
    """`LanguageModel.decode` with a cache, for a model that is not trained meanwhile.

    Several tokens at once, such as a prompt, run through the model itself. A step of one token runs through
    a copy (see `prepared`), made at the first step, for one sequence or for several.

    backend: of torch.compile, which then compiles the steps; None: no compiler; "tuned": Inductor as
    gpt-fast sets it for products with one row; "fused": kernels of our own for a GPU, see `decoding.fused`,
    which raise ValueError for models that they do not know. One graph serves all steps, because positions
    are tensors and the rows of the cache a symbol. (Where a module's code fixes their number, each number
    has its own.) On a GPU a step of a backend is captured as a CUDA graph, once for each cache: hundreds of
    launches by the host become one. Such a step does not wait for the device, so that the caller counts the
    tokens: beyond the cache's length, an assertion on the device may fail.
    """

    def __init__(self, model: LanguageModel, backend: str | Callable | None = None):
        self.model, self.backend = model, backend
        self.run, self.several, self.captured = None, None, None

    def __call__(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """tokens: [B, T] int64 -> logits of what follows the last one, [B, vocab_size]; a captured step's
        are overwritten by the next one. Raises ValueError as `decode` does.
        """
        if tokens.shape[1] > 1 or not self.model.blocks:
            return self.model.decode(tokens, cache)
        if self.several != (several := len(tokens) > 1):
            self.run = self.captured = None  # free their memory first
            copy, self.several = prepared(self.model, len(tokens)), several
            if self.backend == "tuned":
                compile_parts(copy, options=TUNED)
            elif self.backend is not None and self.backend != "fused":
                compile_parts(copy, self.backend)
            self.run = FusedStep(copy) if self.backend == "fused" else copy.decode
        if self.backend is None:
            return self.run(tokens, cache)
        if not tokens.is_cuda:
            cache.reserve(1)
            whole = replace(cache, whole=True)
            make_rows_a_symbol(cache)
            return self.run(tokens, whole)
        if self.captured is None or self.captured.cache.filled is not cache.filled:
            self.captured = None  # free its memory first
            cache.reserve(cache.length - int(cache.filled))  # the graph is that of tensors of one size
            self.captured = CapturedStep(self.run, tokens, replace(cache, whole=True))
        return self.captured(tokens)


def make_rows_a_symbol(cache: Cache):
    """For a compiler: caches of other lengths then have the same graph."""
    for tensor in cache.with_rows():
        torch._dynamo.maybe_mark_dynamic(tensor, tensor.dim() - 2)


class CapturedStep:
    """A step of decoding as a CUDA graph, which reads and writes the given cache."""

    def __init__(self, run: Callable, tokens, cache: Cache):
        self.cache, self.tokens = cache, tokens.clone()
        blocks = [tuple(map(torch.clone, held)) for held in cache.blocks]
        spare = replace(cache, blocks=blocks, filled=cache.filled.clone())
        for one in (cache, spare):
            make_rows_a_symbol(one)

        def warm_up():  # runs several times, and the cache may have room for one token
            spare.filled.copy_(cache.filled)
            run(self.tokens, spare)

        self.replay, self.logits = captured(warm_up, lambda: run(self.tokens, cache))

    def __call__(self, tokens):
        self.tokens.copy_(tokens)
        self.replay()
        return self.logits
