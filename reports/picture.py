"""How every picture is made: what a user chooses about it, its style, and how its file is written.

The ending of the name is the format: .png, .pdf or .svg. Fonts are embedded (.pdf), and text stays text
(.svg). The same numbers give the same bytes: no file holds a date.

Under a name of the script's own (a run's loss.png, the pictures of an ablation or of a page) a picture
replaces what lies there. Under a name that the user gave, a file that exists is refused.
"""

from host.disk import make_folder, write_whole

import contextlib
import io
import math
import re
import statistics
import sys
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.plural import counted

ENDINGS = (".png", ".pdf", ".svg")
SIZE = (6.0, 3.7)  # inches, unless a user or the kind of picture says otherwise
NARROW = 4.5  # inches: below that, panels stand one above the other
TAKEN = "exists: move it away, or choose another name"
LIMITS = (2.0, 40.0)  # inches that a side may have
LEAST = 0.4  # of the sides of a picture: what its texts must leave to its panels

# Okabe and Ito's colours, which colour-blind readers tell apart, without yellow, which is pale on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "figure.titlesize": 9,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7, "legend.title_fontsize": 7,
    "lines.linewidth": 1.2, "lines.markersize": 3.5, "axes.linewidth": 0.6, "grid.linewidth": 0.4,
    "grid.alpha": 0.5, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "legend.framealpha": 0.8, "legend.edgecolor": "0.85",
    "legend.handlelength": 2.2, "savefig.dpi": 200, "pdf.fonttype": 42, "svg.fonttype": "none",
    "svg.hashsalt": "cofrgenet", "text.usetex": False, "savefig.bbox": None, "savefig.transparent": False,
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """What a user chose about a picture. size: width and height in inches; labels: one for each line."""

    size: tuple[float, float] | None = None
    title: str | None = None
    labels: list[str] | None = None

    def names(self, names: Sequence[str]) -> list[str]:
        """The texts for a legend: the user's labels, or the names of the lines as plain text."""
        return self.labels if self.labels is not None else [plain(name) for name in names]


PLAIN = Look()


def look(config) -> Look:
    """What plot_size, plot_title and plot_labels of a script's config say. `mistakes` checks them."""
    size = config.plot_size and tuple(map(float, config.plot_size.split("x")))
    return Look(size or None, config.plot_title, config.plot_labels and _split(config.plot_labels))


def mistakes(config, always: Sequence[str] = (), own: Iterable[Path] = ()) -> list[str]:
    """Complaints about plot, plot_size, plot_title and plot_labels of a script's config.

    always: those that change something without plot as well. own: pictures that the script draws anyway.
    """
    wrong = refused(config.plot, own)
    for key in ("plot_size", "plot_title", "plot_labels"):
        if key not in always and config.plot is None and getattr(config, key) is not None:
            wrong.append(f"{key} acts with a picture only: give --plot=FILE as well")
    if config.plot_size is not None:
        number = r"(\d+\.?\d*|\.\d+)"
        least, most = LIMITS
        if not (found := re.fullmatch(f"{number}x{number}", config.plot_size)):
            wrong.append(
                f"plot_size must be WIDTHxHEIGHT in inches, such as 3.3x2.4, not {config.plot_size!r}"
            )
        elif not all(least <= float(side) <= most for side in found.groups()):
            wrong.append(f"plot_size is in inches, {least:g} to {most:g} a side, not {config.plot_size}")
    labels = _split(config.plot_labels) if config.plot_labels is not None else []
    if not all(labels):
        wrong.append(f"plot_labels={config.plot_labels!r} has an empty label")
    elif len(set(labels)) < len(labels):
        wrong.append(f"plot_labels={config.plot_labels!r} has the same label twice")
    for key, text in (("plot_title", config.plot_title), *(("plot_labels", label) for label in labels)):
        if text is not None and (reason := _unreadable(text)):
            wrong.append(
                f"{key}: {text!r} is no formula that matplotlib can set ({reason}); write \\$ for a $"
            )
    return wrong


def refused(plot: str | None, own: Iterable[Path] = ()) -> list[str]:
    """Complaints about the name of a picture. None: no picture. own: see `mistakes`."""
    if plot is None:
        return []
    path = Path(plot)
    if path.suffix not in ENDINGS or not path.stem:
        return [f"plot must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, not {plot!r}"]
    if path.resolve() in [each.resolve() for each in own]:
        return [f"plot={plot} is a picture that is drawn anyway: choose another name"]
    return [f"plot={plot} {TAKEN}"] if path.exists() else []


def wrong_size(chosen: Look, rows: int, columns: int) -> list[str]:
    """Complaints about plot_size for a picture with several panels: an inch each, and an inch for texts."""
    if chosen.size is None or (chosen.size[0] >= columns + 1 and chosen.size[1] >= rows + 1):
        return []
    width, height = (max(pair) for pair in zip(chosen.size, (columns + 1, rows + 1), strict=True))
    return [
        f"plot_size={chosen.size[0]:g}x{chosen.size[1]:g} is too small for {rows} x {columns} panels; take "
        f"{width:g}x{height:g} or more"
    ]


