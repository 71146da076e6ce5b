"""Intervals, multipliers, crossings and held-out sizes, where the truth is known."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from scaling import intervals
from scaling.answers import Lead, answers, crossing, default_losses, multiplier
from scaling.curves import Curves, rows_of
from scaling.deviations import SLOPES, Deviations
from scaling.fits import Law, fit
from scaling.interpolation import Polyline
from scaling.page import remarks
from scaling.tables import misses
from tests.scaling.synthetic import loss_of, points


def line(law, *amounts):
    """Losses of a law at some amounts, as if they had been measured."""
    return Polyline(amounts, tuple(float(law.loss(x)) for x in amounts))


def test_multipliers_near_the_truth_and_within_their_intervals():
    found = answers(points(noise=0.002), samples=60)
    assert found.baseline == "dense"
    one = [m for m in found.multipliers if m.amount == "parameters" and m.value is not None]
    assert len(one) >= 2
    for m in one:
        # the parameters that each needs, by bisection of the true curves
        def needed(family, loss=m.loss):
            low, high = 1e4, 1e8
            while high / low > 1.0001:
                middle = math.sqrt(low * high)
                above = loss_of(family, middle, middle / 1.01 * 20) > loss
                low, high = (middle, high) if above else (low, middle)
            return low

        truth = needed("dense") / needed("ours")
        assert m.value == pytest.approx(truth, rel=0.03)
        low, high = m.interval
        assert low < m.value < high
        assert low * 0.98 < truth < high * 1.02


def test_outside_of_what_was_measured_there_is_no_number():
    laws = {"a": Law(0.0, 1000.0, 0.5), "b": Law(0.0, 500.0, 0.5)}
    lines = {"a": line(laws["a"], 1e4, 1e6), "b": line(laws["b"], 1e4, 1e5)}
    curves = Curves("parameters", [], lines)
    inside = laws["b"].loss(5e4)
    assert multiplier(curves, "a", "b", inside).value == pytest.approx(4.0)
    assert multiplier(curves, "a", "b", inside).interval is None
    assert multiplier(curves, "a", "b", laws["b"].loss(2e5)).value is None  # b was not that large
    assert multiplier(curves, "a", "b", laws["a"].loss(1e4)).value is None  # b would be smaller than any
    levels = default_losses(curves, "a", "b")
    assert len(levels) == 4
    assert laws["b"].loss(1e5) < levels[-1] < levels[0] < laws["b"].loss(1e4)
    assert all(multiplier(curves, "a", "b", loss).value for loss in levels)
    lines["c"] = line(Law(0.0, 9000.0, 0.5), 1e4, 1e5)
    assert default_losses(curves, "a", "c") == []  # worse than a everywhere
    assert multiplier(curves, "a", "d", inside).value is None  # without a curve
    assert default_losses(curves, "a", "d") == []


def test_a_family_that_does_not_follow_a_power_law():
    """Its multiplier is that of what was measured; the fits, which miss it, stand beside."""
    some = [
        replace(p, loss=p.loss * (1.05 if p.size == "0.25M" else 1.0)) if p.family == "dense" else p
        for p in points(noise=0.002)
    ]
    found = answers(some, samples=20)
    at = next(p for p in some if (p.family, p.size) == ("dense", "0.25M"))
    curves = found.curves["parameters"]
    truth = at.parameters / curves.lines["ours"].amount(at.loss)
    one = multiplier(curves, "dense", "ours", at.loss)
    assert one.value == pytest.approx(truth, rel=0.03)
    assert one.interval[0] < truth < one.interval[1]
    fitted = next(c for c in found.checks if c.loss == found.multipliers[0].loss).fitted
    assert fitted is not None
    assert curves.laws["dense"].loss(at.parameters) < at.loss - 0.05


def test_a_family_with_a_single_size_takes_nothing_from_the_others():
    some = [p for p in points(families=("dense", "ours", "half")) if p.family != "half" or p.size == "1M"]
    found = answers(some, samples=5)
    assert {m.family for m in found.multipliers if m.value} == {"ours"}
    assert set(found.curves["flops"].laws) == {"dense", "ours"}
    assert {one.family for one in found.held_out} == {"dense", "ours"}


def test_whether_a_multiplier_grows():
    """The exponents 0.34 and 0.30 make the lead of `ours` shrink; `half` has the baseline's exponent."""
    found = answers(points(families=("dense", "ours", "half"), noise=0.002), samples=60)
    of = {one.family: one for one in found.trends if one.amount == "parameters"}
    assert of["ours"].first > of["ours"].last
    low, high = of["ours"].interval
    assert low <= of["ours"].factor <= high < 1
    assert of["half"].factor == pytest.approx(1, abs=0.04)
    turned = answers(points(noise=0.002), samples=1, baseline="ours")
    assert turned.families == ["ours", "dense"]
    one = next(m for m in turned.multipliers if m.value is not None)
    assert one.value < 1


