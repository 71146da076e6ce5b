"""The gated delta rule in chunks against the recurrence as written, and the layer against plain code."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from kernels import gated_delta as kernel
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


class InTheirLayout(torch.autograd.Function):
    """The loop with heads after tokens. A thread of its own, because autograd is off inside an operator."""

    @staticmethod
    def compute(grads, *inputs):
        with torch.set_grad_enabled(grads is not None):
            inputs = [x.detach().double().requires_grad_(grads is not None) for x in inputs]
            *of_tokens, state = inputs
            out, state = gated_delta_loop(*(x.transpose(1, 2) for x in of_tokens), state)
            results = out.transpose(1, 2), state
            return results if grads is None else torch.autograd.grad(results, inputs, grads)

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        out, state = InTheirLayout.compute(None, *inputs)
        return out.to(inputs[0].dtype), state.float()

    @staticmethod
    def backward(ctx, *grads):
        with ThreadPoolExecutor(1) as own:
            found = own.submit(InTheirLayout.compute, [x.double() for x in grads], *ctx.saved_tensors)
        return tuple(grad.to(x.dtype) for grad, x in zip(found.result(), ctx.saved_tensors, strict=True))


class Package:
    """In place of flash-linear-attention: its two functions, and the names and dtypes of their calls."""

    def __init__(self):
        self.calls = []

    def chunk_gated_delta_rule(
        self, q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False
    ):
        self.calls.append(("chunk", q.dtype, g.dtype))
        state = initial_state
        assert scale == 1.0
        assert output_final_state
        return InTheirLayout.apply(q, k, v, g, beta, state)

    def fused_recurrent_gated_delta_rule(
        self, q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None,
        output_final_state=False,
    ):  # fmt: skip
        assert gk is gv is None
        assert not torch.is_grad_enabled()
        out = self.chunk_gated_delta_rule(q, k, v, g, beta, scale, initial_state, output_final_state)
        self.calls[-1] = ("recurrent", *self.calls[-1][1:])
        return out


@pytest.fixture
def package(monkeypatch):
    made = Package()
    monkeypatch.setitem(sys.modules, kernel.FLA, made)
    monkeypatch.setattr(kernel, "use_fla", lambda q: True)
    return made


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("length", [1, 5])
def test_the_packages_layout(package, length, compiled):
    """Values and gradients, also where the state after the last token is not used."""
    inputs = drawn(2, 3, length, 4, 6, torch.float32)
    exact = gated_delta_loop(*inputs)
    function = gated_delta
    if compiled:
        function = torch.compile(gated_delta, fullgraph=True, backend="aot_eager")
    upstream = [torch.randn_like(x) for x in exact]
    for used in (1, 2):
        found = function(*inputs)
        expected = torch.autograd.grad(exact[:used], inputs, upstream[:used], retain_graph=True)
        grads = torch.autograd.grad(found[:used], inputs, upstream[:used])
        for one, other in zip((*found, *grads), (*exact, *expected), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    kind = "recurrent" if length == 1 else "chunk"
    assert [call[0] for call in package.calls] == 2 * [kind, "chunk"]


@torch.no_grad()
def test_the_package_in_a_layer_under_autocast(package, monkeypatch):
    """Products have autocast's dtype, decays and the state are float32; decoding passes the state on."""
    torch.manual_seed(0)
    layer = GatedDeltaNet(ModelConfig(n_embd=24, n_head=3, attention="gated_deltanet"))
    layer.init_weights()
    x = torch.randn(2, 9, 24)
    with torch.autocast("cpu", torch.bfloat16):
        whole = layer(x)
        cache, found = layer.new_cache(2, 9, x.device, x.dtype), []
        for piece, first in ((x[:, :8], 0), (x[:, 8:], 8)):
            pos = torch.arange(first, first + piece.shape[1])
            found.append(layer.decode(piece, pos, cache))
        halves = torch.bfloat16, torch.float32
        assert package.calls == [("chunk", *halves), ("chunk", *halves), ("recurrent", *halves)]
        assert cache[0].dtype == torch.float32
        monkeypatch.setattr(kernel, "use_fla", lambda q: False)
        ours = layer(x)
    largest = float(ours.abs().max())
    for one in (whole, torch.cat(found, 1)):
        torch.testing.assert_close(one, ours, rtol=0, atol=3e-2 * largest)


def test_when_the_package_computes(monkeypatch):
    tensor = {"is_cuda": True, "dtype": torch.float32, "shape": (1, 1, 1, kernel.WIDEST)}
    monkeypatch.setattr(kernel, "INSTALLED", True)
    assert kernel.use_fla(SimpleNamespace(**tensor))
    for other in ({"is_cuda": False}, {"dtype": torch.float64}, {"shape": (1, 1, 1, kernel.WIDEST + 1)}):
        assert not kernel.use_fla(SimpleNamespace(**tensor | other))
    monkeypatch.setattr(kernel, "INSTALLED", False)
    assert not kernel.use_fla(SimpleNamespace(**tensor))


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
