"""A sweep of the learning rate: which rates are tried next, and which one is taken.

It goes on by factors of two until the best rate is no edge, or MOST_RATES were tried. The mean over seeds
counts: one seed prefers rates at which others do badly. A rate at which training fails with any seed counts
as tried, and as worse than all others. What is taken is the lowest point of a parabola through the best
rate and its neighbours: the best of a sweep in factors of two may be close to a rate at which training
becomes unstable.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

FACTOR = 2  # between two learning rates
MOST_RATES = 9


@dataclass
class Sweep:
    """rates: that were tried or are to be tried. runs: of all of them. rate: what was found; None while
    some runs have no loss, or where training `failed` at every rate. at_edge: the best rate has one
    neighbour.
    """

    rates: list[float]
    runs: list
    rate: float | None = None
    failed: bool = False
    at_edge: bool = False


def carried_on(rates: list[float], runs_at: Callable, loss_of: Callable) -> Sweep:
    """A sweep as far as its losses are known.

    rates: those that it begins with, ascending. runs_at: rate -> its runs. loss_of: run -> its loss,
    infinity where it failed, None while it is not known.
    """
    rates = list(rates)
    while True:
        by_rate = [runs_at(rate) for rate in rates]
        found = Sweep(rates, [run for some in by_rate for run in some])
        if None in map(loss_of, found.runs):
            return found
        losses = [statistics.fmean(map(loss_of, some)) for some in by_rate]
        best = min(range(len(rates)), key=lambda n: losses[n])
        found.failed = math.isinf(losses[best])
        upwards = best == len(rates) - 1 and not found.failed
        found.at_edge = found.failed or upwards or best == 0
        if not found.at_edge:
            near = slice(best - 1, best + 2)
            found.rate = lowest(rates[near], losses[near])
            return found
        if len(rates) >= MOST_RATES:
            found.rate = None if found.failed else rates[best]
            return found
        further = rates[-1] * FACTOR if upwards else rates[0] / FACTOR
        rates = sorted([*rates, float(f"{further:.3g}")])


def lowest(rates: list[float], losses: list[float]) -> float:
    """The rate of the lowest loss, in three digits, on a parabola over log rate through three points.

    The middle loss is the lowest. A neighbour at which training failed moves the result half way to the
    other one, as an ever higher loss would.
    """
    low, middle, high = (min(loss, 1e6) for loss in losses)
    down, up = (math.log(rate / rates[1]) for rate in (rates[0], rates[2]))
    bend = up * (low - middle) - down * (high - middle)
    shift = (up**2 * (low - middle) - down**2 * (high - middle)) / (2 * bend) if bend > 0 else 0.0
    return float(f"{rates[1] * math.exp(shift):.3g}")
