"""Losses and multipliers of a study in one picture: against parameters, FLOPs and hours."""

import math
import statistics

import numpy as np

from reports import picture
from scaling.answers import Answers, ratio_at, ratios_at
from scaling.curves import Curves
from scaling.interpolation import common
from scaling.sizing import Size

LABELS = {  # of the columns
    "parameters": "parameters without embeddings",
    "flops": "training model FLOPs",
    "hours": "hours of training",
}
PLACES = 60  # of a curve
WIDE = 4  # more than so many times from the lowest to the highest: heights at 1, 2 and 5
SIZE = (7.2, 4.6)  # inches, with one baseline
ROW = 1.6  # inches, of each further one


@picture.drawing()
def draw(answers: Answers, others: list[Answers], names: list[str], look: picture.Look = picture.PLAIN):
    """A figure with a column for each known amount: above, losses with their fits; below, multipliers, with
    a row for each baseline.

    Points are means over seeds, with the standard deviation; dotted lines are fits, bands the middle 95 %
    of fits of samples. Multipliers are those of the lines between the points, at the baseline's
    amount, where both were measured. others: the same study over other baselines. names: of the families,
    in the order of `answers`.
    """
    amounts = [amount for amount in LABELS if amount in answers.curves]
    every, labels = [answers, *others], look.names(names)
    size = SIZE[0], SIZE[1] + ROW * len(others)
    figure, grid = picture.new(look, 1 + len(every), len(amounts), size, sharex="col", sharey="row")
    handles = []
    for column, amount in enumerate(amounts):
        panels = [row[column] for row in grid]
        for axes in panels:
            axes.set_xscale("log")
            axes.set_yscale("log")
        curves = answers.curves[amount]
        for number, family in enumerate(answers.families):
            handle = losses(panels[0], curves, family, number)
            handles += [handle] if column == 0 else []
            for a, axes in zip(every, panels[1:], strict=True):
                if family != a.baseline:
                    multipliers(axes, curves, a.baseline, family, number)
                else:
                    axes.axhline(1, color=picture.line_style(number)["color"], lw=0.8)
        _places(panels[-1], amount, [getattr(p, amount) for p in curves.points])
        panels[-1].set_xlabel(LABELS[amount])
    grid[0][0].set_ylabel("validation loss (nats per token)")
    _plain_heights(grid[0][0], [p.loss for c in answers.curves.values() for p in c.points], 1.1)
    for a, row in zip(every, grid[1:], strict=True):
        over = labels[answers.families.index(a.baseline)] if others else "the baseline"
        row[0].set_ylabel(f"multiplier (above 1: better than {over})")
        values = [m.value for m in a.multipliers if m.value and m.amount in amounts]
        _plain_heights(row[0], values or [0.5, 2.0], 2.0)
    if any(curves.laws for curves in answers.curves.values()):
        handles += grid[0][0].plot([], [], color="0.4", ls=":", lw=0.8)
        labels = [*labels, "fit"]
    picture.legend_below(figure, handles, labels)
    return figure


def losses(axes, curves: Curves, family: str, number: int):
    """Points with error bars, the fit and its band; returns the points' handle."""
    style = picture.line_style(number)
    amount = curves.amount
    at: dict[float, list[float]] = {}
    for p in curves.points:
        if p.family == family:
            at.setdefault(getattr(p, amount), []).append(p.loss)
    means = [statistics.fmean(found) for found in at.values()]
    spreads = [statistics.stdev(found) if len(found) > 1 else math.nan for found in at.values()]
    handle = axes.errorbar(list(at), means, spreads, **style, capsize=1.5, elinewidth=0.8)
    if family in curves.laws:
        places = np.geomspace(*curves.measured(family), PLACES)
        axes.plot(places, curves.laws[family].loss(places), color=style["color"], ls=":", lw=0.8)
        _band(axes, places, [laws[family].loss(places) for laws in curves.law_samples], style["color"])
    return handle


def multipliers(axes, curves: Curves, baseline: str, family: str, number: int):
    """The multiplier over the baseline's amounts, at losses that the family reached too."""
    lines = curves.lines
    if baseline not in lines or family not in lines:
        return
    both = common(lines[baseline], lines[family])
    if both is None:
        return
    style = picture.line_style(number)
    levels = np.geomspace(both[1], both[0], PLACES)[1:-1]
    places = [lines[baseline].amount(loss) for loss in levels]
    values = [ratio_at(lines, baseline, family, loss) for loss in levels]
    axes.plot(places, values, color=style["color"], ls=style["ls"])
    samples = [ratios_at(curves, baseline, family, loss) for loss in levels]
    _band(axes, places, list(zip(*samples, strict=True)), style["color"])


def _band(axes, places, samples: list, colour: str):
    if not samples:
        return
    values = np.array(samples, dtype=float)
    values[~np.isfinite(values)] = np.nan
    values = np.clip(values, 1e-4, 1e4)  # beyond any loss or multiplier that is seen; an axis overflows
    keep = ~np.isnan(values).all(axis=0)
    low, high = np.nanpercentile(values[:, keep], (2.5, 97.5), axis=0)
    axes.fill_between(np.asarray(places)[keep], low, high, color=colour, alpha=0.2, lw=0)


def _places(axes, amount: str, values: list[float]):
    """Limits and labels of a logarithmic axis of amounts, of which there may be one alone."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if not values:
        return
    low, high = min(values), max(values)
    axes.set_xlim(low / 1.3, high * 1.3)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low >= 30 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    if amount == "parameters":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: Size(round(value)).label))
    elif amount == "hours":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power_of_ten(value)))


def _power_of_ten(value: float) -> str:
    digits, _, exponent = f"{value:.0e}".partition("e")
    factor = "" if digits == "1" else rf"{digits}\cdot"
    return f"${factor}10^{{{int(exponent)}}}$"


def _plain_heights(axes, values: list[float], room: float):
    """Plain numbers on a logarithmic axis of less than a decade, where matplotlib has hardly any; over wide
    ranges those whose first digit is 1, 2 or 5.

    room: a factor beyond the values; what of a band is further away is cut off.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if not values:
        return
    low, high = min(values), max(values)
    steps = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)
    step = next((s for s in steps if (high - low) / s <= 6), 10.0)
    first, last = math.floor(low / step) - 1, math.ceil(high / step) + 1
    places = [n * step for n in range(max(1, first), last + 1)]
    if high / low > WIDE:
        decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        places = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator(places))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, low / room), min(top, high * room))
