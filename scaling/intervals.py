"""Studies drawn anew: how far a curve, and what follows from it, would move with other seeds.

The intervals hold what seeds change. They do not hold what a power law gets wrong: see the held-out size.
Nor do they hold what another learning rate would change.
"""

import math

import numpy as np

from scaling.deviations import Deviations, places
from scaling.points import Place, Point

SEED = 20_220_329  # of the draws, so that a page is made again to the byte


def deviations(points: list[Point]) -> Deviations | None:
    """What runs at the rule's learning rate say of deviations over seeds; None where no place has two."""
    found = places([p for p in points if p.rule])
    return Deviations(found) if any(len(losses) > 1 for losses in found.values()) else None


def samples(points: list[Point], count: int) -> list[list[tuple[Point, float]]]:
    """`count` samples: the points with other losses in their places. None where no place has two seeds."""
    spread = deviations(points)
    if spread is None or count == 0:
        return []
    losses = spread.drawn(count, np.random.Generator(np.random.PCG64(SEED)))
    known = [(p, losses(p.place, p.seed)) for p in points if p.loss is not None]
    return [[(p, float(of[n])) for p, of in known] for n in range(count)]


def noise(spread: Deviations, place: Place, seeds: int) -> float:
    """How far two means of so many seeds at a place differ, of two that should not, in 95 % of cases."""
    random = np.random.Generator(np.random.PCG64(SEED))
    sigma = spread.sigma(4000, random)[:, list(spread.losses).index(place)]
    gaps = sigma * random.normal(0, math.sqrt(2 / seeds), len(sigma))
    return float(np.quantile(np.abs(gaps), 0.95))


def interval(values: list[float]) -> tuple[float, float] | None:
    """The middle 95 % of what samples give; None without any."""
    found = [value for value in values if not math.isnan(value)]
    if not found:
        return None
    ordered = np.sort(np.array(found))
    # of ranks, because a value may be infinite
    outside = max(math.floor(0.025 * (len(ordered) + 1)), 1)
    return float(ordered[outside - 1]), float(ordered[-outside])
