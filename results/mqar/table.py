"""Accuracy on MQAR against width: each mixer at the learning rate that suits it best.

    python results/mqar/table.py --study=out/mqar
    python results/mqar/table.py

The first command measures the finished runs of an ablation that are not in mqar.csv yet (`evaluation.mqar`,
the last checkpoint). docs/evaluation.md has the command that trains them. Both make mqar.md and mqar.png
from mqar.csv. A mixer is called by its config files, without config/recall/softmax.py.
"""

import csv
import math
import re
import statistics
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, Python looks for modules in this folder only

from host import interruption, openmp  # noqa: E402, F401 (first, before torch)
from host.disk import make_folder, write_whole  # noqa: E402

import numpy as np  # noqa: E402
from tqdm import tqdm  # noqa: E402

import configurator  # noqa: E402
from ablation.plan import Plan, PlanError  # noqa: E402
from corpus import DataError  # noqa: E402
from evaluation import EvaluationError, mqar  # noqa: E402
from evaluation.models import open_model  # noqa: E402
from reports import picture  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from scaling.points import written  # noqa: E402
from training.checkpoint import CheckpointError  # noqa: E402

ALL = "all"  # in the place of a number of pairs
BASE = "recall-softmax"
VALUES = 128  # of data/recall/prepare.py, with its default vocabulary
CHANCES = {"guessing: most frequent value": False, "guessing: most frequent value not yet given": True}


@dataclass(frozen=True)
class Row:
    """Answers of one run in rows with `pairs` pairs. loss: their mean, in nats."""

    mixer: str
    width: int
    learning_rate: float
    seed: int
    pairs: str
    accuracy: float
    loss: float
    parameters: int


@dataclass
class TableConfig:
    """Measures the runs of an ablation on MQAR, and shows accuracy by width."""

    study: str | None = None  # folder of an ablation, for its runs; None: only mqar.csv
    folder: str = str(HERE)  # of mqar.csv, mqar.md and mqar.png
    device: Literal["cpu", "cuda"] = "cpu"  # where runs are measured


def read(folder: Path) -> list[Row]:
    """The rows of mqar.csv; none where there is no such file."""
    path = folder / "mqar.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [Row(**{f.name: f.type(line[f.name]) for f in fields(Row)}) for line in csv.DictReader(file)]


def measure(config: TableConfig, rows: list[Row]):
    """Append the rows of the finished runs that have none, and write mqar.csv after each run."""
    plan, known = Plan(Path(config.study)), {key(row) for row in rows}
    if not plan.runs:
        raise PlanError(f"{config.study} holds no ablation: give the --out_dir of ablate.py")
    lacking = {}
    for run in (run for run in plan.runs.values() if run.name in plan.done):
        of_run = run.config
        found = mixer(run.arm, plan.study), of_run["n_embd"], of_run["learning_rate"], of_run["seed"]
        if found in lacking:
            raise PlanError(
                f"{run.name} and {lacking[found]} differ in more than files, n_embd, learning_rate and "
                "seed, which are what a row of mqar.csv has"
            )
        if found not in known:
            lacking[found] = run.name
    for found, name in tqdm(lacking.items(), unit="run", dynamic_ncols=True, disable=not lacking):
        model = open_model(str(plan.folder / name), "last")
        loaded = model.load(config.device)
        result = mqar.mqar(loaded, mqar.open_rows([model]), batch_size=64)
        for part in ({"pairs": ALL, **result}, *result["by_pairs"]):
            numbers = round(part["accuracy"], 6), round(part["loss"], 6)
            rows.append(Row(*found, str(part["pairs"]), *numbers, loaded.parameters))
        columns = [field.name for field in fields(Row)]
        write_whole(Path(config.folder) / "mqar.csv", written([asdict(row) for row in rows], columns))


def mixer(arm: str, varied: list[str]) -> str:
    """recall-softmax+study-rope_n_embd=64 -> rope; the first alone: softmax. varied: keys of the study."""
    for one in varied:
        arm = re.sub(rf"_{one}=[^_]*", "", arm)
    overlays = [re.sub("^(study|recall)-", "", part) for part in arm.split("+") if part != BASE]
    return "+".join(overlays) or "softmax"


def key(row: Row) -> tuple:
    return row.mixer, row.width, row.learning_rate, row.seed


def by_rates(rows: list[Row]) -> dict[tuple[str, int], dict[float, list[float]]]:
    """{(mixer, width): {learning rate: the accuracy of each seed}}"""
    found: dict[tuple[str, int], dict[float, list[float]]] = {}
    for row in rows:
        if row.pairs == ALL:
            of_rates = found.setdefault((row.mixer, row.width), {})
            of_rates.setdefault(row.learning_rate, []).append(row.accuracy)
    return found


def best_rates(rows: list[Row]) -> dict[tuple[str, int], float]:
    """{(mixer, width): the learning rate with the highest mean accuracy over its seeds}"""
    return {
        cell: max(of_rates, key=lambda rate: statistics.fmean(of_rates[rate]))
        for cell, of_rates in by_rates(rows).items()
    }


def accuracies(rows: list[Row], pairs: str) -> dict[tuple[str, int], list[float]]:
    """{(mixer, width): the accuracy of each seed at the best learning rate}"""
    rates, found = best_rates(rows), {}
    for row in rows:
        cell = row.mixer, row.width
        if row.pairs == pairs and row.learning_rate == rates[cell]:
            found.setdefault(cell, []).append(row.accuracy)
    return found


