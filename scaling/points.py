"""The points of a study: one row for each run, as points.csv, from which everything else is made.

family              config files of the model
size                the number of parameters that was asked for
tokens_per_parameter  of that number, the same in a whole study
seed, n_layer, n_head, n_embd
parameters          without token and position embeddings, exactly
all_parameters      with them
tokens              that it trained on
flops               training model FLOPs of the whole run, head included (`model.flops_per_token`)
hours               tokens times the measured time of a token, on the machine of the study
learning_rate
rule                1: the learning rate of the rule; 0: one that was tried besides
loss                validation loss at the end, in nats per token; empty where training failed
bits_per_byte
"""

from host.disk import refuse_unreadable, write_whole

import csv
import io
import math
import statistics
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ablation.plan import PlanError
from comparison.runs import read_run
from models.architecture import model_config
from models.kinds import flops_per_token, parameter_counts
from scaling.sizing import body, parse

Place = tuple[str, str]  # a family and a size of it


@dataclass(frozen=True)
class Point:
    family: str
    size: str
    tokens_per_parameter: float
    seed: int
    n_layer: int
    n_head: int
    n_embd: int
    parameters: int
    all_parameters: int
    tokens: int
    flops: int
    hours: float | None
    learning_rate: float
    rule: int
    loss: float | None
    bits_per_byte: float | None

    @property
    def place(self) -> Place:
        return self.family, self.size


COLUMNS = [field.name for field in fields(Point)]
# what losses are compared and fitted over
AMOUNTS = ("parameters", "all_parameters", "flops", "hours")


def of_study(study) -> list[Point]:
    """The points of all runs of a study's folder that ended, whatever command asked for them."""
    plan, marks, seconds = study.plan, study.state["runs"], study.state["seconds"]
    found = []
    for name, run in plan.runs.items():
        mark, config = marks.get(name), run.config
        if mark is None or (name not in plan.done and name not in plan.failed):
            continue
        model = model_config(config)
        at = {}
        if name in plan.done:
            at = read_run(plan.folder / name).evaluations[config["max_iters"]]
        loss = at.get("val_loss")
        finite = loss is not None and math.isfinite(loss)
        time = seconds.get(mark["family"], {}).get(mark["size"])
        found.append(
            Point(
                family=mark["family"],
                size=mark["size"],
                tokens_per_parameter=mark["ratio"],
                seed=config["seed"],
                n_layer=model.n_layer,
                n_head=model.n_head,
                n_embd=model.n_embd,
                parameters=body(model),
                all_parameters=sum(parameter_counts(model).values()),
                tokens=run.tokens,
                flops=3 * flops_per_token(model) * run.tokens,
                hours=time and time * run.tokens / 3600,
                learning_rate=config["learning_rate"],
                rule=int(mark["rule"]),
                loss=loss if finite else None,
                bits_per_byte=at["val_bits_per_byte"] if finite else None,
            )
        )
    order = list(study.state["families"])
    return sorted(found, key=lambda p: (order.index(p.family), parse(p.size).target, p.tokens, p.seed))


def written(rows: list[dict], columns: list[str]) -> str:
    """Rows as CSV; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(path: Path, points: list[Point]):
    write_whole(path, written([asdict(point) for point in points], COLUMNS))


def read(paths: list[str]) -> list[Point]:
    """The points of several files, each run once. Raises PlanError where a file holds anything else, where
    two of them do not agree about a run (but for its hours), or for runs of several lengths. What is the
    rule's learning rate at a family's size is for the last file to say that has runs at one there. Hours
    are left out where several files have them: times of other machines and moments cannot be compared.
    Families keep their order; sizes ascend.
    """
    found: dict[tuple, tuple[Point, str]] = {}
    rates: dict[tuple, float] = {}  # the rule's
    for path in paths:
        try:
            refuse_unreadable(path)
            with open(path, newline="") as file:
                content = file.read()
            reader = csv.DictReader(io.StringIO(content, newline=""))
            rows, columns = list(reader), reader.fieldnames or []
        except (OSError, ValueError, csv.Error) as error:
            raise PlanError(f"--points={path} cannot be read ({error})") from None
        if columns and set(columns) != set(COLUMNS):
            raise PlanError(f"--points={path} is no points.csv of scale.py: its columns are others")
        if content and not content.endswith("\n"):
            raise PlanError(f"--points={path} ends in the middle of a line: copy it again")
        for number, row in enumerate(rows, 2):
            try:
                point = _point(row)
            except (ValueError, TypeError) as error:
                raise PlanError(f"--points={path}, line {number}: {error}") from None
            before, other = found.get(key(point), (point, path))
            if replace(before, rule=point.rule, hours=point.hours) != point:
                raise PlanError(
                    f"--points: line {number} of {path} is about a run that {other} has with another "
                    "result: take one of the two out"
                )
            found[key(point)] = point, path
            if point.rule:
                rates[point.place] = point.learning_rate
    if not found:
        raise PlanError(f"--points={','.join(paths)}: no run has ended yet")
    ratios = sorted({p.tokens_per_parameter for p, _ in found.values()})
    if len(ratios) > 1:
        told = ", ".join(f"{ratio:g}" for ratio in ratios)
        raise PlanError(
            f"--points={','.join(paths)} has runs with {told} tokens per parameter, and multipliers are of "
            "runs with one number of them: give files that hold the rows of one tokens_per_parameter alone"
        )
    families = list(dict.fromkeys(p.family for p, _ in found.values()))
    ruled = [replace(p, rule=int(rates.get(p.place) == p.learning_rate)) for p, _ in found.values()]
    if len({path for p, path in found.values() if p.hours is not None}) > 1:
        ruled = [replace(p, hours=None) for p in ruled]
    if len(paths) > 1:
        ruled.sort(key=lambda p: (families.index(p.family), parse(p.size).target))
    return ruled


def key(point: Point) -> tuple:
    """What tells runs apart."""
    return *point.place, point.tokens_per_parameter, point.seed, point.learning_rate


def _point(row: dict[str, str]) -> Point:
    values = {}
    if None in row or None in row.values():
        raise ValueError(f"it does not have the {len(COLUMNS)} cells of the first line")
    for field in fields(Point):
        cell, kind = row[field.name], field.type
        if cell == "" and kind == float | None:
            values[field.name] = None
            continue
        values[field.name] = kind(cell) if kind in (int, str, float) else float(cell)
    parse(values["size"])
    for key in ("parameters", "all_parameters", "tokens", "flops", "hours", "loss", "tokens_per_parameter"):
        if values[key] is not None and not 0 < values[key] < math.inf:
            raise ValueError(f"{key} must be above 0, not {values[key]}")
    return Point(**values)


def mean_loss(points: list[Point]) -> str:
    """Mean and standard deviation over seeds, for a table."""
    losses = [p.loss for p in points if p.loss is not None]
    if not losses:
        return "failed"
    spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
    failed = f" ({len(points) - len(losses)} failed)" if len(losses) < len(points) else ""
    return f"{statistics.fmean(losses):.4f}{spread}{failed}"


def grouped(points: list[Point]) -> dict[tuple, list[Point]]:
    """{(family, size, learning rate): runs}"""
    found: dict[tuple, list[Point]] = {}
    for p in points:
        found.setdefault((*p.place, p.learning_rate), []).append(p)
    return found
