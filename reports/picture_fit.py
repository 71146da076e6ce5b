"""Makes the texts of a figure fit: labels, titles and legends are wrapped, and a picture that is too small
for them grows.
"""

import re
import textwrap
import warnings

PANEL = (0.8, 0.7)  # inches of width and height that a panel has at least
SHARE = 0.4  # of the height of a picture with one panel: what a legend must leave to the panel
LINES = 4  # lines of a label or a title; what is longer ends in "…"
LARGEST = 40.0  # inches of a side


def fit(figure):
    """Wrap the texts of a figure; enlarge it where they leave too little room to its panels."""
    texts = _texts(figure)
    for _ in range(12):
        for text, whole in texts:
            text.set_text(whole)
        _wrap(figure)
        _lay_out(figure)
        width, height = map(float, figure.get_size_inches())
        more = _missing(figure, width, height)
        if max(more) <= 0 or max(width, height) >= LARGEST:
            return
        # steps of a tenth of an inch, so that the size can be written as plot_size
        grown = [
            side + (max(0.2, gap) if gap > 0 else 0)
            for side, gap in zip((width, height), more, strict=True)
        ]
        figure.set_size_inches(*(min(LARGEST, round(side + 0.049, 1)) for side in grown))


def _panels(figure) -> list:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def _texts(figure) -> list[tuple]:
    found = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label, axes.title)]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    found += [figure._suptitle] if figure._suptitle else []
    return [(text, text.get_text()) for text in found if text.get_text()]


def _missing(figure, width: float, height: float) -> tuple[float, float]:
    """Inches by which the figure is too narrow and too low."""
    panels = _panels(figure)
    boxes = [axes.get_position() for axes in panels]
    specs = [axes.get_subplotspec().get_gridspec() for axes in panels]
    columns, rows = specs[0].ncols, specs[0].nrows
    least = max(PANEL[1], SHARE * height / rows) if rows == 1 else PANEL[1]
    wide = columns * (PANEL[0] - min(box.width for box in boxes) * width)
    high = rows * (least - min(box.height for box in boxes) * height)
    if rows == 1 and high > 0:
        high /= 1 - SHARE  # a higher picture must leave more to its panel
    return wide, high


def _lay_out(figure):
    with warnings.catch_warnings():
        # where there is no room at all, `fit` enlarges the figure
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.draw_without_rendering()


def _wrap(figure):
    """Wrap every text to the width or height of what it stands at."""
    width = float(figure.get_size_inches()[0])
    if figure._suptitle:
        _fill(figure._suptitle, 0.96 * width)
    for legend in figure.legends:
        box = legend.get_window_extent().width / figure.dpi
        longest = max(text.get_window_extent().width for text in legend.get_texts()) / figure.dpi
        if box > 0.97 * width:
            for text in legend.get_texts():
                _fill(text, max(0.5, longest - (box - 0.97 * width)))
    labels = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label, axes.title)]
    for label in labels:
        label.set_in_layout(False)  # the room that panels have without them
    _lay_out(figure)
    for axes in figure.axes:
        box = axes.get_window_extent()
        wide, high = box.width / figure.dpi, box.height / figure.dpi
        if len(_panels(figure)) == 1:
            wide = 0.96 * width - axes.get_position().x0 * width  # the axis may end before its label
        _fill(axes.yaxis.label, 1.05 * high)
        _fill(axes.xaxis.label, max(1.05 * wide, 0.8))
        _fill(axes.title, max(1.05 * wide, 0.8))
    for label in labels:
        label.set_in_layout(True)


def _fill(text, room: float):
    """Wrap a text to `room` inches, if it is longer: before a bracket if that is enough."""
    whole = text.get_text()
    if not whole or _length(text) <= room:
        return
    text.set_text(whole.replace(" (", "\n("))
    if _length(text) <= room:
        return
    one = " ".join(whole.split())
    text.set_text(one)
    letters = len(one) * room / _length(text)
    formulas = "$" in one
    kept = re.sub(r"\$[^$]*\$", lambda found: found[0].replace(" ", "\0"), one)
    for width in range(max(4, int(letters)), 3, -1):
        lines = textwrap.wrap(kept, width, break_long_words=not formulas, break_on_hyphens=False)
        if len(lines) > LINES and not formulas:
            lines = [*lines[: LINES - 1], lines[LINES - 1][: max(1, width - 1)] + "…"]
        text.set_text("\n".join(lines).replace("\0", " "))
        if _length(text) <= room:
            return


def _length(text) -> float:
    """Inches of the longest line, along the line."""
    box = text.get_window_extent()
    upright = text.get_rotation() in (90.0, 270.0)
    return (box.height if upright else box.width) / text.get_figure().dpi
