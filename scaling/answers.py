"""What a study answers: multipliers and how they change, where curves cross, and how firm all this is.

Everything is read off the measured losses, joined by straight lines of logarithms, and holds within what
was measured: a multiplier is given at a loss that both families reached with amounts between their smallest
and their largest; elsewhere it is None, "not measured". The fits give the same once more, as a check.
"""

import math
import statistics
from dataclasses import dataclass, field, replace

import numpy as np

from scaling import intervals
from scaling.checks import Check, best_lines, check
from scaling.curves import Curves, HeldOut, curves, held_out
from scaling.interpolation import Polyline, common
from scaling.points import AMOUNTS, Point

GRID = 400  # places at which two curves are compared
SHARES = (0.02, 1 / 3, 2 / 3, 0.98)  # of the losses that two families reach: those of the table


@dataclass
class Multiplier:
    """How many times a family's amount the baseline needs for the same loss: above 1, the family is better.

    value: None where the loss was not measured in both. interval: None without samples.
    """

    amount: str
    family: str
    loss: float
    value: float | None
    interval: tuple[float, float] | None


@dataclass
class Crossing:
    """An amount at which a family's curve crosses the baseline's. beyond: the one that is better from there
    on. share: of the samples, how many have a crossing within the measured range. An end of the interval is
    0 or infinity where the crossing may lie below or above that range.
    """

    amount: str
    family: str
    at: float
    interval: tuple[float, float] | None
    beyond: str
    share: float | None


