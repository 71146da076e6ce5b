"""What a study answers: laws with intervals, the held-out size, multipliers, and where curves cross.

Everything holds within what was measured: a multiplier is given at a loss that both families reach with
amounts between their smallest and their largest; elsewhere it is None, "not measured".
"""

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from scaling import intervals
from scaling.fits import Law, determined, fit
from scaling.points import AMOUNTS, Point
from scaling.sizing import parse

SURFACE = ("parameters", "tokens")
GRID = 400  # places at which two curves are compared


@dataclass
class Curves:
    """The laws of all families over one amount, or over parameters and tokens.

    points: the runs that were fitted. why_not: why there is no fit. samples: fits of resampled seeds.
    """

    amounts: tuple[str, ...]
    points: list[Point]
    why_not: str = ""
    laws: dict[str, Law] = field(default_factory=dict)
    samples: list[dict[str, Law]] = field(default_factory=list)

    def measured(self, family: str) -> tuple[float, float]:
        """The smallest and largest amount of a family; for a surface, of its parameters."""
        own = [getattr(p, self.amounts[0]) for p in self.points if p.family == family]
        return min(own), max(own)


@dataclass
class HeldOut:
    """A size that a fit had not seen. predicted: its loss by that fit."""

    amounts: tuple[str, ...]
    family: str
    size: str
    tokens_per_parameter: float
    measured: float
    predicted: float


@dataclass
class Multiplier:
    """How many times a family's amount the baseline needs for the same loss: above 1, the family is better.

    value: None where the loss was not measured in both. interval: None without resamples.
    """

    amount: str
    family: str
    loss: float
    value: float | None
    interval: tuple[float, float] | None


@dataclass
class Crossing:
    """An amount at which a family's curve crosses the baseline's. beyond: the one that is better from there
    on. share: of the resamples, how many have a crossing within the measured range.
    """

    amount: str
    family: str
    at: float
    interval: tuple[float, float] | None
    beyond: str
    share: float | None


@dataclass
class Lead:
    """Who is better in the whole measured range, where curves do not cross. share: of the resamples, how
    many say the same; None without resamples.
    """

    amount: str
    family: str
    better: str
    share: float | None


@dataclass
class Trend:
    """How a multiplier changes over the measured losses: that at the last one over that at the first."""

    amount: str
    family: str
    first: float
    last: float
    factor: float
    interval: tuple[float, float] | None


@dataclass
class Answers:
    """All answers; ratio: the tokens per parameter of the curves over one amount."""

    points: list[Point]
    families: list[str]
    ratio: float
    curves: dict[str, Curves]
    surface: Curves
    held_out: list[HeldOut]
    losses: list[float]
    multipliers: list[Multiplier]
    trends: list[Trend]
    crossings: list[Crossing]
    leads: list[Lead]

    @property
    def baseline(self) -> str:
        return self.families[0]


def answers(
    points: list[Point],
    shared: bool = True,
    resamples: int = 300,
    losses: list[float] | None = None,
    baseline: str | None = None,
) -> Answers:
    """points: of all runs; those at the rule's learning rate count. baseline: None: the first family."""
    main = [p for p in points if p.rule and p.loss is not None]
    families = list(dict.fromkeys([*([baseline] if baseline else []), *(p.family for p in points)]))
    ratio = main_ratio(main)
    line = [p for p in main if p.tokens_per_parameter == ratio]
    curves = {}
    for amount in AMOUNTS:
        known = [p for p in line if getattr(p, amount) is not None]
        curves[amount] = curve(known, (amount,), shared, resamples)
    surface = curve(main, SURFACE, shared, resamples)
    held = [one for found in (*curves.values(), surface) for one in held_out(found, shared)]
    levels = losses or default_losses(curves["parameters"], families[0])
    rest = families[1:]
    multipliers = [
        multiplier(curves[amount], families[0], family, loss)
        for family in rest
        for loss in levels
        for amount in AMOUNTS
    ]
    trends, crossings, leads = [], [], []
    for family in rest:
        for amount in AMOUNTS:
            own = [one for one in multipliers if (one.family, one.amount) == (family, amount)]
            trends += trend(curves[amount], families[0], family, own)
            found, leader = crossing(curves[amount], families[0], family)
            crossings += found
            leads += leader
    return Answers(
        points, families, ratio, curves, surface, held, levels, multipliers, trends, crossings, leads
    )


def main_ratio(points: list[Point]) -> float:
    """The tokens per parameter with the most places; of several such, the largest."""
    places = {(p.family, p.size, p.tokens_per_parameter) for p in points}
    counts = Counter(ratio for _, _, ratio in places)
    return max(counts, key=lambda ratio: (counts[ratio], ratio)) if counts else 0.0


def curve(points: list[Point], amounts: tuple[str, ...], shared: bool, resamples: int) -> Curves:
    rows = intervals.rows_of([(p, p.loss) for p in points], amounts)
    if why := determined(rows, shared):
        return Curves(amounts, points, why)
    laws = fit(rows, shared)
    samples = intervals.fits(points, amounts, shared, resamples, laws)
    return Curves(amounts, points, "", laws, samples)


