"""Selects the code that computes an operator: plain PyTorch, or Triton kernels on a GPU."""

import functools
import os
import re
from importlib.util import find_spec

import torch

# of the custom operators. A process may hold copies of this code, in models that export.py wrote: they need
# namespaces of their own, because registering an operator again breaks the first one.
NAMESPACE = "cofrgenet" if __package__ == "kernels" else re.sub(r"\W", "_", __package__, flags=re.ASCII)
BACKENDS = ("auto", "torch", "triton")
INSTALLED = find_spec("triton") is not None
# Triton reads this variable when a kernel is defined, so it must be set before Python starts
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# decided once on import, so that torch.compile need not trace an import; a CPU build of PyTorch never
# imports Triton
AVAILABLE = INSTALLED and (INTERPRETED or torch.backends.cuda.is_built())


def why_not_triton(device_type: str | None = None) -> str:
    """Returns why Triton kernels cannot run on tensors of this device type, or "" if they can.

    The words continue "cf_backend=triton". device_type: None means the GPU if PyTorch sees one, else the
    CPU.
    """
    if not INSTALLED:
        return "needs the package triton (pip install triton, Linux only)"
    if INTERPRETED:
        return ""
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device_type != "cuda":
        return "needs a GPU; for tests without one, set TRITON_INTERPRET=1 in the environment (slow)"
    return "" if AVAILABLE else "needs a PyTorch that was built for GPUs"


def named(backend: str) -> str:
    """Returns the name of the backend, or raises ValueError if it is unknown."""
    if backend not in BACKENDS:
        raise ValueError(f"cf_backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    return backend


def on_its_device(launch):
    """Wraps a function that launches kernels: they run on the device of its first tensor. Triton itself
    takes the current device, and so would read the memory of another GPU.
    """

    @functools.wraps(launch)
    def guarded(*arguments, **keys):
        with torch.cuda.device_of(next(x for x in arguments if isinstance(x, torch.Tensor))):
            return launch(*arguments, **keys)

    return guarded


def use_triton(backend: str, *tensors: torch.Tensor) -> bool:
    """Whether to compute with Triton. "auto" does if all tensors are on a GPU and none is float64.

    Raises ValueError for an unknown backend, and for "triton" if it cannot run on these tensors.
    """
    named(backend)
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    if backend == "auto":
        return AVAILABLE and not wide and all(tensor.is_cuda for tensor in tensors)
    if backend == "triton":
        if reason := why_not_triton(tensors[0].device.type):
            raise ValueError(f"cf_backend=triton {reason}")
        if wide:
            raise ValueError(
                "cf_backend=triton computes in float32 and does not take float64: take cf_backend=torch"
            )
    return backend == "triton"
