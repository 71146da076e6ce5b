"""The gated delta rule in chunks against the recurrence as written, and the layer against plain code."""

import pytest
import torch
from torch.nn import functional as F

from kernels.gated_delta import CHUNK, gated_delta, gated_delta_loop
from layers.gated_deltanet import GatedDeltaNet
from model import GPT, parameter_counts
from models.architecture import ModelConfig


def drawn(batch, heads, length, key, value, dtype):
    torch.manual_seed(0)
    shape = (batch, heads, length)
    q, k, v = (torch.randn(*shape, n, dtype=dtype) for n in (key, key, value))
    state = torch.randn(batch, heads, key, value, dtype=dtype)
    log_alpha, beta = -3 * torch.rand(shape, dtype=dtype), torch.rand(shape, dtype=dtype)
    return [x.requires_grad_() for x in (q, F.normalize(k.detach(), dim=-1), v, log_alpha, beta, state)]


@pytest.mark.parametrize(
    ("batch", "heads", "length", "key", "value"),
    [(1, 1, 1, 1, 1), (2, 3, 7, 4, 6), (1, 2, CHUNK, 5, 3), (2, 1, 2 * CHUNK + 1, 8, 16)],
)
def test_chunks_are_the_recurrence(batch, heads, length, key, value):
    """With gradients, in float64; in float32 as near it as the loop is."""
    inputs = drawn(batch, heads, length, key, value, torch.float64)
    exact, found = gated_delta_loop(*inputs), gated_delta(*inputs)
    upstream = [torch.randn_like(x) for x in exact]
    grads = [torch.autograd.grad(results, inputs, upstream) for results in (exact, found)]
    for one, other in zip((*found, *grads[1]), (*exact, *grads[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
    single = [x.detach().float() for x in inputs]
    for one, other in zip(gated_delta(*single), exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_strong_forgetting_stays_finite():
    """The decay over a chunk is below float32's smallest number, and its inverse would be infinite."""
    *inputs, state = drawn(1, 1, CHUNK, 4, 4, torch.float32)
    inputs[3] = torch.full_like(inputs[3], -20.0).requires_grad_()
    found = gated_delta(*inputs, state)
    grads = torch.autograd.grad([x.sum() for x in found], [*inputs, state])
    assert all(x.isfinite().all() for x in (*found, *grads))
    torch.testing.assert_close(found[0], gated_delta_loop(*inputs, state)[0], rtol=1e-4, atol=1e-6)


KEYS = [
    {},
    {"delta_conv": 0, "delta_gate": False, "delta_heads": 2, "delta_key": 5, "delta_expand": 1},
    {"delta_conv": 1, "delta_heads": 1},
]


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("half", [False, True])
@torch.no_grad()
def test_the_layer_is_the_equation(keys, half):
    config = ModelConfig(n_embd=24, n_head=3, attention="gated_deltanet", **keys)
    torch.manual_seed(0)
    layer = GatedDeltaNet(config)
    layer.init_weights()
    x = torch.randn(2, 9, 24)
    heads, key = layer.heads, layer.key
    mapped = layer.qkv(x)
    if layer.conv is not None:
        padded = F.pad(mapped, (0, 0, layer.taps - 1, 0))
        taps = layer.conv.weight[:, 0]  # [columns, taps], the last one for the token itself
        mapped = sum(padded[:, i : i + 9] * taps[:, i] for i in range(layer.taps))
    q, k, v = F.silu(mapped).split((heads * key, heads * key, layer.out.in_features), -1)
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k, v))
    a, b = layer.rates(x).split(heads, -1)
    alpha = torch.exp(-layer.log_a.exp() * F.softplus(a + layer.c))
    q, k = (one / one.norm(dim=-1, keepdim=True) for one in (q, k))
    state = torch.zeros(2, heads, key, v.shape[-1])
    inputs = (q / key**0.5, k, v, alpha.log().transpose(1, 2), b.sigmoid().transpose(1, 2), state)
    out = layer.norm(gated_delta_loop(*inputs)[0]).transpose(1, 2).flatten(2)
    if layer.gate is not None:
        out = out * F.silu(layer.gate(x))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = layer(x)
    tolerance = 3e-2 if half else 1e-5
    expected = layer.out(out)
    torch.testing.assert_close(
        found.float(), expected, rtol=0, atol=tolerance * float(expected.abs().max())
    )


def test_at_the_start_a_state_lasts():
    """alpha is between e^-1.6 and e^-0.001 where W_a x is 0, and no parameter is left undrawn."""
    model = GPT(ModelConfig(n_layer=1, vocab_size=50, attention="gated_deltanet")).init_weights()
    mixer = model.blocks[0].attention
    rate = mixer.log_a.exp() * F.softplus(mixer.c)
    assert (rate > 0.9e-3).all()
    assert (rate < 1.7).all()
    groups = {id(p) for p in mixer.undecayed()}
    assert id(mixer.conv.weight) in groups


def test_counts():
    """The paper's sizes: with a gate and the default widths, about 6 p^2 parameters."""
    config = ModelConfig(n_layer=1, n_embd=256, n_head=4, vocab_size=50, attention="gated_deltanet")
    count = parameter_counts(config)["attention"]
    maps = 256 * (2 * 192 + 3 * 384 + 8)
    assert count == maps + 4 * (2 * 192 + 384) + 8 + 96
    assert GatedDeltaNet.flops_per_token(config, 100) == 2 * (maps + 4 * 768) + 6 * 4 * 48 * 96
    assert config.check() == []
    wrong = ModelConfig(n_embd=24, n_head=24, attention="gated_deltanet").check()
    assert "delta_key" in wrong[0]