def chance(pairs: int, given_out: bool, rows: int = 4000) -> float:
    """Mean right answers in a row of those who know its values but not whose they are, by simulation.

    They guess the value that is most frequent among the row's, or, with `given_out`, among those that no
    answer before has used up.
    """
    random, right = np.random.default_rng(0), 0
    for values in random.integers(VALUES, size=(rows, pairs)):  # in the order of the queries
        left = np.bincount(values, minlength=VALUES)
        for value in values:
            right += value == left.argmax()
            left[value] -= given_out
    return right / rows


def page(rows: list[Row]) -> str:
    """mqar.md: accuracy by width, and at the largest width by the number of pairs in a row."""
    found, mixers = accuracies(rows, ALL), mixers_of(rows)
    by_width = [
        {"mixer": name}
        | {
            f"width {width}": f"{_spread(found[name, width])} ({_rate(rows, (name, width))})"
            if (name, width) in found
            else ""
            for width in widths_of(rows)
        }
        for name in mixers
    ]
    by_pairs = []
    for name in mixers:
        largest = largest_width(rows, name)
        parts = {pairs: accuracies(rows, pairs) for pairs in (ALL, *pairs_of(rows))}
        count = next(r.parameters for r in rows if (r.mixer, r.width) == (name, largest))
        cells = {
            pairs if pairs == ALL else f"{pairs} pairs": _spread(part[name, largest])
            for pairs, part in parts.items()
        }
        by_pairs.append({"mixer": name, "width": str(largest), "parameters": f"{count:,}", **cells})
    numbers = pairs_of(rows)
    for name, given_out in CHANCES.items():
        right = {pairs: chance(int(pairs), given_out) for pairs in numbers}
        cells = {f"{pairs} pairs": _spread([n / int(pairs)]) for pairs, n in right.items()}
        overall = sum(right.values()) / sum(map(int, numbers))
        by_pairs.append({"mixer": name, "width": "", "parameters": "", "all": _spread([overall]), **cells})
    return "\n".join(
        [
            "# Accuracy on MQAR",
            "",
            "    python results/mqar/table.py",
            "",
            "![accuracy by width and by pairs](mqar.png)",
            "",
            "Percent of all answers, mean ± standard deviation over seeds, at the learning rate with the",
            "highest mean (in brackets; edge: the lowest or the highest that was tried):",
            "",
            table(by_width),
            "",
            "The same runs at the largest width, by the number of pairs in a row. Guessing knows which",
            "values the row has, and not which key has which:",
            "",
            table(by_pairs),
            "",
        ]
    )


def mixers_of(rows: list[Row]) -> list[str]:
    """The best at its largest width comes first."""
    found, names = accuracies(rows, ALL), dict.fromkeys(row.mixer for row in rows)
    return sorted(names, key=lambda name: -statistics.fmean(found[name, largest_width(rows, name)]))


def largest_width(rows: list[Row], name: str) -> int:
    return max(row.width for row in rows if row.mixer == name)


def widths_of(rows: list[Row]) -> list[int]:
    return sorted({row.width for row in rows})


def pairs_of(rows: list[Row]) -> list[str]:
    return sorted({row.pairs for row in rows} - {ALL}, key=int)


def _rate(rows: list[Row], cell: tuple[str, int]) -> str:
    """The best learning rate of a mixer and width, and whether a better one may lie beyond."""
    rate, tried = best_rates(rows)[cell], by_rates(rows)[cell]
    return f"{rate:g}" + (", edge" if rate in (min(tried), max(tried)) else "")


def _spread(values: list[float]) -> str:
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


@picture.drawing()
def draw(rows: list[Row]):
    """The page's two tables in colours: all answers by width, and by pairs at the largest width."""
    mixers, widths, by_pairs = mixers_of(rows), widths_of(rows), pairs_of(rows)
    parts = {pairs: accuracies(rows, pairs) for pairs in (ALL, *by_pairs)}
    lines = [
        [parts[ALL].get((name, width)) for width in widths]
        + [None]  # a gap
        + [parts[pairs][name, largest_width(rows, name)] for pairs in by_pairs]
        for name in mixers
    ]
    means = [[100 * statistics.fmean(of) if of else math.nan for of in line] for line in lines]
    names = [*(f"width\n{width}" for width in widths), "", *(f"{pairs}\npairs" for pairs in by_pairs)]
    figure, ((axes,),) = picture.new(picture.PLAIN, size=(6.4, 1.0 + 0.2 * len(mixers)))
    axes.imshow(means, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for y, line in enumerate(means):
        for x, mean in enumerate(line):
            text = "" if math.isnan(mean) else f"{mean:.0f}"
            axes.text(x, y, text, ha="center", va="center", color="white" if mean > 60 else "black")
    axes.set_xticks(range(len(names)), labels=names)
    axes.set_yticks(range(len(mixers)), labels=map(picture.plain, mixers))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_title("right answers, %: all by width, and by pairs at the largest width")
    return figure


def main():
    config = configurator.parse(TableConfig, sys.argv[1:])
    folder = Path(config.folder)
    try:
        make_folder(folder)
        rows = read(folder)
        if config.study:
            measure(config, rows)
        if not rows:
            sys.exit("table.py: there is no mqar.csv yet: give --study, and finished runs there")
        write_whole(folder / "mqar.md", page(rows))
        picture.write(draw(rows), folder / "mqar.png", own=True)
    except (CheckpointError, DataError, EvaluationError, PlanError, OSError) as error:
        sys.exit(f"table.py: {error}")
    except KeyboardInterrupt:
        sys.exit("table.py: interrupted; runs that were measured are in mqar.csv")
    print(page(rows))


if __name__ == "__main__":
    main()
