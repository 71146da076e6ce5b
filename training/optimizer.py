"""AdamW with decay groups."""

import torch


def adamw(
    model,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    decay_ladders: bool = False,
):
    """AdamW that decays matrices and embeddings, but no biases, norms or ladder weights.

    Decay pulls the partial denominators of a ladder towards 0, which is a pole at every odd depth;
    `decay_ladders` decays their matrices all the same, as a recipe that knows nothing of ladders does.
    A module names in `undecayed` what is no matrix though it lies in one.
    The ladder weights of each depth i are parameter groups of their own with `group["depth"] = i`,
    because a schedule may treat the depths differently; the other groups have depth 0.
    """
    ladders: dict[int, list] = {}
    undecayed: set[int] = set()
    for module in model.modules():
        undecayed |= {id(getattr(module, name)) for name in getattr(module, "undecayed", ())}
        if hasattr(module, "depth_parameters"):
            undecayed |= {id(bias) for bias in module.b}
            for depth, parameters in enumerate(module.depth_parameters(), 1):
                ladders.setdefault(depth, []).extend(parameters)
    undecayed |= {id(parameter) for parameter in model.parameters() if parameter.dim() < 2}
    of_ladders = {id(parameter) for parameters in ladders.values() for parameter in parameters}
    others = [parameter for parameter in model.parameters() if id(parameter) not in of_ladders]
    groups = [
        {"params": [p for p in others if id(p) not in undecayed], "weight_decay": weight_decay, "depth": 0},
        {"params": [p for p in others if id(p) in undecayed], "weight_decay": 0.0, "depth": 0},
    ]
    for depth, parameters in sorted(ladders.items()):
        matrices = [p for p in parameters if id(p) not in undecayed]
        biases = [p for p in parameters if id(p) in undecayed]
        decay = weight_decay if decay_ladders else 0.0
        groups.append({"params": matrices, "weight_decay": decay, "depth": depth})
        groups.append({"params": biases, "weight_decay": 0.0, "depth": depth})
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)
