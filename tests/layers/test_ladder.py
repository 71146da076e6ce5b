"""Ladder ensembles against a loop over ladders, and the fraction that they own."""

import re

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from kernels import split
from kernels.continued_fraction import (
    continued_fraction,
    continued_fraction_ladder,
    continued_fraction_naive,
    denominator,
)
from layers.ladder import Fraction, LadderEnsemble
from models.architecture import ModelConfig


def ensemble(n_in=8, n_out=5, ladders=3, depth=3, linear=True, project=True, dtype=torch.float32, **keys):
    torch.manual_seed(0)
    made = LadderEnsemble(ModelConfig(**keys), n_in, n_out, ladders, depth, linear, project)
    made.init_weights()
    with torch.no_grad():
        for weight in made.W:
            weight.normal_()
    return made.to(dtype)


def naive(ensemble, x, pole, floor):
    """Equation 8, one ladder after the other."""
    z = []
    for j in range(ensemble.ladders):
        a = torch.stack([x @ W[j] + b[j] for W, b in zip(ensemble.W, ensemble.b, strict=True)])
        z.append(continued_fraction_naive(a[..., None], pole, floor=floor)[..., 0] if x.dim() == 1 else
                 continued_fraction_naive(a.flatten(1), pole, floor=floor).view(a.shape[1:]))  # fmt: skip
    z = torch.stack(z, dim=-1)
    y = z if ensemble.V is None else z @ ensemble.V.weight.T
    return y if ensemble.U is None else y + x @ ensemble.U.weight.T


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("linear", "project", "n_out"), [(True, True, 5), (False, True, 5), (True, False, 3), (False, False, 3)]
)
def test_equals_a_loop_over_ladders(depth, linear, project, n_out):
    keys = {"cf_pole": "positive", "cf_floor": 0.3}
    made = ensemble(depth=depth, linear=linear, project=project, n_out=n_out, dtype=torch.float64, **keys)
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(made(x), naive(made, x, "positive", 0.3))


def test_clamped_poles_equal_the_loop_away_from_them():
    made = ensemble(dtype=torch.float64, cf_pole="clamp")
    with torch.no_grad():
        for weight in made.W:
            weight.mul_(0.03)  # around the bias of 1
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(made(x), naive(made, x, "clamp", 0.0))


def test_collapsed_and_literal_forms_agree():
    """V (W_0 x + z) is U x + V z with U = V W_0 (equations 7 and 8)."""
    collapsed = ensemble(dtype=torch.float64)
    W0 = torch.randn(3, 8, dtype=torch.float64)
    with torch.no_grad():
        collapsed.U.weight.copy_(collapsed.V.weight @ W0)
    x = torch.randn(4, 8, dtype=torch.float64)
    literal = (x @ W0.T + collapsed.fractions(x)) @ collapsed.V.weight.T
    torch.testing.assert_close(collapsed(x), literal, rtol=0, atol=1e-12)