def test_where_curves_cross():
    laws = {"a": Law(0.0, 1000.0, 0.5), "b": Law(0.0, 100.0, 0.3)}
    at = 10 ** (1 / 0.2)  # 1000 x^-0.5 = 100 x^-0.3
    some = points(families=("dense",), sizes=("1M",), seeds=(1,))
    ends = [replace(p, family=f, parameters=n) for f in "ab" for n in (10_000, 1_000_000) for p in some]
    lines = {family: line(law, 1e4, 1e6) for family, law in laws.items()}
    lower = {"a": lines["a"], "b": line(Law(0.0, 10.0, 0.3), 1e4, 1e6)}
    curves = Curves("parameters", ends, lines, [lines, lower])
    (one,), leaders = crossing(curves, "a", "b")
    assert leaders == []
    assert one.at == pytest.approx(at, rel=1e-3)
    assert one.beyond == "a"
    assert one.share == 0.5  # in the other sample they do not cross
    curves.lines = lower
    assert crossing(curves, "a", "b") == ([], [Lead("parameters", "b", "b", 0.5)])
    curves.samples = []
    assert crossing(curves, "a", "b") == ([], [Lead("parameters", "b", "b", None)])
    curves.lines = {"a": lines["a"], "b": lines["a"]}
    assert crossing(curves, "a", "b") == ([], [])  # the same curve
    curves.points = [p for p in ends if p.family == "a"] + [
        replace(p, parameters=n) for p in some for n in (2_000_000, 4_000_000)
    ]
    curves.points[-2:] = [replace(p, family="b") for p in curves.points[-2:]]
    assert crossing(curves, "a", "b") == ([], [])  # no size that both have


def test_the_held_out_size_is_predicted():
    found = answers(points(noise=0.001), samples=40)
    held = {(one.amount, one.family): one for one in found.held_out}
    assert {amount for amount, _ in held} == {"parameters", "flops", "hours"}
    assert {one.size for one in held.values()} == {"1M"}
    for one in held.values():
        error = one.predicted - one.measured
        assert abs(error) < 0.01
        assert one.interval[0] <= error <= one.interval[1]
        assert one.interval[1] - one.interval[0] < 0.03
    # a size that does not lie on the curve is found out
    broken = [replace(p, loss=p.loss + 0.2) if p.size == "1M" else p for p in points(noise=0.001)]
    for one in answers(broken, samples=1).held_out:
        assert one.predicted - one.measured == pytest.approx(-0.2, abs=0.02)
    assert answers(points(sizes=("0.125M", "0.25M", "0.5M")), samples=1).held_out == []


def test_samples_move_families_together():
    """Noise that a seed gives to both families cancels out in their multiplier, not in their curves."""
    together = points(noise=0.01)
    samples = intervals.samples(together, 200)
    assert len(samples) == 200
    assert all(len(sample) == len(together) for sample in samples)
    gaps, means = [], []
    for sample in samples:
        mean = {f: sum(v for p, v in sample if p.family == f) / 12 for f in ("dense", "ours")}
        gaps.append(mean["dense"] - mean["ours"])
        means.append(mean["dense"])
    assert statistics.pstdev(gaps) < 0.7 * statistics.pstdev(means)


def spread_of(some, place):
    """The deviation of the mean loss at a place over many samples, of its middle 68 %."""
    means = [
        statistics.fmean(v for p, v in s if (p.family, p.size) == place)
        for s in intervals.samples(some, 4000)
    ]
    cuts = statistics.quantiles(means, n=100)
    return (cuts[83] - cuts[15]) / 2


def test_the_spread_of_samples_is_that_of_means():
    """A place alone: of three seeds, t with two degrees of freedom, wider than a normal by 1.32 at 68 %."""
    some = points(families=("dense",), sizes=("1M",))
    losses = [2.0, 2.1, 2.3]
    some = [replace(p, loss=loss) for p, loss in zip(some, losses, strict=True)]
    expected = 1.32 * statistics.stdev(losses) / math.sqrt(3)
    assert spread_of(some, ("dense", "1M")) == pytest.approx(expected, rel=0.1)


def test_places_take_deviations_from_each_other_as_far_as_they_agree():
    alike = points(families=("dense", "ours", "half"), noise=0.01, seeds=range(8))
    few = [p for p in alike if p.size != "1M" or p.seed < 1]
    own = statistics.stdev(p.loss for p in alike if (p.family, p.size) == ("dense", "1M"))
    # one seed, whose deviation the others tell
    assert spread_of(few, ("dense", "1M")) == pytest.approx(own, rel=0.35)
    # eight seeds that differ more than those elsewhere keep their own deviation
    noisy = [
        replace(p, loss=p.loss + 0.1 * (-1) ** p.seed) if (p.family, p.size) == ("dense", "0.5M") else p
        for p in alike
    ]
    assert spread_of(noisy, ("dense", "0.5M")) == pytest.approx(0.107 / math.sqrt(8), rel=0.2)
    assert spread_of(noisy, ("ours", "0.5M")) < 0.02 / math.sqrt(8)


def test_no_intervals_where_no_place_has_two_seeds():
    alone = points(seeds=(1,))
    assert intervals.samples(alone, 5) == []
    found = answers(alone)
    assert {m.interval for m in found.multipliers} == {None}


