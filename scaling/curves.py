"""The curves of all families over one amount: what was measured, and the laws that were fitted to it.

Also the largest size, as the laws of all others predict it.
"""

import statistics
from dataclasses import dataclass, field

from scaling import intervals
from scaling.deviations import places
from scaling.fits import Law, Row, determined, fit
from scaling.interpolation import Line, lines
from scaling.points import Point
from scaling.sizing import parse

SURFACE = ("parameters", "tokens")
NO_LAW = ("all_parameters",)  # embeddings do not grow as the rest does
Sample = list[tuple[Point, float]]


@dataclass
class Curves:
    """The curves over one amount, or over parameters and tokens, which have laws alone.

    points: the runs that they are of. lines: by family. samples: lines of studies drawn anew. laws: by
    family. why_not: why there is no fit. law_samples: fits of the same studies.
    """

    amounts: tuple[str, ...]
    points: list[Point]
    lines: dict[str, Line] = field(default_factory=dict)
    samples: list[dict[str, Line]] = field(default_factory=list)
    why_not: str = ""
    laws: dict[str, Law] = field(default_factory=dict)
    law_samples: list[dict[str, Law]] = field(default_factory=list)

    def measured(self, family: str) -> tuple[float, float]:
        """The smallest and largest amount of a family; for a surface, of its parameters."""
        own = [getattr(p, self.amounts[0]) for p in self.points if p.family == family]
        return min(own), max(own)

    def sizes(self, family: str) -> int:
        return len({p.size for p in self.points if p.family == family})


@dataclass
class HeldOut:
    """A size that a fit had not seen. predicted: its loss by that fit. interval: of predicted - measured,
    from other seeds at all sizes; None without samples.
    """

    amounts: tuple[str, ...]
    family: str
    size: str
    tokens_per_parameter: float
    measured: float
    predicted: float
    interval: tuple[float, float] | None


def curves(points: list[Point], amounts: tuple[str, ...], shared: bool, samples: int) -> Curves:
    """points: with losses, and with all of the amounts. shared: one E for all families."""
    drawn = intervals.samples(points, samples)
    found = Curves(amounts, points)
    if len(amounts) == 1:
        found.lines = lines(_own(points), amounts[0])
        found.samples = [lines(sample, amounts[0]) for sample in drawn]
    if amounts == NO_LAW:
        return found
    rows = rows_of(_own(points), amounts)
    found.why_not = determined(rows, shared)
    if not found.why_not:
        found.laws = fit(rows, shared)
        found.law_samples = [fit(rows_of(some, amounts), shared, start=found.laws) for some in drawn]
    return found


def held_out(curves: Curves, shared: bool, samples: int) -> list[HeldOut]:
    """The losses of the largest size as a fit of all others predicts them; empty where that has no fit."""
    if not curves.laws:
        return []
    largest = max(curves.points, key=lambda p: parse(p.size).target).size

    def rest(sample: Sample) -> list[Row]:
        return rows_of([(p, loss) for p, loss in sample if p.size != largest], curves.amounts)

    rows = rest(_own(curves.points))
    if determined(rows, shared):
        return []
    laws = fit(rows, shared)
    drawn = intervals.samples(curves.points, samples)
    refitted = [fit(rest(sample), shared, start=laws) for sample in drawn]
    found = []
    for place in places([p for p in curves.points if p.size == largest]):
        if place[0] not in laws:
            continue
        measured, predicted = _both(laws, _own(curves.points), place, curves.amounts)
        pairs = [
            _both(some, sample, place, curves.amounts) for some, sample in zip(refitted, drawn, strict=True)
        ]
        interval = intervals.interval([guess - loss for loss, guess in pairs])
        found.append(HeldOut(curves.amounts, *place, measured, predicted, interval))
    return found


def _both(laws: dict[str, Law], sample: Sample, place: tuple, amounts: tuple[str, ...]):
    """(mean loss at a place, the loss there by the laws); place: (family, size, tokens per parameter)"""
    own = [(p, loss) for p, loss in sample if (p.family, p.size, p.tokens_per_parameter) == place]
    at = [getattr(own[0][0], amount) for amount in amounts]
    return statistics.fmean(loss for _, loss in own), laws[place[0]].loss(*at)


def _own(points: list[Point]) -> Sample:
    return [(p, p.loss) for p in points]


def rows_of(sample: Sample, amounts: tuple[str, ...]) -> list[Row]:
    """What is fitted: families with two values of each amount or more."""
    rows = [Row(p.family, tuple(float(getattr(p, a)) for a in amounts), loss) for p, loss in sample]
    values: dict[str, list[set]] = {}
    for row in rows:
        seen = values.setdefault(row.family, [set() for _ in amounts])
        for some, value in zip(seen, row.amounts, strict=True):
            some.add(value)
    return [row for row in rows if min(map(len, values[row.family])) > 1]
