"""Learning rates that were tried at one size: in the sweep, and where the rule is checked."""

import math
import statistics
from dataclasses import dataclass

from comparison.labels import text
from markdown_table import table
from plural import counted
from scaling.points import Point, mean_loss


@dataclass
class Trial:
    """One learning rate of several.

    rule: whether it is the rule's. loss: the mean, infinity after a failure.
    """

    rate: float
    points: list[Point]

    @property
    def rule(self) -> bool:
        return bool(self.points[0].rule)

    @property
    def loss(self) -> float:
        losses = [p.loss for p in self.points]
        return math.inf if None in losses else statistics.fmean(losses)


def trials_of(points: list[Point]) -> dict[tuple, list[Trial]]:
    """{(family, size, tokens per parameter): rates that were tried}, of the seeds with all of them"""
    found = {}
    for key in dict.fromkeys((p.family, p.size, p.tokens_per_parameter) for p in points if not p.rule):
        by_rate: dict[float, list[Point]] = {}
        for p in points:
            if (p.family, p.size, p.tokens_per_parameter) == key:
                by_rate.setdefault(p.learning_rate, []).append(p)
        common = set.intersection(*({p.seed for p in own} for own in by_rate.values()))
        if common:
            by_rate = {rate: [p for p in own if p.seed in common] for rate, own in by_rate.items()}
        found[key] = [Trial(rate, by_rate[rate]) for rate in sorted(by_rate)]
    return found


def listed(points: list[Point], names: dict[str, str]) -> str:
    """Where several learning rates were tried: their mean losses over the seeds that have all of them."""
    rows = []
    for (family, size, ratio), trials in trials_of(points).items():
        best = min(trials, key=lambda trial: trial.loss)
        for one in trials:
            loss = mean_loss(one.points)
            rows.append(
                {
                    "family": names[family],
                    "size": size,
                    "tokens per parameter": f"{ratio:g}",
                    "learning rate": text(one.rate) + (" (the rule's)" if one.rule else ""),
                    "seeds": str(len(one.points)),
                    "loss": f"**{loss}**" if one is best and one.loss < math.inf else loss,
                }
            )
    return table(rows)


def remarks(points: list[Point], names: dict[str, str]) -> list[str]:
    """What trials of learning rates say about the rule."""
    lines = []
    for (family, size, _), trials in trials_of(points).items():
        rule = next((one for one in trials if one.rule), None)
        if rule is None or rule.loss == math.inf:
            continue
        best = min(trials, key=lambda one: one.loss)
        if best is rule:
            told = f"the rule's learning rate, {text(rule.rate)}, is the best of {len(trials)}"
        else:
            told = (
                f"{text(best.rate)} is better than the rule's learning rate, {text(rule.rate)}, by "
                f"{rule.loss - best.loss:.4f}"
            )
        lines.append(f"{names[family]} at {size}: {told} ({counted(len(rule.points), 'seed')})")
    return lines
