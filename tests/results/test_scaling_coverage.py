"""results/scaling/coverage.py: intervals hold the truth as often as they say, and the page has its rows."""

import csv

import numpy as np
import pytest

from results.scaling import coverage


@pytest.mark.slow
@pytest.mark.parametrize("seeds", ["2", "3, 3, 3, 2, 1"])
def test_multipliers_within_their_intervals(seeds):
    """Resampled seeds, which are too narrow, hold it in 70 to 85 %."""
    config = coverage.CoverageConfig(studies=60, fitted=0, samples=100)
    found = coverage.row(coverage.WORLDS[0], seeds, config)
    assert 0.9 <= float(found["multiplier"]) <= 0.99


def test_two_models_that_are_equally_good():
    for seeds in (2, 5):
        assert coverage.false_alarms(coverage.WORLDS[2], seeds, 2000) == pytest.approx(0.05, abs=0.015)


def test_the_noise_of_a_study():
    world = coverage.World("", shared=0.5)
    runs = coverage.study(world, (2000,) * 5, np.random.default_rng(1))
    noise = {
        family: np.array(
            [p.loss - coverage.LAWS[family].loss(p.parameters) for p in runs if p.family == family]
        )
        for family in coverage.LAWS
    }
    for own in noise.values():
        assert own.std() == pytest.approx(coverage.NOISE, rel=0.03)
    assert np.corrcoef(*noise.values())[0, 1] == pytest.approx(0.5, abs=0.03)


def test_the_page_has_its_rows():
    with open(coverage.HERE / "coverage.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(coverage.WORLDS) * len(coverage.SEEDS)
    page = (coverage.HERE / "coverage.md").read_text()
    assert coverage.table(rows) in page
