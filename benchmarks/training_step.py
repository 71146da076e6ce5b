"""A training step, whole and in parts, of one model on one device.

whole      forward, backward, clipping, AdamW and zeroing of gradients, as in the training loop
blocks     the stack of blocks alone, forward and backward
attention  the blocks' token mixers with norms and residuals, forward and backward; measured on at most two
           layers, which compile fast, and scaled to all layers
ffn        the blocks' channel mixers, measured in the same way
embedding  token embedding and positional encoding, forward and backward
loss       last norm, head and cross-entropy, forward and backward
optimizer  clipping, AdamW and zeroing of gradients
"""

import dataclasses
from collections.abc import Callable

import torch

from models.architecture import ModelConfig
from models.compilation import compile_parts
from models.kinds import built
from models.language_model import LanguageModel
from training.cuda_graph import CapturedBackward
from training.hardware import autocast
from training.optimizer import adamw, norm_and_divisor

PARTS = ("embedding", "attention", "ffn", "loss", "optimizer")
SECTIONS = ("whole", "blocks", *PARTS)


@dataclasses.dataclass
class StepOptions:
    batch_size: int
    dtype: str
    compile: bool
    activation_checkpointing: bool = False
    gradient_accumulation_steps: int = 1
    cuda_graph: bool = False

    def sequences(self) -> int:
        """Those of a step."""
        return self.batch_size * self.gradient_accumulation_steps

    def missing(self, device: torch.device) -> list[str]:
        """What these options lack on a device."""
        wrong = []
        if self.cuda_graph and device.type == "cpu":
            wrong.append("cuda_graph needs a GPU")
        if self.cuda_graph and self.activation_checkpointing:
            wrong.append("cuda_graph does not work with activation_checkpointing")
        return wrong

    def prepare(self, model: LanguageModel):
        model.activation_checkpointing = self.activation_checkpointing
        if self.compile:
            compile_parts(model)


def build(config: ModelConfig, device: torch.device, seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    with torch.device("meta"):
        model = built(config)
    return model.to_empty(device=device).init_weights().train()


def batch(config: ModelConfig, batch_size: int, device: torch.device):
    """Random tokens and targets, the same for models with the same vocabulary: [B, T] int64 each."""
    drawn = torch.Generator().manual_seed(1)
    shape = (2, batch_size, config.block_size)
    return torch.randint(config.vocab_size, shape, generator=drawn).to(device).unbind()


def sections(config: ModelConfig, options: StepOptions, device: torch.device) -> dict[str, Callable]:
    """{section: function of one iteration}; a model without blocks has the whole step only"""
    model = build(config, device)
    options.prepare(model)
    optimizer = adamw(model, 1e-5, 0.1, (0.9, 0.95))
    tokens, targets = batch(config, options.batch_size, device)

    def update():
        _, divisor = norm_and_divisor(model, 1.0)
        optimizer.step(divisor=divisor)

    def backward(tokens, targets):
        with autocast(device, options.dtype):
            part = model(tokens, targets)
        (part / options.gradient_accumulation_steps).backward()
        return part.detach()

    capture = None

    def step():
        nonlocal capture
        if options.cuda_graph and capture is None:
            capture = CapturedBackward(model.parameters(), backward, (tokens, targets))
        for number in range(options.gradient_accumulation_steps):
            if capture is None:
                backward(tokens, targets)
            else:
                capture((tokens, targets), first=number == 0)
        update()
        optimizer.zero_grad(set_to_none=True)

    if not model.blocks:
        return {"whole": step}
    pos = torch.arange(config.block_size, device=device)
    position = model.position.at(pos)
    few = model.blocks[: few_layers(config)]

    def compiled(function):
        return torch.compile(function, fullgraph=True, dynamic=False) if options.compile else function

    @compiled
    def attention(x):
        for block in few:
            wanted = getattr(block.attention, "queries_and_keys", False)
            hooks = (position, pos, block.layer) if wanted else ()
            x = x + block.attention(block.norm1(x), *hooks)
        return x

    @compiled
    def ffn(x):
        for block in few:
            x = x + block.ffn(block.norm2(x))
        return x

    def blocks(x):
        return model.run_blocks(x, pos, tokens=tokens)

    def embed(tokens):
        return model.embed(tokens, pos)

    def loss(x):
        return model.loss(model.norm(x), targets)

    shape = (options.batch_size, config.block_size, config.n_embd)
    x = torch.randn(shape, device=device, requires_grad=True)
    upstream = torch.randn(shape, device=device)

    def forward_backward(function, given, gradient):
        # as in the first micro-batch of a step
        model.zero_grad(set_to_none=True)
        x.grad = None
        with autocast(device, options.dtype):
            out = function(given)
        out.backward(gradient)

    def update_alone():
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, 1e-4)
        update()

    return {
        "whole": step,
        "blocks": lambda: forward_backward(blocks, x, upstream),
        "attention": lambda: forward_backward(attention, x, upstream),
        "ffn": lambda: forward_backward(ffn, x, upstream),
        "embedding": lambda: forward_backward(embed, tokens, upstream),
        "loss": lambda: forward_backward(loss, x, None),
        "optimizer": update_alone,
    }


