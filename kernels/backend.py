"""Which code computes an operator: plain PyTorch, or the Triton kernels on a GPU."""

import os
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "torch", "triton")
INSTALLED = find_spec("triton") is not None
# Triton reads it where a kernel is defined: set it before Python starts
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# decided on import, because torch.compile should not have to trace one; on a CPU build of PyTorch Triton
# stays away
AVAILABLE = INSTALLED and (INTERPRETED or torch.backends.cuda.is_built())


def why_not_triton(device_type: str | None = None) -> str:
    """Why Triton kernels cannot run on tensors of this type of device (None: on any that PyTorch sees
    here), in words that follow "cf_backend=triton"; empty where they can.
    """
    if not INSTALLED:
        return "needs the package triton (pip install -r requirements.txt, Linux only)"
    if INTERPRETED:
        return ""
    if device_type is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device_type != "cuda":
        return "needs a GPU; without one, TRITON_INTERPRET=1 in the environment runs it slowly, for tests"
    return "" if AVAILABLE else "needs a PyTorch that was built for GPUs"


def named(backend: str) -> str:
    """The same. Raises ValueError where there is none of that name."""
    if backend not in BACKENDS:
        raise ValueError(f"cf_backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    return backend


def use_triton(backend: str, *tensors: torch.Tensor) -> bool:
    """auto: on a GPU, unless a tensor is float64. Raises ValueError for an unknown backend, and for
    "triton" where it cannot run.
    """
    named(backend)
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    if backend == "auto":
        return AVAILABLE and not wide and all(tensor.is_cuda for tensor in tensors)
    if backend == "triton":
        if reason := why_not_triton(tensors[0].device.type):
            raise ValueError(f"cf_backend=triton {reason}")
        if wide:
            raise ValueError("cf_backend=triton computes in float32: it does not take float64")
    return backend == "triton"