def test_half_precision_input_does_not_round_the_partial_denominators():
    made = ensemble(n_in=64, depth=7)
    x = torch.randn(50, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        a, z = made.partial_denominators(x), made.fractions(x)
    exact = ensemble(n_in=64, depth=7, dtype=torch.float64)
    torch.testing.assert_close(a.double(), exact.partial_denominators(x.double()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z.double(), exact.fractions(x.double()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_products_in_parts_keep_the_denominators(monkeypatch, depth):
    """As on a GPU under autocast: K_d to 1e-3 at the 99th percentile. Rounded inputs would miss that."""
    torch.manual_seed(0)
    config = ModelConfig(cf_init="nanogpt_xl")  # the largest partial denominators
    ensemble = LadderEnsemble(config, 1600, 7, 7, depth, project=False)
    for module in ensemble.modules():
        if hasattr(module, "init_weights"):
            module.init_weights()
    x = torch.randn(500, 1600)
    exact = ensemble.double().partial_denominators(x.double())
    ensemble.float()

    def error(a):
        K_d = ensemble.fraction.denominator(exact)
        return ((ensemble.fraction.denominator(a) - K_d) / K_d).abs().quantile(0.99).item()

    monkeypatch.setattr(split, "in_parts", lambda x: True)
    assert error(ensemble.partial_denominators(x)) < 1e-4
    monkeypatch.setattr(split, "high_and_low", lambda x: (x.bfloat16(), 0 * x.bfloat16()))
    assert error(ensemble.partial_denominators(x)) > 1e-3


def test_compiled_intercepts_cost_no_pass_of_their_own(monkeypatch):
    """They are added where the products of the parts are summed. The compiler sees no more of the products
    than on a GPU.
    """
    library = torch.library.Library("tests", "DEF")
    library.define("product(Tensor a, Tensor b) -> Tensor")
    library.impl("product", lambda a, b: a.float() @ b.float(), "CPU")
    library.impl("product", lambda a, b: a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32), "Meta")
    monkeypatch.setattr(split, "in_parts", lambda x: True)
    monkeypatch.setattr(split, "summed_in_float32", torch.ops.tests.product.default)
    made = LadderEnsemble(ModelConfig(), 24, 24, 5, 3)
    made.init_weights()
    compiled = torch.compile(made.partial_denominators, fullgraph=True)
    x = torch.randn(3, 7, 24, requires_grad=True)

    def denominators():
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(x)

    found, codes = run_and_get_code(denominators)
    torch.testing.assert_close(found, made.partial_denominators(x), rtol=1e-4, atol=1e-5)
    calls = re.findall(r"^ +(?:buf\d+ = )?(cpp_fused|torch\.ops\.tests\.product)", codes[0], re.M)
    assert calls == ["cpp_fused", *2 * ["torch.ops.tests.product"], "cpp_fused"]


def test_clamped_poles_take_no_products_in_parts(monkeypatch):
    monkeypatch.setattr(split, "in_parts", lambda x: True)
    monkeypatch.setattr(split, "product", lambda *_: pytest.fail("a product in parts"))
    x = torch.randn(5, 24)
    LadderEnsemble(ModelConfig(cf_pole="clamp"), 24, 24, 3, 3).partial_denominators(x)
    with pytest.raises(pytest.fail.Exception):
        LadderEnsemble(ModelConfig(cf_pole="positive"), 24, 24, 3, 3).partial_denominators(x)


def test_starts_without_poles():
    """std(a) = 0.1 around 1: no ladder of any depth is near its pole."""
    for depth in range(1, 9):
        made = LadderEnsemble(ModelConfig(cf_pole="clamp"), 256, 5, 7, depth, True, True)
        made.init_weights()
        a = made.partial_denominators(torch.randn(2000, 256))
        assert a.mean().item() == pytest.approx(1, abs=0.02)
        assert a.std().item() == pytest.approx(0.1, rel=0.1)
        assert made.fractions(torch.randn(2000, 256)).abs().max() < 2.5


def test_depth_parameters_are_tensors_of_their_own():
    made = ensemble(depth=3)
    by_depth = made.depth_parameters()
    assert [[tuple(p.shape) for p in depth] for depth in by_depth] == [[(3, 8), (3,)]] * 3
    assert made.depth_parameters()[1][0] is made.W[1]


def test_evaluation_clips_to_the_range_seen_in_training():
    made = ensemble(depth=1, cf_eval_clip=True, cf_pole="clamp")
    x = torch.randn(40, 8)
    unclipped = made.eval().fractions(100 * x)  # no range yet: nothing to clip to
    assert torch.equal(unclipped, made.train().fractions(100 * x))
    made.fraction.reset_range()
    z = made.train().fractions(x)
    assert torch.equal(made.fraction.z_min, z.amin(0))
    assert torch.equal(made.fraction.z_max, z.amax(0))
    made.eval()
    assert torch.equal(made.fractions(x), z)  # in range: unchanged
    far = made.fractions(1e4 * torch.randn(200, 8))
    assert (far >= made.fraction.z_min).all()
    assert (far <= made.fraction.z_max).all()
    before = made.fraction.z_min.clone(), made.fraction.z_max.clone()
    made.fractions(50 * x)
    assert torch.equal(before[0], made.fraction.z_min)  # evaluation records nothing
    wide = made.train().fractions(10 * x)
    assert (wide.amax(0) >= before[1]).any()  # training is never clipped
    assert torch.equal(made.fraction.z_max, torch.maximum(before[1], wide.amax(0)))
    made.fractions(torch.full((1, 8), float("nan")))
    assert made.fraction.z_max.isfinite().all()
    assert {"fraction.z_min", "fraction.z_max"} <= made.state_dict().keys()


@pytest.mark.parametrize(("intercept", "affine"), [("one", False), ("none", False), ("normal", True)])
def test_counts_parameters(intercept, affine):
    keys = {"cf_intercept": intercept, "cf_linear_intercept": affine}
    for linear, project, n_out in [(True, True, 5), (False, True, 5), (True, False, 3), (False, False, 3)]:
        made = ensemble(linear=linear, project=project, n_out=n_out, **keys)
        config = ModelConfig(**keys)
        expected = LadderEnsemble.parameter_count(config, 8, n_out, 3, 3, linear, project)
        assert sum(p.numel() for p in made.parameters()) == expected
    square = LadderEnsemble.parameter_count(ModelConfig(), 8, 8, 3, 4)
    assert square == 3 * 8 * (4 + 1) + 3 * 4 + 8 * 8  # L p (d + 1) + L d + p^2


def test_nanogpt_weights_without_intercepts():
    made = LadderEnsemble(ModelConfig(cf_init="nanogpt", cf_intercept="none"), 256, 256, 7, 3)
    made.init_weights()
    assert [name for name, _ in made.named_parameters() if "b." in name] == []
    assert [[tuple(p.shape) for p in depth] for depth in made.depth_parameters()] == [[(7, 256)]] * 3
    for weight in made.W:
        assert weight.mean().item() == pytest.approx(0, abs=2e-3)
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (made.partial_denominators(torch.zeros(1, 256)) == 0).all()


@pytest.mark.parametrize(
    ("cf_init", "std"), [("fan_in", 0.1 / 16), ("nanogpt", 0.02), ("nanogpt_xl", 0.05)]
)
@pytest.mark.parametrize("intercept", ["one", "zero", "normal"])
def test_where_intercepts_start_is_independent_of_the_weights(cf_init, std, intercept):
    torch.manual_seed(0)
    keys = {"cf_init": cf_init, "cf_intercept": intercept, "cf_linear_intercept": True}
    made = LadderEnsemble(ModelConfig(**keys), 256, 64, 400, 3)
    for part in made.modules():  # as GPT.init_weights does
        if isinstance(part, torch.nn.Linear) and part.bias is not None:
            torch.nn.init.zeros_(part.bias)
    made.init_weights()
    for weight, b in zip(made.W, made.b, strict=True):
        assert weight.std().item() == pytest.approx(std, rel=0.05)
        if intercept == "normal":
            assert b.std().item() == pytest.approx(std, rel=0.2)
            assert abs(b.mean().item()) < 0.2 * std
        else:
            assert (b == (intercept == "one")).all()
    assert made.U.bias.shape == (64,)
    assert (made.U.bias == 0).all()
    assert [len(depth) for depth in made.depth_parameters()] == [2, 2, 2]


def test_the_fraction_follows_the_config():
    torch.manual_seed(0)
    a = 0.3 * torch.randn(50, 3, 4)
    keys = {"cf_pole": "clamp", "cf_eps": 0.2}
    ladder = Fraction(ModelConfig(cf_impl="ladder", **keys), (4,))
    assert torch.equal(ladder(a), continued_fraction_ladder(a, eps=0.2))
    positive = Fraction(ModelConfig(cf_impl="ladder", cf_floor=0.7), (4,))
    assert torch.equal(positive(a), continued_fraction_ladder(a, "positive", floor=0.7))
    assert torch.equal(positive.denominator(a), denominator(a, "positive", 0.7))
    assert torch.equal(Fraction(ModelConfig(**keys), (4,))(a), continued_fraction(a, eps=0.2))


def test_ladders_of_more_dimensions():
    fraction = Fraction(ModelConfig(cf_eval_clip=True), (2, 5))
    a = torch.randn(3, 7, 4, 2, 5)
    z = fraction(a)
    assert z.shape == (3, 7, 2, 5)
    torch.testing.assert_close(z[..., 1, 3], continued_fraction(a[..., 1, 3:4], "positive")[..., 0])
    torch.testing.assert_close(
        fraction.denominator(a)[..., 1, 3:4], denominator(a[..., 1, 3:4], "positive")
    )
    assert torch.equal(fraction.z_min, z.amin((0, 1)))
    # a shorter last dimension: the ranges of the others stay as they are
    high = fraction.z_max.clone()
    short = fraction(-100 * torch.ones(3, 7, 4, 2, 3))
    assert torch.equal(fraction.z_max[:, :3], torch.maximum(high[:, :3], short.amax((0, 1))))
    assert torch.equal(fraction.z_max[:, 3:], high[:, 3:])
    inside = fraction.eval()(100 * torch.randn(3, 7, 4, 2, 3))
    assert (inside <= fraction.z_max[:, :3]).all()
    assert (inside >= fraction.z_min[:, :3]).all()


def test_clipping_can_be_switched_off_and_ranges_forgotten():
    torch.manual_seed(0)
    fraction = Fraction(ModelConfig(cf_eval_clip=True, cf_pole="clamp"), (4,))
    fraction(1 + 0.1 * torch.randn(50, 3, 4))
    wild = torch.randn(200, 3, 4)
    fraction.eval()
    ranges = fraction.z_min.clone(), fraction.z_max.clone()
    free = continued_fraction(wild)
    assert torch.equal(fraction(wild), free.clamp(*ranges))
    fraction.clip = False
    assert torch.equal(fraction(wild), free)
    fraction.train()(1 + 0.3 * torch.randn(50, 3, 4))  # recorded whether it will be used or not
    assert (fraction.z_max >= ranges[1]).all()
    assert not torch.equal(fraction.z_max, ranges[1])
    fraction.clip = True
    fraction.eval().reset_range()
    assert torch.equal(fraction(wild), free)
    assert {"z_min", "z_max"} == fraction.state_dict().keys()
    plain = Fraction(ModelConfig(), (4,))
    plain.reset_range()
    assert plain.state_dict() == {}


@pytest.mark.parametrize("clip_of", ["z", "ladder"])
@pytest.mark.parametrize("impl", ["continuant", "ladder"])
def test_what_is_clipped(clip_of, impl):
    """z, or all that the ladder produces, a_0 + z, as printed."""
    keys = {"cf_eval_clip": True, "cf_impl": impl, "cf_linear_intercept": True}
    made = ensemble(n_out=3, project=False, cf_clip_of=clip_of, **keys)
    seen, far = torch.randn(40, 8), 3 * torch.randn(200, 8)

    def parts(x):
        a = made.partial_denominators(x)
        return made.U(x), continued_fraction_naive(a, "positive")

    (linear, z), (far_linear, far_z) = parts(seen), parts(far)
    torch.testing.assert_close(made(seen), linear + z)
    if clip_of == "ladder":
        whole = linear + z
        expected = (far_linear + far_z).clamp(whole.amin(0), whole.amax(0))
    else:
        expected = far_linear + far_z.clamp(z.amin(0), z.amax(0))
    assert ((far_linear + far_z - expected).abs() > 0.01).float().mean() > 0.05
    torch.testing.assert_close(made.eval()(far), expected)
    made.fraction.reset_range()
    torch.testing.assert_close(made(far), far_linear + far_z)


def test_recording_a_range_twice_changes_nothing():
    """Activation checkpointing runs a forward pass again."""
    fraction = Fraction(ModelConfig(cf_eval_clip=True), (4,))
    a = torch.randn(50, 3, 4)
    fraction(a)
    once = fraction.z_min.clone(), fraction.z_max.clone()
    fraction(a)
    assert torch.equal(fraction.z_min, once[0])
    assert torch.equal(fraction.z_max, once[1])


def test_a_hook_on_the_fraction_sees_the_partial_denominators():
    made = ensemble()
    seen = []
    made.fraction.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    x = torch.randn(2, 7, 8)
    made(x)
    assert len(seen) == 1
    assert torch.equal(seen[0], made.partial_denominators(x))
    assert made.fraction.denominator(seen[0]).shape == (2, 7, *made.fraction.shape)


def test_without_a_projection_the_width_is_the_number_of_ladders():
    with pytest.raises(ValueError, match="without a projection"):
        ensemble(n_out=5, project=False)


def test_ranges_are_empty_after_building_on_the_meta_device():
    """Memory handed out by to_empty holds anything until init_weights has been called."""
    with torch.device("meta"):
        fraction = Fraction(ModelConfig(cf_eval_clip=True), (4,))
    fraction.to_empty(device="cpu")
    with torch.no_grad():
        fraction.z_min.fill_(3.0)
    fraction.init_weights()
    assert (fraction.z_min == float("inf")).all()
    assert (fraction.z_max == -float("inf")).all()


def test_ranges_ignore_what_is_not_finite():
    fraction = Fraction(ModelConfig(cf_eval_clip=True, cf_pole="clamp", cf_eps=1e-39), (2,))
    a = torch.tensor([[[2.0, float("nan")]], [[0.0, -0.5]], [[-1e-42, 4.0]]])
    assert fraction(a)[1:, 0].isinf().all()
    assert fraction.z_min.tolist() == [0.5, -2.0]
    assert fraction.z_max.tolist() == [0.5, 0.25]
