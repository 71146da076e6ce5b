"""Each lever computes what a step computes without it."""

import dataclasses

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import levers, training_step
from benchmarks.levers import CastOnce
from benchmarks.training_step import StepOptions
from tests.model_variants import every_option
from training.hardware import autocast

CPU = torch.device("cpu")


def step(function, model, tokens):
    """Two micro-batches in bfloat16: the losses and the gradients."""
    model.zero_grad(set_to_none=True)
    losses = []
    for part in tokens:
        with autocast(CPU, "bfloat16"):
            loss = function(part, part)
        loss.backward()
        losses.append(loss.detach())
    return losses, [parameter.grad for parameter in model.parameters()]


@every_option
def test_weights_cast_once_change_no_bit(build, attention, ffn, options):
    model = build(attention=attention, ffn=ffn, **options)
    tokens = torch.randint(100, (2, 2, 17))
    losses, gradients = step(model, model, tokens)
    gradients = [None if one is None else one.clone() for one in gradients]
    once = CastOnce(model, torch.bfloat16)
    with torch.no_grad():
        for copy in once.copies.values():
            copy.zero_()
    once.cast()
    found, others = step(lambda *given: once(model, *given), model, tokens)
    assert torch.equal(torch.stack(losses), torch.stack(found))
    assert all(a is b or torch.equal(a, b) for a, b in zip(gradients, others, strict=True))


def test_which_weights_are_cast(build):
    once = CastOnce(build(position="expe"), torch.bfloat16)
    assert list(once.copies) == [
        f"blocks.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in ("attention.proj", "ffn.up", "ffn.down")
    ]
    assert "blocks.0.attention.qkv.weight" in CastOnce(build(), torch.bfloat16).copies


OPTIONS = StepOptions(2, "bfloat16", compile=False)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 3, "cast_weights_once": True},
        {"cast_weights_once": True, "compile_mode": "max-autotune-no-cudagraphs", "compile": True},
        {"sdpa": "math"},
        {"sdpa": "flash"},
    ],
    ids=["cast", "cast, compiled in a mode", "math", "flash"],
)
def test_a_step_with_levers(tiny, options):
    """The gate compares loss and gradient with eager float32; steps change weights as without levers."""
    options = dataclasses.replace(OPTIONS, **options)
    config = tiny(n_layer=1)
    training_step.gate(config, options, CPU)
    models = []
    original = training_step.build

    def build(*given):
        models.append(original(*given))
        return models[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_step, "build", build)
        for one in (OPTIONS, options):
            sections = training_step.sections(config, one, CPU)
            sections["whole"]()
            sections["whole"]()
    plain, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    start = torch.cat([p.flatten() for p in original(config, CPU).parameters()])
    assert not torch.equal(start, plain)
    # AdamW's first steps are of one size whatever the gradient's: few differ, none by more than two steps
    assert (plain - other).abs().max() <= 5e-5
    assert ((plain - other).abs() > 2e-6).float().mean() < 0.05


def test_sdpa_runs_in_the_backend_that_was_named():
    q = torch.randn(1, 2, 8, 4, requires_grad=True)

    def operators(name):
        with levers.sdpa(name), torch.profiler.profile() as profile:
            scaled_dot_product_attention(q, q, q, is_causal=True)
        return {event.key for event in profile.key_averages()}

    flash, mathematics = (
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_attention_math",
    )
    assert flash in operators("flash") & operators("auto")
    assert mathematics in operators("math") - operators("flash")


def test_parts_of_a_step_are_scaled(tiny):
    options = dataclasses.replace(OPTIONS, gradient_accumulation_steps=3)
    config = tiny(n_layer=6)
    parts = ("whole", "blocks", "attention", "loss", "optimizer")
    assert [training_step.in_a_step(config, options, part) for part in parts] == [1, 3, 9, 3, 1]
    assert options.sequences() == 6
