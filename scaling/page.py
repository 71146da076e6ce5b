"""The page of a study: tables of what was trained, of fits, of multipliers, as Markdown and CSV."""

import math
import textwrap
from dataclasses import asdict

from comparison.labels import text
from markdown_table import table
from plural import counted
from scaling import intervals, rate_trials
from scaling.answers import Answers, Curves
from scaling.fits import undetermined
from scaling.points import AMOUNTS, Point, mean_loss, written

HEAD = "# Scaling\n"
NAMES = {"parameters": "parameters", "flops": "FLOPs", "hours": "hours", "tokens": "tokens"}
SYMBOLS = {"parameters": "N", "flops": "C", "hours": "T", "tokens": "D"}


def page(answers: Answers, names: dict[str, str], lines: list[str], commands: str, picture: str) -> str:
    """names: what to call the families. lines: remarks. commands: one in each line. picture: its file,
    beside the page.
    """
    a = answers
    parts = [
        HEAD,
        textwrap.indent(commands, "    ") + "\n",
        f"![loss and multipliers]({picture})\n",
        f"Baseline: {names[a.baseline]}. Curves over one amount are of runs with {a.ratio:g} tokens per "
        "parameter. Intervals are 95 %, from resampled seeds. They leave out what the form of the curve "
        "gets wrong, for which see the held-out size, and errors of the measured step times. *not "
        "measured*: not both families reached the loss within the sizes that were trained.\n",
        "\n".join(f"- {line}" for line in lines) + "\n",
        "\n## Multipliers\n",
        "How many times the parameters, FLOPs or hours the baseline needs for the same loss. Above 1, the "
        "family is better than the baseline. Hours are tokens times the measured time of a step.\n",
        multipliers(a, names),
        "\n".join(["", *(f"- {line}" for line in [*trends(a, names), *crossings(a, names)]), ""]),
        "## Fits\n",
        "L = E + A x^-α for one amount x: parameters N, FLOPs C or hours T. L(N, D) = E + A N^-α + B D^-β "
        "for parameters and tokens together. Fitted with the Huber loss on log L, as in Hoffmann et al. "
        "(2022).\n",
        fits(a, names) + "\n",
        "The largest size, as the fit of all smaller ones predicts it:\n" if a.held_out else "",
        held_out(a, names) + "\n" if a.held_out else "No size is held out: the others have no fit.\n",
        "## What was trained\n",
        trained(a.points, names) + "\n",
    ]  # fmt: skip
    if any(not p.rule for p in a.points):
        parts += [
            "Learning rates that were tried:\n",
            rate_trials.listed(a.points, names) + "\n",
        ]
    return "\n".join(part for part in parts if part)


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
    if not a.multipliers:
        return "None: a baseline and another family with fits are needed.\n"
    rows = []
    for family in a.families[1:]:
        for loss in a.losses:
            row = {"family": names[family], "loss": f"{loss:.3f}"}
            for one in a.multipliers:
                if (one.family, one.loss) == (family, loss):
                    cell = "not measured" if one.value is None else f"{one.value:.2f}"
                    row[NAMES[one.amount]] = cell + between(one.interval, 3)
            rows.append(row)
    return table(rows) + "\n" if rows else "None: the baseline has no fit.\n"


def trends(a: Answers, names: dict[str, str]) -> list[str]:
    lines = []
    for one in a.trends:
        told = "changes, for what one seed can say"
        if one.interval:
            low, high = one.interval
            told = "neither grows nor shrinks for certain"
            if low > 1 or high < 1:
                told = "grows" if low > 1 else "shrinks"
        lines.append(
            f"{names[one.family]}: from loss {one.first:.3f} to {one.last:.3f} the multiplier of "
            f"{NAMES[one.amount]} {told}: it changes by a factor of {shown(one.factor, 3)}"
            f"{between(one.interval, 3)}"
        )
    return lines


def crossings(a: Answers, names: dict[str, str]) -> list[str]:
    lines = []
    for family in a.families[1:]:
        for amount in AMOUNTS:
            what = NAMES[amount]
            for one in a.crossings:
                if (one.family, one.amount) == (family, amount):
                    told = _share(one.share, "they cross")
                    if one.interval:
                        told += f", 95 % of these at{between(one.interval)}"
                    lines.append(
                        f"{names[family]} crosses the baseline at {shown(one.at)} {what}, beyond which "
                        f"{names[one.beyond]} is better{told}"
                    )
            for one in a.leads:
                if (one.family, one.amount) == (family, amount):
                    told = _share(one.share, "this is so")
                    lines.append(
                        f"{names[family]} does not cross the baseline in the measured {what}: "
                        f"{names[one.better]} is better throughout{told}"
                    )
    return lines


def _share(share: float | None, told: str) -> str:
    return "" if share is None else f"; {told} in {share:.0%} of the resamples"


def law_name(curves: Curves) -> str:
    return f"L({', '.join(SYMBOLS[amount] for amount in curves.amounts)})"


