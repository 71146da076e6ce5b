"""How far losses spread over seeds, where each place (family, size) has few of them or one.

Two or three seeds tell little of their deviation s. So each place's true deviation σ is drawn from its own
seeds and from those of all places of the study, as far as these agree. With n seeds of size N:

    s² = σ² χ²(n-1) / (n-1)         σ² = τ² d / χ²(d)         log τ = level + slope log N

This is the moderated variance of Smyth (2004) with a trend; but level, slope and d are drawn from what the
study says of them, not estimated, because it may say little. With a large d all places have τ; with a small
d each has its own. Seeds are correlated between the families of a size by ρ, because runs of one seed saw
the same batches: it is drawn likewise.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scaling.points import Place, Point
from scaling.sizing import parse

LEVELS = np.arange(-4, 6.01, 0.2)  # of log τ at the middle size, from that of all places pooled
SLOPES = np.arange(-1.2, 1.21, 0.1)
USUAL_SLOPE = 0.5  # standard deviation of what is believed of the slope before any loss is seen
DEGREES = np.array([1, 2, 4, 8, 16, 32, 10_000])  # d
CORRELATIONS = np.array([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98])


def places(points: list[Point]) -> dict[Place, dict[int, float]]:
    """{place: {seed: loss}} of the runs that came to their end."""
    found: dict[Place, dict[int, float]] = {}
    for p in points:
        if p.loss is not None:
            found.setdefault(p.place, {})[p.seed] = p.loss
    return found


@dataclass
class Deviations:
    """What a study says of its deviations. losses: of `places`; one of them has two seeds or more."""

    losses: dict[Place, dict[int, float]]

    @cached_property
    def degrees(self) -> np.ndarray:
        """[places]: n - 1"""
        return np.array([len(some) - 1 for some in self.losses.values()])

    @cached_property
    def squares(self) -> np.ndarray:
        """[places]: sums of squares about the mean"""
        return np.array([np.var(list(some.values())) * len(some) for some in self.losses.values()])

    @cached_property
    def expected(self) -> np.ndarray:
        """[levels, slopes, places]: log τ²"""
        sizes = np.log([parse(size).target for _, size in self.losses])
        pooled = self.squares.sum() / self.degrees.sum()
        middle = math.log(max(pooled, 1e-24)) / 2  # losses may all be the same
        trend = SLOPES[:, None] * (sizes - sizes.mean())
        return 2 * (middle + LEVELS[:, None, None] + trend)

    @cached_property
    def weights(self) -> np.ndarray:
        """[levels, slopes, degrees]: how much the losses speak for each; s²/τ² has an F distribution."""
        of_gamma = np.vectorize(math.lgamma)
        d, own = DEGREES[:, None], self.degrees
        constant = of_gamma((own + d) / 2) - of_gamma(d / 2) - own / 2 * np.log(d)
        log_tau = self.expected[:, :, None]
        each = constant - own / 2 * log_tau
        each -= (own + d) / 2 * np.log1p(self.squares * np.exp(-log_tau) / d)
        return _normed(each.sum(axis=-1) - ((SLOPES / USUAL_SLOPE) ** 2 / 2)[:, None])

    def sigma(self, count: int, random: np.random.Generator) -> np.ndarray:
        """[count, places]: draws of the deviations"""
        cells = random.choice(self.weights.size, count, p=self.weights.ravel())
        level, slope, d = np.unravel_index(cells, self.weights.shape)
        prior = DEGREES[d][:, None] * np.exp(self.expected[level, slope])
        chi = 2 * random.standard_gamma((DEGREES[d][:, None] + self.degrees) / 2)
        return np.sqrt((prior + self.squares) / chi)

    def typical(self) -> dict[str, float]:
        """{size: τ in the middle of what the losses say}, in the order of the places"""
        shares = self.weights.sum(axis=2)
        log_tau = (shares[..., None] * self.expected).sum(axis=(0, 1)) / 2
        return {place[1]: float(math.exp(x)) for place, x in zip(self.losses, log_tau, strict=True)}

    def correlation(self, count: int, sigma: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """[count]: draws of ρ. sigma: [places]. From places of one size with the same seeds."""
        groups = defaultdict(list)
        for (place, losses), of in zip(self.losses.items(), sigma, strict=True):
            seeds = sorted(losses)
            values = np.array([losses[seed] for seed in seeds])
            groups[place[1], tuple(seeds)].append((values - values.mean()) / of)
        fit = np.zeros(len(CORRELATIONS))
        for some in map(np.array, groups.values()):
            families, seeds = some.shape
            across = 1 + (families - 1) * CORRELATIONS
            of_sums = (some.sum(axis=0) ** 2).sum() / families
            fit -= (seeds - 1) / 2 * ((families - 1) * np.log(1 - CORRELATIONS) + np.log(across))
            fit -= ((some**2).sum() - of_sums) / (1 - CORRELATIONS) / 2 + of_sums / across / 2
        return random.choice(CORRELATIONS, count, p=_normed(fit))

    def drawn(self, count: int, random: np.random.Generator) -> Callable[[Place, int], np.ndarray]:
        """A function (place, seed) -> [count] losses of that run, had other seeds been drawn."""
        sigma = self.sigma(count, random)
        rho = self.correlation(count, np.median(sigma, axis=0), random)
        of_batches: dict[tuple[str, int], np.ndarray] = {}
        found = {}
        for number, (place, losses) in enumerate(self.losses.items()):
            mean = np.mean(list(losses.values()))
            for seed in losses:
                shared = of_batches.setdefault((place[1], seed), random.normal(size=count))
                own = random.normal(size=count)
                moved = np.sqrt(rho) * shared + np.sqrt(1 - rho) * own
                # of two seeds, a deviation may be drawn that would make losses negative
                found[place, seed] = np.clip(mean + sigma[:, number] * moved, mean / 10, 10 * mean)
        return lambda place, seed: found[place, seed]


def _normed(logs: np.ndarray) -> np.ndarray:
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()
