"""A step of decoding, compiled, and on a GPU captured as a CUDA graph."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from model import GPT, Cache
from models.compilation import compile_parts
from models.cuda_graph import captured


class CompiledStep:
    """`GPT.decode` with a cache, compiled. It never waits for the device.

    It reads all rows of the cache in every step, whatever the number of tokens in it, because shapes never
    change. So one graph serves all steps of one token. The caller counts the tokens: beyond the cache's
    length, an assertion on the device may fail. On a GPU, a step of one token is captured as a CUDA graph,
    once for each cache: hundreds of launches by the host become one.

    The given model stays as it is; its weights are shared.
    """

    def __init__(self, model: GPT, backend: str | Callable = "inductor"):
        self.model, self.captured = copy.copy(model), None
        self.model._modules = {**model._modules, "blocks": nn.ModuleList(map(copy.copy, model.blocks))}
        compile_parts(self.model, backend)

    def __call__(self, tokens, cache: Cache):
        """tokens: [B, T] int64 -> logits of what follows the last one, [B, vocab_size]; on a GPU and for
        T = 1 they are overwritten by the next step.
        """
        whole = replace(cache, whole=True)
        if not tokens.is_cuda or tokens.shape[1] > 1:
            return self.model.decode(tokens, whole)
        if self.captured is None or self.captured.cache.filled is not cache.filled:
            self.captured = None  # free its memory first
            self.captured = CapturedStep(self.model.decode, tokens, whole)
        return self.captured(tokens)


class CapturedStep:
    """A step of decoding as a CUDA graph, which reads and writes the given cache."""

    def __init__(self, run: Callable, tokens, cache: Cache):
        self.cache, self.tokens = cache, tokens.clone()
        blocks = [tuple(map(torch.clone, held)) for held in cache.blocks]
        spare = replace(cache, blocks=blocks, filled=cache.filled.clone())
        capture = captured(lambda: run(self.tokens, spare), lambda: run(self.tokens, cache))
        self.replay, self.logits = capture

    def __call__(self, tokens):
        self.tokens.copy_(tokens)
        self.replay()
        return self.logits
