"""Where a number was measured: device, versions and commit."""

import functools
import platform
import subprocess
from pathlib import Path

import torch

from reports.plural import counted
from training.hardware import device_name

ROOT = Path(__file__).resolve().parents[1]


def environment(device: torch.device) -> dict:
    """Device, versions of Python and PyTorch, and commit: a published number needs all of them."""
    if device.type == "cuda":
        name = f"{device_name(device)}, CUDA {torch.version.cuda}"
    else:
        name = f"{_cpu()}, {counted(torch.get_num_threads(), 'thread')}"
    return {
        "device": name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]
    return " ".join([names[0] if names else platform.processor() or "CPU", *units])


@functools.cache
def commit() -> str:
    """The commit of the code, and whether it was changed since."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        found, changed = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", "-uno")
    except OSError:
        found = None
    return "unknown" if found is None else found + (", with changes" if changed else "")
