"""Parameter multipliers computed in other ways, which tell how firm they are."""

import dataclasses
import statistics
from dataclasses import dataclass

from scaling.curves import Curves
from scaling.interpolation import lines
from scaling.points import Point


@dataclass
class Check:
    """A parameter multiplier by the fits of L(N), and one where every place has the best learning rate that
    was tried; each None where it cannot be had.
    """

    family: str
    loss: float
    fitted: float | None
    best_rates: float | None


def check(points: list[Point], curves: Curves, baseline: str, family: str, loss: float) -> Check:
    """points: of all learning rates, at the number of tokens per parameter of the curves."""
    found = Check(family, loss, None, None)
    if baseline in curves.laws and family in curves.laws:
        found.fitted = curves.laws[baseline].times(curves.laws[family], loss)
    best = lines([(p, p.loss) for p in best_tried(points)], curves.amounts[0])
    if all(name in best and best[name].reaches(loss) for name in (baseline, family)):
        found.best_rates = best[baseline].times(best[family], loss)
    return found


def best_tried(points: list[Point]) -> list[Point]:
    """The runs at the best learning rate of each place: with the lowest mean loss, of those that trained as
    many seeds as the rule's, none of which failed. Places without the rule's are left out.
    """
    places: dict[tuple, dict[float, list[Point]]] = {}
    for p in points:
        place = places.setdefault((p.family, p.size, p.tokens_per_parameter), {})
        place.setdefault(p.learning_rate, []).append(p)
    found = []
    for rates in places.values():
        rule = next((some for some in rates.values() if some[0].rule), None)
        if rule is None:
            continue
        whole = [some for some in rates.values() if len(some) >= len(rule) and _ended(some)]
        if whole:
            best = min(whole, key=lambda some: statistics.fmean(p.loss for p in some))
            found += [dataclasses.replace(p, rule=1) for p in best]
    return found


def _ended(points: list[Point]) -> bool:
    return all(p.loss is not None for p in points)
