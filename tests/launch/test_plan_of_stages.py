"""What is planned for a GPU, on a machine without one."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from benchmarks import operators, report
from benchmarks.lines import Lines
from benchmarks.plan import wrong_forms
from launch import measure_gpu
from launch.measure_gpu import MODELS, STAGES

CUDA = torch.device("cuda")
FACTS = {"device": "NVIDIA H200, CUDA 13", "python": "3.12", "torch": "2.11", "triton": "3.6"}
FACTS |= {"sizes": "full", "commit": "abc", "cores": 16}


@pytest.fixture
def lines(tmp_path):
    with Lines(tmp_path / "a.jsonl", FACTS) as opened:
        yield opened


@pytest.fixture
def plan(monkeypatch):
    """plan(stage, wrong forms)"""
    code = operators.Code(("torch", "triton"), ("flash", "cuDNN"))
    monkeypatch.setattr(operators.Code, "on", lambda device: code)
    whole = SimpleNamespace(total_memory=140 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    monkeypatch.setattr(measure_gpu, "choose_dtype", lambda dtype, device: "bfloat16")
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    return lambda stage, wrong=(): measure_gpu.plan(stage, False, CUDA, wrong)


def items(phases):
    return {(t.stage, t.name, item) for tasks, _ in phases for t in tasks for item in t.items}


def test_every_stage_has_tasks_that_a_process_can_take(plan):
    for stage in STAGES:
        if stage == "train":
            continue
        phases = plan(stage).phases()
        assert items(phases)
        assert {tasks[0].stage for tasks, _ in phases} - {"compile", "ceilings"} == {stage} - {"ceilings"}
        for tasks, slots in phases:
            assert slots == 1 or tasks[0].stage in ("compile", "correct")
            for task in tasks:
                pickle.dumps((task.make, task.arguments, task.settings))
    (device,) = plan("ceilings").phases()[0][0]
    assert "matrix product, tf32" in device.items
    assert [slots for _, slots in plan("small").phases()] == [8, 1]
    xl = plan("xl").phases()
    assert [(len(tasks), slots) for tasks, slots in xl] == [(8, 8), (8, 1)]
    assert [f"xl: {task.name}" for task in xl[1][0]] == [task.name for task in xl[0][0]]
    assert {tuple(task.items) for task in xl[1][0]} == {("step", "step as a CUDA graph")}
    assert [slots for _, slots in plan("llama").phases()] == [7, 1]  # eight at once do not fit
    assert {tuple(task.items) for task in plan("llama").phases()[1][0]} == {("step",)}
    pickle.dumps(vars(measure_gpu.training_task(CUDA, False, set(), None)))


def test_the_ceilings_of_kernels_are_those_of_their_own_stage(plan):
    assert items(plan("ceilings").phases()) <= items(plan("kernels").phases())
    (first,), (again,) = plan("ceilings").phases()[0][0], plan("kernels").phases()[0][0]
    assert first.settings == again.settings
    assert first.arguments == again.arguments


def test_kernels_have_rows_for_each_backend_and_for_sdpa(plan):
    found = {item for stage, name, item in items(plan("kernels").phases()) if stage == "kernels"}
    for kind in ("eager", "compiled"):
        assert {f"continuants, {backend}, {kind}" for backend in ("torch", "triton")} <= found
        assert {f"shared_attention, {backend}, {kind}" for backend in ("torch", "triton")} <= found
        assert {f"softmax attention, 12 heads, {name}, {kind}" for name in ("flash", "cuDNN")} <= found


def models(plan, wrong=()):
    return {(stage, name): model for stage in MODELS for name, model in plan(stage, wrong).models.items()}


def test_models_are_those_that_the_stages_promise(plan):
    made = models(plan)
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
    wrong = wrong_forms(lines)
    found = {item for *_, item in items(plan("kernels", wrong).phases())}
    assert not [item for item in found if item.startswith("continuants, triton")]
    assert "continuants, torch, compiled" in found
    assert ("shared_attention, triton, eager" in found) == ("error" not in result)
    assert {model.cf_backend for model in models(plan, wrong).values()} == {"torch"}
    task = measure_gpu.training_task(CUDA, False, wrong, None)
    assert "--cf_backend=torch" in task.models["CoFrGeNet"]


def test_the_report_says_what_went_wrong(lines, tmp_path, capsys):
    lines.add("ceilings", "device", "matrix product, bfloat16", {
        "seconds": 1e-3, "quartiles": [1e-3, 1e-3], "method": "CUDA events", "flops_per_second": 7.9e14
    })  # fmt: skip
    assert report.write(lines.path) == 0
    assert "79.9 %" in capsys.readouterr().out  # of the data sheet's 989
    bad = {"kernel": "k", "distances": {"triton, eager": 0.5}, "wrong": {"triton, eager": "0.5 away"}}
    lines.add("correct", "k, float32", "1x1", bad)
    assert report.write(lines.path) == 1
    lines.add("xl", "dense", "step", {"error": "out of memory (9 GB)"})
    lines.add("train", "train.py", "dense", {
        "steps": 4, "tokens_per_second": 1.0, "killed_after_step": 3, "resumed_from_step": 2,
        "equal_to_the_bit": False, "first_difference": 3, "largest_difference": 1e-3, "losses": {4: 2.0},
        "settings": {"dataset": "words"},
    })  # fmt: skip
    assert report.write(lines.path) == 1
    text = lines.path.with_suffix(".md").read_text()
    assert "- k, float32, 1x1: triton, eager: 0.5 away" in text
    assert "- xl, dense, step: out of memory (9 GB)" in text
    assert "| NO |" in " ".join(text.split())
    assert "NVIDIA H200" in text
    assert "A trial" not in text


def test_tiny_sizes_are_small():
    assert measure_gpu.plan("kernels", True, torch.device("cpu")).sizes.copy_bytes < 2**21
