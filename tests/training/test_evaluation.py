"""What is said of the ladders is what they do."""

import math

import pytest
import torch

from kernels.continued_fraction import continued_fraction, denominator
from training.evaluation import ladder_gradients, ladder_statistics


def test_statistics_of_a_layer_are_those_of_its_partial_denominators(build):
    """Against the same numbers computed from the partial denominators, also where the clip is on."""
    model = build(attention="cattn_m", ffn="cffn_gated", cf_pole="clamp", cf_eps=0.3, cf_eval_clip=True)
    layer = model.blocks[0].attention.ladders
    layer.fraction.z_min.fill_(-0.1)
    layer.fraction.z_max.fill_(0.1)  # must not be seen
    tokens = torch.randint(100, (3, 17), generator=torch.Generator().manual_seed(0))
    inputs = []
    hook = layer.fraction.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    found = ladder_statistics(model, "float32", tokens)
    hook.remove()
    assert found.keys() == {f"blocks.{n}.{part}.ladders" for n in (0, 1) for part in ("attention", "ffn")}
    sizes = denominator(inputs[0], "clamp", 0.1).abs().flatten()
    z = continued_fraction(inputs[0], "clamp", 0.3).abs().flatten().sort().values
    values = found["blocks.0.attention.ladders"]
    assert values["clamped"] == pytest.approx((sizes < 0.3).float().mean().item())
    assert 0 < values["clamped"] < 0.5
    assert values["min_denominator"] == pytest.approx(sizes.min().item())
    assert values["z_99"] == pytest.approx(z[math.ceil(0.99 * len(z)) - 1].item())
    assert z[len(z) // 2] < values["z_99"] < z[-1]
    assert all(m.clip for m in (layer.fraction, model.blocks[1].ffn.ladders.fraction))


def test_gradient_norms_by_layer(build):
    model = build(attention="cattn_u", ffn="cffn_product")
    tokens = torch.randint(100, (2, 17))
    model(tokens, tokens).backward()
    norms = ladder_gradients(model)
    assert norms.keys() == {
        f"blocks.{n}.{part}" for n in (0, 1) for part in ("attention", "ffn.first", "ffn.second")
    }
    layer = model.blocks[1].ffn.second
    gradients = torch.cat([p.grad.flatten() for depth in layer.depth_parameters() for p in depth])
    assert norms["blocks.1.ffn.second"].item() == pytest.approx(gradients.norm().item(), rel=1e-5)
    for parameter in layer.parameters():
        parameter.grad = None
    assert ladder_gradients(model)["blocks.1.ffn.second"].item() == 0
