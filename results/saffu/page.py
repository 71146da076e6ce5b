"""tables.md and tables.png from the rows of tables.csv, ngrams.csv and published.csv."""

import math

from reports import picture
from reports.markdown_table import table

SIZES = (2, 4, 8, 16, 32, 64, 128)
NAMES = {"bible": "verses", "sotu": "speeches"}
# the paper's numbers of its tables: (radius, block)
TABLES = {1: ("sum", "sum"), 2: ("sum", "cat"), 3: ("cat", "sum"), 4: ("cat", "cat")}
HEAD = """# The paper's Tables 1 to 4 and what they must beat

Made by `python results/saffu/tables.py page` from `tables.csv`, `ngrams.csv` and `published.csv`.
[README.md](README.md) says how it was measured and what it means.

A cell is train / development perplexity per token, end-of-text tokens included. b: slots of the block unit;
r: slots of the radius unit. Sum, cat: a unit adds up its weighted vectors, or concatenates them.
"""

Rows = list[dict[str, str]]


class Grid:
    """The perplexities of explicit models: `of(split, b, r, block, radius)`."""

    def __init__(self, rows: Rows, data: str | None = None):
        self.cells = {
            (int(row["b"]), int(row["r"]), row["block"], row["radius"]): row
            for row in rows
            if data is None or (row["data"], row["other"]) == (data, "")
        }

    def of(self, split: str, *cell) -> float | None:
        row = self.cells.get(cell)
        return None if row is None else float(row[f"{split} perplexity"])

    def both(self, *cell) -> str:
        found = [self.of(split, *cell) for split in ("train", "dev")]
        return "" if None in found else " / ".join(f"{one:.1f}" for one in found)


def text(rows: Rows, ngrams: Rows, published: Rows) -> str:
    """The page."""
    ours, theirs = Grid(rows, "bible"), Grid(published)
    parts = [HEAD, "## N-grams of the same tokens\n", of_ngrams(ngrams, rows)]
    for number, (radius, block) in TABLES.items():
        parts.append(f"## Table {number}: radius {radius}, block {block}\n")
        parts += ["Ours, verses:\n", grid(ours, block, radius), "The paper, BabyLM:\n"]
        parts.append(grid(theirs, block, radius))
    parts += ["## State of the Union, r = 8\n", of_speeches(Grid(rows, "sotu"))]
    parts += ["## Does attention do anything?\n", ATTENTION, of_attention(rows)]
    parts += ["## Hidden bits\n", HIDDEN, of_hidden(rows)]
    parts += ["## Temperature\n", TEMPERATURE, of_temperature(rows)]
    parts += ["## Do the paper's trends come out?\n", TRENDS, trends(ours, theirs)]
    return "\n".join(parts)


def grid(found: Grid, block: str, radius: str) -> str:
    return shown(
        [{"r \\ b": str(r)} | {str(b): found.both(b, r, block, radius) for b in SIZES} for r in SIZES]
    )


def of_speeches(found: Grid) -> str:
    cells = lambda radius, block: {str(b): found.both(b, 8, block, radius) for b in SIZES}  # noqa: E731
    return shown([{"radius, block": ", ".join(modes)} | cells(*modes) for modes in TABLES.values()])


def of_ngrams(ngrams: Rows, rows: Rows) -> str:
    """The n-gram rows, and that of a SAFFU, with end-of-text tokens as targets and without."""
    lines = [(NAMES[row["data"]], row["model"], row) for row in ngrams]
    for data in NAMES:
        lines += [
            (NAMES[data], "SAFFU, b = 32, r = 8, sum, cat", row)
            for row in chosen(rows, data=data, b="32", r="8", block="sum", radius="cat", other="")
        ]
    return shown(
        [
            {
                "data": data,
                "model": name,
                "train": perplexity(row, "train"),
                "development": perplexity(row, "dev"),
                "without end-of-text": perplexity(row, "dev", " without end"),
                "bits per byte": f"{float(row['dev bits per byte']):.3f}",
            }
            for data, name, row in sorted(lines, key=lambda line: line[0], reverse=True)
        ]
    )


ATTENTION = """Development loss in nats per token, r = 8. Printed: W as in the paper. Negated: the other
sign of V. Uniform: W = 0. Both as differences from printed.
"""


