"""Learning rates that were tried at one size: in the sweep, and where the rule is checked."""

import math
import statistics
from dataclasses import dataclass

from comparison.labels import text
from markdown_table import table
from plural import counted
from scaling import intervals
from scaling.points import Point, mean_loss

SAME = 1.05  # factor up to which two learning rates are as good as one


@dataclass
class Trial:
    """One learning rate of several. rule: whether it is the rule's. points: its runs."""

    rate: float
    points: list[Point]

    @property
    def rule(self) -> bool:
        return bool(self.points[0].rule)

    def mean(self, seeds: set[int]) -> float:
        """The mean loss of these seeds; infinity after a failure."""
        losses = [p.loss for p in self.points if p.seed in seeds]
        return math.inf if None in losses else statistics.fmean(losses)

    @property
    def seeds(self) -> set[int]:
        return {p.seed for p in self.points}


def trials_of(points: list[Point]) -> dict[tuple, list[Trial]]:
    """{(family, size, tokens per parameter): rates that were tried}, where there are several."""
    found = {}
    for key in dict.fromkeys((p.family, p.size, p.tokens_per_parameter) for p in points if not p.rule):
        by_rate: dict[float, list[Point]] = {}
        for p in points:
            if (p.family, p.size, p.tokens_per_parameter) == key:
                by_rate.setdefault(p.learning_rate, []).append(p)
        found[key] = [Trial(rate, by_rate[rate]) for rate in sorted(by_rate)]
    return found


def listed(points: list[Point], names: dict[str, str]) -> str:
    """A row for each learning rate where several were tried."""
    rows = []
    for (family, size, ratio), trials in trials_of(points).items():
        best = min(trials, key=lambda trial: trial.mean(trial.seeds))
        for one in trials:
            loss = mean_loss(one.points)
            rows.append(
                {
                    "family": names[family],
                    "size": size,
                    "tokens per parameter": f"{ratio:g}",
                    "learning rate": text(one.rate) + (" (the rule's)" if one.rule else ""),
                    "seeds": str(len(one.points)),
                    "loss": f"**{loss}**" if one is best and one.mean(one.seeds) < math.inf else loss,
                }
            )
    return table(rows)


def remarks(points: list[Point], names: dict[str, str]) -> list[str]:
    """What trials of learning rates say about the rule, at the seeds that they share with the rule's.

    A lead of two standard deviations or less, of a difference between means of so many seeds, is noise.
    """
    deviation = intervals.pooled([p for p in points if p.rule])
    lines = []
    for (family, size, _), trials in trials_of(points).items():
        rule = next((one for one in trials if one.rule), None)
        if rule is None or rule.mean(rule.seeds) == math.inf:
            continue
        leads, close = [], []
        for one in trials:
            common = one.seeds & rule.seeds
            if one is not rule and common:
                same = 1 / SAME <= one.rate / rule.rate <= SAME
                lead = rule.mean(common) - one.mean(common)
                (close if same else leads).append((lead, one.rate, len(common)))
        lines += [
            f"{names[family]} at {size}: {text(rate)} is nearly the rule's learning rate, "
            f"{text(rule.rate)}, and the same seeds end {abs(lead):.4f} "
            f"{'lower' if lead > 0 else 'higher'} with it ({counted(seeds, 'seed')})"
            for lead, rate, seeds in close
            if math.isfinite(lead)
        ]
        if not leads:
            continue
        lead, rate, seeds = max(leads)
        if lead <= 0:
            told = f"the rule's learning rate, {text(rule.rate)}, is the best of {len(leads) + 1}"
            seeds = min(count for _, _, count in leads)
        else:
            told = f"{text(rate)} is better than the rule's learning rate, {text(rule.rate)}, by {lead:.4f}"
            if deviation is not None:
                noise = lead <= 2 * deviation * math.sqrt(2 / seeds)
                told += ", which seeds explain" if noise else ", more than seeds explain"
        lines.append(f"{names[family]} at {size}: {told} ({counted(seeds, 'seed')})")
    return lines
