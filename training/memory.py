"""Bytes on one GPU at the fullest moment of a step, without allocating any of them.

What a rank holds and gathers has a closed form. Activations are counted by running the model, or one of a
few of its equal blocks, on tensors without storage.
"""

import dataclasses

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from tqdm import tqdm

from kernels.linear_cross_entropy import CHUNK_BYTES
from models.architecture import ModelConfig
from models.kinds import built
from models.language_model import LanguageModel
from training.hardware import autocast
from training.optimizer import hidden_matrices

GIB = 2**30
# GiB that CUDA reports of a card, and the share of it that tensors may take: the rest is for CUDA itself,
# NCCL's buffers, and the gaps that the allocator leaves
CARDS = {"H100 80 GB": 79.1, "A100 40 GB": 39.4}
USABLE = 0.9
FEW = 3  # the last, an inner and the first block


def held(model: LanguageModel, optimizer: str, shards: int = 1) -> dict[str, int]:
    """Bytes of a rank by kind, all of float32: weights, gradients, AdamW's two moments and Muon's one.

    shards: ranks among which each tensor is cut along its first dimension. A piece is rounded up to whole
    rows. Then "gathered" is what the rank holds for a while of the other ranks' pieces. Each block is
    gathered by itself. The rest of the model (embedding, head, norm, positions) stays gathered from the
    forward to the end of the backward pass. The backward pass holds most: weights and gradients of the
    rest, weights of a block and the next one, gradients of a block, and those that the block before it is
    still sending away.
    """
    muons = {id(matrix) for matrix in hidden_matrices(model)} if optimizer == "muon" else set()
    weights = sum(_piece(parameter, shards) for parameter in model.parameters())
    trained = sum(_piece(parameter, shards) for parameter in model.parameters() if parameter.requires_grad)
    single = sum(_piece(parameter, shards) for parameter in model.parameters() if id(parameter) in muons)
    found = {"weights": weights, "gradients": trained, "optimizer": 2 * trained - single}
    if shards > 1:
        blocks = [sum(_piece(p, shards) for p in block.parameters()) for block in model.stacks()]
        found["gathered"] = shards * (2 * (weights - sum(blocks)) + 4 * max(blocks, default=0))
    return found


def _piece(parameter: torch.Tensor, shards: int) -> int:
    rows = parameter.shape[0] if parameter.dim() else 1
    return 4 * -(-rows // shards) * (parameter.numel() // rows)


def fewest(
    model: LanguageModel, optimizer: str, activations: int, numbers: list[int], usable: float
) -> int | None:
    """The first of these numbers of GPUs on which sharding=full takes at most `usable` bytes; or None."""
    for number in numbers:
        if sum(held(model, optimizer, number).values()) + activations <= usable:
            return number
    return None


def activations(
    config: ModelConfig, batch_size: int, dtype: str, checkpointing: bool, keep: bool = True
) -> int:
    """Everything but weights, gradients and moments that is alive at the fullest moment of a forward and
    backward pass over batch_size sequences, in eager PyTorch; torch.compile needs less. keep: as in
    `autocast`, which keeps rounded weights without sharding.

    Counted with all layers, or with FEW and FEW + 1 if that gives the same number: see `_peaks`.
    """
    with torch.device("meta"):
        model = built(config)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    if len(model.blocks) <= FEW + 1 or config.encoder_layers or not _equal(model.blocks):
        return buffers + _peaks(config, batch_size, dtype, checkpointing, keep)[-1]
    fewer, more = (
        _peaks(dataclasses.replace(config, n_layer=n_layer), batch_size, dtype, checkpointing, keep)
        for n_layer in (FEW, FEW + 1)
    )
    added = config.n_layer - FEW - 1
    return buffers + max(
        more[-1], *(m + added * (m - f) for f, m in zip(fewer[:-1], more[:-1], strict=True))
    )


def _peaks(config, batch_size, dtype, checkpointing, keep=True) -> tuple[int, int, int]:
    """Bytes of activations, without the model's buffers, at the fullest moment up to the end of the forward
    pass, up to the backward pass of the second block, and of all.

    With equal blocks, of which the last, an inner and the first are there, each of the first two grows by
    the same amount with every further block: the fullest moment of the forward pass has all blocks behind
    it, and the one of the backward pass all blocks, or all but one, before it. (The second is the first
    where the forward pass is fuller. It remains so with more blocks, because what the backward pass needs
    is there at the end of the forward pass.) What follows does not depend on the number of blocks.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):  # a constructor may compute with numbers
        model = built(config)
        model.activation_checkpointing = checkpointing
        model.loss_bytes = CHUNK_BYTES["cuda"]  # the plan is for GPUs, though nothing is on one here
        _frozen_as_buffers(model)
        held = sum(buffer.nbytes for buffer in model.buffers())
        for parameter in model.parameters():
            # as in the later micro-batches of a step
            parameter.grad = torch.zeros_like(parameter)
            held += 8 * parameter.numel()
        tokens = torch.zeros(batch_size, config.block_size, dtype=torch.int64)
        lengths = torch.full((batch_size,), config.block_size)
        source = (tokens, lengths) if config.encoder_layers else ()
        tracker = MemTracker()
        tracker.track_external(model, *(p.grad for p in model.parameters()))
        keys = {"unit": "block", "leave": False, "mininterval": 0.5, "delay": 2}
        bar = tqdm(desc="counting memory", total=len(model.blocks), **keys)

        def peak():
            return int(tracker.get_tracker_snapshot("peak")[tokens.device]["Total"]) - held

        def tick(block, *unused):
            bar.update()
            if block.layer == 1:
                peaks.append(peak())

        peaks = []
        for block in model.blocks:
            block.register_full_backward_hook(tick)
        with bar, tracker:
            with autocast(tokens.device, dtype, keep=keep):
                loss = model(tokens, tokens, *source)
            peaks.append(peak())
            loss.backward()
        peaks.append(peak())
    return peaks[0], peaks[1], peaks[-1]


def _frozen_as_buffers(model: LanguageModel):
    """Makes what is not trained a buffer: the tracker hangs hooks on the gradient of every parameter."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.detach())


def _equal(blocks) -> bool:
    """Whether all blocks consist of the same modules with tensors of the same shapes."""
    return all(_structure(block) == _structure(blocks[0]) for block in blocks)


def _structure(block) -> list:
    """Names, classes, numbers and texts of a block's modules, but for its place in the model."""
    found = []
    for name, module in block.named_modules():
        values = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str)}
        if module is block:
            del values["layer"]
        found.append((name, type(module), values))
    tensors = (*block.named_parameters(), *block.named_buffers())
    return [*found, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors)]
