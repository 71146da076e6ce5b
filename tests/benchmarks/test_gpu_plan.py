"""What is planned for a GPU, on a machine without one."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu_plan, gpu_report, operators
from benchmarks.gpu_plan import FULL, STAGES, TINY, Plan
from benchmarks.lines import Lines

CUDA = torch.device("cuda")
FACTS = {"device": "NVIDIA H200, CUDA 13", "python": "3.12", "torch": "2.11", "triton": "3.6"}
FACTS |= {"sizes": "full", "commit": "abc", "cores": 16}


@pytest.fixture
def lines(tmp_path):
    with Lines(tmp_path / "a.jsonl", FACTS) as opened:
        yield opened


@pytest.fixture
def plan(monkeypatch):
    code = operators.Code(("torch", "triton"), ("flash", "cuDNN"))
    monkeypatch.setattr(operators.Code, "on", lambda device: code)
    whole = SimpleNamespace(total_memory=140 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    return Plan(CUDA, "bfloat16", True, FULL)


def items(phases):
    return {(t.stage, t.name, item) for tasks, _ in phases for t in tasks for item in t.items}


def test_every_stage_has_tasks_that_a_process_can_take(plan, lines):
    for stage in STAGES:
        phases = plan.phases(stage, lines)
        assert items(phases)
        assert [slots for tasks, slots in phases if tasks[0].stage == stage][-1] >= 1
        for tasks, slots in phases:
            assert slots == 1 or tasks[0].stage in ("compile", "correct")
            for task in tasks:
                pickle.dumps((getattr(task, "make", None), getattr(task, "arguments", None), task.settings))
    (device,) = plan.phases("ceilings", lines)[0][0]
    assert "matrix product, tf32" in device.items
    assert [slots for _, slots in plan.phases("small", lines)] == [8, 1]
    xl = plan.phases("xl", lines)
    assert [(len(tasks), slots) for tasks, slots in xl] == [(8, 8), (8, 1)]
    assert [f"xl: {task.name}" for task in xl[1][0]] == [task.name for task in xl[0][0]]
    assert [slots for _, slots in plan.phases("llama", lines)] == [7, 1]  # eight at once do not fit


def test_kernels_have_rows_for_each_backend_and_for_sdpa(plan, lines):
    found = {item for stage, name, item in items(plan.phases("kernels", lines)) if stage == "kernels"}
    for kind in ("eager", "compiled"):
        assert {f"continuants, {backend}, {kind}" for backend in ("torch", "triton")} <= found
        assert {f"shared_attention, {backend}, {kind}" for backend in ("torch", "triton")} <= found
        assert {f"softmax attention, 12 heads, {name}, {kind}" for name in ("flash", "cuDNN")} <= found


def models(plan, lines):
    return {
        (stage, task.name): task.arguments[0]
        for stage in ("small", "xl", "llama", "decode")
        for tasks, _ in plan.phases(stage, lines)
        for task in tasks
        if task.stage == stage
    }


def test_models_are_those_that_the_stages_promise(plan, lines):
    made = models(plan, lines)
    sizes = {key: (model.n_layer, model.n_embd, model.block_size) for key, model in made.items()}
    assert sizes["small", "dense"] == sizes["small", "CoFrGeNet"] == (12, 768, 1024)
    assert sizes["xl", "dense"] == sizes["decode", "CoFrGeNet_B"] == (48, 1600, 1024)
    assert sizes["llama", "CoFrGeNet-F"] == (28, 3072, 2048)
    assert made["small", "dense with RoPE"].position == "rope"
    assert made["decode", "CoFrGeNet_B"].cf_impl == "ladder"
    assert made["decode", "CoFrGeNet"].cf_depth == 7
    assert {model.cf_backend for model in made.values()} == {"auto"}
    assert {model.vocab_size for (stage, _), model in made.items() if stage != "llama"} == {50257}


@pytest.mark.parametrize(
    "result",
    [{"distances": {}, "wrong": {"continuants, triton, eager": "0.5 away"}}, {"error": "exit code -11"}],
)
def test_a_wrong_triton_kernel_is_not_timed_and_models_go_without_it(plan, lines, result):
    lines.add("correct", "continued_fraction, float32", "clamp, 1x1x1", result)
    found = {item for *_, item in items(plan.phases("kernels", lines))}
    assert not [item for item in found if item.startswith("continuants, triton")]
    assert "continuants, torch, compiled" in found
    assert ("shared_attention, triton, eager" in found) == ("error" not in result)
    assert {model.cf_backend for model in models(plan, lines).values()} == {"torch"}
    assert "--cf_backend=torch" in plan.phases("train", lines)[0][0][0].models["CoFrGeNet"]


def test_the_report_says_what_went_wrong(lines, tmp_path, capsys):
    lines.add("ceilings", "device", "matrix product, bfloat16", {
        "seconds": 1e-3, "quartiles": [1e-3, 1e-3], "method": "CUDA events", "flops_per_second": 7.9e14
    })  # fmt: skip
    assert gpu_report.write(lines.path) == 0
    assert "79.9 %" in capsys.readouterr().out  # of the data sheet's 989
    bad = {"kernel": "k", "distances": {"triton, eager": 0.5}, "wrong": {"triton, eager": "0.5 away"}}
    lines.add("correct", "k, float32", "1x1", bad)
    assert gpu_report.write(lines.path) == 1
    lines.add("xl", "dense", "step", {"error": "out of memory (9 GB)"})
    lines.add("train", "train.py", "dense", {
        "steps": 4, "tokens_per_second": 1.0, "killed_after_step": 3, "resumed_from_step": 2,
        "equal_to_the_bit": False, "first_difference": 3, "largest_difference": 1e-3, "losses": {4: 2.0},
        "settings": {"dataset": "words"},
    })  # fmt: skip
    assert gpu_report.write(lines.path) == 1
    text = lines.path.with_suffix(".md").read_text()
    assert "- k, float32, 1x1: triton, eager: 0.5 away" in text
    assert "- xl, dense, step: out of memory (9 GB)" in text
    assert "| NO |" in " ".join(text.split())
    assert "NVIDIA H200" in text
    assert "A trial" not in text


def test_tiny_sizes_are_small():
    assert TINY.sizes.copy_bytes < 2**21
    assert gpu_plan.SCALES == {"full": FULL, "tiny": TINY}
