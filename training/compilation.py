"""A model compiled by part: the embedding, the block, the head. One without blocks is compiled as a whole.

All blocks of a model share code and shapes, so that one graph serves all of them: a model of 48 layers
compiles as fast as one of a single layer. Nothing is fused across two blocks.
"""

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from os import environ
from pathlib import Path

import torch
from torch import nn

from model import GPT, Block, Cache, EncoderBlock
from models.language_model import LanguageModel
from training.cuda_graph import captured
from training.sharding import as_forward, is_sharded


class CompiledTraining(nn.Module):
    """model(tokens, targets), compiled: [B, T] int64 each -> mean cross-entropy in nats, float32 scalar. An
    encoder-decoder takes source and lengths too.

    It shares all parameters with the model, which itself stays as it is. Other shapes compile anew; shapes:
    how many there may be. A block of a sharded model gathers its weights before the compiled code runs, and
    drops them after it. Attributes: `embed`, `block`, `encoder_block` and `loss`, the compiled parts;
    block(module, x, position, pos) and loss(x, targets) of what the last block leaves.
    """

    def __init__(self, model: GPT, backend="inductor", mode: str = "default", shapes: int = 1):
        super().__init__()
        self.model = model
        compiled = compiler(model, backend, mode, shapes)
        self.embed, self.block = compiled(model.embed), compiled(Block.forward)
        self.encoder_block = compiled(EncoderBlock.forward)
        self.loss = compiled(lambda x, targets: model.loss(model.norm(x), targets))
        self.whole, self.run_block, self.run_encoder_block = self.compute, self.block, self.encoder_block
        if is_sharded(model):
            for block in model.stacks():
                run = self.block if isinstance(block, Block) else self.encoder_block
                as_forward(block, "compiled", partial(run, block))
            as_forward(model, "compiled", self.compute)
            self.whole = model.compiled
            self.run_block = self.run_encoder_block = lambda block, *inputs: block.compiled(*inputs)

    def forward(self, tokens, targets, source=None, lengths=None):
        return self.whole(tokens, targets, source, lengths)

    def compute(self, tokens, targets, source=None, lengths=None):
        model, memory = self.model, None
        model.check_length(tokens.shape[1])
        if model.encoder is not None:
            memory = model.encode(source, lengths, self.embed, self.run_encoder_block)
        pos = torch.arange(tokens.shape[1], device=tokens.device)
        x = model.run_blocks(self.embed(tokens, pos), pos, None, self.run_block, memory, lengths)
        return self.loss(x, targets)


class CompiledDecoding:
    """`GPT.decode` with a cache, compiled. It never waits for the device.

    It reads all rows of the cache in every step, whatever the number of tokens in it, because shapes never
    change. So one graph serves all steps of one token. The caller counts the tokens: beyond the cache's
    length, an assertion on the device may fail. On a GPU, a step of one token is captured as a CUDA graph,
    once for each cache: hundreds of launches by the host become one.
    """

    def __init__(self, model: GPT, backend="inductor"):
        self.model, self.captured = model, None
        compiled = compiler(model, backend)
        self.embed, self.block = compiled(model.embed), compiled(Block.forward)
        self.logits = compiled(lambda x: model.logits(model.norm(x)))

    @torch.no_grad()
    def __call__(self, tokens, cache: Cache):
        """tokens: [B, T] int64 -> logits of what follows the last one, [B, vocab_size]; on a GPU and for
        T = 1 they are overwritten by the next step.
        """
        self.model.check_length(tokens.shape[1])
        if not tokens.is_cuda or tokens.shape[1] > 1:
            return self.run(tokens, cache)
        if self.captured is None or self.captured.cache is not cache:
            self.captured = None  # free its memory first
            self.captured = CapturedStep(self.run, tokens, cache)
        return self.captured(tokens)

    def run(self, tokens, cache: Cache):
        model, length = self.model, tokens.shape[1]
        pos = cache.filled + torch.arange(length, device=tokens.device)
        source = cache.source or (None, None)
        x = model.run_blocks(self.embed(tokens, pos), pos, cache.blocks, self.block, *source)
        cache.filled.add_(length)
        return self.logits(x[:, -1])


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


def compiler(
    model: LanguageModel, backend: str | Callable, mode: str = "default", shapes: int = 1
) -> Callable:
    """torch.compile for the parts of a model."""
    config = torch._dynamo.config
    # the code of a user's module may depend on its block's number: then each block has a graph of its own
    needed = 8 + len(model.stacks()) * shapes
    config.recompile_limit = max(config.recompile_limit, needed)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, needed)
    # gradients travel after each block anyway: splitting a block's graph at DDP's buckets gains nothing
    config.optimize_ddp = False
    how = {"mode": mode} if backend == "inductor" else {}
    return partial(torch.compile, fullgraph=True, dynamic=False, backend=backend, **how)


def compiled_for_training(
    model: LanguageModel, backend="inductor", mode: str = "default", shapes: int = 1
) -> nn.Module:
    """The model for training, compiled: by part where it has blocks, else as a whole."""
    if model.blocks:
        return CompiledTraining(model, backend, mode, shapes)
    return compiler(model, backend, mode, shapes)(model)


def for_training(
    model: LanguageModel, wanted: bool, device: torch.device, say: Callable, shapes: int = 1
) -> nn.Module:
    """The model for training: compiled if `wanted` and if the machine has what torch.compile needs.

    shapes: how many widths its batches may have.
    """
    if wanted and device.type == "cpu" and (missing := missing_for_compile()):
        say(f"torch.compile lacks {' and '.join(missing)}: training goes on without it, slower")
        return model
    if not wanted:
        return model
    of_shapes = f", and again for each of up to {shapes} widths of batches" if shapes > 1 else ""
    say(f"compiling at the first step{of_shapes}: that takes a minute or so")
    return compiled_for_training(model, shapes=shapes)


def missing_for_compile() -> list[str]:
    """What torch.compile lacks on a CPU. Builds an empty program, as a compiler may lack its assembler."""
    missing = []
    compiler = environ.get("CXX") or "g++"  # what PyTorch takes
    if shutil.which(compiler) is None:
        missing.append(f"a C++ compiler: there is no {compiler} (Debian: apt-get install g++)")
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [compiler, "-x", "c++", "-", "-o", str(Path(folder) / "program")]
            built = subprocess.run(command, input="int main() {}", capture_output=True, text=True)
        if built.returncode:
            said = (built.stderr.strip().splitlines() or [f"status {built.returncode}"])[0]
            missing.append(f"a C++ compiler that works: {compiler} says {said!r}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append("Python's headers (Debian: apt-get install python3-dev)")
    return missing
