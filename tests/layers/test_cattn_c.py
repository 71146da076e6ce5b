"""CAttnC against its equation, number by number."""

import math

import pytest
import torch

from kernels.continued_fraction import continued_fraction_naive
from layers.cattn_c import CAttnC

DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def layer(config, scale=0.3, dtype=torch.float32):
    torch.manual_seed(0)
    made = CAttnC(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=scale)
    return made.to(dtype)


def naive(made, x, pole="positive"):
    """In float64, one sequence of numbers, one ladder and one output after the other."""
    w = {name: p.detach().double() for name, p in made.named_parameters()}
    out = torch.empty(x.shape, dtype=torch.float64)
    for b, c in ((b, c) for b in range(x.shape[0]) for c in range(x.shape[2])):
        s, head = x[b, :, c].double(), c // made.head_width
        factors = []
        for e in (0, 1):
            y = w["w0"][e, c] * s
            if made.depth:
                a = [w[f"W.{k}"][e, c] * s for k in range(made.depth)]
                a = [a[k] + w[f"b.{k}"][e, c] if f"b.{k}" in w else a[k] for k in range(made.depth)]
                y = y + continued_fraction_naive(torch.stack(a), pole)
            elif "constant" in w:
                y = y + w["constant"][e, c]
            m = w["m"][e, head]
            factors.append([sum(m[t - i] * y[i] for i in range(t + 1)) for t in range(len(s))])
        out[b, :, c] = torch.stack([u * v for u, v in zip(*factors, strict=True)])
    return out @ w["proj.weight"].T if "proj.weight" in w else out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 13, 17])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"cattn_heads": 3, "cf_depth": 2, "cf_intercept": "none", "cf_impl": "ladder"},
        {"cattn_heads": 2, "cattn_proj": True},
        {"cf_control": True},
        {"cattn_heads": 24, "cf_control": True, "cf_control_constant": True},
    ],
)
def test_equals_a_loop_over_positions(tiny, keys, length, dtype):
    made = layer(tiny(**keys), dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    x = torch.randn(2, length, 24, dtype=made.w0.dtype)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        found = made(x)
    expected = naive(made, x)
    assert found.shape == x.shape
    tolerance = DTYPES[dtype] * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


def test_long_sequences_and_their_gradients(tiny):
    """Beyond the length from which products go in strips."""
    made = layer(tiny(block_size=300, cattn_heads=2, n_embd=4), 0.1, torch.float64)
    x = torch.randn(1, 300, 4, dtype=torch.float64, requires_grad=True)
    expected = naive(made, x.detach())
    torch.testing.assert_close(made(x).detach(), expected)
    made = layer(tiny(block_size=5, cattn_heads=2, n_embd=4, cattn_proj=True), 0.3, torch.float64)
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    parameters = dict(made.named_parameters())

    def output(x, *values):
        return torch.func.functional_call(made, dict(zip(parameters, values, strict=True)), x)

    assert torch.autograd.gradcheck(output, (x, *parameters.values()))


@pytest.mark.parametrize("value", [1.0, 1e30, -3.4e38, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [{"cattn_heads": 3}, {"cf_pole": "clamp", "cf_depth": 2}])
def test_whatever_the_future_holds_the_past_stays_the_same_to_the_bit(tiny, keys, dtype, value):
    made = layer(tiny(**keys))
    x = torch.randn(2, 17, 24)
    for s in (1, 7, 16):
        changed = x.clone()
        changed[:, s:] = value
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.no_grad():
            before, after = made(x), made(changed)
        assert before.isfinite().all()
        assert torch.equal(before[:, :s], after[:, :s])
        assert not torch.equal(before[:, s:], after[:, s:])
        if not math.isfinite(value):
            assert after[:, s:].isnan().all()  # not hidden


def test_moves_with_its_input(tiny):
    """Unlike CAttnU it knows no absolute positions: zeros before a sequence change nothing.

    Without constants, that is, as a zero then is a token that nobody sees.
    """
    made = layer(tiny(cattn_heads=2, cf_control=True), dtype=torch.float64)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    later = torch.cat((torch.zeros(2, 6, 24, dtype=torch.float64), x), 1)
    torch.testing.assert_close(made(later)[:, 6:], made(x))


def test_refuses_more_tokens_than_its_kernels_reach(tiny):
    with pytest.raises(ValueError, match="18 tokens do not fit into CAttnC's kernels of block_size=17"):
        CAttnC(tiny())(torch.zeros(1, 18, 24))
    assert CAttnC.complaints(tiny(cattn_heads=5)) == ["cattn_heads=5 does not divide n_embd=24"]


@pytest.mark.parametrize(
    "keys", [{}, {"cf_control": True}, {"cf_control": True, "cf_control_constant": True}]
)
@pytest.mark.parametrize("more", [{}, {"cf_intercept": "none", "cattn_proj": True}])
def test_counts(tiny, keys, more):
    config = tiny(cattn_heads=3, **keys, **more)
    made = CAttnC(config)
    assert sum(p.numel() for p in made.parameters()) == CAttnC.parameter_count(config)
    assert len(made.depth_parameters()) == (0 if keys else 3)


def test_initial_weights(tiny):
    torch.manual_seed(0)
    made = CAttnC(tiny(block_size=200, n_layer=8, cattn_heads=6))
    made.init_weights()
    assert (made.w0 == 1).all()
    first, second = made.m.detach()
    assert (first[:, 0] - 0.25).abs().max() < 0.01
    assert first[:, 1:].abs().max() < 0.01
    torch.testing.assert_close(second.sum(-1), torch.ones(6), rtol=0, atol=0.06)
    share = second[:, :10].sum(-1)  # of the last ten tokens in the mean
    assert share[0] > 0.95
    assert share[-1] < 0.15
    projected = CAttnC(tiny(n_layer=8, cattn_proj=True))
    projected.init_weights()
    assert abs(projected.m[0, 0, 0].item() - 1) < 0.02