def of_attention(rows: Rows) -> str:
    lines = []
    for data in NAMES:
        for b in ("32", "128"):
            for radius, block in TABLES.values():
                found = {
                    kind: chosen(rows, data=data, b=b, r="8", block=block, radius=radius, other=other)
                    for kind, other in (
                        ("printed", ""),
                        ("negated", "saffu_attention=negated"),
                        ("uniform", "saffu_attention=uniform"),
                    )
                }
                losses = {kind: float(row["dev loss"]) for kind, own in found.items() for row in own}
                if len(losses) == len(found):
                    lines.append(
                        {
                            "data": NAMES[data],
                            "b": b,
                            "radius, block": f"{radius}, {block}",
                            "printed": f"{losses['printed']:.4f}",
                            "negated": f"{losses['negated'] - losses['printed']:+.4f}",
                            "uniform": f"{losses['uniform'] - losses['printed']:+.4f}",
                        }
                    )
    return shown(lines)


HIDDEN = """b = 32 sum, r = 8 cat. 256 bits are the default. None: no hidden layer, both units decode to the
vocabulary at once. Mean priming: K of a decoder is the mean 1-norm of what it reads, in place of K log K.
"""


def of_hidden(rows: Rows) -> str:
    names = {"D_H = 64": "saffu_hidden=64", "D_H = 128": "saffu_hidden=128", "D_H = 256": ""}
    names |= {"D_H = 512": "saffu_hidden=512", "D_H = 1024": "saffu_hidden=1024"}
    names |= {"D_H = None": "saffu_hidden=None", "D_H = 256, mean priming": "saffu_priming=mean"}
    lines = []
    for name, other in names.items():
        line = {"hidden bits": name}
        for data in NAMES:
            found = chosen(rows, data=data, b="32", r="8", block="sum", radius="cat", other=other)
            line[NAMES[data]] = "".join(f"{perplexity(r, 'train')} / {perplexity(r, 'dev')}" for r in found)
        lines.append(line)
    return shown(lines)


TEMPERATURE = """Our own factor on the evidence of the decoders, not on their prior. b = 32 sum, r = 8 cat.
Held-out / development perplexity. Held out are training tokens that are not counted. Bold: the lowest
held-out perplexity.
"""


LEAST = "0.015625"  # the last temperature that is computed


def of_temperature(rows: Rows) -> str:
    """A column for each data set and decoder, in bold the cell of the lowest held-out perplexity."""
    columns = {
        (data, hidden): {
            row["other"].split("saffu_temperature=")[1]: row
            for row in chosen(rows, data=data)
            if "temperature" in row["other"] and ("hidden=None" in row["other"]) == (hidden is None)
        }
        for data in NAMES
        for hidden in (256, None)
    }
    columns = {key: found for key, found in columns.items() if LEAST in found}  # those that are complete
    lines: dict[str, dict] = {}
    for (data, hidden), found in columns.items():
        best = min(found, key=lambda one: float(found[one]["held perplexity"]), default=None)
        for factor, row in found.items():
            cell = f"{perplexity(row, 'held')} / {perplexity(row, 'dev')}"
            line = lines.setdefault(factor, {f"{NAMES[d]}, D_H = {h}": "" for d, h in columns})
            line[f"{NAMES[data]}, D_H = {hidden}"] = f"**{cell}**" if factor == best else cell
    factors = sorted(lines, key=float, reverse=True)
    return shown([{"temperature": factor} | lines[factor] for factor in factors])


TRENDS = """Counted on the tables above, ours on verses.
"""


def trends(ours: Grid, theirs: Grid) -> str:
    lines = []
    for name, measured in (
        ("(a) radius cat below sum, development", cat_below_sum),
        ("(b) block sum falls with b throughout", falls_with_b),
        ("(b) block cat is lowest at b = 32", lowest_at_32),
        ("(c) radius cat: r = 8 below r = 4, 16 and 32", low_at_8),
        ("(c) radius cat: r = 64 and 128 within 1 % of r = 8 or below", long_as_good),
        ("(e) development above train", dev_above_train),
        ("(e) development minus train", gaps),
    ):
        lines.append({"trend": name, "the paper": measured(theirs), "ours": measured(ours)})
    return shown(lines)


