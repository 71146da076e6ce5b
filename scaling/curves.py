"""The curves of all families over one amount: what was measured, and the laws that were fitted to it.

Also the largest size, as the laws of all others predict it.
"""

import statistics
from dataclasses import dataclass, field

from scaling import intervals
from scaling.deviations import places
from scaling.fits import Law, Row, determined, fit
from scaling.interpolation import Polyline, lines
from scaling.points import Place, Point
from scaling.sizing import parse

NO_LAW = "all_parameters"  # embeddings do not grow as the rest does
Sample = list[tuple[Point, float]]


@dataclass
class Curves:
    """The curves over one amount.

    points: the runs that they are of. lines: by family. samples: lines of studies drawn anew. laws: by
    family. why_not: why there is no fit. law_samples: fits of the same studies.
    """

    amount: str
    points: list[Point]
    lines: dict[str, Polyline] = field(default_factory=dict)
    samples: list[dict[str, Polyline]] = field(default_factory=list)
    why_not: str = ""
    laws: dict[str, Law] = field(default_factory=dict)
    law_samples: list[dict[str, Law]] = field(default_factory=list)

    def measured(self, family: str) -> tuple[float, float]:
        """The smallest and largest amount of a family."""
        own = [getattr(p, self.amount) for p in self.points if p.family == family]
        return min(own), max(own)

    def sizes(self, family: str) -> int:
        return len({p.size for p in self.points if p.family == family})


@dataclass
class HeldOut:
    """A size that a fit had not seen. predicted: its loss by that fit. interval: of predicted - measured,
    from other seeds at all sizes; None without samples.
    """

    amount: str
    family: str
    size: str
    measured: float
    predicted: float
    interval: tuple[float, float] | None


def curves(points: list[Point], amount: str, shared: bool, samples: int) -> Curves:
    """points: with losses and the amount. shared: one E for all families."""
    drawn = intervals.samples(points, samples)
    found = Curves(amount, points, lines(_own(points), amount), [lines(sample, amount) for sample in drawn])
    if amount == NO_LAW:
        return found
    rows = rows_of(_own(points), amount)
    found.why_not = determined(rows, shared)
    if not found.why_not:
        found.laws = fit(rows, shared)
        found.law_samples = [fit(rows_of(some, amount), shared, start=found.laws) for some in drawn]
    return found


def held_out(curves: Curves, shared: bool, samples: int) -> list[HeldOut]:
    """The losses of the largest size as a fit of all others predicts them; empty where that has no fit."""
    if not curves.laws:
        return []
    largest = max(curves.points, key=lambda p: parse(p.size).target).size

    def rest(sample: Sample) -> list[Row]:
        return rows_of([(p, loss) for p, loss in sample if p.size != largest], curves.amount)

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
        measured, predicted = _both(laws, _own(curves.points), place, curves.amount)
        pairs = [
            _both(some, sample, place, curves.amount) for some, sample in zip(refitted, drawn, strict=True)
        ]
        interval = intervals.interval([guess - loss for loss, guess in pairs])
        found.append(HeldOut(curves.amount, *place, measured, predicted, interval))
    return found


def _both(laws: dict[str, Law], sample: Sample, place: Place, amount: str) -> tuple[float, float]:
    """(mean loss at a place, the loss there by the laws)"""
    own = [(p, loss) for p, loss in sample if p.place == place]
    at = getattr(own[0][0], amount)
    return statistics.fmean(loss for _, loss in own), laws[place[0]].loss(at)


def _own(points: list[Point]) -> Sample:
    return [(p, p.loss) for p in points]


def rows_of(sample: Sample, amount: str) -> list[Row]:
    """What is fitted: families with two amounts or more."""
    rows = [Row(p.family, float(getattr(p, amount)), loss) for p, loss in sample]
    values: dict[str, set[float]] = {}
    for row in rows:
        values.setdefault(row.family, set()).add(row.amount)
    return [row for row in rows if len(values[row.family]) > 1]