def test_losses_that_are_all_the_same():
    same = [replace(p, loss=loss_of(p.family, p.parameters, p.tokens)) for p in points()]
    for sample in intervals.samples(same, 20):
        assert [v for _, v in sample] == pytest.approx([p.loss for p in same], abs=1e-8)


def test_an_interval_of_a_crossing_that_may_lie_outside_of_what_was_measured():
    laws = {"a": Law(0.0, 1000.0, 0.5), "b": Law(0.0, 100.0, 0.3)}
    ends = [
        replace(p, family=f, parameters=n) for f in "ab" for n in (10_000, 1_000_000) for p in points()[:1]
    ]
    crossed = {family: line(law, 1e4, 1e6) for family, law in laws.items()}
    before = {"a": crossed["a"], "b": line(Law(0.0, 2000.0, 0.5), 1e4, 1e6)}  # a leads everywhere
    after = {"a": crossed["a"], "b": line(Law(0.0, 500.0, 0.5), 1e4, 1e6)}
    for other, expected in ((before, 0.0), (after, math.inf)):
        ((one,), _) = crossing(Curves("parameters", ends, crossed, [other] * 3), "a", "b")
        assert one.beyond == "a"
        assert one.interval == (expected, expected)
        assert one.share == 0


def test_intervals():
    assert intervals.interval([]) is None
    assert intervals.interval([math.nan]) is None
    assert intervals.interval([float(n) for n in range(1001)]) == (24.0, 976.0)
    assert intervals.interval([1.0, math.inf, 2.0]) == (1.0, math.inf)


def test_samples_find_the_minimum_from_the_best_fit_alone():
    """As the whole grid of starts does, which takes twenty times as long."""
    some = points(noise=0.01)
    best = fit(rows_of([(p, p.loss) for p in some], "parameters"))
    for sample in intervals.samples(some, 3):
        rows = rows_of(sample, "parameters")
        near, anew = fit(rows, start=best), fit(rows)
        for family in best:
            assert near[family].exponent == pytest.approx(anew[family].exponent, rel=1e-3)


@pytest.mark.parametrize(("amount", "law"), [("parameters", "L(N)"), ("flops", "L(C)"), ("hours", "L(T)")])
def test_a_fit_that_misses_means_is_told(amount, law):
    """The loss at the second size is 0.3 higher than a power law has it."""
    some = [p for p in points(noise=1e-3) if p.family == "dense" or p.size in ("0.125M", "1M")]
    bent = [replace(p, loss=p.loss + 0.3) if p.size == "0.25M" else p for p in some]
    found = answers(bent, samples=20)
    missed = misses(found.curves[amount])
    assert {family for family, _ in missed} == {"dense"}  # through two sizes a curve goes exactly
    (own,) = (p for p in bent if (p.family, p.size, p.seed) == ("dense", "0.25M", 1))
    mean = statistics.fmean(p.loss for p in bent if (p.family, p.size) == ("dense", "0.25M"))
    curve = found.curves[amount].laws["dense"]
    assert missed["dense", "0.25M"] == pytest.approx(float(curve.loss(getattr(own, amount))) - mean)
    names = {"dense": "the dense one", "ours": "ours"}
    (told,) = (line for line in remarks(found, names) if line.startswith(f"the fits of {law} miss "))
    assert " means of 4 by more than seeds explain, most of all the dense one at " in told


@pytest.mark.parametrize("seeds", [1, 3])
def test_noise_of_two_means(seeds):
    random = np.random.Generator(np.random.PCG64(0))
    losses = {("dense", size): dict(enumerate(random.normal(3, 0.01, 500))) for size in ("1M", "2M", "4M")}
    found = intervals.noise(Deviations(losses), ("dense", "2M"), seeds)
    assert found == pytest.approx(1.96 * 0.01 * math.sqrt(2 / seeds), rel=0.08)


def test_losses_drawn_anew_spread_as_seeds_do():
    """And two families share as much of a seed's luck."""
    random = np.random.Generator(np.random.PCG64(0))
    shared = random.normal(size=300)
    noise = {name: math.sqrt(0.5) * (shared + random.normal(size=300)) for name in "ab"}
    losses = {(name, "1M"): dict(enumerate(3 + 0.01 * of)) for name, of in noise.items()}
    draws = Deviations(losses).drawn(4000, random)
    one, other = (draws((name, "1M"), 0) for name in "ab")
    assert one.std() == pytest.approx(0.01 * noise["a"].std(), rel=0.06)
    together = np.corrcoef(*noise.values())[0, 1]
    assert np.corrcoef(one, other)[0, 1] == pytest.approx(together, abs=0.06)


def test_a_slope_of_which_losses_say_nothing_is_what_was_believed():
    found = Deviations({("a", "1M"): {1: 3.0, 2: 3.1}}).weights.sum(axis=(0, 2))
    expected = np.exp(-((SLOPES / 0.5) ** 2) / 2)
    assert found == pytest.approx(expected / expected.sum())
