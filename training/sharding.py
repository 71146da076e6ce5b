"""Weights, gradients and optimizer state in parts, one for each rank, by PyTorch's FSDP2 (`fully_shard`).

`sharding=full` gives each rank of a run one part of every tensor, rows (dimension 0) in equal shares.
`sharding=hybrid` does so within groups of ranks that are near each other, such as the GPUs of one machine.
Each group then holds the whole model, and gradients are averaged over the groups.

A block's weights are gathered from all parts before the block computes, and dropped after it. Embedding,
positions, last norm and head are gathered for a whole forward and backward pass. Weights travel in float32
and autocast rounds them: bfloat16 would round the weights of ladders and ExPE's columns. Buffers, such as
the ranges of ladders, are whole on every rank.

Under autocast to bfloat16, autograd keeps the rounded weights of all blocks from the forward to the
backward pass: 2 bytes a parameter on every rank. With activation_checkpointing=True, of one block.

A tensor in parts is a DTensor. It is told from others by its method `full_tensor`, because runs without
sharding need not wait for the import of its class.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from training.distributed import Ranks, ranks_per_machine, world_size


def gpus(config) -> tuple[int, str]:
    """(the number of ranks of a run, or of GPUs of a plan; what sets it). config: a TrainConfig."""
    if config.dry_run and config.dry_run_gpus is not None:
        return config.dry_run_gpus, "dry_run_gpus"
    return world_size(), "WORLD_SIZE"


def mistakes(config) -> list[str]:
    """What is wrong with the keys of sharding, one sentence each. config: a TrainConfig."""
    kind, size, (world, source) = config.sharding, config.sharding_ranks, gpus(config)
    wrong = []
    if kind != "none" and config.dtype == "float16":
        wrong.append(
            f"sharding={kind} does not work with dtype=float16: its loss scale is lowered where a gradient "
            "overflows, and each rank sees a part of the gradients only. Take --dtype=bfloat16 or float32"
        )
    if size is not None and size < 2:
        return [*wrong, f"sharding_ranks must be at least 2, not {size}: one rank has nothing to share"]
    # the machines of a plan are not known
    if kind == "hybrid" and world > 1 and (size or source == "WORLD_SIZE"):
        size, origin = size or ranks_per_machine(), "sharding_ranks" if size else "LOCAL_WORLD_SIZE"
        if size < 2 or world % size:
            fitting = [str(n) for n in range(2, world + 1) if world % n == 0]
            whole = f"{world} {'GPUs' if config.dry_run else 'ranks'}"
            wrong.append(
                f"sharding=hybrid divides the {whole} into groups of {size} ({origin}): groups must "
                f"have the same size, at least 2; take --sharding_ranks={' or '.join(fitting)}"
            )
    return wrong


def summary(config, ranks: Ranks) -> str:
    """One line for the start of a run whose sharding is not none. config: a TrainConfig."""
    if ranks.world == 1:
        return f"sharding={config.sharding}, but there is one rank, which holds everything"
    size, shared = _group_size(config, ranks), "weights, gradients and optimizer state"
    if size == ranks.world:
        return f"sharding={config.sharding}: {size} ranks share {shared}"
    return f"sharding=hybrid: {ranks.world // size} groups of {size} ranks; those of a group share {shared}"


def _group_size(config, ranks: Ranks) -> int:
    hybrid = config.sharding == "hybrid"
    return (config.sharding_ranks or ranks_per_machine()) if hybrid else ranks.world


def mesh(config, ranks: Ranks, device: torch.device):
    """The DeviceMesh that `shard` takes: [ranks], or [groups, ranks of a group]. Collective."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    size = _group_size(config, ranks)
    if size == ranks.world:
        return init_device_mesh(device.type, (ranks.world,))
    places = torch.arange(ranks.world).view(-1, size)
    # made here and not by DeviceMesh, which knows nothing of the run's time limit
    groups = [
        dist.new_subgroups_by_enumeration(rows.tolist(), timeout=ranks.limit)[0]
        for rows in (places.T, places)
    ]
    return DeviceMesh.from_group(groups, device.type, mesh=places, mesh_dim_names=("groups", "ranks"))