def fits(a: Answers, names: dict[str, str]) -> str:
    rows = []
    for curves in (*a.curves.values(), a.surface):
        if curves.why_not:
            rows.append(dict.fromkeys(("law", "family", "E", "A", "α", "B", "β"), ""))
            rows[-1] |= {"law": law_name(curves), "family": f"none: {curves.why_not}"}
        for family, law in curves.laws.items():
            constants = [law.irreducible, *sum(zip(law.factors, law.exponents, strict=True), ())]
            resampled = [
                [s[family].irreducible, *sum(zip(s[family].factors, s[family].exponents, strict=True), ())]
                for s in curves.samples
            ]
            cells = [
                shown(value, 3) + between(intervals.interval([some[n] for some in resampled]), 3)
                for n, value in enumerate(constants)
            ]
            cells += [""] * (5 - len(cells))
            row = {"law": law_name(curves), "family": names[family]}
            rows.append(row | dict(zip(("E", "A", "α", "B", "β"), cells, strict=True)))
    if not any(row["B"] for row in rows):
        rows = [{key: cell for key, cell in row.items() if key not in ("B", "β")} for row in rows]
    return table(rows)


def held_out(a: Answers, names: dict[str, str]) -> str:
    return table(
        [
            {
                "law": f"L({', '.join(SYMBOLS[amount] for amount in one.amounts)})",
                "family": names[one.family],
                "size": one.size,
                "tokens per parameter": f"{one.tokens_per_parameter:g}",
                "loss": f"{one.measured:.4f}",
                "predicted": f"{one.predicted:.4f}",
                "error": f"{one.predicted - one.measured:+.4f}",
            }
            for one in a.held_out
        ]
    )


def grouped(points: list[Point]) -> dict[tuple, list[Point]]:
    found: dict[tuple, list[Point]] = {}
    for p in points:
        found.setdefault((p.family, p.size, p.tokens_per_parameter, p.learning_rate), []).append(p)
    return found


def trained(points: list[Point], names: dict[str, str]) -> str:
    """A row for each family, size and length at the rule's learning rate; the mean ± the standard deviation
    over seeds.
    """
    rows = []
    for own in grouped([p for p in points if p.rule]).values():
        p = own[0]
        rows.append(
            {
                "family": names[p.family],
                "size": p.size,
                "layers": str(p.n_layer),
                "width": str(p.n_embd),
                "heads": str(p.n_head),
                "parameters": f"{p.parameters:,}",
                "tokens": f"{p.tokens:,}",
                "FLOPs": f"{p.flops:.2e}",
                "hours": shown(p.hours, 2),
                "learning rate": text(p.learning_rate),
                "seeds": str(len(own)),
                "loss": mean_loss(own),
            }
        )
    return table(rows) if rows else "No run has ended at the rule's learning rate yet.\n"


def remarks(a: Answers, names: dict[str, str]) -> list[str]:
    main = [p for p in a.points if p.rule]
    deviation = intervals.pooled(main)
    lines = []
    if deviation is None:
        lines.append("no place has two seeds: there are no intervals")
    else:
        lines.append(f"standard deviation of the loss over seeds, pooled over all places: {deviation:.4f}")
    if failed := [p for p in main if p.loss is None]:
        told = ", ".join(f"{names[p.family]} {p.size} seed {p.seed}" for p in failed[:6])
        lines.append(f"{counted(len(failed), 'run')} failed at the rule's learning rate: {told}")
    sizes = {p.family: {q.size for q in main if q.family == p.family} for p in main}
    if len(set(map(frozenset, sizes.values()))) > 1:
        lines.append("the families were not all trained at the same sizes")
    for curves in (*a.curves.values(), a.surface):
        if curves.laws and undetermined(curves.laws, min(p.loss for p in curves.points)):
            lines.append(
                f"{law_name(curves)}: E or an exponent is at the edge of the search. These losses do not "
                "determine the constants, only the curve within the measured range"
            )
    return lines + rate_trials.remarks(a.points, names)


def fits_csv(a: Answers) -> str:
    rows = []
    for curves in (*a.curves.values(), a.surface):
        for family, law in curves.laws.items():
            for number, laws in enumerate([curves.laws, *curves.samples]):
                law = laws[family]
                row = {"law": law_name(curves), "family": family, "resample": number, "E": law.irreducible}
                row |= dict(zip(("A", "B"), law.factors, strict=False))
                rows.append(row | dict(zip(("alpha", "beta"), law.exponents, strict=False)))
    return written(rows, ["law", "family", "resample", "E", "A", "alpha", "B", "beta"])


def multipliers_csv(a: Answers) -> str:
    rows = []
    for one in a.multipliers:
        low, high = one.interval or (None, None)
        row = {key: value for key, value in asdict(one).items() if key != "interval"}
        rows.append(row | {"low": low, "high": high})
    return written(rows, ["family", "amount", "loss", "value", "low", "high"])
