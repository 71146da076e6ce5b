"""Fits of power laws: they recover known constants, and do what their equations say."""

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from scaling.fits import DELTA, Law, Problem, Row, determined, fit, undetermined

TRUE = {"dense": Law(1.7, 400.0, 0.34), "ours": Law(1.7, 150.0, 0.27)}
SIZES = np.geomspace(1e5, 1e9, 7)


def rows(laws, amounts, noise=0.002, seeds=3):
    random = np.random.Generator(np.random.PCG64(1))
    return [
        Row(family, place, float(law.loss(place) * math.exp(random.normal(0, noise))))
        for family, law in laws.items()
        for place in amounts
        for _ in range(seeds)
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_known_constants_come_back_from_noisy_losses(shared):
    found = fit(rows(TRUE, SIZES), shared)
    for family, law in TRUE.items():
        assert found[family].irreducible == pytest.approx(1.7, rel=0.03)
        assert found[family].exponent == pytest.approx(law.exponent, rel=0.05)
        assert math.log(found[family].factor) == pytest.approx(math.log(law.factor), rel=0.04)
    irreducible = {law.irreducible for law in found.values()}
    assert len(irreducible) == (1 if shared else 2)


def test_without_noise_to_many_digits():
    found = fit(rows(TRUE, SIZES, noise=0.0))
    for family, law in TRUE.items():
        assert found[family].exponent == pytest.approx(law.exponent, rel=1e-4)


def test_an_outlier_does_not_move_it():
    """What the Huber loss is for."""
    clean = rows(TRUE, SIZES, noise=1e-4)
    wild = [Row(r.family, r.amount, r.loss * (1.2 if n == 4 else 1)) for n, r in enumerate(clean)]
    assert fit(wild)["dense"].exponent == pytest.approx(0.34, rel=0.01)


def test_the_objective_and_its_gradient():
    random = np.random.Generator(np.random.PCG64(2))
    family = np.array([0, 0, 0, 1, 1])
    logs, losses = random.normal(size=5), random.normal(size=5)
    problem = Problem(family, logs, losses, 2)
    theta = random.normal(size=5)
    e, constants = theta[0], theta[1:].reshape(2, 2)

    def huber(r):
        return r * r / 2 if abs(r) <= DELTA else DELTA * (abs(r) - DELTA / 2)

    by_hand = 0.0
    for n in range(5):
        a, alpha = constants[family[n]]
        loss = math.exp(e) + math.exp(a - alpha * logs[n])
        by_hand += huber(math.log(loss) - losses[n]) / DELTA**2
    assert problem(theta)[0] == pytest.approx(by_hand, rel=1e-9)
    numeric = approx_fprime(theta, lambda t: problem(t)[0], 1e-7)
    assert problem(theta)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-2)


def test_what_a_law_says():
    law = Law(2.0, 8.0, 0.5)
    assert law.loss(16.0) == 4.0
    assert law.amount(4.0) == pytest.approx(16.0)
    assert law.amount(2.0) == math.inf
    flat = Law(2.0, 1e-8, 1e-3)
    assert (flat.amount(2.0 + 1e-9), flat.amount(3.0)) == (math.inf, 0.0)


def test_how_many_times_the_amount_of_another_law():
    law, other = Law(2.0, 8.0, 0.5), Law(2.5, 3.0, 0.5)
    assert law.times(other, 4.0) == pytest.approx(16 / 4)
    assert (law.times(other, 2.4), other.times(law, 2.4)) == (0.0, math.inf)  # only the first reaches it
    assert math.isnan(law.times(other, 2.0))
    # amounts of nearly flat curves that no number holds, but whose ratio is a number
    flat, flatter = Law(2.0, 1e-8, 1e-3), Law(2.0, 1e-8 * math.exp(1e-3), 1e-3)
    assert flatter.amount(3.0) == 0.0
    assert flatter.times(flat, 3.0) == pytest.approx(math.e)
    assert (law.times(flat, 3.0), flat.times(law, 3.0)) == (math.inf, 0.0)
    assert law.loss(np.array([16.0, 64.0])).tolist() == [4.0, 3.0]


def test_constants_at_the_edge_of_the_search():
    """Losses on a straight line of logarithms, which no E above 0 bends."""
    power = {"dense": Law(0.0, 400.0, 0.2)}
    some = rows(power, SIZES, noise=0.0)
    found = fit(some)
    assert undetermined(found, min(row.loss for row in some))
    assert found["dense"].exponent == pytest.approx(0.2, rel=0.01)
    some = rows(TRUE, SIZES)
    assert not undetermined(fit(some), min(row.loss for row in some))


def test_what_does_not_determine_a_fit():
    line = lambda *sizes: rows({"dense": TRUE["dense"]}, sizes)  # noqa: E731
    assert determined([], True) == "there are no losses"
    assert "3 constants need more than 3 places" in determined(line(1e5, 2e5, 4e5), True)
    assert determined(line(1e5, 2e5, 4e5, 8e5), True) == ""
    assert "two amounts" in determined(line(1e5), True)
    two = rows(TRUE, [1e5, 2e5, 4e5])
    assert determined(two, True) == ""
    assert "3 constants" in determined(two, False)
