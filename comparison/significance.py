"""Whether one arm is better than another: differences of validation losses, paired by seed.

Runs with the same seed saw the same batches, so the effect of the data cancels out in their difference.
"""

import math
import statistics
from dataclasses import dataclass

from comparison.runs import Arm


@dataclass
class Difference:
    """An arm's validation loss minus the baseline's, in nats per token, over the seeds that both have.

    deviation is the sample standard deviation. p is that of a two-sided paired t-test of mean 0. Both are
    None for a single pair. p is 0 if all pairs have the same difference other than 0.
    """

    pairs: int
    mean: float
    deviation: float | None
    p: float | None


def difference(arm: Arm, baseline: Arm) -> Difference | None:
    """The difference at their `shared_step`. None if they share no seed or no such step."""
    step = shared_step(arm, baseline)
    if step is None:
        return None
    losses = [
        {run.config["seed"]: run.evaluations[step]["val_loss"] for run in one.runs}
        for one in (arm, baseline)
    ]
    each = [losses[0][seed] - losses[1][seed] for seed in losses[0].keys() & losses[1].keys()]
    return paired(each) if each else None


def shared_step(arm: Arm, baseline: Arm) -> int | None:
    """The last step that every run of both evaluated; None if there is none, and where it is 0 and one of
    them was trained: nothing was, at step 0.
    """
    if not arm.runs or not baseline.runs:
        return None
    last = max(set(arm.steps) & set(baseline.steps))
    return last if last or not (arm.steps[-1] or baseline.steps[-1]) else None


def paired(each: list[float]) -> Difference:
    """each: the difference of every pair, at least one."""
    if len(each) < 2:
        return Difference(1, each[0], None, None)
    mean, spread = mean_and_deviation(each)
    return Difference(len(each), mean, spread, _p(mean, spread, len(each)))


def mean_and_deviation(values: list[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation of two values or more; nan where a loss is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values)


def _p(mean: float, deviation: float, pairs: int) -> float:
    from scipy.stats import t  # imported here because it is slow and seldom needed

    if not deviation:
        return float(mean == 0)
    return float(2 * t.sf(abs(mean) / deviation * pairs**0.5, pairs - 1))
