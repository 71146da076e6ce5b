"""Ladder ensembles against a loop over ladders."""

import pytest
import torch

from kernels.continued_fraction import continued_fraction_naive
from layers.ladder import LadderEnsemble
from model import ModelConfig


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


def test_counts_parameters():
    for linear, project, n_out in [(True, True, 5), (False, True, 5), (True, False, 3), (False, False, 3)]:
        made = ensemble(linear=linear, project=project, n_out=n_out)
        expected = LadderEnsemble.parameter_count(ModelConfig(), 8, n_out, 3, 3, linear, project)
        assert sum(p.numel() for p in made.parameters()) == expected


def test_without_a_projection_the_width_is_the_number_of_ladders():
    with pytest.raises(ValueError, match="without a projection"):
        ensemble(n_out=5, project=False)
