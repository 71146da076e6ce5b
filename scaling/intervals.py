"""Resampled seeds: how far a curve, and what follows from it, would move with other seeds.

For each size, as many seeds as trained there are drawn with replacement, the same for all families and
lengths: runs with one seed saw the same batches, so what the data did to one family it did to the others.
A few seeds drawn with replacement spread less than new ones would, by (n - 1) / n in the variance: the
deviations from the mean are stretched by the root of n / (n - 1). A place with a single seed gets a normal
deviation, of the pooled standard deviation of its family's other places, or of all where it has none.

The intervals hold what seeds change. They do not hold what a power law gets wrong: see the held-out size.
Nor do they hold what another learning rate would change.
"""

import math
import statistics

import numpy as np

from scaling.points import Point

SEED = 20_220_329  # of the resampling, so that a page is made again to the byte


def pooled(points: list[Point]) -> float | None:
    """The standard deviation of the loss over seeds, pooled over all places; None where none has two."""
    squares, degrees = 0.0, 0
    for losses in places(points).values():
        if len(losses) > 1:
            squares += statistics.variance(losses.values()) * (len(losses) - 1)
            degrees += len(losses) - 1
    return math.sqrt(squares / degrees) if degrees else None


def places(points: list[Point]) -> dict[tuple, dict[int, float]]:
    """{(family, size, tokens per parameter): {seed: loss}} of the runs that came to their end."""
    found: dict[tuple, dict[int, float]] = {}
    for p in points:
        if p.loss is not None:
            found.setdefault((p.family, p.size, p.tokens_per_parameter), {})[p.seed] = p.loss
    return found


def resampled(points: list[Point], count: int) -> list[list[tuple[Point, float]]]:
    """`count` samples: the points with other losses in their places. None where no place has two seeds."""
    if pooled(points) is None:
        return []
    deviation = {}
    for family in {p.family for p in points}:
        deviation[family] = pooled([p for p in points if p.family == family]) or pooled(points)
    random = np.random.Generator(np.random.PCG64(SEED))
    grouped = places(points)
    seeds: dict[str, list[int]] = {}
    for (_, size, _), losses in grouped.items():
        seeds[size] = sorted({*seeds.get(size, []), *losses})
    return [_sample(points, grouped, seeds, deviation, random) for _ in range(count)]


def _sample(points, grouped, seeds, deviation, random) -> list[tuple[Point, float]]:
    drawn = {size: random.choice(some, len(some)).tolist() for size, some in seeds.items()}
    alone: dict[tuple, float] = {}  # by family and size
    losses: dict[tuple, list[float]] = {}
    for place, by_seed in grouped.items():
        size, count = place[1], len(by_seed)
        mean = statistics.fmean(by_seed.values())
        if count == 1:
            moved = alone.setdefault(place[:2], random.normal(0, deviation[place[0]]))
            losses[place] = [mean + moved]
            continue
        taken = [by_seed[seed] for seed in drawn[size] if seed in by_seed]
        if len(taken) != count:  # some of its seeds failed, or others trained
            taken = random.choice(list(by_seed.values()), count).tolist()
        stretch = math.sqrt(count / (count - 1))
        losses[place] = [mean + stretch * (loss - mean) for loss in taken]
    sample = []
    for point in points:
        if point.loss is not None:
            place = (point.family, point.size, point.tokens_per_parameter)
            sample.append((point, losses[place].pop()))
    return sample


def interval(values: list[float]) -> tuple[float, float] | None:
    """The middle 95 % of what resamples give; None without any."""
    found = [value for value in values if not math.isnan(value)]
    if not found:
        return None
    ordered = np.sort(np.array(found))
    # of ranks, because a value may be infinite
    low, high = (math.floor(share * (len(ordered) - 1) + 0.5) for share in (0.025, 0.975))
    return float(ordered[low]), float(ordered[high])
