"""The dtype of matrix products under autocast.

FLOPs are counted on the meta device, which autocast does not support.
"""

import contextlib

import torch

# asked once: the compiler of PyTorch 2.11 cannot trace the question
KINDS = [kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind)]


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a matrix product with x: the dtype of autocast if it is enabled, else the dtype of x."""
    kind = x.device.type
    if kind in KINDS and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def without_autocast(x: torch.Tensor) -> contextlib.AbstractContextManager:
    """A context without autocast: matrix products on x's device keep the dtype of their operands."""
    if x.device.type in KINDS:
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()
