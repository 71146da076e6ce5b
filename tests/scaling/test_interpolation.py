"""Losses joined by straight lines of logarithms, against numbers by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scaling.interpolation import Polyline, common, lines
from tests.scaling.synthetic import points

FALLING = Polyline((100.0, 400.0, 1600.0), (4.0, 2.0, 1.0))  # 40 / sqrt(x)


def test_between_the_points():
    assert FALLING.loss(200.0) == pytest.approx(40 / math.sqrt(200))
    assert FALLING.loss(np.array([100.0, 900.0])) == pytest.approx([4.0, 40 / 30])
    for amount in (100.0, 130.0, 400.0, 1000.0, 1600.0):
        assert FALLING.amount(40 / math.sqrt(amount)) == pytest.approx(amount)
    half = Polyline((50.0, 800.0), (4.0, 1.0))
    assert FALLING.times(half, 3.0) == pytest.approx(2.0)
    assert common(FALLING, half) == (1.0, 4.0)
    assert common(FALLING, Polyline((1.0, 2.0), (9.0, 5.0))) is None


def test_beyond_the_ends_the_outer_pieces_go_on():
    """Only for samples: what is told is within `reaches`."""
    assert FALLING.amount(8.0) == pytest.approx(25.0)
    assert FALLING.amount(0.5) == pytest.approx(6400.0)
    assert [FALLING.reaches(loss) for loss in (4.1, 4.0, 2.5, 1.0, 0.9)] == [False, True, True, True, False]


def test_losses_that_rise_somewhere():
    bump = Polyline((100.0, 200.0, 400.0, 800.0), (4.0, 3.0, 3.5, 2.0))
    assert bump.amount(3.2) < 200  # the first of three places
    assert 400 < bump.amount(2.5) < 800
    worse_at_last = Polyline((100.0, 200.0, 400.0), (4.0, 3.0, 3.1))
    assert worse_at_last.amount(2.9) == math.inf
    assert worse_at_last.reaches(3.0)
    assert not worse_at_last.reaches(2.9)
    rising = Polyline((1.0, 2.0), (3.0, 4.0))
    assert (rising.amount(3.5), rising.amount(3.0), rising.amount(2.0)) == (0.0, 1.0, math.inf)
    assert not rising.reaches(3.5)


def test_means_of_seeds():
    some = points(families=("dense",), sizes=("0.5M", "1M"), seeds=(1, 2))
    found = lines([(p, float(p.seed + (p.size == "0.5M"))) for p in some], "parameters")
    assert found == {"dense": Polyline((505_000.0, 1_010_000.0), (2.5, 1.5))}
    # with embeddings a larger model may have fewer, being narrower: its losses still fall with the size
    wide = [replace(p, all_parameters=900_000 if p.size == "0.5M" else 800_000) for p in some]
    folded = lines([(p, float(2 + (p.size == "0.5M"))) for p in wide], "all_parameters")["dense"]
    assert folded == Polyline((900_000.0, 800_000.0), (3.0, 2.0))
    assert not folded.rising
    assert 800_000 < folded.amount(2.5) < 900_000
    alone = [replace(p, family="ours") for p in some if p.size == "1M"]
    assert set(lines([(p, p.loss) for p in some + alone], "flops")) == {"dense"}
