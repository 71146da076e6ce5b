"""The ladders of runs in one picture: how near each layer came to its poles, evaluation by evaluation."""

import itertools
import math
import re

from comparison.figure import AXES
from comparison.labels import labels
from comparison.runs import Arm, Run
from reports import picture

# key of a layer's record, and its label
PANELS = {
    "min_denominator": "smallest |denominator|",
    "z_99": "99th percentile of |z|",
    "clamped": "share of denominators\nbelow cf_eps",
    "grad_norm": "gradient norm\nof ladder weights",
}
MOST = 4  # runs in a picture


def mistakes(runs: list[Run]) -> list[str]:
    """Complaints about runs that the picture cannot show."""
    wrong = [
        f"picture=ladders: {run.name} has no ladders in its log; leave it out"
        for run in runs
        if not layers(run)
    ]
    if len(runs) > MOST:
        wrong.append(f"picture=ladders shows {MOST} runs at most, not {len(runs)}")
    return wrong


def grid_of(count: int) -> tuple[int, int]:
    """(rows, columns) of panels for a number of runs."""
    return (2, 2) if count == 1 else (len(PANELS), count)


def layers(run: Run) -> list[str]:
    """The layers of which the log has records, from the first block to the last."""
    names = dict.fromkeys(name for at in run.evaluations.values() for name in at.get("ladders", {}))
    return sorted(names, key=lambda name: (_block(name), name))


def _block(name: str) -> int:
    return int(found[1]) if (found := re.search(r"\.(\d+)\.", name)) else 0


def _part(name: str) -> str:
    """blocks.3.ffn.ladders -> ffn, blocks.3.ffn.first -> ffn, first"""
    parts = [part for part in name.split(".") if part not in ("blocks", "ladders") and not part.isdigit()]
    return ", ".join(parts)


@picture.drawing()
def draw(runs: list[Run], against: str, look: picture.Look = picture.PLAIN):
    """A figure with a panel for each statistic: one line a layer, its colour the block's number, its dashes
    the part of the block. Several runs stand side by side. Dotted: when depths wake.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D

    alone = len(runs) == 1
    if alone:
        figure, grid = picture.new(look, *grid_of(1), (6.0, 4.2), sharex=True)
        columns = [list(grid.flat)]
    else:
        figure, grid = picture.new(
            look, *grid_of(len(runs)), (1.0 + 2.2 * len(runs), 6.5), sharex="col", sharey="row"
        )
        columns = [list(column) for column in grid.T]
    blocks = [_block(name) for run in runs for name in layers(run)]
    parts = list(dict.fromkeys(_part(name) for run in runs for name in layers(run)))
    colour = ScalarMappable(Normalize(min(blocks), max(blocks) or 1), colormaps["viridis"].resampled(256))
    colour.set_clim(min(blocks), max(blocks) + 0.15 * (max(blocks) - min(blocks) or 1))  # no pale yellow
    names = look.names(labels([Arm(run.name, [run]) for run in runs]))
    for run, column, name in zip(runs, columns, names, strict=True):
        last = run.evaluations[run.last_step]
        size, where = picture.unit(AXES[against][0], AXES[against][1](run, last))
        for axes, (key, label) in zip(column, PANELS.items(), strict=True):
            for layer in layers(run):
                if points := _points(run, layer, key, against, size):
                    style = {"color": colour.to_rgba(_block(layer)), "ls": _dashes(parts, _part(layer))}
                    axes.plot(*zip(*points, strict=True), **style, marker=picture.marker(points))
            if alone or column is columns[0]:
                axes.set_ylabel(label)
        for axes in column[-2:] if alone else column[-1:]:
            axes.set_xlabel(where)
        if not alone or look.labels:
            column[0].set_title(name, fontsize=7)
    for panels, key in zip(zip(*columns, strict=True), PANELS, strict=True):
        _scale(panels, key, runs)
    for run, column in zip(runs, columns, strict=True):
        size, _ = picture.unit(AXES[against][0], AXES[against][1](run, run.evaluations[run.last_step]))
        for axes, place in itertools.product(column, _wakes(run, against, size)):
            axes.axvline(place, color="0.5", lw=0.6, ls=":", zorder=0)
    handles = [Line2D([], [], color="0.3", ls=_dashes(parts, part)) for part in parts]
    if any(_wakes(run, against, 1) for run in runs):
        handles.append(Line2D([], [], color="0.5", lw=0.6, ls=":"))
        parts = [*parts, "a depth wakes"]
    picture.legend_below(figure, handles, parts)
    if max(blocks) > min(blocks):
        ticks = sorted(set(blocks))
        bar = figure.colorbar(colour, ax=grid, label="block", aspect=40, pad=0.02)
        bar.ax.set_ylim(min(blocks), max(blocks))
        bar.set_ticks(ticks[:: math.ceil(len(ticks) / 8)])
        bar.ax.grid(False)
    return figure


def _points(run: Run, layer: str, key: str, against: str, size: float) -> list[tuple[float, float]]:
    """(place, value) of the evaluations that have the value."""
    found = [
        (AXES[against][1](run, at) / size, at.get("ladders", {}).get(layer, {}).get(key))
        for at in run.evaluations.values()
    ]
    return [(place, value) for place, value in found if value is not None and math.isfinite(value)]


def _dashes(parts: list[str], part: str) -> str:
    return picture.DASHES[parts.index(part) % len(picture.DASHES)]


def _scale(panels: tuple, key: str, runs: list[Run]):
    """The vertical axis that the panels of a statistic share: logarithmic where it spans a factor of 20.
    Values of 0, such as gradients of depths that sleep, are missing there.
    """
    values = [y for axes in panels for line in axes.lines for y in line.get_ydata()]
    if key == "clamped":
        panels[0].set_ylim(0, 1.05 * max(0.01, *values) if values else 1)
        panels[0].yaxis.set_major_formatter(lambda share, _: f"{share:.3%}".rstrip("0%").rstrip(".") + " %")
        return
    above = [value for value in values if value > 0]
    if not above or max(above) < 20 * min(above):
        return
    panels[0].set_yscale("log", nonpositive="mask")
    for axes, run in zip(panels, runs, strict=True):
        if key == "min_denominator" and min(above) < 10 * run.config["cf_eps"]:
            axes.axhline(run.config["cf_eps"], color="black", lw=0.8, zorder=0)
            axes.annotate(
                "cf_eps", (0.02, run.config["cf_eps"]), xycoords=("axes fraction", "data"),
                xytext=(0, -2), textcoords="offset points", va="top", fontsize=6,
            )  # fmt: skip


def _wakes(run: Run, against: str, size: float) -> list[float]:
    """Where on the horizontal axis depths wake, but for those between two evaluations of time."""
    wakes = [step for step in Arm(run.name, [run]).wakes or [] if 0 < step <= run.last_step]
    if against == "hours":
        return []  # the log has no time of every step
    last = run.evaluations[run.last_step]
    return [step / run.last_step * AXES[against][1](run, last) / size for step in wakes]