def cat_below_sum(found: Grid) -> str:
    pairs = [
        (found.of("dev", b, r, block, "cat"), found.of("dev", b, r, block, "sum"))
        for b in SIZES for r in SIZES for block in ("sum", "cat")
    ]  # fmt: skip
    return share([cat < both for cat, both in pairs if None not in (cat, both)], "cells")


def rows_along_b(found: Grid, block: str) -> list[list[float]]:
    lines = [
        [found.of("dev", b, r, block, radius) for b in SIZES] for r in SIZES for radius in ("sum", "cat")
    ]
    return [line for line in lines if None not in line]


def falls_with_b(found: Grid) -> str:
    return share([line == sorted(line, reverse=True) for line in rows_along_b(found, "sum")], "rows")


def lowest_at_32(found: Grid) -> str:
    lowest = [SIZES[line.index(min(line))] for line in rows_along_b(found, "cat")]
    most = ", ".join(f"{b}: {lowest.count(b)}" for b in SIZES if b in lowest)
    return f"{share([b == 32 for b in lowest], 'rows')} (lowest at {most})"


def columns_along_r(found: Grid) -> list[dict[int, float]]:
    lines = [
        {r: found.of("dev", b, r, block, "cat") for r in SIZES} for b in SIZES for block in ("sum", "cat")
    ]
    return [line for line in lines if None not in line.values()]


def low_at_8(found: Grid) -> str:
    return share(
        [line[8] < min(line[r] for r in (4, 16, 32)) for line in columns_along_r(found)], "columns"
    )


def long_as_good(found: Grid) -> str:
    return share([max(line[64], line[128]) <= 1.01 * line[8] for line in columns_along_r(found)], "columns")


def differences(found: Grid) -> list[tuple[float, float]]:
    return [(found.of("train", *cell), found.of("dev", *cell)) for cell in found.cells]


def dev_above_train(found: Grid) -> str:
    return share([dev > train for train, dev in differences(found)], "cells")


def gaps(found: Grid) -> str:
    apart = [dev - train for train, dev in differences(found)]
    relative = [100 * (dev / train - 1) for train, dev in differences(found)]
    return f"{min(apart):.1f} to {max(apart):.1f} ({min(relative):.1f} to {max(relative):.1f} %)"


def share(yes: list[bool], of: str) -> str:
    return f"{sum(yes)} of {len(yes)} {of}"


def chosen(rows: Rows, **keys: str) -> Rows:
    return [row for row in rows if all(row[key] == value for key, value in keys.items())]


def perplexity(row: dict[str, str], split: str, which: str = "") -> str:
    value = math.exp(float(row[f"{split} loss{which}"]))
    return f"{value:.1f}" if value < 10_000 else f"{value:.1e}"


def shown(rows: list[dict[str, str]]) -> str:
    return table(rows) + "\n" if rows else ""


@picture.drawing()
def draw(rows: Rows, ngrams: Rows):
    """Development perplexity against b, a line for each r, a panel for each of the tables."""
    found = Grid(rows, "bible")
    levels = {row["model"]: float(row["dev perplexity"]) for row in ngrams if row["data"] == "bible"}
    figure, axes = picture.new(picture.PLAIN, 2, 2, (7.2, 5.6), sharex=True, sharey=True)
    handles = []
    for panel, (number, (radius, block)) in zip(axes.flat, TABLES.items(), strict=True):
        handles = []
        for place, r in enumerate(SIZES):
            points = [(b, value) for b in SIZES if (value := found.of("dev", b, r, block, radius))]
            if points:
                handles += panel.plot(
                    *zip(*points, strict=True), **picture.line_style(place), label=f"r = {r}"
                )
        for name, style in (("unigram", ":"), ("bigram", "--")):
            handles.append(panel.axhline(levels[name], color="0.4", ls=style, lw=1, label=name))
        panel.set_title(f"Table {number}: radius {radius}, block {block}")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
    for panel in axes[1]:
        panel.set_xlabel("b")
    for panel in axes[:, 0]:
        panel.set_ylabel("development perplexity")
    ticks = (50, 100, 200, 300, 400)
    axes[0, 0].set_yticks(ticks, [str(tick) for tick in ticks])
    axes[0, 0].set_xticks(SIZES, [str(b) for b in SIZES])
    axes[0, 0].minorticks_off()
    figure.legend(handles=handles, loc="outside right center")
    return figure
