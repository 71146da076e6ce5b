"""How the steps of a study's models are measured."""

import pytest
import torch

from models.architecture import model_config
from scaling import step_times
from training.config import TrainConfig


@pytest.mark.parametrize(
    ("keys", "captured"),
    [
        ({}, True),
        ({"cuda_graph": False}, False),
        ({"compile": False}, False),
        ({"activation_checkpointing": True}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_steps_are_captured_as_in_a_run(monkeypatch, keys, captured):
    """On a GPU, where train.py captures them."""
    seen = []

    def sections(model, options, device):
        seen.append(options)
        return {"whole": lambda: None}

    def device(name):
        return torch.device("cpu" if name == "cpu" else "cuda")

    monkeypatch.setattr(step_times, "choose_device", device)
    monkeypatch.setattr(step_times, "choose_dtype", lambda name, device: "bfloat16")
    monkeypatch.setattr(step_times, "seconds", lambda function, at_least, device: 0.5)
    monkeypatch.setattr(step_times.training_step, "sections", sections)
    config = TrainConfig(batch_size=2, gradient_accumulation_steps=1, block_size=8, **keys)
    assert step_times.of_model(config, config, 2) == [0.5 / 16] * 2
    assert [options.cuda_graph for options in seen] == [captured]


def test_models_are_compiled_side_by_side_before_the_first_is_measured(monkeypatch):
    """Where runs share a GPU; here the processes use a CPU. What fails in them is no error yet."""
    small = TrainConfig(n_layer=1, n_head=1, n_embd=8, block_size=8, batch_size=2, vocab_size=11)
    small.device, small.compile = "cpu", False
    models = {("a", "1"): (small, model_config(small)), ("b", "2"): (small, None)}
    step_times.compile_side_by_side(models, 2)
    order = []
    monkeypatch.setattr(step_times, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: len(order))
    monkeypatch.setattr(step_times, "compile_side_by_side", lambda *given: order.append(given))
    monkeypatch.setattr(step_times, "of_model", lambda *given: order.append(given) or [0.5])
    assert step_times.measure(models, 2) == ({name: [0.5] * 7 for name in models}, 15)
    assert order[:3] == [(models, 2), *((*configs, 1) for configs in models.values())]
    order.clear()
    step_times.measure(models, 1)
    assert order[0] == (*models["a", "1"], 1)


def test_models_are_measured_in_turns(monkeypatch):
    """So that a machine that becomes slower slows all of them; compiled ones one after the other."""
    configs = {name: TrainConfig(device="cpu", compile=False) for name in "ab"}
    models = {(name, "1M"): (config, name) for name, config in configs.items()}
    order = []

    def of_model(config, name, repetitions):
        order.append(name)
        return [len(order) + n for n in range(repetitions)]

    monkeypatch.setattr(step_times, "of_model", of_model)
    found, _ = step_times.measure(models, 1)
    assert found == {("a", "1M"): [*range(1, 15, 2)], ("b", "1M"): [*range(2, 16, 2)]}
    told = step_times.spread(found | {("c", "1M"): [5] * 7}, {"a": "dense", "b": "ours"})
    assert told.endswith("of 7 measurements of a step spreads by 100%, and by up to 114% (dense at 1M)")
    assert order == list("ab" * 7)
    order.clear()
    for config in configs.values():
        config.compile = True
    step_times.measure(models, 1)
    assert order == list("ab")


@pytest.mark.parametrize(
    ("step", "gpus", "found"),
    [(0, 1, 15), (3, 1, 9), (3, 2, 14), (39, 1, 1), (39, 4, 4), (100, 1, 1)],
)
def test_how_many_runs_share_a_gpu(monkeypatch, step, gpus, found):
    """With 40 GiB that are free and 16 cores; step: GiB."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40 * 2**30, 80 * 2**30))
    monkeypatch.setattr(step_times, "cores", lambda: 16)
    assert step_times.side_by_side(step * 2**30) == found
