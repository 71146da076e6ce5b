"""A family's measured losses, joined by straight lines of logarithms.

Multipliers and crossings come from these: they say what was measured, whatever law the losses follow. A
power law of a few constants may miss a size by more than its seeds differ, and its intervals do not show
it.
"""

import itertools
import math
import statistics
from dataclasses import dataclass

import numpy as np

from scaling.fits import Invertible
from scaling.points import Point


@dataclass(frozen=True)
class Polyline(Invertible):
    """amounts: of the sizes, from the smallest on. losses: the mean over seeds at each.

    Parameters with embeddings need not rise with the size, because a larger model may be narrower.
    """

    amounts: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def rising(self) -> bool:
        return all(low < high for low, high in itertools.pairwise(self.amounts))

    def loss(self, amount):
        """The loss at an amount, or at an array of them, between the first and the last. They must rise."""
        return np.exp(np.interp(np.log(amount), np.log(self.amounts), np.log(self.losses)))

    def log_amount(self, loss: float) -> float:
        """The logarithm of the amount at the first place where the line falls to a loss.

        The outer pieces go on beyond the ends, for samples that end just short of a loss: infinity where
        the last one does not fall, minus infinity where the first one does not.
        """
        logs, levels, level = np.log(self.amounts), np.log(self.losses), math.log(loss)
        pieces = list(itertools.pairwise(range(len(logs))))
        if level > levels[0]:
            pieces, otherwise = pieces[:1], -math.inf
        else:
            inside = [(n, m) for n, m in pieces if levels[n] >= level >= levels[m]]
            pieces, otherwise = inside[:1] or pieces[-1:], math.inf
        ((n, m),) = pieces
        fall = levels[n] - levels[m]
        if fall <= 0:
            return float(logs[n]) if level == levels[n] else otherwise
        return float(logs[n] + (levels[n] - level) / fall * (logs[m] - logs[n]))

    def reaches(self, loss: float) -> bool:
        """Whether a loss was measured: not above that of the smallest amount, not below the lowest."""
        return min(self.losses) <= loss <= self.losses[0]


def lines(sample: list[tuple[Point, float]], amount: str) -> dict[str, Polyline]:
    """{family: Polyline} of points and their losses, for families with two sizes or more."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for point, loss in sample:
        at = float(getattr(point, amount)), loss
        found.setdefault(point.family, {}).setdefault(point.parameters, []).append(at)
    return {
        family: Polyline(
            tuple(sizes[n][0][0] for n in sorted(sizes)),
            tuple(statistics.fmean(loss for _, loss in sizes[n]) for n in sorted(sizes)),
        )
        for family, sizes in found.items()
        if len(sizes) > 1
    }


def common(one: Polyline, other: Polyline) -> tuple[float, float] | None:
    """(the lowest, the highest loss that both reach); None where there is none."""
    low = max(min(one.losses), min(other.losses))
    high = min(one.losses[0], other.losses[0])
    return (low, high) if low < high else None
