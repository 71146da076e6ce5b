"""How the steps of a study's models are measured."""

import pytest
import torch

from architecture import model_config
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
    assert step_times.of_model(config, config) == 0.5 / 16
    assert [options.cuda_graph for options in seen] == [captured]


def test_side_by_side_every_model_has_its_time(monkeypatch):
    """In processes of their own, here on a CPU."""
    small = TrainConfig(
        n_layer=1, n_head=1, n_embd=8, block_size=8, batch_size=2, vocab_size=11, device="cpu"
    )
    small.compile = False
    models = {("a", "1"): (small, model_config(small)), ("b", "2"): (small, model_config(small))}
    found = dict(step_times.side_by_side(models, 2))
    assert found.keys() == models.keys()
    assert all(0 < seconds < 1 for seconds in found.values())
