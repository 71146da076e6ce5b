"""What autocast does to matrix products. It knows no meta device, on which FLOPs are counted."""

import contextlib

import torch


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a matrix product with x: autocast's where it is on, else that of x."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def without_autocast(x: torch.Tensor) -> contextlib.AbstractContextManager:
    """A context in which matrix products on x's device stay in the dtype of their operands."""
    if torch.amp.is_autocast_available(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()
