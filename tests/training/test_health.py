"""Where something that is not finite began: the module, or the parameters."""

import pytest
import torch

from training.health import diagnose


def batches(count=3):
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(100, (2, 2, 9), generator=generator)) for _ in range(count)]


def test_a_healthy_model_has_nothing_to_tell(build):
    assert diagnose(build(attention="cattn_m", ffn="cffn_added"), batches(), "float32", 0) == []


@pytest.mark.parametrize("layer", ["blocks.1.ffn.ladders.fraction", "blocks.0.attention.value", "norm"])
def test_the_first_module_is_named(build, layer):
    model = build(attention="cattn_m", ffn="cffn_added")
    model.get_submodule(layer).register_forward_hook(lambda module, inputs, output: output / 0)
    ((number, text), *others) = diagnose(model, batches(), "bfloat16", 0)
    assert number == 0
    assert len(others) == 2
    assert f"first not finite in the output of {layer}" in text


def test_only_the_micro_batch_concerned(build):
    model = build()
    with torch.no_grad():
        model.embedding.weight[77] = torch.inf
    healthy = torch.zeros(2, 9, dtype=torch.int64)
    found = diagnose(model, [(healthy, healthy), (healthy + 77, healthy), (healthy, healthy)], "float32", 0)
    assert [number for number, _ in found] == [0, 1, 2]  # the tied head reads every row
    model.embedding.weight.data[77] = 1.0
    model.blocks[1].register_forward_hook(
        lambda module, inputs, output: output * (torch.nan if (inputs[0] == inputs[0][0, 0]).all() else 1.0)
    )
    assert diagnose(model, [(healthy, healthy)], "float32", 0) == []


def test_gradients_alone(build):
    """Every output is finite; the gradient is not, from this layer on."""
    model = build()

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.inf

    model.blocks[1].register_forward_hook(lambda module, inputs, output: Bad.apply(output))
    ((_, text),) = diagnose(model, batches(1), "float32", 0)
    assert "gradients not finite of blocks.1.ffn.down.weight" in text
    assert " norm.weight" not in text