def wrong_labels(labels: list[str] | None, names: Sequence[str]) -> list[str]:
    """Complaints about the number of plot_labels, for a picture with a line for each of `names`."""
    if labels is None or len(labels) == len(names):
        return []
    told = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    lines = counted(len(names), "line")
    return [f"plot_labels needs a label for each line; it has {len(labels)} for {lines}: {told}"]


def write(figure, path: Path, own: bool = False):
    """Write a figure as a picture, whole or not at all; the folder is made. A figure that is too small for
    its texts is enlarged; for a name that the user gave, a line on stderr says so.

    own: the name is the script's (such as loss.png in a run folder), and whatever lies there is replaced.
    Raises OSError where a file cannot be written, or must not be replaced.
    """
    import matplotlib

    make_folder(path.parent)
    if not own and path.exists():
        raise OSError(f"{path} {TAKEN}")
    dates = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    image = io.BytesIO()
    size = figure.get_size_inches().tolist()
    with matplotlib.rc_context(STYLE):
        _fit(figure)
        figure.savefig(image, format=path.suffix[1:], metadata=dates[path.suffix])
    write_whole(path, image.getvalue())
    if not own and (fitted := figure.get_size_inches().tolist()) != size:
        before, after = (f"{width:g}x{height:g}" for width, height in (size, fitted))
        print(
            f"{path} is {after} inches: {before} is too small for its legend and labels; take "
            f"--plot_size={after}, shorter --plot_labels, or fewer lines",
            file=sys.stderr,
        )


def _fit(figure):
    """Wrap the texts of a figure, and enlarge it where they leave too little to its panels."""
    width = 0.96 * figure.bbox.width
    for legend in figure.legends:
        more = legend.get_window_extent().width - width
        longest = max(text.get_window_extent().width for text in legend.texts)
        for text in legend.texts:
            _wrap(text, longest - more)
        _wrap(legend.get_title(), width)
    if figure._suptitle:
        _wrap(figure._suptitle, width)
    labels = [(a, text) for a in figure.axes for text in (a.title, a.xaxis.label, a.yaxis.label)]
    whole = [text.get_text() for _, text in labels]
    for _ in range(12):
        for (_, text), words in zip(labels, whole, strict=True):
            text.set(text=words, in_layout=False)  # the room that panels have without them
        _shares(figure)
        for axes, text in labels:
            _wrap(text, 1.05 * (axes.bbox.height if text is axes.yaxis.label else axes.bbox.width))
            text.set_in_layout(True)
        shares, size = _shares(figure), figure.get_size_inches()
        if min(shares) >= LEAST or max(size) >= LIMITS[1]:
            return
        size = size * [1.2 if share < LEAST else 1.0 for share in shares]
        figure.set_size_inches(size.round(1).clip(max=LIMITS[1]))  # that plot_size can say