def shard(model: nn.Module, mesh) -> nn.Module:
    """Give each rank its part of every parameter; each of `model.stacks()` is gathered as one.

    A model on the meta device takes no memory before `to_empty`, and then only that of the part. Raises
    ValueError, naming the parameter, where one has no dimension.
    """
    from torch.distributed.fsdp import fully_shard

    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ValueError(
                f"{name} has no dimension, so that ranks cannot share it: make it a vector of one, "
                "torch.empty(1), or train with --sharding=none"
            )
    for block in model.stacks():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "set_requires_all_reduce")


def in_parts(tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, gathered if it is in parts. Collective: all ranks must call it in the same order."""
    return tensor.full_tensor() if in_parts(tensor) else tensor


def part_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is whole on every rank, in parts where `like` is; without communication."""
    if not in_parts(like):
        return tensor
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements
    size, rank = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    rows = -(-len(tensor) // size)
    own = tensor[rows * rank : rows * (rank + 1)].to(like.device)
    return DTensor.from_local(own, mesh, placements, shape=like.shape, stride=like.stride())


@torch.no_grad()
def put(target: torch.Tensor, value: torch.Tensor):
    """Write a tensor that is whole on every rank into one that may be in parts; reads this rank's rows."""
    if in_parts(target):
        target, value = target.to_local(), part_of(value, target).to_local()
    target.copy_(value)


def load(model: nn.Module, weights: dict[str, torch.Tensor]):
    """Put whole tensors into the parameters and buffers of these names."""
    own = model.state_dict()
    for name, weight in weights.items():
        put(own[name], weight)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict):
    """state: of `optimizer.state_dict()`, with whole tensors. Raises ValueError where it does not fit."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = dict(zip(numbers, parameters, strict=False))  # PyTorch says below if there are more or fewer

    def placed(key, value, parameter):
        if key != "step" and value.numel() == parameter.numel():
            value = value.reshape(parameter.shape)  # a number may have been saved without a dimension
            value = part_of(value, parameter)
        return value.clone() if in_parts(parameter) else value  # the rest of a mapped file is not held

    parts = {
        number: {key: placed(key, value, own[number]) for key, value in values.items()}
        for number, values in state["state"].items()
        if number in own
    }
    optimizer.load_state_dict({**state, "state": parts})


def gathered(state, keep: bool):
    """A nested state with whole tensors on the CPU in place of those in parts; None where not `keep`.

    Collective. One tensor at a time is whole on a device.
    """
    if isinstance(state, dict):
        return {key: gathered(value, keep) for key, value in state.items()}
    if isinstance(state, list):
        return [gathered(value, keep) for value in state]
    if not in_parts(state):
        return state
    tensor = state.full_tensor()
    if not keep:
        return None
    # rows that do not divide by the ranks are a view of longer memory, which would be saved with them
    longer = tensor.untyped_storage().nbytes() > tensor.nbytes
    return tensor.clone() if longer and not tensor.is_cuda else tensor.cpu()


@contextlib.contextmanager
def held_whole(module: nn.Module) -> Iterator[None]:
    """The parameters of a module are whole in this context; their values go into the parts. Collective."""
    parts = [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner.named_parameters(recurse=False)
        if in_parts(parameter)
    ]
    tensors = {id(parameter): parameter for _, _, parameter in parts}
    tensors = {
        key: nn.Parameter(parameter.detach().full_tensor(), parameter.requires_grad)
        for key, parameter in tensors.items()
    }
    for owner, name, parameter in parts:
        owner._parameters[name] = tensors[id(parameter)]
    try:
        yield
    finally:
        for owner, name, parameter in parts:
            put(parameter, tensors[id(parameter)].detach())
            owner._parameters[name] = parameter
