"""Every token and channel mixer against its equation, token by token, in fp32 and bf16."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, silu

from kernels.continued_fraction import continued_fraction_naive
from layers import ATTENTION, FFN
from layers.cattn_m import CAttnM
from layers.cffn import CffnAdded, CffnGated, CffnProduct
from layers.feedforward import MLP, SwiGLU
from layers.ladder import Fraction, LadderEnsemble

DTYPES = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def drawn(layer, scale=0.2):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=scale)
    return layer


def check(layer, oracle, dtype, shape=(2, 13, 24)):
    """The layer under autocast against the oracle on float64 copies of weights and input."""
    torch.manual_seed(1)
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        found = layer(x)
    weights = {name: p.detach().double() for name, p in layer.named_parameters()}
    expected = oracle(weights, x.double())
    tolerance = DTYPES[dtype] * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


def fractions(weights, prefix, depth, x, floor=0.1):
    """z(x) of one ensemble, [..., L], by d divisions."""
    a = [x @ weights[f"{prefix}.W.{k}"].T + weights.get(f"{prefix}.b.{k}", 0) for k in range(depth)]
    return continued_fraction_naive(torch.stack(a, dim=-2), "positive", floor=floor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bias", "shift"), [(False, False), (True, False), (True, True)])
def test_softmax_attention(tiny, dtype, bias, shift):
    config = tiny(bias=bias, token_shift=shift)

    def oracle(w, x):
        q, k, v = (x @ w["qkv.weight"].T + w.get("qkv.bias", 0)).chunk(3, -1)
        for t in range(1, x.shape[1] if shift else 0):
            k[:, t] += x[:, t - 1] @ w["previous.weight"].T
        rows = torch.zeros_like(x)
        for head in range(3):
            part = slice(8 * head, 8 * head + 8)
            for t in range(x.shape[1]):
                scores = (k[:, : t + 1, part] @ q[:, t, part, None])[..., 0] / 8**0.5
                rows[:, t, part] = (scores.softmax(-1)[:, None] @ v[:, : t + 1, part])[:, 0]
        return rows @ w["proj.weight"].T + w.get("proj.bias", 0)

    check(drawn(ATTENTION["softmax"](config)), oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("heads", "proj", "columns"),
    [
        *((1, False, None), (3, False, None), (2, True, None)),
        *((1, True, "relative"), (3, False, "relative"), (2, False, "relative content")),
        *((1, False, "relative content shift"), (3, True, "relative content shift")),
        *((1, False, "affine"), (3, True, "collapsed"), (1, False, "collapsed affine")),
        (2, False, "collapsed affine"),
    ],
)
def test_cattn_m(tiny, dtype, strict, heads, proj, columns):
    content, relative = ("content" in (columns or ""), "relative" in (columns or ""))
    keys = {"cattn_heads": heads, "cattn_proj": proj}
    shift = "shift" in (columns or "")
    keys |= {"cattn_content": content, "token_shift": shift}
    if relative and strict:
        pytest.skip("strict is the paper's")
    collapsed, affine = "collapsed" in (columns or ""), "affine" in (columns or "")
    keys |= {"cattn_scores": "collapsed" if collapsed else "rank", "cf_linear_intercept": affine}
    config = tiny(attention="cattn_relative" if relative else "cattn_m", cattn_strict=strict, **keys)

    def oracle(w, x):
        y = fractions(w, "ladders", 3, x)
        if not collapsed:
            y = y + x @ w["ladders.U.weight"].T + w.get("ladders.U.bias", 0)
        v = x @ w["value.weight"].T
        out = torch.zeros_like(x)
        width = 24 // heads
        for head in range(heads):
            part = slice(width * head, width * (head + 1))
            own = slice(3 * head, 3 * head + 3)
            if collapsed:
                U, V = w["columns"][head][:width].T, w["columns"][head][width:].T
                scores = x[..., part] @ U.T + y[..., own] @ V.T + (w["intercept"][head] if affine else 0)
            else:
                scores = y[..., own] @ w["columns"][head]
            by_content = 0.0
            if content:
                columns_of = x @ w["content.weight"][own].T
                for t in range(1, x.shape[1] if shift else 0):
                    columns_of[:, t] += x[:, t - 1] @ w["previous.weight"][own].T
                by_content = y[..., own] @ columns_of.mT
            for t in range(x.shape[1]):
                end = t if strict else t + 1
                if end:
                    seen = scores[:, t, :end]
                    if relative:
                        seen = scores[:, t, t + 1 - end : t + 1].flip(-1)
                    weights = (seen + (by_content[:, t, :end] if content else 0)).softmax(-1)
                    out[:, t, part] = (weights[:, None] @ v[:, :end, part])[:, 0]
        return out @ w["proj.weight"].T if proj else out

    check(drawn(ATTENTION[config.attention](config)), oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_mlp(tiny, dtype, bias):
    def oracle(w, x):
        inner = gelu(x @ w["up.weight"].T + w.get("up.bias", 0))
        return inner @ w["down.weight"].T + w.get("down.bias", 0)

    check(drawn(MLP(tiny(bias=bias))), oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_swiglu(tiny, dtype, bias):
    def oracle(w, x):
        inner = x @ w["up.weight"].T + w.get("up.bias", 0)
        return (silu(inner[..., :40]) * inner[..., 40:]) @ w["down.weight"].T + w.get("down.bias", 0)

    check(drawn(SwiGLU(tiny(bias=bias, ffn_hidden=40))), oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("gate", "hidden"),
    [("self", None), ("glu_collapsed", None), ("glu_collapsed", 9)],
)
@pytest.mark.parametrize("affine", [False, True])
def test_cffn_gated(tiny, dtype, gate, hidden, affine):
    def oracle(w, x):
        gated = x @ w["gate.weight"].T
        h = silu(gated) * (x @ w["up.weight"].T) if gate == "glu_collapsed" else torch.sigmoid(gated) * x
        z = fractions(w, "ladders", 3, h)
        linear = h @ w["ladders.U.weight"].T + w.get("ladders.U.bias", 0)
        return linear + z @ w["ladders.V.weight"].T

    config = tiny(cffn_gate=gate, ffn_hidden=hidden, cf_linear_intercept=affine)
    module = drawn(CffnGated(config))
    assert any(name.endswith("U.bias") for name, _ in module.named_parameters()) == affine
    if hidden:
        assert module.gate.weight.shape[0] == hidden
    check(module, oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cffn_product(tiny, dtype):
    def oracle(w, x):
        first, second = (
            x @ w[f"{name}.U.weight"].T + fractions(w, name, depth, x) @ w[f"{name}.V.weight"].T
            for name, depth in (("first", 3), ("second", 4))
        )
        return first * second

    check(drawn(CffnProduct(tiny())), oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cffn_added(tiny, dtype):
    def oracle(w, x):
        product = (x @ w["U1.weight"].T) * (x @ w["U2.weight"].T)
        return product + fractions(w, "ladders", 3, x) @ w["ladders.V.weight"].T

    check(drawn(CffnAdded(tiny())), oracle, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cffn_added_with_a_glu_for_ladders(tiny, dtype):
    def oracle(w, x):
        product = (x @ w["U1.weight"].T) * (x @ w["U2.weight"].T)
        gate, value = (x @ part.T for part in (w["up.weight"][:7], w["up.weight"][7:]))
        return product + (gate * torch.sigmoid(gate) * value) @ w["down.weight"].T

    control = tiny(ffn="cffn_added", cf_control="zero", ffn_hidden=7)
    check(drawn(CffnAdded(control)), oracle, dtype)
    assert "ffn_hidden=7" not in control.unused_keys()
    ladders, p = tiny(cf_ladders=7, cf_depth=2), control.n_embd
    beside = [CffnAdded.parameter_count(config) - 2 * p * p for config in (ladders, control)]
    assert beside[0] == beside[1] + 7 * 2  # the ladders' biases
    both = tiny(ffn="cffn_added", cf_control="constant", ffn_hidden=7)
    assert any("either units or a constant" in wrong for wrong in both.check())


@pytest.mark.parametrize("dtype", DTYPES)
def test_cffn_added_without_biases(tiny, dtype):
    def oracle(w, x):
        assert "ladders.b.0" not in w
        product = (x @ w["U1.weight"].T) * (x @ w["U2.weight"].T)
        return product + fractions(w, "ladders", 3, x) @ w["ladders.V.weight"].T

    check(drawn(CffnAdded(tiny(cf_intercept="none"))), oracle, dtype)


@pytest.mark.parametrize(
    ("registry", "name", "keys"),
    [
        (ATTENTION, "cattn_m", {"cattn_heads": 2}),
        (ATTENTION, "cattn_relative", {"cattn_heads": 2, "cattn_content": True}),
        (ATTENTION, "cattn_u", {}),
        (FFN, "cffn_gated", {"cffn_gate": "self"}),
        (FFN, "cffn_gated", {"cffn_gate": "glu_collapsed"}),
        (FFN, "cffn_product", {}),
        (FFN, "cffn_added", {}),
    ],
)
def test_a_control_is_the_module_whose_fractions_are_zero(tiny, monkeypatch, registry, name, keys):
    layer = drawn(registry[name](tiny(**keys)))
    control = registry[name](tiny(cf_control="zero", **keys))
    left = control.load_state_dict(layer.state_dict(), strict=False)
    assert not left.missing_keys
    assert left.unexpected_keys
    assert not any(key.split(".")[-2:-1] in (["W"], ["b"]) for key in control.state_dict())
    monkeypatch.setattr(Fraction, "forward", lambda self, a, *_, **__: 0 * a.sum(-1 - len(self.shape)))
    x = torch.randn(2, 13, 24)
    torch.testing.assert_close(control(x), layer(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("registry", "name", "keys"),
    [
        (ATTENTION, "cattn_m", {"cattn_heads": 2}),
        (ATTENTION, "cattn_u", {}),
        (FFN, "cffn_gated", {"cffn_gate": "self"}),
        (FFN, "cffn_gated", {"cffn_gate": "glu_collapsed"}),
        (FFN, "cffn_product", {}),
        (FFN, "cffn_added", {}),
    ],
)
def test_a_control_with_constants_is_the_module_whose_ladders_see_nothing(tiny, registry, name, keys):
    """W = 0: every fraction is a constant, a learned one."""
    layer = drawn(registry[name](tiny(**keys)))
    for part in layer.modules():
        for weight in getattr(part, "W", ()):
            nn.init.zeros_(weight)
    control = registry[name](tiny(cf_control="constant", **keys))
    left = control.load_state_dict(layer.state_dict(), strict=False)
    assert left.missing_keys
    assert {key.split(".")[-1] for key in left.missing_keys} == {"constant"}
    x = torch.randn(2, 13, 24)
    for part, other in zip(layer.modules(), control_parts(layer, control), strict=True):
        if getattr(part, "fraction", None) is not None:
            with torch.no_grad():
                other.constant.copy_(constant(part, x))
    torch.testing.assert_close(control(x), layer(x), rtol=1e-5, atol=1e-6)
    assert sum(p.numel() for p in control.parameters()) == registry[name].parameter_count(
        tiny(
            cf_control="constant",
            attention=name if registry is ATTENTION else "softmax",
            **keys,
        )
    )


def control_parts(layer, control):
    """The part of the control that has the name of each part of the layer, or None."""
    named = dict(control.named_modules())
    return [named.get(name) for name, _ in layer.named_modules()]


def constant(part, x):
    """What a module whose ladders have W = 0 gets from them, whatever the token."""
    if isinstance(part, LadderEnsemble):
        x = x.new_zeros(1, part.n_in)
        return (part(x) - (0 if part.U is None else part.U(x)))[0]
    biases = torch.stack(list(part.b))  # [d, 2, positions or features]
    return part.fraction(biases)


@pytest.mark.parametrize(
    ("heads", "n_head", "value_heads", "value_width"),
    [(1, 3, 1, 8), (None, 3, 1, 8), (6, 4, 2, 12), (6, 3, 1, 8), (4, 3, None, 24)],
)
def test_cattn_m_shares_values(tiny, heads, n_head, value_heads, value_width):
    """As a layer whose W^v holds each shared part once for every head that uses it."""
    keys = {"attention": "cattn_m", "cattn_heads": heads, "n_head": n_head}
    shared, full = drawn(CAttnM(tiny(**keys, cattn_value_heads=value_heads))), CAttnM(tiny(**keys))
    heads = shared.heads
    weights = shared.state_dict()
    assert weights["value.weight"].shape == (value_width, 24)
    repeats = 24 // value_width
    if heads == 1:
        value = weights["value.weight"].repeat(repeats, 1)
    else:
        parts = weights["value.weight"].unflatten(0, (heads // repeats, -1))
        value = parts.repeat_interleave(repeats, dim=0).flatten(0, 1)
    full.load_state_dict({**weights, "value.weight": value})
    x = torch.randn(2, 13, 24)
    torch.testing.assert_close(shared(x), full(x))


@pytest.mark.parametrize("heads", [1, 2])
def test_cattn_m_rows_are_convex_combinations(tiny, heads):
    layer = drawn(CAttnM(tiny(cattn_heads=heads)), 1.0)
    weights = layer.causal_softmax(torch.randn(2, heads, 13, 13))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, heads, 13))
    assert (weights.triu(1) == 0).all()


def test_cattn_m_without_scores_is_the_causal_mean(tiny):
    layer = drawn(CAttnM(tiny()))
    with torch.no_grad():
        layer.columns.zero_()
    x = torch.randn(2, 13, 24)
    v = layer.value(x)
    means = v.cumsum(1) / torch.arange(1, 14)[:, None]
    torch.testing.assert_close(layer(x), means)


def test_cattn_m_copies_the_position_that_one_column_points_at(tiny):
    layer = drawn(CAttnM(tiny(cf_pole="positive")))
    with torch.no_grad():
        layer.ladders.U.weight.zero_()  # y = z > 0
        layer.columns.zero_()
        layer.columns[:, :, 5] = 1e4
    x = torch.randn(2, 13, 24)
    v = layer.value(x)
    torch.testing.assert_close(layer(x)[:, 5:], v[:, 5:6].expand(-1, 8, -1))


def test_cattn_m_strict_starts_with_zeros_and_no_nan(tiny):
    layer = drawn(CAttnM(tiny(cattn_strict=True)))
    x = torch.randn(2, 13, 24, requires_grad=True)
    out = layer(x)
    out.square().sum().backward()
    assert (out[:, 0] == 0).all()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_cattn_m_refuses_more_tokens_than_columns(tiny):
    with pytest.raises(ValueError, match=r"18 tokens .*CAttnM.* 17\b"):
        CAttnM(tiny())(torch.zeros(1, 18, 24))


@pytest.mark.parametrize("ffn", FFN)
def test_dropout_acts_on_the_output(tiny, ffn):
    layer, x = drawn(FFN[ffn](tiny(dropout=0.5))), torch.randn(2, 13, 24)
    assert 0.4 < (layer(x) == 0).float().mean() < 0.6
    assert (layer.eval()(x) != 0).all()


@pytest.mark.parametrize(("registry", "name"), [(r, n) for r in (ATTENTION, FFN) for n in r])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"cf_pole": "clamp", "cf_depth": 2, "cattn_strict": True},
        {"cf_intercept": "none", "cf_impl": "ladder"},
    ],
)
def test_the_future_has_no_influence(tiny, registry, name, dtype, keys):
    """Perturb token s: outputs before s stay the same to the bit, some output from s on changes."""
    config = tiny(**{"attention" if registry is ATTENTION else "ffn": name}, **keys)
    if config.check():
        assert name == "cattn_relative"
        return
    layer = drawn(registry[name](config), 0.5).eval()
    x = layer_norm(torch.randn(2, 17, 24), (24,))
    for s in (1, 7, 16):
        changed = x.clone()
        changed[:, s:] += torch.randn(2, 17 - s, 24)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.no_grad():
            before, after = layer(x), layer(changed)
        assert before.shape == x.shape
        assert torch.equal(before[:, :s], after[:, :s])
        assert not torch.equal(before[:, s:], after[:, s:])


@pytest.mark.parametrize(
    ("attention", "keys"),
    [
        ("cattn_m", {"cattn_scores": "collapsed"}),
        ("cattn_m", {}),
        ("cattn_relative", {"cattn_content": True}),
    ],
)
def test_a_step_rounds_large_scores_no_more_than_a_whole_text(tiny, attention, keys):
    """Under autocast, against float64: scores of tens, which bfloat16 knows to a tenth."""
    layer = drawn(ATTENTION[attention](tiny(attention=attention, **keys)), 0.2).eval()
    with torch.no_grad():
        layer.columns *= 30
    x = layer_norm(torch.randn(4, 17, 24), (24,))
    cache = tuple(held.zero_() for held in layer.new_cache(4, 17, "cpu", torch.float32))
    with torch.no_grad():
        exact = copy.deepcopy(layer).double()(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            whole = layer(x)
            steps = torch.cat(
                [layer.decode(x[:, t : t + 1], torch.tensor([t]), cache) for t in range(17)], 1
            )
    error, of_steps = ((found - exact).square().mean().sqrt().item() for found in (whole, steps))
    assert 0 < of_steps < 1.3 * error


@pytest.mark.parametrize("keys", [{}, {"n_kv_head": 1}, {"attention": "sliding_window"}])
@pytest.mark.parametrize("way", ["forward", "encode"])
def test_dropout_acts_on_weights_in_training(tiny, keys, way):
    config = tiny(dropout=0.5, **keys)
    layer, x = ATTENTION[config.attention](config), torch.randn(2, 17, 24)
    if way == "encode" and not layer.bidirectional:
        pytest.skip("causal")
    layer.dropout.p = 0.0

    def out():
        return layer(x) if way == "forward" else layer.encode(x, torch.tensor([17, 9]))

    assert not torch.equal(out(), out())
    if "attention" in keys:  # beyond the first window too
        assert not torch.equal(out()[:, 5:], out()[:, 5:])
    layer.eval()
    assert torch.equal(out(), out())


@pytest.mark.parametrize(
    "keys",
    [
        {"attention": "cattn_m"},
        {"attention": "cattn_m", "cattn_strict": True},
        {"attention": "cattn_m", "cattn_scores": "collapsed"},
        {"attention": "cattn_relative"},
        {"attention": "cattn_relative", "cattn_content": True, "token_shift": True},
    ],
)
def test_dropped_weights_are_those_of_evaluation(tiny, keys):
    """Training with dropout computes them elsewhere than in evaluation."""
    config = tiny(dropout=0.5, cattn_heads=2, **keys)
    layer, x = drawn(ATTENTION[config.attention](config)), torch.randn(2, 13, 24)
    layer.weight_dropout.p, layer.dropout.p = 1e-12, 0.0  # nothing is dropped
    torch.testing.assert_close(layer.train()(x), layer.eval()(x))
    layer.train().weight_dropout.p = 0.5
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_every_norm_has_the_eps_of_the_config(build, attention, norm):
    qk = {"qk_norm": True} if attention == "softmax" else {}
    model = build(attention=attention, norm=norm, norm_eps=0.25, **qk)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    assert {module.eps for module in norms} == {0.25}
