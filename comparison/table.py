"""The table of several arms: for reading, and as numbers."""

import csv
import io
import statistics

from benchmarks.report import table
from comparison.runs import Arm

COLUMNS = {
    "run": "run",
    "seeds": "seeds",
    "parameters": "parameters",
    "body": "without embeddings",
    "flops": "training MFLOPs/token",
    "tokens": "tokens trained",
    "loss": "validation loss",
    "best": "best",
    "bits_per_byte": "bits per byte",
    "tokens_per_second": "tokens/s",
    "minutes": "minutes",
    "wakes": "depths wake at step",
    "clamped": "clamped",
}
# left out of what is for reading where no arm has them
OPTIONAL = ("seeds", "wakes", "clamped")
FORMATS = {
    "loss": "{:.4f}",
    "best": "{:.4f}",
    "bits_per_byte": "{:.4f}",
    "tokens_per_second": "{:,.0f}",
    "minutes": "{:.1f}",
    "clamped": "{:.2%}",
}
MEASURED = tuple(FORMATS)


def markdown(arms: list[Arm]) -> str:
    """A Markdown table with a row for each arm: mean ± sample standard deviation over its seeds."""
    rows = [row(arm) for arm in arms]
    shown = [key for key in COLUMNS if key not in OPTIONAL or any(cells[key] for cells in rows)]
    return table([{COLUMNS[key]: cells[key] for key in shown} for cells in rows])


def row(arm: Arm) -> dict[str, str]:
    cells = dict.fromkeys(COLUMNS, "")
    cells["run"] = arm.name
    wanted = len(arm.runs) + arm.failed
    if wanted > 1:
        cells["seeds"] = f"{len(arm.runs)} of {wanted}" if arm.failed else str(wanted)
    if not arm.runs:
        return cells | {"loss": "failed"}
    counts = arm.parameters
    cells["parameters"] = f"{sum(counts.values()):,}"
    cells["body"] = f"{body(counts):,}"
    cells["flops"] = f"{arm.runs[0].training_flops / 1e6:,.1f}"
    cells["tokens"] = f"{arm.runs[0].evaluations[arm.steps[-1]]['tokens']:,}"
    if arm.wakes is not None:
        cells["wakes"] = " ".join(f"{step:,}" for step in arm.wakes)
    for key, values in arm.measures().items():
        if values:
            cells[key] = FORMATS[key].format(statistics.fmean(values))
        if len(values) > 1:
            cells[key] += f" ± {FORMATS[key].format(statistics.stdev(values))}"
    return cells


def numbers(arms: list[Arm]) -> str:
    """The table as CSV: unrounded, with the standard deviation over seeds in columns of its own.

    FLOPs per token are not in millions here; losses in nats per token; clamped is a share from 0 to 1.
    """
    columns = [key for key in COLUMNS if key not in MEASURED and key != "wakes"]
    columns += [name for key in MEASURED for name in (key, f"{key}_deviation")] + ["wakes", "failed"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for arm in arms:
        cells = {"run": arm.name, "seeds": len(arm.runs), "failed": arm.failed}
        if arm.runs:
            counts = arm.parameters
            cells |= {"parameters": sum(counts.values()), "body": body(counts)}
            cells["flops"] = arm.runs[0].training_flops
            cells["tokens"] = arm.runs[0].evaluations[arm.steps[-1]]["tokens"]
            cells["wakes"] = " ".join(map(str, arm.wakes or []))
            for key, values in arm.measures().items():
                cells[key] = statistics.fmean(values) if values else ""
                cells[f"{key}_deviation"] = statistics.stdev(values) if len(values) > 1 else ""
        writer.writerow(cells)
    return text.getvalue()


def body(counts: dict[str, int]) -> int:
    """Parameters without the embeddings."""
    return counts["attention"] + counts["ffn"] + counts["norm"]
