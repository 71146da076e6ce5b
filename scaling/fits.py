"""Losses as power laws of the parameters N, the FLOPs, the hours, or of N and the tokens D together.

    L(x) = E + A x^-alpha            L(N, D) = E + A N^-alpha + B D^-beta

as in the third approach of Hoffmann et al. (2022): the sum over runs of a Huber loss with delta = 1e-3 on
log L, minimised by L-BFGS from a grid of starts, in e = log E, a = log A, alpha, b = log B, beta. E is the
loss that no model of the data goes below, so the families of a study can share it.

Where we differ: the amounts are divided by their geometric mean, which frees a from alpha and changes
nothing else; E of the grid is a share of the lowest loss, and for each E, alpha and beta of the grid the
best A and B are known in closed form; the objective is divided by delta squared, because at its own size,
about 1e-6, an optimizer's tolerance ends the search before the minimum (Besiroglu et al. 2024).
"""

import itertools
import math
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

DELTA = 1e-3
SHARES = (0.05, 0.25, 0.5, 0.7, 0.85, 0.95)  # of the lowest loss: E of the starts
EXPONENTS = (0.08, 0.15, 0.3, 0.5, 0.8)  # alpha and beta of the starts
SMALLEST_SHARE = 1e-3  # of the lowest loss, for E
STARTS = 8  # the best of the grid, from which L-BFGS goes on
SMALLEST_EXPONENT, LARGEST_EXPONENT = 1e-3, 3.0


@dataclass(frozen=True)
class Row:
    """A measured loss: the family, its amounts (N,) or (N, D), and the loss in nats per token."""

    family: str
    amounts: tuple[float, ...]
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
    """L = irreducible + sum of factor x amount^-exponent."""

    irreducible: float
    factors: tuple[float, ...]
    exponents: tuple[float, ...]

    def loss(self, *amounts):
        """The loss at an amount of each kind; numbers or arrays of them."""
        pairs = zip(self.factors, self.exponents, amounts, strict=True)
        return self.irreducible + sum(factor * amount**-exponent for factor, exponent, amount in pairs)

    def log_amount(self, loss: float) -> float:
        """For a law of one amount."""
        ((factor, exponent),) = zip(self.factors, self.exponents, strict=True)
        if loss <= self.irreducible:
            return math.inf
        if factor == 0:
            return -math.inf
        return (math.log(factor) - math.log(loss - self.irreducible)) / exponent


def _exp(logarithm: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def undetermined(laws: dict[str, Law], lowest: float) -> bool:
    """Whether a constant is at the edge of the search. lowest: the lowest loss that was fitted."""
    exponents = [exponent for law in laws.values() for exponent in law.exponents]
    ends = 1.01 * SMALLEST_EXPONENT, 0.99 * LARGEST_EXPONENT
    share = min(law.irreducible for law in laws.values()) / lowest
    return share < 1.1 * SMALLEST_SHARE or not ends[0] < min(exponents) <= max(exponents) < ends[1]


def parameters_of(rows: list[Row], shared: bool) -> int:
    """The number of constants of a fit."""
    families, amounts = len({row.family for row in rows}), len(rows[0].amounts)
    return 2 * amounts * families + (1 if shared else families)


def determined(rows: list[Row], shared: bool) -> str:
    """Why rows do not determine a fit; empty where they do: there are more places than constants."""
    if not rows:
        return "there are no losses"
    places: dict[str, set] = {}
    for row in rows:
        places.setdefault(row.family, set()).add(row.amounts)
    kinds = len(rows[0].amounts)
    if any(len({place[kind] for place in found}) < 2 for found in places.values() for kind in range(kinds)):
        return "each family needs two values of each amount or more"
    if kinds == 2 and any(_on_a_line(found) for found in places.values()):
        return "each family needs runs with several numbers of tokens per parameter"
    count, constants = sum(map(len, places.values())), parameters_of(rows, shared)
    if not shared:
        count, constants = min(map(len, places.values())), 2 * kinds + 1
    if count <= constants:
        return f"{constants} constants need more than {constants} places on the curves, not {count}"
    return ""


def _on_a_line(places: set[tuple[float, float]]) -> bool:
    """Whether D grows with N, but for rounding: then nothing tells their effects apart."""
    correlation = np.corrcoef(np.log(np.array(sorted(places))).T)[0, 1]
    return correlation**2 > 0.98


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
    amounts = np.log(np.array([row.amounts for row in rows], dtype=float))
    losses = np.array([row.loss for row in rows])
    centre = amounts.mean(axis=0)
    problem = Problem(family, amounts - centre, np.log(losses), len(names))
    if start:
        starts = [_theta([start[name] for name in names], centre)]
    else:
        starts = sorted(problem.grid(), key=lambda theta: problem(theta)[0])[:STARTS]
    lowest = math.log(losses.min())
    each = [(None, None), (SMALLEST_EXPONENT, LARGEST_EXPONENT)]
    bounds = [(lowest + math.log(SMALLEST_SHARE), lowest), *(each * amounts.shape[1] * len(names))]
    keys = {"jac": True, "method": "L-BFGS-B", "bounds": bounds}
    keys["options"] = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 30}
    ends = [_optimize().minimize(problem, theta, **keys) for theta in starts]
    best = min(ends, key=lambda end: end.fun).x
    laws = {}
    for name, own in zip(names, best[1:].reshape(len(names), -1, 2), strict=True):
        factors = np.exp(own[:, 0] + own[:, 1] * centre)
        laws[name] = Law(math.exp(best[0]), tuple(factors.tolist()), tuple(own[:, 1].tolist()))
    return laws


