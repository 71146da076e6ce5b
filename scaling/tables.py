"""The tables of a study's page."""

import math
import statistics

from comparison.labels import text
from reports.markdown_table import table
from scaling import intervals
from scaling.answers import Answers
from scaling.curves import Curves
from scaling.fits import undetermined
from scaling.points import grouped, mean_loss

NAMES = {
    "parameters": "parameters",
    "all_parameters": "with embeddings",
    "flops": "FLOPs",
    "hours": "hours",
}
SYMBOLS = {"parameters": "N", "flops": "C", "hours": "T"}


def shown(value: float | None, digits: int = 2) -> str:
    """A number with so many digits: 0.43M parameters are 430,000."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "∞"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:,.{decimals}f}" if decimals else f"{float(f'{value:.{digits - 1}e}'):,.0f}"
    return f"{value:.{digits - 1}e}"


def between(interval: tuple[float, float] | None, digits: int = 2) -> str:
    return f" ({shown(interval[0], digits)} to {shown(interval[1], digits)})" if interval else ""


def multipliers(a: Answers, names: dict[str, str]) -> str:
    """A row for each family and loss. A family that has none gets a row that says why."""
    rows, line = [], a.curves["parameters"].lines
    columns = ["family", "loss", "baseline's parameters", *(NAMES[amount] for amount in a.curves)]
    for family in a.families[1:]:
        losses = dict.fromkeys(one.loss for one in a.multipliers if one.family == family)
        if not losses or family not in line or a.baseline not in line:
            why = "no loss that both reached"
            if lacking := [names[n] for n in (a.baseline, family) if n not in line]:
                why = f"{' and '.join(lacking)}: fewer than two sizes"
            rows.append(dict.fromkeys(columns, "") | {"family": names[family], "loss": why})
            continue
        for loss in losses:
            row = dict.fromkeys(columns, "no curve") | {"family": names[family], "loss": f"{loss:.3f}"}
            reached = line[a.baseline].reaches(loss)
            row["baseline's parameters"] = (
                shown(line[a.baseline].amount(loss), 3) if reached else "not measured"
            )
            for one in a.multipliers:
                if (one.family, one.loss) == (family, loss) and family in a.curves[one.amount].lines:
                    cell = "not measured" if one.value is None else f"{one.value:.2f}"
                    row[NAMES[one.amount]] = cell + between(one.interval, 3)
            rows.append(row)
    return table(rows) + "\n" if rows else "None: there is no family beside the baseline.\n"


def checks(a: Answers, names: dict[str, str]) -> str:
    """The multipliers of parameters in three ways."""
    values = {(m.family, m.loss): m.value for m in a.multipliers if m.amount == "parameters"}
    rows = []
    for one in a.checks:
        cells = (values[one.family, one.loss], one.fitted, one.best_rates)
        told = ["none" if value is None else f"{value:.2f}" for value in cells]
        ways = ("measured", "by the fits of L(N)", "at the best learning rates tried")
        row = {"family": names[one.family], "loss": f"{one.loss:.3f}"}
        rows.append(row | dict(zip(ways, told, strict=True)))
    return table(rows) + "\n" if rows else ""


def trends(a: Answers, names: dict[str, str]) -> str:
    """Factors by which the multipliers change, and whether they grow or shrink for certain."""
    rows = {}
    for one in a.trends:
        row = dict.fromkeys(("family", "from loss", "to loss", *(NAMES[amount] for amount in a.curves)), "")
        row |= {"family": names[one.family], "from loss": f"{one.first:.3f}", "to loss": f"{one.last:.3f}"}
        cell = shown(one.factor, 3) + between(one.interval, 3)
        if one.interval and not one.interval[0] <= 1 <= one.interval[1]:
            cell += ": grows" if one.interval[0] > 1 else ": shrinks"
        rows.setdefault(one.family, row)[NAMES[one.amount]] = cell
    return table(list(rows.values()))


def crossings(a: Answers, names: dict[str, str]) -> str:
    """A row for each family, and for each further crossing."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in a.crossings:
        cell = f"{shown(one.at)}{between(one.interval)}, then {names[one.beyond]}{_share(one.share)}"
        found.setdefault((one.family, one.amount), []).append(cell)
    for one in a.leads:
        cell = f"none: {names[one.better]}{_share(one.share)}"
        found.setdefault((one.family, one.amount), []).append(cell)
    rows = []
    for family in a.families[1:]:
        cells = [found.get((family, amount), []) for amount in a.curves]
        for n in range(max(map(len, cells))):
            row = {"family": names[family]}
            pairs = zip(a.curves, cells, strict=True)
            rows.append(row | {NAMES[amount]: some[n] if n < len(some) else "" for amount, some in pairs})
    return table(rows) if rows else ""


