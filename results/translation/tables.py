"""The rows of study.csv, and the study's tables from them."""

from host.disk import write_whole

import csv
import io
import statistics
import sys
from pathlib import Path

from comparison.runs import Arm, Run
from comparison.significance import difference
from reports.markdown_table import table

HERE = Path(__file__).resolve().parent
OF_TEXT = ("part", "model", "dtype", "decoding", "source")
FIELDS = ("part", "model", "learning_rate", "seed", "dtype", "parameters", "steps", "tokens", "seconds")
FIELDS += ("validation_loss", "decoding", "source", "bleu", "chrf", "copy_bleu", "copy_chrf")
# what a model is compared with
COMPARED = {"F": "dense", "full": "dense", "encoder dense": "dense", "encoder F": "encoder dense"}
COMPARED |= {"full 3M": "dense 3M"}
DECODING = {"greedy": [], "five beams": ["--beams=5"]}
TITLES = {"runs": "Technical text, three epochs", "size": "Technical text, one epoch"}
TITLES |= {"bible": "The Bible, one epoch"}
# {part with other rates: (part with the best rate, domain)}
SWEEPS = {"rates": ("rates", "Technical text"), "bible_rates": ("bible", "The Bible")}


def write_rows(rows: list[dict]):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(HERE / "study.csv", text.getvalue())


def joined(rows: list[dict], others: list[dict]) -> list[dict]:
    """rows, and before them those of the others that are of no run of theirs."""
    own = {run_of(row) for row in rows}
    return [row for row in others if run_of(row) not in own] + rows


def run_of(row: dict) -> tuple:
    return row["part"], row["model"], float(row["learning_rate"]), float(row["seed"])


def read_rows() -> list[dict]:
    """The rows of study.csv; none where there is no such file."""
    if not (HERE / "study.csv").is_file():
        return []
    with (HERE / "study.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for key in FIELDS:
            if key not in OF_TEXT and row[key]:
                row[key] = float(row[key])
    return rows


def best_rates(rows: list[dict]) -> dict[str, float]:
    """{model: the rate of the lowest loss after one epoch}"""
    swept = sorted((row for row in rows if row["part"] == "rates"), key=lambda row: -row["validation_loss"])
    return {row["model"]: row["learning_rate"] for row in swept}


def tables(rows: list[dict]) -> str:
    """Losses at each rate, losses and differences at the end, and scores, in Markdown."""
    if not rows:
        sys.exit("study.py: there is no study.csv yet: call it with page, after runs and scores")
    parts = []
    for part, (best, domain) in SWEEPS.items():
        if names := {row["model"] for row in rows if row["part"] == part}:
            swept = [row for row in rows if row["part"] in (part, best) and row["model"] in names]
            title = f"{domain}, one epoch, seed 1: validation loss at each learning rate"
            parts += ["", title, "", rate_table([row for row in swept if row["seed"] == 1])]
    for part, title in TITLES.items():
        if run := [row for row in rows if row["part"] == part]:
            parts += ["", title, "", loss_table(run)]
        for decoding in DECODING:
            if scored := [row for row in run if row["decoding"] == decoding]:
                parts += ["", f"BLEU / chrF, {decoding}", "", score_table(scored)]
    return "\n".join(parts).lstrip()


def rate_table(rows: list[dict]) -> str:
    rates = sorted({row["learning_rate"] for row in rows})
    at = {(row["model"], row["learning_rate"]): f"{row['validation_loss']:.4f}" for row in rows}
    names = list(dict.fromkeys(row["model"] for row in rows))
    return table([{"model": n} | {f"{r:g}": at.get((n, r), "") for r in rates} for n in names])


def loss_table(rows: list[dict]) -> str:
    arms = {name: arm(rows, name) for name in dict.fromkeys(row["model"] for row in rows)}
    lines = []
    for name, own in arms.items():
        row = next(row for row in rows if row["model"] == name)
        line = {"model": name, "parameters": f"{row['parameters'] / 1e6:.2f}M"}
        line |= {"rate": f"{row['learning_rate']:g}", "seeds": str(len(own.runs))}
        losses = [run.evaluations[run.last_step]["val_loss"] for run in own.runs]
        line |= {"validation loss": spread(losses, 4), "against": "", "difference": "", "p": ""}
        base = COMPARED.get(name)
        if base in arms and (found := difference(own, arms[base])):
            deviation = "" if found.deviation is None else f" ± {found.deviation:.4f}"
            line |= {"against": base, "difference": f"{found.mean:+.4f}{deviation}"}
            line["p"] = "" if found.p is None else f"{found.p:.2g}"
        lines.append(line)
    return table(lines)


def arm(rows: list[dict], model: str) -> Arm:
    """The runs of a model, with their losses at the last step; those that were scored have several rows."""
    seeds = {row["seed"]: row for row in rows if row["model"] == model}
    records = {
        seed: {"step": row["steps"], "val_loss": row["validation_loss"]} for seed, row in seeds.items()
    }
    return Arm(model, [Run(model, HERE, {"seed": seed}, [record]) for seed, record in records.items()])


def score_table(rows: list[dict]) -> str:
    """A row for each model, and one of copied sources; BLEU / chrF of each source."""
    lines, copies = [], {row["source"]: row for row in rows}
    for name in dict.fromkeys(row["model"] for row in rows):
        line = {"model": name}
        for source in copies:
            own = [row for row in rows if (row["model"], row["source"]) == (name, source)]
            kinds = [spread([row[kind] for row in own], 1) for kind in ("bleu", "chrf") if own]
            line[source] = " / ".join(kinds)
        lines.append(line)
    copied = {s: f"{row['copy_bleu']:.1f} / {row['copy_chrf']:.1f}" for s, row in copies.items()}
    return table([*lines, {"model": "the source, copied"} | copied])


def spread(values: list[float], digits: int) -> str:
    """Mean, and the standard deviation of two values or more."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
