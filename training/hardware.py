"""The hardware of a run: device, precision, memory, compiler, peak FLOP rate and clock."""

import ctypes
import re
import sys
import time
from contextlib import contextmanager
from typing import Literal

import torch

from reports.plural import counted

# what the key `device` of train.py, sample.py and evaluate.py may be
Device = Literal["auto", "cpu", "cuda", "mps"]
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

# Peak rate of dense matrix products in TFLOP/s, from NVIDIA's data sheets: (bfloat16, float16, float32).
# None: the device has no units for this dtype. float32 is without TensorFloat-32, which PyTorch leaves off.
# The first name that is part of the device's name counts.
PEAK_TFLOPS = {
    "GB200": (2500, 2500, 80),
    "B200": (2250, 2250, 75),
    "GH200": (989, 989, 67),
    "H200 NVL": (836, 836, 60),
    "H200": (989, 989, 67),
    "H100 NVL": (836, 836, 60),
    "H100 PCIe": (756, 756, 51),
    "H100": (989, 989, 67),
    "A100": (312, 312, 19.5),
    "A40": (150, 150, 37.4),
    "A10": (125, 125, 31.2),
    "L40S": (362, 362, 91.6),
    "L4": (121, 121, 30.3),
    "V100-PCIE": (None, 112, 14),
    "V100": (None, 125, 15.7),
    "T4": (None, 65, 8.1),
    "RTX 4090": (165, 165, 82.6),
    "RTX 3090": (71, 71, 35.6),
}
OTHERS = r"\b(MIG|Laptop|Max-Q|Ti|D)\b"  # a part of a device, or another device with the same number


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Peak FLOP/s of one device for matrix products in `dtype`; None where it is not known."""
    if re.search(OTHERS, device_name):
        return None
    column = ("bfloat16", "float16", "float32").index(dtype)
    for name, peaks in PEAK_TFLOPS.items():
        if re.search(rf"\b{name}\b", device_name, re.IGNORECASE):
            return peaks[column] and peaks[column] * 1e12
    return None


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


class DeviceError(ValueError):
    """A device that cannot be used; says what to do."""


def missing_gpu(device: str) -> list[str]:
    """The mistake of asking for a GPU on a machine without one, for a config's `check`."""
    if device == "cuda" and not torch.cuda.is_available():
        return ["device=cuda, but PyTorch sees no GPU on this machine; use --device=cpu"]
    if device == "mps" and not torch.backends.mps.is_available():
        return ["device=mps, but PyTorch sees no GPU of Apple's on this machine; use --device=cpu"]
    return []


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """auto, cpu, cuda or mps -> the device of a rank. Raises DeviceError where the rank has no GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if wrong := missing_gpu(name):
        raise DeviceError(wrong[0])
    if name == "mps":
        return torch.device("mps")
    if local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"this machine has {counted(torch.cuda.device_count(), 'GPU')} and more ranks than that; start "
            f"torchrun with --nproc_per_node={torch.cuda.device_count()}"
        )
    return torch.device("cuda", local_rank)


def choose_dtype(name: str, device: torch.device) -> str:
    """auto -> bfloat16 where the hardware supports it: emulated, it is slower than float32."""
    if name != "auto":
        return name
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "mps":
        native = False  # untried
    else:
        # older releases of PyTorch lack this function
        abilities = getattr(torch.cpu, "get_capabilities", dict)()
        native = abilities.get("avx512_bf16") or abilities.get("amx_bf16")
    return "bfloat16" if native else "float32"


def autocast(device: torch.device, dtype: str, keep: bool = True):
    """Matrix products run in `dtype`; the weights stay float32.

    keep: keep the rounded weights to the end of the context, for weights that are read more than once.
    """
    enabled = dtype != "float32"
    return torch.autocast(device.type, getattr(torch, dtype), enabled=enabled, cache_enabled=keep)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # in glibc's malloc.h


def keep_freed_memory(device: torch.device):
    """Let this process keep freed memory. Does nothing on a GPU or without glibc.

    On a CPU, glibc returns large freed tensors to the system, which must clear their pages again in the
    next step: 215,000 pages and a fifth of a step's time at GPT-2 small's width and four layers.
    """
    mallopt = getattr(LIBC, "mallopt", None) if device.type == "cpu" else None
    if mallopt:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


@contextmanager
def flushed_denormals(device: torch.device, wanted: bool = True):
    """Within the context, take numbers below 1.2e-38 as 0 on a processor. Does nothing on a GPU.

    A processor is slow with them: a SAFFU whose softmaxes are sharp trained at a tenth of its speed. Enter
    it before the first tensor operation, because threads inherit it when they start.
    """
    wanted = wanted and device.type == "cpu"
    if wanted:
        torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if wanted:
            torch.set_flush_denormal(False)


def give_back_freed_memory():
    """Return freed memory to the system once, so that the process holds only what it uses."""
    trim = getattr(LIBC, "malloc_trim", None)
    if trim:
        trim(0)


def peak_memory(device: torch.device) -> dict[str, int]:
    """The most bytes that this process has held since it started, evaluations and checkpoints included.

    On a CUDA GPU those of tensors, and as `peak_memory_reserved` what PyTorch took from the card for them;
    elsewhere those of the whole process, and nothing on Windows.
    """
    if device.type == "cuda":
        return {
            "peak_memory": torch.cuda.max_memory_allocated(device),
            "peak_memory_reserved": torch.cuda.max_memory_reserved(device),
        }
    try:
        import resource
    except ImportError:
        return {}
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return {"peak_memory": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


@contextmanager
def repeatable(wanted: bool):
    """Forward and backward passes whose numbers are the same in each run, on a GPU too.

    There, fused attention adds up the gradients of queries in an order that changes from run to run, unless
    it is told not to. Raises RuntimeError for an operator that has no fixed order.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing reads it
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cuda.enable_cudnn_sdp(before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills


class Clock:
    """Seconds of training, without evaluations and checkpoints."""

    def __init__(self, device: torch.device, seconds: float = 0.0):
        self.device, self.before, self.since = device, seconds, time.perf_counter()

    def seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return self.before + time.perf_counter() - self.since

    @contextmanager
    def paused(self):
        seconds = self.seconds()
        start = time.perf_counter()
        yield seconds
        self.since += time.perf_counter() - start
