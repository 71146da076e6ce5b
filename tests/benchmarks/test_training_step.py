"""What a benchmark's training step computes."""

import dataclasses

import pytest
import torch

from benchmarks import training_step
from benchmarks.training_step import StepOptions

CPU = torch.device("cpu")
OPTIONS = StepOptions(2, "bfloat16", compile=False)


@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 3}, {"compile": True, "batch_size": 1}],
    ids=["three batches", "compiled"],
)
def test_a_step_changes_weights_as_a_plain_one(tiny, options, monkeypatch):
    """The gate compares loss and gradient with eager float32. Each batch of a step is the same.

    The gate has one sequence on a CPU, so that a step of one is compiled only once.
    """
    options = dataclasses.replace(OPTIONS, **options)
    eager = dataclasses.replace(OPTIONS, batch_size=options.batch_size)
    config = tiny(n_layer=1)
    training_step.gate(config, options, CPU)
    models = []
    original = training_step.build

    def build(*given):
        models.append(original(*given))
        return models[-1]

    monkeypatch.setattr(training_step, "build", build)
    for one in (eager, options):
        sections = training_step.sections(config, one, CPU)
        sections["whole"]()
        sections["whole"]()
    plain, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    start = torch.cat([p.flatten() for p in original(config, CPU).parameters()])
    assert not torch.equal(start, plain)
    # AdamW's first steps are of one size whatever the gradient's: few differ, none by more than two steps
    assert (plain - other).abs().max() <= 5e-5
    assert ((plain - other).abs() > 2e-6).float().mean() < 0.05


def test_parts_of_a_step_are_scaled(tiny):
    options = dataclasses.replace(OPTIONS, gradient_accumulation_steps=3)
    config = tiny(n_layer=6)
    parts = ("whole", "blocks", "attention", "loss", "optimizer")
    assert [training_step.in_a_step(config, options, part) for part in parts] == [1, 3, 9, 3, 1]
    assert options.sequences() == 6
