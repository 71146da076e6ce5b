"""Parameter multipliers computed in other ways, which tell how firm they are."""

import dataclasses
import statistics
from dataclasses import dataclass

from scaling.curves import Curves
from scaling.interpolation import Polyline, lines
from scaling.points import Point, grouped


@dataclass
class Check:
    """A parameter multiplier by the fits of L(N), and one where every place has the best learning rate that
    was tried; each None where not both families reach the loss.
    """

    family: str
    loss: float
    fitted: float | None
    best_rates: float | None


def check(curves: Curves, best: dict[str, Polyline], baseline: str, family: str, loss: float) -> Check:
    """curves: over parameters. best: those of the points of `best_tried`."""

    def reached(some: dict[str, Polyline]) -> bool:
        return all(name in some and some[name].reaches(loss) for name in (baseline, family))

    found = Check(family, loss, None, None)
    if reached(curves.lines) and baseline in curves.laws and family in curves.laws:
        found.fitted = curves.laws[baseline].times(curves.laws[family], loss)
    if reached(best):
        found.best_rates = best[baseline].times(best[family], loss)
    return found


def best_lines(points: list[Point], amount: str) -> dict[str, Polyline]:
    """The lines over an amount, at the best learning rate of each place."""
    return lines([(p, p.loss) for p in best_tried(points)], amount)


def best_tried(points: list[Point]) -> list[Point]:
    """The runs at the best learning rate of each place: with the lowest mean loss, of those that trained as
    many seeds as the rule's, none of which failed. Places without the rule's are left out.
    """
    places: dict[tuple, list[list[Point]]] = {}
    for key, runs in grouped(points).items():
        places.setdefault(key[:2], []).append(runs)
    found = []
    for rates in places.values():
        rule = next((runs for runs in rates if runs[0].rule), None)
        if rule is None:
            continue
        whole = [runs for runs in rates if len(runs) >= len(rule) and all(p.loss is not None for p in runs)]
        if whole:
            best = min(whole, key=lambda runs: statistics.fmean(p.loss for p in runs))
            found += [dataclasses.replace(p, rule=1) for p in best]
    return found
