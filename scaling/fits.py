"""Losses as power laws of one amount: the parameters N, the FLOPs or the hours.

    L(x) = E + A x^-alpha

fitted as in the third approach of Hoffmann et al. (2022): the sum over runs of a Huber loss with
delta = 1e-3 on log L, minimised by L-BFGS from a grid of starts, in e = log E, a = log A and alpha. E is
the loss that no model of the data goes below, so the families of a study can share it.

Where we differ: the amounts are divided by their geometric mean, which frees a from alpha and changes
nothing else; E of the grid is a share of the lowest loss, and for each E and alpha of the grid the best A
is known in closed form; the objective is divided by delta squared, because at its own size,
about 1e-6, an optimizer's tolerance ends the search before the minimum (Besiroglu et al. 2024).
"""

import math
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

DELTA = 1e-3
SHARES = (0.05, 0.25, 0.5, 0.7, 0.85, 0.95)  # of the lowest loss: E of the starts
EXPONENTS = (0.08, 0.15, 0.3, 0.5, 0.8)  # alpha of the starts
SMALLEST_SHARE = 1e-3  # of the lowest loss, for E
STARTS = 8  # the best of the grid, from which L-BFGS goes on
SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-3, 3.0


@dataclass(frozen=True)
class Row:
    """A measured loss, in nats per token."""

    family: str
    amount: float
    loss: float


class Invertible(ABC):
    """A curve that says which amount reaches a loss."""

    @abstractmethod
    def log_amount(self, loss: float) -> float:
        """The logarithm of that amount, infinity included."""

    def amount(self, loss: float) -> float:
        """The amount that reaches a loss; infinity where none does."""
        return _exp(self.log_amount(loss))

    def times(self, other: "Invertible", loss: float) -> float:
        """How many times the other curve's amount this one needs for a loss; nan where neither reaches it.

        From logarithms: the amounts themselves of curves that are nearly flat may be 0 or infinity.
        """
        own, others = self.log_amount(loss), other.log_amount(loss)
        return _exp(own - others)  # inf - inf is nan


@dataclass(frozen=True)
class Law(Invertible):
    """L = irreducible + factor x amount^-exponent."""

    irreducible: float
    factor: float
    exponent: float

    def loss(self, amount):
        """The loss at an amount, or at an array of them."""
        return self.irreducible + self.factor * amount**-self.exponent

    def log_amount(self, loss: float) -> float:
        if loss <= self.irreducible:
            return math.inf
        if self.factor == 0:
            return -math.inf
        return (math.log(self.factor) - math.log(loss - self.irreducible)) / self.exponent


