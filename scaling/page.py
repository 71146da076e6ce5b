"""The page of a study, as Markdown and CSV, and the remarks on it."""

import textwrap
from dataclasses import asdict

from reports.plural import counted
from scaling import intervals, rate_trials, tables
from scaling.answers import Answers
from scaling.curves import Curves
from scaling.deviations import Deviations
from scaling.points import grouped, written
from scaling.sizing import parse

HEAD = "# Scaling\n"


def page(
    a: Answers, others: list[Answers], names: dict[str, str], lines: list[str], commands: str, picture: str
) -> str:
    """others: the same study over other baselines. names: what to call the families. lines: remarks.
    commands: one in each line. picture: its file, beside the page.
    """
    parts = [
        HEAD,
        textwrap.indent(commands, "    ") + "\n",
        f"![loss and multipliers]({picture})\n",
        f"Baseline: {names[a.baseline]}. All runs have {a.ratio:g} "
        f"{'token' if a.ratio == 1 else 'tokens'} per parameter. Intervals are 95 %, from studies drawn "
        "anew with other seeds. They leave out what another learning rate would change, and errors of the "
        "measured step times.\n",
        "\n".join(f"- {line}" for line in lines) + "\n",
        "\n## Multipliers\n",
        "How many times the parameters, FLOPs or hours the baseline needs for the same loss. Above 1, the "
        "family is better than the baseline. More parameters mean as many times the tokens here. They are "
        "read off the measured losses, joined by straight lines of logarithms. Parameters are without "
        "token and position embeddings where nothing else is said. Hours are tokens times the measured "
        "time of a step. *not measured*: not both families reached the loss within the sizes that were "
        "trained.\n",
        *compared(a, names),
    ]
    for other in others:
        parts += [f"## Multipliers over {names[other.baseline]}\n", *compared(other, names)]
    parts += [
        "## Fits\n",
        "L = E + A x^-α for one amount x: parameters N, FLOPs C or hours T. Fitted with the Huber loss on "
        "log L, as in Hoffmann et al. (2022).\n",
        tables.fits(a, names) + "\n",
        "The largest size, as the fit of all smaller ones predicts it:\n" if a.held_out else "",
        tables.held_out(a, names) + "\n"
        if a.held_out
        else "No size is held out: the others have no fit.\n",
        "## What was trained\n",
        tables.trained(a, names) + "\n",
    ]
    if any(not p.rule for p in a.points):
        parts += [
            "Learning rates that were tried:\n",
            rate_trials.listed(a.points, names) + "\n",
        ]
    return "\n".join(part for part in parts if part)


def compared(a: Answers, names: dict[str, str]) -> list[str]:
    """The tables of one baseline."""
    return [
        tables.multipliers(a, names),
        "How the multipliers change from the first of these losses to the last:\n" if a.trends else "",
        tables.trends(a, names) + "\n" if a.trends else "",
        "Where curves cross the baseline's, with the one that is better beyond, or who is better at all "
        "that were measured; and how many of the samples agree. An interval from 0 or to ∞ goes "
        "beyond what was measured. Empty: no amounts that both have, or amounts that do not rise with the "
        "size:\n"
        if a.crossings or a.leads
        else "",
        tables.crossings(a, names) + "\n" if a.crossings or a.leads else "",
        "Multipliers of parameters in other ways (none: not both families have that loss there):\n"
        if a.checks
        else "",
        tables.checks(a, names),
    ]