def held_out(curves: Curves, shared: bool) -> list[HeldOut]:
    """The losses of the largest size as a fit of all others predicts them; empty where that has no fit."""
    if curves.why_not:
        return []
    largest = max(curves.points, key=lambda p: parse(p.size).target).size
    rest = [p for p in curves.points if p.size != largest]
    rows = intervals.rows_of([(p, p.loss) for p in rest], curves.amounts)
    if determined(rows, shared):
        return []
    laws, found = fit(rows, shared), []
    for place, losses in intervals.places([p for p in curves.points if p.size == largest]).items():
        family, size, ratio = place
        if family not in laws:
            continue
        at = next(p for p in curves.points if (p.family, p.size, p.tokens_per_parameter) == place)
        predicted = laws[family].loss(*(getattr(at, amount) for amount in curves.amounts))
        found.append(
            HeldOut(curves.amounts, family, size, ratio, statistics.fmean(losses.values()), predicted)
        )
    return found


def default_losses(curves: Curves, baseline: str) -> list[float]:
    """Four losses that the baseline reaches, evenly spread over its measured sizes, ends included."""
    if baseline not in curves.laws:
        return []
    low, high = curves.measured(baseline)
    law = curves.laws[baseline]
    ends = law.loss(low), law.loss(high)
    inner = [ends[0] + share * (ends[1] - ends[0]) for share in (0.02, 1 / 3, 2 / 3, 0.98)]
    return sorted({round(loss, 3) for loss in inner}, reverse=True)


def multiplier(curves: Curves, baseline: str, family: str, loss: float) -> Multiplier:
    found = Multiplier(curves.amounts[0], family, loss, None, None)
    if baseline not in curves.laws or family not in curves.laws:
        return found
    for name in (baseline, family):
        low, high = curves.measured(name)
        if not low <= curves.laws[name].amount(loss) <= high:
            return found
    found.value = ratio_at(curves.laws, baseline, family, loss)
    found.interval = intervals.interval([ratio_at(laws, baseline, family, loss) for laws in curves.samples])
    return found


def ratio_at(laws: dict[str, Law], baseline: str, family: str, loss: float) -> float:
    """The baseline's amount over the family's; nan where neither reaches the loss."""
    return laws[baseline].times(laws[family], loss)


def overlap(curves: Curves, baseline: str, family: str) -> tuple[float, float] | None:
    """The amounts that were measured for both; None where there are none."""
    if baseline not in curves.laws or family not in curves.laws:
        return None
    pairs = [curves.measured(name) for name in (baseline, family)]
    low, high = max(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return (low, high) if low < high else None


def trend(curves: Curves, baseline: str, family: str, found: list[Multiplier]) -> list[Trend]:
    """From the first to the last loss that has a multiplier; none where less than two have one."""
    losses = [one.loss for one in found if one.value is not None]
    if len(losses) < 2:
        return []

    def factor(laws):
        first, last = (ratio_at(laws, baseline, family, loss) for loss in (losses[0], losses[-1]))
        return last / first if first else math.nan

    interval = intervals.interval([factor(laws) for laws in curves.samples])
    return [Trend(curves.amounts[0], family, losses[0], losses[-1], factor(curves.laws), interval)]


def crossing(curves: Curves, baseline: str, family: str) -> tuple[list[Crossing], list[Lead]]:
    """(crossings in the measured range, who leads if there are none)"""
    both = overlap(curves, baseline, family)
    if both is None:
        return [], []
    grid = np.geomspace(*both, GRID)
    signs, places = crossings_of(curves.laws, baseline, family, grid)
    resampled = [crossings_of(laws, baseline, family, grid) for laws in curves.samples]
    if not places:
        same = [not some and own[0] == signs[0] for own, some in resampled]
        share = statistics.fmean(same) if same else None
        return [], [Lead(curves.amounts[0], family, family if signs[0] < 0 else baseline, share)]
    samples = [some for _, some in resampled]
    found = []
    for place in places:
        near = [min(some, key=lambda at: abs(math.log(at / place))) for some in samples if some]
        after = signs[np.searchsorted(grid, place) :]
        found.append(
            Crossing(
                curves.amounts[0], family, place, intervals.interval(near),
                family if len(after) and after[0] < 0 else baseline,
                len(near) / len(samples) if samples else None,
            )
        )  # fmt: skip
    return found, []


def crossings_of(laws: dict[str, Law], baseline: str, family: str, grid) -> tuple[np.ndarray, list[float]]:
    """(sign of the family's loss less the baseline's on the grid, amounts at which it changes)"""
    gap = laws[family].loss(grid) - laws[baseline].loss(grid)
    signs = np.sign(gap)
    turns = np.flatnonzero(signs[:-1] * signs[1:] < 0)
    places = []
    for n in turns:
        share = gap[n] / (gap[n] - gap[n + 1])
        places.append(float(math.exp(math.log(grid[n]) + share * math.log(grid[n + 1] / grid[n]))))
    return signs, places
