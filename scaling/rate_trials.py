"""Learning rates that were tried at one size: in the sweep, and where the rule is checked."""

import math
import statistics
from dataclasses import dataclass

from comparison.labels import text
from reports.markdown_table import table
from reports.plural import counted
from scaling import intervals
from scaling.points import Place, Point, mean_loss

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


def trials_of(points: list[Point]) -> dict[Place, list[Trial]]:
    """{place: rates that were tried}, where there are several."""
    found = {}
    for place in dict.fromkeys(p.place for p in points if not p.rule):
        by_rate: dict[float, list[Point]] = {}
        for p in points:
            if p.place == place:
                by_rate.setdefault(p.learning_rate, []).append(p)
        found[place] = [Trial(rate, by_rate[rate]) for rate in sorted(by_rate)]
    return found


def listed(points: list[Point], names: dict[str, str]) -> str:
    """A row for each learning rate where several were tried, with the lowest mean of those with the most
    seeds in bold.
    """
    rows = []
    for (family, size), trials in trials_of(points).items():
        most = max(len(one.points) for one in trials)
        best = min((one for one in trials if len(one.points) == most), key=lambda one: one.mean(one.seeds))
        rule = next((one for one in trials if one.rule), None)
        for one in trials:
            loss, lead, common = mean_loss(one.points), *lead_over(rule, one)
            rows.append(
                {
                    "family": names[family],
                    "size": size,
                    "tokens per parameter": f"{points[0].tokens_per_parameter:g}",
                    "learning rate": text(one.rate) + (" (the rule's)" if one.rule else ""),
                    "seeds": str(len(one.points)),
                    "loss": f"**{loss}**" if one is best and one.mean(one.seeds) < math.inf else loss,
                    "less the rule's, same seeds": f"{-lead:+.4f} ({counted(len(common), 'seed')})"
                    if math.isfinite(lead)
                    else "",
                }
            )
    return table(rows)


def lead_over(rule: Trial | None, one: Trial) -> tuple[float, set[int]]:
    """(mean loss of the rule's rate less that of another, at the seeds that they share; these seeds)"""
    common = one.seeds & rule.seeds if rule is not None and rule is not one else set()
    return (rule.mean(common) - one.mean(common) if common else math.nan), common


def remarks(points: list[Point], names: dict[str, str]) -> list[str]:
    """Where a learning rate that was tried is better than the rule's, at the seeds that they share.

    A lead that two means of so many seeds may have by chance is noise. Rates that are nearly the rule's
    are as good as it, whatever their losses say.
    """
    spread = intervals.deviations(points)
    lines, places = [], 0
    for place, trials in trials_of(points).items():
        rule = next((one for one in trials if one.rule), None)
        if rule is None or rule.mean(rule.seeds) == math.inf:
            continue
        others = [one for one in trials if not 1 / SAME <= one.rate / rule.rate <= SAME]
        leads = [(*lead_over(rule, one), one.rate) for one in others]
        leads = [(lead, len(seeds), rate) for lead, seeds, rate in leads if seeds]
        if not leads:
            continue
        places += 1
        noise = {seeds: intervals.noise(spread, place, seeds) if spread else 0 for _, seeds, _ in leads}
        if beyond := [one for one in leads if one[0] > noise[one[1]]]:
            lead, seeds, rate = max(beyond)
            lines.append(
                f"{names[place[0]]} at {place[1]}: {text(rate)} is better than the rule's learning rate, "
                f"{text(rule.rate)}, by {lead:.4f} ({counted(seeds, 'seed')})"
                + (", more than seeds explain" if spread else "")
            )
    if rest := places - len(lines):
        than_seeds = " by more than seeds explain" if spread else ""
        lines.append(
            f"other learning rates were tried at {counted(rest, 'place')} where none of them is better "
            f"than the rule's{than_seeds}"
        )
    return lines
