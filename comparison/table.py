"""The table of several arms, as Markdown and as CSV."""

import csv
import io

from comparison.runs import Arm
from comparison.significance import difference, mean_and_deviation
from models.kinds import without_embeddings
from reports.markdown_table import table

COLUMNS = {
    "run": "run",
    "seeds": "seeds",
    "parameters": "parameters",
    "body": "without embeddings",
    "flops": "training MFLOPs/token",
    "tokens": "tokens trained",
    "loss": "validation loss",
    "difference": "difference",
    "p": "p",
    "best": "best",
    "bits_per_byte": "bits per byte",
    "tokens_per_second": "tokens/s",
    "minutes": "minutes",
    "wakes": "depths wake at step",
    "clamped": "clamped",
}
# left out of the Markdown table if no arm has them
OPTIONAL = ("seeds", "difference", "p", "wakes", "clamped")


def _minutes(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


FORMATS = {
    "loss": "{:.4f}".format,
    "best": "{:.4f}".format,
    "bits_per_byte": "{:.4f}".format,
    "tokens_per_second": "{:,.0f}".format,
    "minutes": _minutes,
    "clamped": "{:.2%}".format,
}
MEASURED = tuple(FORMATS)


def markdown(arms: list[Arm], baseline: str | None = None) -> str:
    """A Markdown table with one row per arm: mean ± sample standard deviation over its seeds.

    With the name of a baseline, the table also has the differences from that arm.
    """
    rows = [row(arm, _named(arms, baseline)) for arm in arms]
    shown = [key for key in COLUMNS if key not in OPTIONAL or any(cells[key] for cells in rows)]
    return table([{COLUMNS[key]: cells[key] for key in shown} for cells in rows])


def _named(arms: list[Arm], name: str | None) -> Arm | None:
    return next((arm for arm in arms if arm.name == name), None)


def row(arm: Arm, baseline: Arm | None = None) -> dict[str, str]:
    cells = dict.fromkeys(COLUMNS, "")
    cells["run"] = arm.name
    wanted = len(arm.runs) + arm.failed
    if wanted > 1:
        cells["seeds"] = f"{len(arm.runs)} of {wanted}" if arm.failed else str(wanted)
    if not arm.runs:
        return cells | {"loss": "failed"}
    counts = arm.parameters
    cells["parameters"] = f"{sum(counts.values()):,}"
    cells["body"] = f"{without_embeddings(counts):,}"
    cells["flops"] = f"{arm.runs[0].training_flops / 1e6:,.1f}"
    cells["tokens"] = f"{arm.runs[0].evaluations[arm.steps[-1]]['tokens']:,}"
    if arm.wakes is not None:
        cells["wakes"] = " ".join(f"{step:,}" for step in arm.wakes)
    if baseline not in (None, arm) and (found := difference(arm, baseline)):
        cells["difference"] = f"{found.mean:+.4f}"
        if found.p is not None:
            cells["difference"] += f" ± {found.deviation:.4f} ({found.pairs})"
            cells["p"] = f"{found.p:.2g}"
    for key, values in arm.quantities().items():
        if len(values) > 1:
            cells[key] = " ± ".join(map(FORMATS[key], mean_and_deviation(values)))
        elif values:
            cells[key] = FORMATS[key](values[0])
    return cells


def numbers(arms: list[Arm], baseline: str | None = None) -> str:
    """The table as CSV, unrounded, with the standard deviations over seeds in columns of their own.

    With a baseline, it also has the differences from it, their number of pairs, and p. FLOPs per token are
    not in millions here. Losses are in nats per token. clamped is a share from 0 to 1.
    """
    against = _named(arms, baseline)
    of_pairs = ["difference", "difference_deviation", "pairs", "p"]
    columns = [key for key in COLUMNS if key not in (*MEASURED, *of_pairs, "wakes")]
    columns += [name for key in MEASURED for name in (key, f"{key}_deviation")] + ["wakes", "failed"]
    columns += of_pairs if against else []
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for arm in arms:
        cells = {"run": arm.name, "seeds": len(arm.runs), "failed": arm.failed}
        if arm.runs:
            counts = arm.parameters
            cells |= {"parameters": sum(counts.values()), "body": without_embeddings(counts)}
            cells["flops"] = arm.runs[0].training_flops
            cells["tokens"] = arm.runs[0].evaluations[arm.steps[-1]]["tokens"]
            cells["wakes"] = " ".join(map(str, arm.wakes or []))
            for key, values in arm.quantities().items():
                several = len(values) > 1
                both = mean_and_deviation(values) if several else (values[0] if values else "", "")
                cells[key], cells[f"{key}_deviation"] = both
        if against not in (None, arm) and (found := difference(arm, against)):
            values = (found.mean, found.deviation, found.pairs, found.p)
            cells |= dict(zip(of_pairs, values, strict=True))
        writer.writerow(cells)
    return text.getvalue()