def _shares(figure) -> tuple[float, float]:
    """Lay a figure out -> the shares of its width and height that its panels have; 0 where none fits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning)  # of panels without width or height
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            figure.draw_without_rendering()
        except UserWarning:
            return 0.0, 0.0
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    grid, sizes = panels[0].get_gridspec(), [axes.get_position().size for axes in panels]
    return grid.ncols * min(width for width, _ in sizes), grid.nrows * min(height for _, height in sizes)


def _wrap(text, room: float):
    """Wrap a text longer than `room` pixels, in four lines at most; formulas stay whole."""
    whole, length = (
        text.get_text(),
        max(text.get_window_extent().size),
    )  # of a label of a y axis: its height
    if whole and length > room:
        letters = max(10, int(0.95 * max(map(len, whole.split("\n"))) * room / length))
        kept = re.sub(r"\$[^$]*\$", lambda found: found[0].replace(" ", "\0"), whole)
        how = {"break_long_words": "$" not in whole, "break_on_hyphens": False, "max_lines": 4}
        text.set_text(textwrap.fill(kept, letters, placeholder="…", **how).replace("\0", " "))


def _split(labels: str) -> list[str]:
    return [label.strip() for label in labels.split(";" if ";" in labels else ",")]


def _unreadable(text: str) -> str:
    """Why matplotlib cannot set a text with formulas; empty if it can."""
    if (text.count("$") - text.count(r"\$")) % 2 or "$" not in text:
        return ""  # a $ without a second one is a dollar
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(text)
    except ValueError as error:
        return str(error).strip().splitlines()[-1]
    return ""


def plain(name: str) -> str:
    """A name as matplotlib shows it as it stands: without formulas, and not hidden from legends."""
    return ("\u2009" if name.startswith("_") else "") + name.replace("$", r"\$")


@contextlib.contextmanager
def drawing():
    """The style, for everything that makes axes, lines and legends; as a decorator too."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def new(chosen: Look, rows: int = 1, columns: int = 1, size: tuple[float, float] = SIZE, **options):
    """(figure, axes [rows, columns]). size: unless the user chose one; options: of Figure.subplots."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=chosen.size or size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    if chosen.title:
        figure.suptitle(chosen.title)
    return figure, axes


def line_style(number: int) -> dict:
    """Colour, dashes and marker of a line, for plot: they also differ in black and white."""
    colours = len(COLOURS)
    return {
        "color": COLOURS[number % colours],
        "ls": DASHES[number // colours % len(DASHES)],
        "marker": MARKERS[(number + number // colours) % len(MARKERS)],
    }


def marker(points: Sequence) -> str:
    """A marker for a line without markers if it has one point alone, which no line would show."""
    return "o" if len(points) == 1 else ""


def legend(figure, axes, handles: list, labels: list[str], title: str | None = None, most: int = 6):
    """In the axes, or below them where it has more than `most` entries or would fill them."""
    width, height = figure.get_size_inches()
    longest = max(map(len, labels))
    if len(handles) <= min(most, 1.6 * height) and longest <= 11 * width:
        axes.legend(handles, labels, title=title, alignment="left")
    else:
        legend_below(figure, handles, labels, title)


def legend_below(figure, handles: list, labels: list[str], title: str | None = None):
    """Below the axes, in as many columns as the width has room for."""
    width = figure.get_size_inches()[0]
    points = 7 if width >= NARROW else 6
    # inches of a column: a letter is about 0.53 as wide as high; handle, gaps
    column = (0.53 * max(map(len, labels)) + 3.6) * points / 72
    figure.legend(
        handles, labels, title=title, alignment="left", loc="outside lower center", fontsize=points,
        title_fontsize=points, handlelength=1.8, columnspacing=1.0,
        ncols=max(1, min(len(labels), int(width / column))),
    )  # fmt: skip


def diverged(ends: Sequence[tuple[float, float, bool]]) -> list[bool]:
    """For (first loss, last loss, whether the run began with given weights) of each curve: whether training
    diverged. It ended above its start (from random weights), or above three times the median of the last
    losses. Never all: a picture of diverged curves alone shows them.
    """
    if not ends:
        return []
    middle = statistics.median_low(last for _, last, _ in ends)
    return [
        last > middle and (last > 3 * abs(middle) or (last > first and not given))
        for first, last, given in ends
    ]


def focus(axes, curves: Iterable[tuple[Sequence[float], Sequence[float], bool]]):
    """Vertical limits for loss curves: (places, losses, whether the first ones must be seen).

    The losses before a tenth of the axis are left out only if at least four of their curve remain, or if
    the curve has no others, and if the curve begins far above them, as that of an untrained model does: by
    more than a third of its last loss, and so far that the rest would fill less than two fifths of the
    axis. Diverged curves do not count.
    """
    found = []
    for places, losses, whole in curves:
        points = [(x, y) for x, y in zip(places, losses, strict=True) if math.isfinite(y)]
        if points:
            found.append((points, whole))
    bad = diverged([(points[0][1], points[-1][1], whole) for points, whole in found])
    found = [pair for pair, wrong in zip(found, bad, strict=True) if not wrong]
    furthest = max((points[-1][0] for points, _ in found), default=0)
    early, later = [], []
    for points, whole in found:
        end = points[-1][0]
        rest = [y for x, y in points if x >= end / 10]
        fell = points[0][1] > 4 / 3 * abs(points[-1][1]) and not whole and len(rest) >= 4
        alone = end < furthest / 10 and not whole
        early += [y for x, y in points if alone or (fell and x < end / 10)]
        later += [] if alone else rest if fell else [y for _, y in points]
    if not later:
        return
    low, high = min(later), max(later)
    if early and max(early) - low < 2.5 * (high - low):
        high = max(high, *early)
    low = min([low, *early])
    room = 0.05 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)


def unit(what: str, end: float) -> tuple[float, str]:
    """(divisor, label of the axis) for an axis of steps, tokens, flops or seconds that ends at `end`."""
    if what == "tokens":
        name, size = next(
            ((n, s) for n, s in (("billion", 1e9), ("million", 1e6)) if end >= s), ("thousand", 1e3)
        )
        return size, f"{name} tokens"
    if what == "flops":
        power = math.floor(math.log10(end)) if end > 0 else 0
        return 10.0**power, rf"training model FLOPs ($\times 10^{{{power}}}$)"
    if what == "seconds":
        name, size = next(
            ((n, s) for n, s in (("hours", 3600), ("minutes", 60)) if end >= 2 * s), ("seconds", 1)
        )
        return size, f"{name} of training, without evaluations"
    return 1, "steps"
