"""What may raise the share of its peak at which a device trains: keys of bench.py until measured."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from model import GPT

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def sdpa(name: str):
    """A context in which `scaled_dot_product_attention` runs in one backend only; auto: PyTorch chooses.

    What the backend cannot compute raises RuntimeError.
    """
    return nullcontext() if name == "auto" else sdpa_kernel(SDPA[name])


class CastOnce:
    """Calls a module with half-precision copies of the linear maps of a model's blocks.

    Autocast rounds these weights in every micro-batch. Here `cast` rounds them, once a step, and their
    gradients go to the float32 weights after each micro-batch. Results are equal to the bit. It costs two
    bytes for each of these weights.
    """

    def __init__(self, model: GPT, dtype: torch.dtype):
        exact = model.position.exact_columns  # these columns of queries and keys are not rounded
        held = {
            f"blocks.{name}.weight": module.weight
            for name, module in model.blocks.named_modules()
            if type(module) is nn.Linear and not (exact and name.endswith("attention.qkv"))
        }
        self.model = model
        self.weights = held
        self.copies = {name: weight.detach().to(dtype) for name, weight in held.items()}
        for name, copy in self.copies.items():
            copy.requires_grad_().register_post_accumulate_grad_hook(hand_over(held[name]))

    @torch.no_grad()
    def cast(self):
        for name, copy in self.copies.items():
            copy.copy_(self.weights[name])

    def __call__(self, module: nn.Module, *given):
        """module: the model, or a module with the attribute `model`."""
        prefix = "" if module is self.model else "model."
        copies = {prefix + name: copy for name, copy in self.copies.items()}
        return functional_call(module, copies, given, tie_weights=False)


def hand_over(weight: nn.Parameter) -> Callable:
    """A hook that adds the gradient of a copy to that of the weight."""

    def hook(copy):
        if weight.grad is None:
            weight.grad = copy.grad.to(weight.dtype)
        else:
            weight.grad.add_(copy.grad)
        copy.grad = None

    return hook
