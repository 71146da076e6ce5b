"""Runs as rows of a CSV, so that one table can hold seeds that ran on several machines."""

from host.disk import refuse_unreadable, write_whole

import csv
import io
import math
import statistics
from pathlib import Path

from comparison.runs import Arm, Run
from models.kinds import without_embeddings

WORDS, COUNTS = ("arm",), ("seed", "without_embeddings", "step", "tokens", "spikes")
# these may be empty
OPTIONAL = ("gradient_median", "gradient_95", "gradient_largest", "spikes", "clamped")
FIELDS = ("arm", "seed", "without_embeddings", "step", "tokens", "seconds", "validation_loss", *OPTIONAL)


def rows_of(arm: Arm) -> list[dict]:
    """One row for each evaluation of each run.

    validation_loss is in nats per token; seconds are those of training without evaluations. The gradient
    norms (median, 95th percentile, largest) are those of the steps from the end of the warmup to the
    evaluation. spikes counts the norms above ten times their median. clamped is the share of clamped
    denominators.
    """
    rows = []
    for run in arm.runs:
        for step, at in run.evaluations.items():
            row = dict.fromkeys(FIELDS) | {
                "arm": arm.name,
                "seed": run.config["seed"],
                "without_embeddings": without_embeddings(arm.parameters),
                "step": step,
                "tokens": at["tokens"],
                "seconds": round(at["seconds"], 1),
                "validation_loss": round(at["val_loss"], 5),
            }
            since = [r for r in run.records if run.config["warmup_iters"] < r["step"] <= step]
            if norms := sorted(r["grad_norm"] for r in since if r.get("grad_norm")):
                median = statistics.median(norms)
                row["gradient_median"] = float(f"{median:.4g}")
                row["gradient_95"] = float(f"{norms[int(0.95 * len(norms))]:.4g}")
                row["gradient_largest"] = float(f"{norms[-1]:.4g}")
                row["spikes"] = sum(norm > 10 * median for norm in norms)
            if arm.config["cf_pole"] == "clamp":
                row["clamped"] = run.quantities(step)["clamped"]
            rows.append(row)
    return rows


def pooled(here: list[dict], elsewhere: list[dict]) -> tuple[list[dict], list[str]]:
    """Merges rows, sorted by arm, seed and step; returns them and the names of the arms.

    Arms of `elsewhere` come first. If both have a run, the one of `here` is taken.
    """
    mine = {(row["arm"], row["seed"]) for row in here}
    rows = [row for row in elsewhere if (row["arm"], row["seed"]) not in mine] + here
    names = list(dict.fromkeys(row["arm"] for row in (*elsewhere, *here)))
    return sorted(rows, key=lambda row: (names.index(row["arm"]), row["seed"], row["step"])), names


def runs_of(name: str, rows: list[dict]) -> list[Run]:
    """The runs of an arm, rebuilt from its rows.

    Their config has the seed only. Each evaluation is the row, with its loss as `val_loss`.
    """
    runs: dict[int, list[dict]] = {}
    for row in rows:
        if row["arm"] == name:
            runs.setdefault(row["seed"], []).append(row | {"val_loss": row["validation_loss"]})
    return [Run(f"{name}_seed={seed}", Path(), {"seed": seed}, records) for seed, records in runs.items()]


def write_rows(path: Path, rows: list[dict]):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_rows(path: str | Path) -> list[dict]:
    """Reads the rows that `write_rows` wrote. Raises ValueError that names the line and what is wrong."""
    try:
        refuse_unreadable(path)
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            rows = list(csv.reader(file))
    except OSError as error:
        raise ValueError(error.strerror) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"no runs.csv of a study: {error}") from None
    if len(rows) < 2 or tuple(rows[0]) != FIELDS:
        raise ValueError(f"no runs.csv of a study: its columns must be {', '.join(FIELDS)}")
    found: dict[tuple, dict] = {}
    for number, cells in enumerate(rows[1:], 2):
        row = _parsed(number, cells)
        key = row["arm"], row["seed"], row["step"]
        if key in found:
            raise ValueError(f"line {number}: step {key[2]} of seed {key[1]} of {key[0]} is given twice")
        found[key] = row
    return list(found.values())


def _parsed(number: int, cells: list[str]) -> dict:
    if len(cells) != len(FIELDS):
        raise ValueError(f"line {number} has {len(cells)} cells in place of {len(FIELDS)}")
    row = {}
    for key, cell in zip(FIELDS, cells, strict=True):
        if not cell and key in OPTIONAL:
            row[key] = None
            continue
        try:
            row[key] = cell if key in WORDS else (int if key in COUNTS else float)(cell)
        except ValueError:
            raise ValueError(f"line {number}: {key} is {cell!r}, no number") from None
        if cell == "" or (key not in WORDS and not 0 <= row[key] < math.inf):
            raise ValueError(f"line {number}: {key} is {cell!r}")
    return row
