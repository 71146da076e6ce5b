"""AdamW with decay groups."""

import torch

from layers.ladder import LadderEnsemble


def adamw(model, learning_rate: float, weight_decay: float, betas: tuple[float, float]):
    """AdamW that decays matrices and embeddings, but no biases, norms or ladder weights.

    Decay pulls the partial denominators of a ladder towards 0, which is a pole at every odd depth.
    """
    ladders = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, LadderEnsemble)
        for depth in module.depth_parameters()
        for parameter in depth
    }
    decayed, kept = [], []
    for parameter in model.parameters():
        (decayed if parameter.dim() >= 2 and id(parameter) not in ladders else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)