def _theta(laws: list[Law], centre: np.ndarray) -> np.ndarray:
    least = sys.float_info.min  # a factor of a noisy fit may be too small for a number, and 0
    each = [
        (math.log(max(factor, least)) - exponent * middle, exponent)
        for law in laws
        for factor, exponent, middle in zip(law.factors, law.exponents, centre, strict=True)
    ]
    return np.array([math.log(laws[0].irreducible), *itertools.chain.from_iterable(each)])


@dataclass
class Problem:
    """The objective of a fit, over theta = [e, then (a, alpha) of each amount for each family].

    family: [n] numbers of families. logs: [n, amounts], centred. losses: [n], logarithms.
    """

    family: np.ndarray
    logs: np.ndarray
    losses: np.ndarray
    families: int

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """(objective, its gradient)"""
        own = theta[1:].reshape(self.families, -1, 2)[self.family]
        terms = np.column_stack(
            [np.full(len(self.losses), theta[0]), own[..., 0] - own[..., 1] * self.logs]
        )
        top = terms.max(axis=1, keepdims=True)
        parts = np.exp(terms - top)
        whole = parts.sum(axis=1, keepdims=True)
        residuals = (top + np.log(whole))[:, 0] - self.losses
        size = np.abs(residuals) / DELTA
        objective = np.where(size <= 1, size**2 / 2, size - 0.5).sum()
        slope = (np.clip(residuals / DELTA, -1, 1) / DELTA)[:, None] * (parts / whole)
        gradient = np.zeros_like(theta)
        gradient[0] = slope[:, 0].sum()
        of_own = np.stack([slope[:, 1:], -slope[:, 1:] * self.logs], axis=2)
        inner = np.zeros((self.families, *of_own.shape[1:]))
        np.add.at(inner, self.family, of_own)
        gradient[1:] = inner.ravel()
        return float(objective), gradient

    def grid(self):
        """Starts: for each E and exponents of the grid, the factors that fit best, by least squares."""
        for share in SHARES:
            e = self.losses.min() + math.log(share)
            above = np.exp(self.losses) - math.exp(e)
            for exponents in itertools.product(EXPONENTS, repeat=self.logs.shape[1]):
                theta = [e]
                for number in range(self.families):
                    of = self.family == number
                    powers = np.exp(-self.logs[of] * np.array(exponents))
                    factors, _ = _optimize().nnls(powers, above[of])
                    least = 1e-6 * above[of].mean()
                    for factor, exponent in zip(factors, exponents, strict=True):
                        theta += [math.log(max(factor, least)), exponent]
                yield np.array(theta)
