"""Peaks, devices, the share of the peak that a model gets."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evaluate import EvaluateConfig
from finetune import FinetuneConfig
from sample import SampleConfig
from tests.training.records import losses
from training import hardware
from training.config import TrainConfig
from training.hardware import DeviceError, choose_device, peak_flops


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H100 NVL", "float16", 836),
        ("NVIDIA H200", "float16", 989),
        ("NVIDIA GH200 480GB", "bfloat16", 989),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA A10", "bfloat16", 125),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", 362),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("h100", "bfloat16", 989),
        ("Tesla V100-PCIE-16GB", "float16", 112),
        ("NVIDIA GB200", "bfloat16", 2500),
        ("NVIDIA G200", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090 D", "bfloat16", None),
        ("NVIDIA GeForce RTX 3090 Ti", "bfloat16", None),
        ("CPU", "bfloat16", None),
        ("NVIDIA A100000", "bfloat16", None),
        ("NVIDIA GeForce GTX 1080", "float32", None),
    ],
)
def test_peaks_by_the_names_that_devices_have(name, dtype, tflops):
    assert peak_flops(name, dtype) == (tflops and tflops * 1e12)


def test_a_rank_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto", 1) == torch.device("cuda", 1)
    assert choose_device("cpu", 7) == torch.device("cpu")
    with pytest.raises(DeviceError, match=r"2 GPUs .*--nproc_per_node=2"):
        choose_device("cuda", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"no GPU .*--device=cpu"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("script", "keys"),
    [
        (TrainConfig, {}),
        (SampleConfig, {"out_dir": "a"}),
        (EvaluateConfig, {"models": ["a"]}),
        (FinetuneConfig, {"models": ["a"]}),
    ],
)
def test_every_script_says_that_there_is_no_gpu(monkeypatch, script, keys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = [wrong for wrong in script(**keys, device="cuda").check() if "GPU" in wrong]
    (told,) = said
    assert re.search("^device=cuda.* no GPU .*--device=cpu", told)


def test_mfu_is_model_flops_over_the_peak(run, monkeypatch):
    """On a device of 1 GFLOP/s: three forward passes' FLOPs per token; nothing where it is not known."""
    from model import flops_per_token
    from models.architecture import model_config
    from training import reporting
    from training.config import TrainConfig

    _, records = run("unknown", "--max_iters=2")
    assert all("mfu" not in r for r in records)
    monkeypatch.setattr(reporting, "peak_flops", lambda name, dtype: 1e9)
    _, records = run("known", "--max_iters=3")
    keys = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "cf_ladders": 3, "vocab_size": 257}
    flops = 3 * flops_per_token(model_config(TrainConfig(**keys)))
    for record in records:
        if "loss" in record:
            assert record["mfu"] == pytest.approx(flops * record["tokens_per_second"] / 1e9)


def test_clock_leaves_pauses_out(monkeypatch):
    now = iter([0.0, 2.0, 2.0, 10.0, 13.0])
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(now))
    clock = hardware.Clock(torch.device("cpu"), seconds=100.0)
    with clock.paused() as seconds:
        assert seconds == 102
    assert clock.seconds() == 105


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_memory_that_was_freed_is_kept():
    """Pages that the system must clear, counted while 64 MB come and go ten times; the fewest of five such
    counts, as a heap may grow a few times before it fits.
    """
    lines = (
        "import resource, torch",
        "from training.hardware import keep_freed_memory",
        "def faults():",
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt",
        "    for _ in range(10):",
        "        torch.zeros(2**24).add_(1)",
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before",
        "given_back = min(faults() for _ in range(5))",
        "keep_freed_memory(torch.device('cuda'))",
        "assert min(faults() for _ in range(5)) > given_back / 2",
        "keep_freed_memory(torch.device('cpu'))",
        "kept = [faults() for _ in range(5)]",
        "assert min(kept) < given_back / 5, (given_back, kept)",
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=root, check=True, timeout=120)


def test_denormal_numbers_are_flushed_on_a_processor_and_only_within_the_context():
    """In a process of its own, because threads that start later inherit it."""
    lines = (
        "import torch",
        "from training.hardware import flushed_denormals",
        "tiny = torch.tensor([1e-39])",
        "for device, wanted in (('cuda', True), ('cpu', False), ('cpu', True)):",
        "    with flushed_denormals(torch.device(device), wanted):",
        "        print((tiny * 1).item() > 0)",
        "print((tiny * 1).item() > 0)",
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "False", "True"]


def test_repeatable_passes_leave_the_settings_as_they_were():
    def settings():
        return torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.cudnn_sdp_enabled()

    before = settings()
    with hardware.repeatable(False):
        assert settings() == before
    with hardware.repeatable(True):
        assert settings() == (True, False)
    assert settings() == before
    with pytest.raises(ZeroDivisionError), hardware.repeatable(True):
        raise ZeroDivisionError
    assert settings() == before


def test_a_repeatable_run_trains_to_the_same_losses(run):
    keys = ["--max_iters=4", "--attention=cattn_m", "--ffn=cffn_product", "--dropout=0.1"]
    _, plain = run("plain", *keys)
    _, repeatable = run("repeatable", *keys, "--deterministic=True")
    assert losses(repeatable) == losses(plain)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count is Linux's")
def test_peak_memory_is_the_kernels_and_stays():
    before = hardware.peak_memory(torch.device("cpu"))["peak_memory"]
    held = torch.ones(before + 2**27, dtype=torch.uint8)  # more than the process has ever held
    peak = hardware.peak_memory(torch.device("cpu"))["peak_memory"]
    counted = 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
    assert peak == pytest.approx(counted, rel=0.01)
    assert peak >= len(held)
    del held
    assert hardware.peak_memory(torch.device("cpu"))["peak_memory"] >= peak


def test_where_the_system_does_not_count_there_is_no_peak(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)  # an import raises ImportError, as on Windows
    assert hardware.peak_memory(torch.device("cpu")) == {}


def test_peak_memory_of_a_gpu_is_that_of_its_tensors(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: device.index)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 10 * device.index)
    found = hardware.peak_memory(torch.device("cuda", 3))
    assert found == {"peak_memory": 3, "peak_memory_reserved": 30}
