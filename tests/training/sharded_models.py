"""Every model of the registries, sharded and whole, in the ranks of forked_ranks.py.

Fails where a sharded model is drawn or trains otherwise, or where a rank holds more than its part and
one group while the model is built.
"""

import torch

from layers import ATTENTION, FFN
from tests.training.held_bytes import HeldBytes
from train import build_model, build_optimizer
from training import sharding
from training.config import TrainConfig
from training.distributed import Ranks
from training.health import diagnose
from training.optimizer import norm_and_divisor

SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 17, "vocab_size": 100, "dtype": "float32"}
SIZES |= {"cf_ladders": 3, "cf_depth": 3, "bigbird_block": 2, "bigbird_random": 1, "learning_rate": 1e-2}
SIZES |= {"device": "cpu", "gradient_accumulation_steps": 2}
MODELS = [
    *({"attention": name, "ffn": "swiglu"} for name in ATTENTION),
    *({"attention": "cattn_m", "ffn": name, "optimizer": "muon"} for name in FFN),
    {"attention": "cattn_u", "ffn": "cffn_added", "cf_control": "constant"},
    {"position": "expe", "expe_learned": "random", "n_kv_head": 1, "bias": True},
    {"position": "exqpe", "expe_learned": "standard", "activation_checkpointing": True},
    {"position": "rope", "norm": "rmsnorm", "tie_embeddings": False, "optimizer": "muon"},
    {"position": "sinusoidal", "ffn": "cffn_gated", "cf_eval_clip": True, "activation_checkpointing": True},
    {"attention": "cattn_relative", "cattn_content": True, "token_shift": True, "position": "none"},
]


def held(model, ranks) -> tuple[int, int]:
    """(bytes of this rank's part of the parameters, rows padded; bytes of the largest group), float32"""
    sizes = {name: parameter.shape for name, parameter in model.named_parameters()}
    rows = {name: -(-shape[0] // ranks.world) for name, shape in sizes.items()}
    part = sum(4 * rows[name] * shape[1:].numel() for name, shape in sizes.items())
    groups = {}
    for name, shape in sizes.items():
        group = name.split(".")[1] if name.startswith("blocks.") else "root"
        groups[group] = groups.get(group, 0) + 4 * shape.numel()
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    return part + buffers, max(groups.values())


def one_step(model, optimizer, batches) -> torch.Tensor:
    """The mean loss; leaves gradients and updates the weights."""
    loss = sum(model(*batch) for batch in batches) / len(batches)
    loss.backward()
    norm, divisor = norm_and_divisor(model, 0.5)
    optimizer.step(torch.zeros(()), divisor)
    return torch.stack([loss.detach(), norm])


def built(config, ranks):
    torch.manual_seed(1)
    model = build_model(config, torch.device("cpu"), ranks)
    return model, build_optimizer(config, model)


def check(keys, ranks):
    alone = Ranks()
    alone.world = 1
    plain, plain_optimizer = built(TrainConfig(**SIZES, **keys), alone)
    config = TrainConfig(**SIZES, **keys, sharding="full")
    part, group = held(plain, ranks)
    with HeldBytes(part + group) as counted:
        model, optimizer = built(config, ranks)
    assert counted.peak <= part + group, (counted.peak, part, group)
    few = 100  # bytes of the mesh
    assert part <= counted.held(part + few) <= part + few, (counted.held(part + few), part)
    for (name, parameter), drawn in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(sharding.whole(parameter.detach()), drawn), name
    for (name, buffer), drawn in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(buffer, drawn), name
    batches = torch.randint(100, (2, 2, 3, 17), generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        expected = one_step(plain, plain_optimizer, batches)
        found = one_step(model, optimizer, batches[ranks.rank : ranks.rank + 1])
        found[0] = ranks.sum(found[0].clone()) / ranks.world
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=0)
        for optimizer_ in (optimizer, plain_optimizer):
            optimizer_.zero_grad()
    for (name, parameter), stepped in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            sharding.whole(parameter.detach()), stepped.detach(), rtol=1e-3, atol=1e-4, msg=name
        )


class Overflow(torch.autograd.Function):
    """The identity, whose gradient is not finite."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.inf


def check_gradients(ranks):
    """A gradient that is not finite on the last rank is told of there alone, and before it is averaged."""
    model, _ = built(TrainConfig(**SIZES, sharding="full"), ranks)
    batches = [tuple(torch.zeros(2, 2, 17, dtype=torch.int64))]
    assert diagnose(model, batches, "float32", 0) == []
    if last := ranks.rank == ranks.world - 1:
        model.blocks[1].register_forward_hook(lambda module, inputs, output: Overflow.apply(output))
    found = diagnose(model, batches, "float32", 0)
    said = "every output finite, gradients not finite of blocks.1.ffn.down.weight"
    assert [said in text for _, text in found] == [True] * last, found


def check_all():
    torch.set_num_threads(1)
    ranks = Ranks()
    with ranks.joined(torch.device("cpu"), 60):
        for keys in MODELS:
            try:
                check(keys, ranks)
            except Exception as error:
                raise AssertionError(f"rank {ranks.rank}, {keys}: {error}") from error
        check_gradients(ranks)
    ranks.say("all models")