def in_a_step(config: ModelConfig, options: StepOptions, part: str) -> float:
    """The factor that scales the seconds of a part to all layers and micro-batches of a step."""
    if part in ("whole", "optimizer"):
        return 1.0
    layers = config.n_layer / few_layers(config) if part in ("attention", "ffn") else 1.0
    return layers * options.gradient_accumulation_steps


def few_layers(config: ModelConfig) -> int:
    """Two, or more where mixers by layer repeat after more."""
    return min(max(2, config.period), config.n_layer)


def shallow(config: ModelConfig) -> ModelConfig:
    """The model with few layers, and without dropout, whose masks would differ."""
    if config.model != "gpt":
        return config
    return dataclasses.replace(config, n_layer=few_layers(config), dropout=0.0)


# largest relative distance of loss and gradient from those of eager float32
GATE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}


def gate(config: ModelConfig, options: StepOptions, device: torch.device) -> dict[str, Callable]:
    """Compares the step, compiled and in the benchmark's dtype, with eager float32, for two layers.

    Width and length are the model's. So is the batch on a GPU, where compiling takes longer than computing:
    what is compiled here serves the timed step. Returns no sections. Raises ValueError if loss or gradient
    differ.
    """
    config = shallow(config)
    tokens, targets = batch(config, options.batch_size if device.type == "cuda" else 1, device)

    def gradients(dtype):
        model.zero_grad(set_to_none=True)
        with autocast(device, dtype):
            loss = model(tokens, targets)
        loss.backward()
        return [loss.detach(), flat_gradient(model)]

    model = build(config, device)
    exact = gradients("float32")
    options.prepare(model)
    compare(gradients(options.dtype), exact, options.dtype)
    if options.cuda_graph:
        compare(replayed(model, options, (tokens, targets)), exact, options.dtype)
    return {}


def replayed(model, options, batch):
    """(loss, gradient) of CUDA graphs captured with another batch: each of two replays adds a half."""
    device = batch[0].device

    def backward(tokens, targets):
        with autocast(device, options.dtype):
            loss = model(tokens, targets)
        (loss / 2).backward()
        return loss.detach()

    run = CapturedBackward(model.parameters(), backward, tuple(x.roll(1, -1) for x in batch))
    run(batch, True)
    loss = run(batch, False)
    return [loss, flat_gradient(model)]


def flat_gradient(model):
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.requires_grad])


def compare(found: list, exact: list, dtype: str):
    """Raises ValueError if loss or gradient differ."""
    for what, a, b in zip(("loss", "gradient"), found, exact, strict=True):
        # the clamp avoids a division by 0: with a vocabulary of one token the loss is 0
        distance = float((a - b).norm() / b.norm().clamp_min(1e-12))
        if not distance <= GATE[dtype]:
            raise ValueError(
                f"wrong {what}: {distance:.2g} away from that of float32 without the compiler "
                f"(relative; at most {GATE[dtype]} in {dtype})"
            )