def remarks(a: Answers, names: dict[str, str]) -> list[str]:
    main = [p for p in a.points if p.rule]
    spread = intervals.deviations(main)
    lines = []
    if spread is None:
        lines.append("no place has two seeds: there are no intervals")
    else:
        lines.append(_deviations(spread, names))
    if "hours" not in a.curves:
        lines.append("no hours: step times are not known, or are those of several files")
    if others := dict.fromkeys(p.place for p in a.points if p.place not in {q.place for q in main}):
        told = ", ".join(f"{names[family]} at {size}" for family, size in others)
        lines.append(f"in no curve, because no run has the rule's learning rate: {told}")
    if failed := [p for p in main if p.loss is None]:
        told = ", ".join(f"{names[p.family]} {p.size} seed {p.seed}" for p in failed[:6])
        lines.append(f"{counted(len(failed), 'run')} failed at the rule's learning rate: {told}")
    sizes = {p.family: {q.size for q in main if q.family == p.family} for p in main}
    if len(set(map(frozenset, sizes.values()))) > 1:
        lines.append("the families were not all trained at the same sizes with the rule's learning rate")
    every = a.curves.values()
    if edges := [tables.law_name(curves.amount) for curves in every if tables.at_the_edge(curves)]:
        lines.append(
            f"{', '.join(edges)}: E or an exponent is at the edge of the search. These losses do not "
            "determine the constants, only the curve within the measured range"
        )
    for curves in every:
        lines += _missed(curves, names)
    return lines + rate_trials.remarks(a.points, names)


def _deviations(spread: Deviations, names: dict[str, str]) -> str:
    """What the intervals take for the deviations, and from which places."""
    typical = spread.typical()
    ends = [f"{typical[size]:.2g} at {size}" for size in sorted(typical, key=lambda s: parse(s).target)]
    several = counted(sum(len(some) > 1 for some in spread.losses.values()), "place")
    line = (
        f"standard deviation of the loss over seeds at a typical place: {ends[0]}"
        + (f", {ends[-1]}" if len(ends) > 1 else "")
        + f". The intervals draw each place's from its own seeds and from all {several} with two seeds or "
        "more, as far as these agree"
    )
    single = [f"{names[place[0]]} at {place[1]}" for place, some in spread.losses.items() if len(some) == 1]
    return line + (f". With one seed alone: {', '.join(single[:6])}" if single else "")


def _missed(curves: Curves, names: dict[str, str]) -> list[str]:
    """Where a fit is further from the mean of the seeds than these explain."""
    places = grouped(curves.points)
    found, missed = {}, tables.misses(curves)
    for (family, size, _), own in places.items():
        error = missed.get((family, size))
        if error is not None and curves.samples:
            at = curves.lines[family].amounts.index(getattr(own[0], curves.amount))
            low, high = intervals.interval([lines[family].losses[at] for lines in curves.samples])
            if not low <= curves.lines[family].losses[at] + error <= high:
                found[family, size] = error
    if not found:
        return []
    worst = max(found, key=lambda place: abs(found[place]))
    return [
        f"the fits of {tables.law_name(curves.amount)} miss {counted(len(found), 'mean')} of "
        f"{len(missed)} by more than seeds explain, most of all "
        f"{names[worst[0]]} at {worst[1]} by {found[worst]:+.3f}"
    ]


def fits_csv(a: Answers) -> str:
    rows = []
    for curves in a.curves.values():
        for family, law in curves.laws.items():
            for number, laws in enumerate([curves.laws, *curves.law_samples]):
                law = laws[family]
                row = {
                    "law": tables.law_name(curves.amount),
                    "family": family,
                    "sample": number,
                    "E": law.irreducible,
                    "A": law.factor,
                    "alpha": law.exponent,
                }
                rows.append({k: f"{v:.7g}" if isinstance(v, float) else v for k, v in row.items()})
    return written(rows, ["law", "family", "sample", "E", "A", "alpha"])


def multipliers_csv(every: list[Answers]) -> str:
    """A row for each baseline, family, amount and loss."""
    rows = []
    for a in every:
        for one in a.multipliers:
            low, high = one.interval or (None, None)
            row = {key: value for key, value in asdict(one).items() if key != "interval"}
            rows.append({"baseline": a.baseline} | row | {"low": low, "high": high})
    return written(rows, ["baseline", "family", "amount", "loss", "value", "low", "high"])
