"""What a bench says: where it ran, and tables."""

import platform
import subprocess
from pathlib import Path

import torch

from training.hardware import device_name

ROOT = Path(__file__).resolve().parents[1]


def circumstances(device: torch.device) -> dict:
    """Device, versions and commit: what a number is worth nothing without."""
    if device.type == "cuda":
        name = f"{device_name(device)}, CUDA {torch.version.cuda}"
    else:
        name = f"{_cpu()}, {torch.get_num_threads()} threads"
    return {
        "device": name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]
    return " ".join([names[0] if names else platform.processor() or "CPU", *units])


def _commit() -> str:
    """The commit of the code, and whether it was changed since."""

    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit, changed = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", "-uno")
    except OSError:
        commit = None
    return "unknown" if commit is None else commit + (", with changes" if changed else "")


def table(rows: list[dict[str, str]]) -> str:
    """A Markdown table, aligned for reading in a terminal too; the first column is text."""
    columns = list(rows[0])
    widths = {c: max(len(c), *(len(row[c]) for row in rows)) for c in columns}

    def line(cells):
        first, *rest = columns
        return (
            "| "
            + " | ".join([cells[first].ljust(widths[first]), *(cells[c].rjust(widths[c]) for c in rest)])
            + " |"
        )

    rule = {c: "-" * widths[c] if c == columns[0] else "-" * (widths[c] - 1) + ":" for c in columns}
    return "\n".join([line(dict(zip(columns, columns, strict=True))), line(rule), *map(line, rows)])


def millions(count: float) -> str:
    """Three digits at least: 1,234.5, but 0.0123."""
    return f"{count / 1e6:,.1f}" if count >= 1e7 else f"{count / 1e6:.3g}"


def share(part: float, whole: float | None) -> str:
    return "" if whole is None else f"{100 * part / whole:.1f} %"
