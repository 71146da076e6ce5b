"""What a run stands on: the device, its precision, the compiler, its peak FLOP rate, and the clock."""

import re
import shutil
import sysconfig
import time
from contextlib import contextmanager
from os import environ
from pathlib import Path

import torch

# Dense peak of matrix products in TFLOP/s from NVIDIA's data sheets: (bfloat16, float16, float32), None
# where the device has no units for it. float32 is without TensorFloat-32, which PyTorch leaves off.
# The first pattern that is found in the device's name counts.
PEAK_TFLOPS = {
    r"\bGB?200\b|\bB200\b": (2250, 2250, 75),
    r"\bGH200\b": (989, 989, 67),
    r"\bH200 NVL\b": (836, 836, 60),
    r"\bH200\b": (989, 989, 67),
    r"\bH100 NVL\b": (836, 836, 60),
    r"\bH100 PCIe\b": (756, 756, 51),
    r"\bH100\b": (989, 989, 67),
    r"\bA100\b": (312, 312, 19.5),
    r"\bA40\b": (150, 150, 37.4),
    r"\bA10\b": (125, 125, 31.2),
    r"\bL40S\b": (362, 362, 91.6),
    r"\bL4\b": (121, 121, 30.3),
    r"\bV100\b": (None, 125, 15.7),
    r"\bT4\b": (None, 65, 8.1),
    r"\bRTX 4090\b": (165, 165, 82.6),
    r"\bRTX 3090\b": (71, 71, 35.6),
}


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Peak FLOP/s of one device for matrix products in `dtype`; None where it is not known."""
    column = ("bfloat16", "float16", "float32").index(dtype)
    for pattern, peaks in PEAK_TFLOPS.items():
        if re.search(pattern, device_name, re.IGNORECASE):
            return peaks[column] and peaks[column] * 1e12
    return None


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


class DeviceError(ValueError):
    """A device that cannot be had; says what to do."""


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """auto, cpu or cuda -> the device of a rank. Raises DeviceError for a rank without a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"this machine has {torch.cuda.device_count()} GPUs and more ranks than that; start torchrun "
            f"with --nproc_per_node={torch.cuda.device_count()}"
        )
    return torch.device("cuda", local_rank)


def choose_dtype(name: str, device: torch.device) -> str:
    """auto -> bfloat16 where the device has it natively: emulated, it only costs time."""
    if name != "auto":
        return name
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # older releases of PyTorch do not say
        abilities = getattr(torch.cpu, "get_capabilities", dict)()
        native = abilities.get("avx512_bf16") or abilities.get("amx_bf16")
    return "bfloat16" if native else "float32"


def autocast(device: torch.device, dtype: str):
    """Matrix products in `dtype`, the weights stay float32."""
    return torch.autocast(device.type, getattr(torch, dtype), enabled=dtype != "float32")


def missing_for_compile() -> list[str]:
    """What torch.compile lacks on a CPU."""
    missing = []
    if not any(map(shutil.which, filter(None, (environ.get("CXX"), "g++", "clang++")))):
        missing.append("a C++ compiler (Debian: apt-get install g++)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append("Python's headers (Debian: apt-get install python3-dev)")
    return missing


def compiled(model, wanted: bool, device: torch.device, say):
    """The model for training: compiled where that is wanted and can be had."""
    if wanted and device.type == "cpu" and (missing := missing_for_compile()):
        say(f"torch.compile lacks {' and '.join(missing)}: training goes on without it, slower")
        return model
    if not wanted:
        return model
    say("compiling at the first step: that takes a minute or so")
    return torch.compile(model, fullgraph=True, dynamic=False)


class Clock:
    """Seconds spent in training, evaluations and checkpoints left out."""

    def __init__(self, device: torch.device, seconds: float = 0.0):
        self.device, self.before, self.since = device, seconds, time.perf_counter()

    def seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.before + time.perf_counter() - self.since

    @contextmanager
    def paused(self):
        seconds = self.seconds()
        start = time.perf_counter()
        yield seconds
        self.since += time.perf_counter() - start