def _exp(logarithm: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def undetermined(laws: dict[str, Law], lowest: float) -> bool:
    """Whether a constant is at the edge of the search. lowest: the lowest loss that was fitted."""
    exponents = [law.exponent for law in laws.values()]
    ends = 1.01 * SMALLEST_EXPONENT, 0.99 * LARGEST_EXPONENT
    share = min(law.irreducible for law in laws.values()) / lowest
    return share < 1.1 * SMALLEST_SHARE or not ends[0] < min(exponents) <= max(exponents) < ends[1]


def determined(rows: list[Row], shared: bool) -> str:
    """Why rows do not determine a fit; empty where they do: there are more places than constants."""
    if not rows:
        return "there are no losses"
    places: dict[str, set] = {}
    for row in rows:
        places.setdefault(row.family, set()).add(row.amount)
    counts = [len(found) for found in places.values()]
    if min(counts) < 2:
        return "each family needs two amounts or more"
    count, constants = (sum(counts), 2 * len(counts) + 1) if shared else (min(counts), 3)
    if count <= constants:
        return f"{constants} constants need more than {constants} places on the curves, not {count}"
    return ""


def fit(rows: list[Row], shared: bool = True, start: dict[str, Law] | None = None) -> dict[str, Law]:
    """{family: Law}. shared: one E for all families. start: laws to begin at instead of the grid, for
    losses that are nearly those that the laws were fitted to.
    """
    if not shared:
        found = {}
        for family in dict.fromkeys(row.family for row in rows):
            own = [row for row in rows if row.family == family]
            found |= _fit(own, start and {family: start[family]})
        return found
    return _fit(rows, start)


def _optimize():
    """scipy.optimize, imported when it is needed because that is slow, with one thread for its BLAS: on
    matrices as small as ours, its threads take twenty times as long on a busy machine. It reads the
    environment when it loads.
    """
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        import scipy.optimize
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    return scipy.optimize


def _fit(rows: list[Row], start: dict[str, Law] | None) -> dict[str, Law]:
    names = list(dict.fromkeys(row.family for row in rows))
    family = np.array([names.index(row.family) for row in rows])
    amounts = np.log(np.array([row.amount for row in rows]))
    losses = np.array([row.loss for row in rows])
    centre = amounts.mean()
    problem = Problem(family, amounts - centre, np.log(losses), len(names))
    if start:
        starts = [_theta([start[name] for name in names], centre)]
    else:
        starts = sorted(problem.grid(), key=lambda theta: problem(theta)[0])[:STARTS]
    lowest = math.log(losses.min())
    each = [(None, None), (SMALLEST_EXPONENT, LARGEST_EXPONENT)]
    bounds = [(lowest + math.log(SMALLEST_SHARE), lowest), *(each * len(names))]
    keys = {"jac": True, "method": "L-BFGS-B", "bounds": bounds}
    keys["options"] = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 30}
    ends = [_optimize().minimize(problem, theta, **keys) for theta in starts]
    best = min(ends, key=lambda end: end.fun).x
    laws = {}
    for name, (a, exponent) in zip(names, best[1:].reshape(-1, 2), strict=True):
        laws[name] = Law(math.exp(best[0]), float(np.exp(a + exponent * centre)), float(exponent))
    return laws


def _theta(laws: list[Law], centre: float) -> np.ndarray:
    theta = [math.log(laws[0].irreducible)]
    for law in laws:
        factor = max(
            law.factor, sys.float_info.min
        )  # of a noisy fit it may be too small for a number, and 0
        theta += [math.log(factor) - law.exponent * centre, law.exponent]
    return np.array(theta)


@dataclass
class Problem:
    """The objective of a fit, over theta = [e, then (a, alpha) of each family].

    family: [n] numbers of families. logs: [n], of the amounts, centred. losses: [n], logarithms.
    """

    family: np.ndarray
    logs: np.ndarray
    losses: np.ndarray
    families: int

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """(objective, its gradient)"""
        a, exponent = theta[1:].reshape(-1, 2)[self.family].T
        terms = np.column_stack([np.full(len(self.losses), theta[0]), a - exponent * self.logs])
        top = terms.max(axis=1, keepdims=True)
        parts = np.exp(terms - top)
        whole = parts.sum(axis=1, keepdims=True)
        residuals = (top + np.log(whole))[:, 0] - self.losses
        size = np.abs(residuals) / DELTA
        objective = np.where(size <= 1, size**2 / 2, size - 0.5).sum()
        slope = (np.clip(residuals / DELTA, -1, 1) / DELTA)[:, None] * (parts / whole)
        gradient = np.zeros_like(theta)
        gradient[0] = slope[:, 0].sum()
        inner = np.zeros((self.families, 2))
        np.add.at(inner, self.family, np.column_stack([slope[:, 1], -slope[:, 1] * self.logs]))
        gradient[1:] = inner.ravel()
        return float(objective), gradient

    def grid(self):
        """Starts: for each E and exponent of the grid, the factors that fit best, by least squares."""
        for share in SHARES:
            e = self.losses.min() + math.log(share)
            above = np.exp(self.losses) - math.exp(e)
            for exponent in EXPONENTS:
                theta = [e]
                for number in range(self.families):
                    of = self.family == number
                    powers = np.exp(-self.logs[of] * exponent)
                    # not in closed form: pages are made again to the byte
                    (factor,), _ = _optimize().nnls(powers[:, None], above[of])
                    theta += [math.log(factor), exponent]
                yield np.array(theta)