@dataclass
class Lead:
    """Who is better in the whole measured range, where curves do not cross. share: of the samples, how
    many say the same; None without samples.
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
    """All answers over one baseline, the first of the families; ratio: the tokens per parameter of all
    runs. curves: by amount, without hours where no run has any.
    """

    points: list[Point]
    families: list[str]
    ratio: float
    curves: dict[str, Curves]
    held_out: list[HeldOut]
    multipliers: list[Multiplier] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    trends: list[Trend] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    leads: list[Lead] = field(default_factory=list)

    @property
    def baseline(self) -> str:
        return self.families[0]


def answers(
    points: list[Point],
    shared: bool = True,
    samples: int = 300,
    losses: list[float] | None = None,
    baseline: str | None = None,
) -> Answers:
    """points: of all runs, of one length; those at the rule's learning rate count. baseline: None: the
    first family.
    """
    main = [p for p in points if p.rule and p.loss is not None]
    of = {}
    for amount in AMOUNTS:
        known = [p for p in main if getattr(p, amount) is not None]
        if known:
            of[amount] = curves(known, amount, shared, samples)
    held = [one for found in of.values() for one in held_out(found, shared, samples)]
    ratio = points[0].tokens_per_parameter
    families = list(dict.fromkeys(p.family for p in points))
    return against(Answers(points, families, ratio, of, held), baseline or families[0], losses)


def against(study: Answers, baseline: str, losses: list[float] | None = None) -> Answers:
    """The same study, compared with one of its families."""
    of = study.curves
    rest = [family for family in study.families if family != baseline]
    levels = {family: losses or default_losses(of["parameters"], baseline, family) for family in rest}
    pairs = [(family, loss) for family in rest for loss in levels[family]]
    multipliers = [
        multiplier(of[amount], baseline, family, loss) for family, loss in pairs for amount in of
    ]
    best = best_lines(study.points, "parameters")
    checks = [check(of["parameters"], best, baseline, family, loss) for family, loss in pairs]
    trends, crossings, leads = [], [], []
    for family in rest:
        for amount in of:
            own = [one for one in multipliers if (one.family, one.amount) == (family, amount)]
            trends += trend(of[amount], baseline, family, own)
            found, leader = crossing(of[amount], baseline, family)
            crossings += found
            leads += leader
    return replace(
        study, families=[baseline, *rest], multipliers=multipliers, checks=checks, trends=trends,
        crossings=crossings, leads=leads,
    )  # fmt: skip


def default_losses(curves: Curves, baseline: str, family: str) -> list[float]:
    """Four losses, evenly spread over those that both reach, ends included; none where there are none."""
    if baseline not in curves.lines or family not in curves.lines:
        return []
    both = common(curves.lines[baseline], curves.lines[family])
    if both is None:
        return []
    low, high = both
    return sorted({round(high - share * (high - low), 3) for share in SHARES}, reverse=True)


def multiplier(curves: Curves, baseline: str, family: str, loss: float) -> Multiplier:
    found = Multiplier(curves.amount, family, loss, None, None)
    if all(name in curves.lines and curves.lines[name].reaches(loss) for name in (baseline, family)):
        found.value = ratio_at(curves.lines, baseline, family, loss)
        found.interval = intervals.interval(ratios_at(curves, baseline, family, loss))
    return found


def ratio_at(lines: dict[str, Polyline], baseline: str, family: str, loss: float) -> float:
    """The baseline's amount over the family's; nan where neither reaches the loss."""
    return lines[baseline].times(lines[family], loss)


def ratios_at(curves: Curves, baseline: str, family: str, loss: float) -> list[float]:
    """The same of each sample."""
    return [ratio_at(lines, baseline, family, loss) for lines in curves.samples]


def overlap(curves: Curves, baseline: str, family: str) -> tuple[float, float] | None:
    """The amounts measured for both; None without any, or where they do not rise with the size."""
    if not all(name in curves.lines and curves.lines[name].rising for name in (baseline, family)):
        return None
    pairs = [curves.measured(name) for name in (baseline, family)]
    low, high = max(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return (low, high) if low < high else None


def trend(curves: Curves, baseline: str, family: str, found: list[Multiplier]) -> list[Trend]:
    """From the first to the last loss that has a multiplier; none where less than two have one."""
    losses = [one.loss for one in found if one.value is not None]
    if len(losses) < 2:
        return []

    def factor(lines):
        first, last = (ratio_at(lines, baseline, family, loss) for loss in (losses[0], losses[-1]))
        return last / first if first else math.nan

    interval = intervals.interval([factor(lines) for lines in curves.samples])
    return [Trend(curves.amount, family, losses[0], losses[-1], factor(curves.lines), interval)]


def crossing(curves: Curves, baseline: str, family: str) -> tuple[list[Crossing], list[Lead]]:
    """(crossings in the measured range, who leads if there are none)"""
    both = overlap(curves, baseline, family)
    if both is None:
        return [], []
    grid = np.geomspace(*both, GRID)
    signs, places = crossings_of(curves.lines, baseline, family, grid)
    drawn = [crossings_of(lines, baseline, family, grid) for lines in curves.samples]
    if not places and signs[0] == 0:
        return [], []  # the same curve
    if not places:
        same = [not some and own[0] == signs[0] for own, some in drawn]
        share = statistics.fmean(same) if same else None
        return [], [Lead(curves.amount, family, family if signs[0] < 0 else baseline, share)]
    found = []
    for place in places:
        after = signs[min(np.searchsorted(grid, place), GRID - 1)]
        near = [
            min(some, key=lambda at: abs(math.log(at / place))) if some
            else 0.0 if own[0] == after else math.inf
            for own, some in drawn
        ]  # fmt: skip
        found.append(
            Crossing(
                curves.amount, family, place, intervals.interval(near),
                family if after < 0 else baseline,
                statistics.fmean(bool(some) for _, some in drawn) if drawn else None,
            )
        )  # fmt: skip
    return found, []


def crossings_of(
    lines: dict[str, Polyline], baseline: str, family: str, grid
) -> tuple[np.ndarray, list[float]]:
    """(sign of the family's loss less the baseline's on the grid, amounts at which it changes)"""
    gap = lines[family].loss(grid) - lines[baseline].loss(grid)
    signs = np.sign(gap)
    turns = np.flatnonzero(signs[:-1] * signs[1:] < 0)
    places = []
    for n in turns:
        share = gap[n] / (gap[n] - gap[n + 1])
        places.append(float(math.exp(math.log(grid[n]) + share * math.log(grid[n + 1] / grid[n]))))
    return signs, places
