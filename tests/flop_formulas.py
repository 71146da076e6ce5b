"""FLOPs of the attention operators, which PyTorch's counter does not know."""

import functools

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

import kernels.shared_attention
import kernels.wide_attention  # noqa: F401
from kernels import backend as backends
from kernels.backend import NAMESPACE


def register_flop_formulas():
    """Registers the FLOPs of `shared_attention` and `wide_attention` with torch.utils.flop_counter.

    These are model FLOPs, 2 (R + P) T^2 per head; the causal mask is not subtracted.
    """
    operators = getattr(torch.ops, NAMESPACE)
    if operators.shared_attention in flop_registry:
        return

    def product(y_shape, v_shape, ranks=1):
        batch, heads, length, width = v_shape
        return 2 * batch * heads * length * length * (ranks * y_shape[-1] + width)

    def wide(y_shape, F_shape, v_shape, *_, **__):
        return product(y_shape, v_shape)

    def forward(y_shape, F_shape, v_shape, keys_shape, *_, **__):
        return product(y_shape, v_shape, 1 if keys_shape is None else 2)

    def triton(q_shape, k_shape, f_shape, v_shape, rank, *_, **__):
        return product((rank,), v_shape, (k_shape is not None) + (f_shape is not None))

    formulas = {"wide_attention": wide, "shared_attention": forward}
    if backends.AVAILABLE:
        formulas["shared_attention_triton"] = triton
    for name, formula in formulas.items():
        register_flop_formula(getattr(operators, name))(formula)
        backward = functools.partial(_twice, formula)
        register_flop_formula(getattr(operators, f"{name}_backward"))(backward)


def _twice(forward, *shapes, **_):
    return 2 * forward(*shapes)