def _share(share: float | None) -> str:
    return "" if share is None else f", {share:.0%}"


def law_name(amount: str) -> str:
    return f"L({SYMBOLS[amount]})"


def fits(a: Answers, names: dict[str, str]) -> str:
    rows, columns = [], ("E", "A", "α")
    for curves in a.curves.values():
        if curves.why_not:
            row = {"law": law_name(curves.amount), "family": f"none: {curves.why_not}", "sizes": ""}
            rows.append(row | dict.fromkeys(columns, ""))
        for family in curves.laws:
            every = [_constants(laws[family]) for laws in (curves.laws, *curves.law_samples)]
            cells = [
                shown(value, 3) + between(intervals.interval([some[n] for some in every[1:]]), 3)
                for n, value in enumerate(every[0])
            ]
            if at_the_edge(curves):  # other constants would give the same curve
                cells = ["at the edge", *(shown(value, 3) for value in every[0][1:])]
            row = {
                "law": law_name(curves.amount),
                "family": names[family],
                "sizes": str(curves.sizes(family)),
            }
            rows.append(row | dict(zip(columns, cells, strict=True)))
    return table(rows)


def _constants(law) -> list[float]:
    return [law.irreducible, law.factor, law.exponent]


def at_the_edge(curves: Curves) -> bool:
    return bool(curves.laws) and undetermined(curves.laws, min(p.loss for p in curves.points))


def held_out(a: Answers, names: dict[str, str]) -> str:
    return table(
        [
            {
                "law": law_name(one.amount),
                "family": names[one.family],
                "size": one.size,
                "tokens per parameter": f"{a.ratio:g}",
                "loss": f"{one.measured:.4f}",
                "predicted": f"{one.predicted:.4f}",
                "error": f"{one.predicted - one.measured:+.4f}"
                + (f" ({one.interval[0]:+.4f} to {one.interval[1]:+.4f})" if one.interval else ""),
            }
            for one in a.held_out
        ]
    )


def misses(curves: Curves) -> dict[tuple[str, str], float]:
    """{(family, size): the loss by the fit over one amount less the mean that was measured}, of families
    with three sizes or more: through two, a curve goes exactly.
    """
    found = {}
    for (family, size, _), own in grouped(curves.points).items():
        if family in curves.laws and curves.sizes(family) > 2:
            mean = statistics.fmean(p.loss for p in own)
            found[family, size] = float(curves.laws[family].loss(getattr(own[0], curves.amount))) - mean
    return found


def trained(a: Answers, names: dict[str, str]) -> str:
    """A row for each family and size at the rule's learning rate; the mean ± the standard deviation
    over seeds.
    """
    rows, missed = [], misses(a.curves["parameters"])
    for own in grouped([p for p in a.points if p.rule]).values():
        p = own[0]
        rows.append(
            {
                "family": names[p.family],
                "size": p.size,
                "layers": str(p.n_layer),
                "width": str(p.n_embd),
                "heads": str(p.n_head),
                "parameters": f"{p.parameters:,}",
                "with embeddings": f"{p.all_parameters:,}",
                "tokens": f"{p.tokens:,}",
                "FLOPs": f"{p.flops:.2e}",
                "hours": shown(p.hours, 2),
                "learning rate": text(p.learning_rate),
                "seeds": str(len(own)),
                "loss": mean_loss(own),
            }
        )
        if missed:
            of = missed.get(p.place)
            rows[-1]["L(N) − loss"] = "" if of is None else f"{of:+.3f}"
    return table(rows) if rows else "No run has ended at the rule's learning rate yet.\n"
