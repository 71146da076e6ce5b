"""AdamW with decay groups."""

import torch


def adamw(model, learning_rate: float, weight_decay: float, betas: tuple[float, float]):
    """AdamW that decays matrices and embeddings, but no biases, norms or ladder weights.

    Decay pulls the partial denominators of a ladder towards 0, which is a pole at every odd depth.
    The ladder weights of each depth i are a parameter group of their own with `group["depth"] = i`,
    because a schedule may treat the depths differently; the other groups have depth 0.
    """
    ladders: dict[int, list] = {}
    for module in model.modules():
        if hasattr(module, "depth_parameters"):
            for depth, parameters in enumerate(module.depth_parameters(), 1):
                ladders.setdefault(depth, []).extend(parameters)
    of_ladders = {id(parameter) for parameters in ladders.values() for parameter in parameters}
    others = [parameter for parameter in model.parameters() if id(parameter) not in of_ladders]
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": weight_decay, "depth": 0},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0, "depth": 0},
    ]
    groups += [{"params": p, "weight_decay": 0.0, "depth": depth} for depth, p in sorted(ladders.items())]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)
