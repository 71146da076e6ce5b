"""Multipliers of parameters computed in other ways."""

from dataclasses import replace

import pytest

from scaling.checks import best_lines, best_tried, check
from scaling.curves import Curves, curves
from tests.scaling.synthetic import points


def test_the_best_rates_that_were_tried():
    rule = points(families=("dense",), sizes=("0.5M", "1M"), seeds=(1, 2))

    def tried(rate, less, seeds=(1, 2), size="1M"):
        return [
            replace(p, rule=0, learning_rate=rate, loss=None if less is None else p.loss - less)
            for p in rule
            if p.seed in seeds and p.size == size
        ]

    better, worse = tried(8e-3, 0.1), tried(2e-3, -0.1)
    one_seed, failed = tried(16e-3, 0.5, seeds=(1,)), tried(32e-3, None)
    found = best_tried([*rule, *worse, *better, *one_seed, *failed])
    assert found == [p for p in rule if p.size == "0.5M"] + [replace(p, rule=1) for p in better]
    assert best_tried(better) == []


def test_a_multiplier_of_them():
    some = points(noise=0.0)
    law = curves(some, "parameters", True, 0)
    at = float(law.lines["dense"].loss(4e5))
    found = check(law, best_lines(some, "parameters"), "dense", "ours", at)
    measured = law.lines["dense"].times(law.lines["ours"], at)
    assert found.best_rates == pytest.approx(measured)
    assert found.fitted == pytest.approx(measured, rel=0.02)
    better = [
        replace(p, rule=0, learning_rate=1e-3, loss=p.loss - 0.05) for p in some if p.family == "ours"
    ]
    best = best_lines(some + better, "parameters")
    assert check(law, best, "dense", "ours", at).best_rates > 1.1 * measured
    without_fits = Curves(law.amount, law.points, law.lines)
    alone = best_lines([p for p in some if p.family == "dense"], "parameters")
    none = check(without_fits, alone, "dense", "ours", at)
    assert (none.fitted, none.best_rates) == (None, None)
    beyond = check(law, best, "dense", "ours", at - 2)  # nothing is extrapolated, by no fit either
    assert (beyond.fitted, beyond.best_rates) == (None, None)
