"""AdamW with decay groups, and Muon for the matrices of the blocks where that is asked for."""

import math

import torch
from torch import nn

from layers.ladder import Ladders
from layers.protocol import Mixer
from training.sharding import part_of, whole

MOMENTUM = 0.95
# of x -> a x + b x^3 + c x^5, which five times over brings singular values from (0, 1] to around 1
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5


def adamw(
    model,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    decay_ladders: bool = False,
) -> "Optimizer":
    """AdamW that decays matrices and embeddings, but no biases, norms or ladder weights.

    Decay pulls the partial denominators of a ladder towards 0, which is a pole at every odd depth;
    `decay_ladders` decays their matrices all the same, as a recipe that knows nothing of ladders does.
    A mixer names in `undecayed` what is no matrix though it lies in one.
    The ladder weights of each depth i are parameter groups of their own with `group["depth"] = i`,
    because a schedule may treat the depths differently; the other groups have depth 0.
    """
    return Optimizer(_groups(model, weight_decay, decay_ladders, []), learning_rate, betas)


def muon(
    model,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    decay_ladders: bool = False,
    dtype: torch.dtype = torch.float32,
) -> "Optimizer":
    """As `adamw`, with Muon for `hidden_matrices`: they are the one group whose `group["muon"]` is true.

    dtype: of the matrix products that orthogonalise.
    """
    groups = _groups(model, weight_decay, decay_ladders, hidden_matrices(model))
    return Optimizer(groups, learning_rate, betas, dtype)


def hidden_matrices(model) -> list[nn.Parameter]:
    """The weights of the blocks' linear maps.

    Muon makes the singular values of an update equal, which means something only where a matrix maps
    one hidden vector to another. All else stays with AdamW: the embedding, the head and positions,
    whose rows are updated each on its own; ladder weights W_k and b_k, in which a row is one ladder and
    depths wake at different times; CAttnM's columns and the Synthesizer's W_1 and W_2, stacks indexed by
    head and position; CAttnU's M, two packed triangles; and vectors.
    """
    modules = (module for block in model.stacks() for module in block.modules())
    return [module.weight for module in modules if isinstance(module, nn.Linear)]


def _groups(model, weight_decay, decay_ladders, matrices) -> list[dict]:
    ladders: dict[int, list] = {}
    undecayed: set[int] = set()
    for module in model.modules():
        if isinstance(module, Mixer):
            undecayed |= {id(parameter) for parameter in module.undecayed()}
        if isinstance(module, Ladders):
            undecayed |= {id(bias) for bias in module.b}
            for depth, parameters in enumerate(module.depth_parameters(), 1):
                ladders.setdefault(depth, []).extend(parameters)
    undecayed |= {id(parameter) for parameter in model.parameters() if parameter.dim() < 2}
    elsewhere = {id(parameter) for parameters in (matrices, *ladders.values()) for parameter in parameters}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    others = [parameter for parameter in trained if id(parameter) not in elsewhere]
    groups = [
        {"params": [p for p in others if id(p) not in undecayed], "weight_decay": weight_decay, "depth": 0},
        {"params": [p for p in others if id(p) in undecayed], "weight_decay": 0.0, "depth": 0},
    ]
    for depth, parameters in sorted(ladders.items()):
        decayed = [p for p in parameters if id(p) not in undecayed]
        biases = [p for p in parameters if id(p) in undecayed]
        decay = weight_decay if decay_ladders else 0.0
        groups.append({"params": decayed, "weight_decay": decay, "depth": depth})
        groups.append({"params": biases, "weight_decay": 0.0, "depth": depth})
    if matrices:
        groups.append({"params": matrices, "weight_decay": weight_decay, "depth": 0, "muon": True})
    return groups


def norm_and_divisor(model, largest: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """-> the norm of all gradients, and the `divisor` of a step that makes it at most `largest` (0: None).

    Both are scalars on the device. Collective if the model is in parts.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    return norm, ((norm + 1e-6) / largest).clamp(min=1.0) if largest else None


class Optimizer(torch.optim.AdamW):
    """Fused AdamW; for groups with `group["muon"]` Muon (Jordan et al. 2024), whose state is one momentum.

        B <- m B + (1 - m) G,    W <- (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) N((1 - m) G + m B)

    N makes the singular values of a matrix about 1; the factor gives its entries the size that updates of
    AdamW have, so that learning rate and decay mean the same for both (Liu et al. 2025). It is
    torch.optim.Muon with adjust_lr_fn="match_rms_adamw", which cannot leave out a step on the device.
    """

    def __init__(self, groups, learning_rate, betas, muon_dtype=torch.float32):
        groups = [{"muon": False, **group} for group in groups]
        super().__init__(groups, lr=learning_rate, betas=betas, fused=True)
        self.muon_dtype = muon_dtype

    def __setstate__(self, state):
        # not Adam's, which looks for a count of steps in the state of every tensor
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, skip: torch.Tensor | None = None, divisor: torch.Tensor | None = None):
        """skip: float32 scalar on the device. Where it is 1, weights and moments stay as they are, to the
        bit; the host does not wait to know. divisor: float32 scalar on the device, by which all gradients
        are divided first, inside AdamW's kernel. Gradients of Muon's matrices are gone afterwards.
        """
        overflowed = getattr(self, "found_inf", None)  # a GradScaler put it there, and takes it away
        found = [flag for flag in (overflowed, skip) if flag is not None]
        still = None
        if found:
            self.found_inf = torch.stack(found).amax()  # where this is 1, AdamW's kernel does nothing
            still = self.found_inf == 1
        for group in self.param_groups:
            for parameter in group["params"] if group["muon"] else ():
                if parameter.grad is not None:
                    if divisor is not None:
                        parameter.grad.div_(divisor)
                    self._step_muon(parameter, group, still)
                    parameter.grad = None  # AdamW passes over what has none
        self.grad_scale = divisor
        super().step()
        if overflowed is None:
            self.found_inf = self.grad_scale = None

    def _step_muon(self, parameter, group, still):
        gradient, state = parameter.grad, self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].lerp(gradient, 1 - MOMENTUM)
        # gathered once: products of matrices in parts would communicate one by one
        direction = whole(gradient.lerp(momentum, MOMENTUM))
        update = part_of(orthogonalised(direction, self.muon_dtype), parameter)
        rate = group["lr"] * 0.2 * math.sqrt(max(parameter.shape))
        weight = parameter * (1 - group["lr"] * group["weight_decay"])
        weight.add_(update, alpha=-rate)
        for old, new in ((parameter, weight), (state["momentum"], momentum)):
            old.copy_(new if still is None else torch.where(still, old, new))


def orthogonalised(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """U f(S) V^T of a matrix U S V^T, with f(S) around 1 (0.7 to 1.2) but for the smallest singular values.

    A quintic Newton-Schulz iteration: [m, n] -> [m, n] in `dtype`.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(dtype)
    x = x.T if tall else x  # the smaller of the two Gram matrices
    x = x / x.norm().clamp(min=1e-7)  # no singular value is above 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
