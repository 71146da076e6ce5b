"""Where the families' losses differ: on new tokens, or on what the window has shown before.

    python results/scaling/recall.py --study=out/frontier --text=data/english/bpe1024/val.bin
    python results/scaling/recall.py
    python results/scaling/recall.py --folder=results/scaling/h200
    python results/scaling/recall.py --folder=results/scaling,results/hybrids --labels=dense,,,,,hybrid

The first command measures the runs of a study that have the rule's learning rate and are not in recall.csv
yet (`evaluation.recall`, the last checkpoint, 100 pieces of 1,024 tokens from all over the validation
tokens, in windows that move by half their length). All make recall.md and recall.png from recall.csv, in
the folder of the study's points.csv. Of several folders, the last gets what is written, and the runs of the
others join it.
"""

import csv
import shlex
import statistics
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, Python looks for modules in this folder only

from host import interruption, openmp  # noqa: E402, F401 (first, before torch)
from host.disk import read_json, write_whole  # noqa: E402

import numpy as np  # noqa: E402
from tqdm import tqdm  # noqa: E402

import configurator  # noqa: E402
from ablation.plan import PlanError  # noqa: E402
from corpus import DataError  # noqa: E402
from evaluation import EvaluationError, recall, texts  # noqa: E402
from evaluation.models import open_model  # noqa: E402
from reports import picture  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from scaling import points  # noqa: E402
from scaling.sizing import parse  # noqa: E402
from training.checkpoint import CheckpointError  # noqa: E402

PIECES, LENGTH = 100, 1024  # tokens that are scored
# {part of the tokens: lengths of the repeats that they end}
PARTS = {"new in their window": (0,), "known, in a new pair": (1,), "copies of 2 and more": (2, 3, 4)}


@dataclass(frozen=True)
class Row:
    """Tokens of one run that end a repeat of one length. loss: their mean, in nats per token."""

    family: str
    size: str
    learning_rate: float
    seed: int
    parameters: int
    repeat: int
    tokens: int
    loss: float


@dataclass
class RecallConfig:
    """Sorts the losses of a scaling study by the length of the repeat that a token ends."""

    study: str | None = None  # folder of a scaling study, for its runs; None: only recall.csv
    text: str | None = None  # validation tokens, prepared (.bin)
    folder: list[str] = field(default_factory=lambda: [str(HERE)])  # of points.csv and recall.csv
    device: Literal["cpu", "cuda"] = "cpu"  # where runs are measured
    #: names of the families, in their order in points.csv; those without a name are left out
    labels: str = "dense,F,full,ours,constants"

    def check(self) -> list[str]:
        return (
            ["study and text go together: give both or none"] if bool(self.study) != bool(self.text) else []
        )


def read(folder: Path) -> list[Row]:
    """The rows of recall.csv; none where there is no such file. Of a family whose learning rates were swept
    again, some are of no curve any more: see `of_the_rule`.
    """
    path = folder / "recall.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [Row(**{f.name: f.type(line[f.name]) for f in fields(Row)}) for line in csv.DictReader(file)]


def runs_and_names(folders: list[Path], labels: list[str]) -> tuple[list[points.Point], dict[str, str]]:
    """The runs of the rule's learning rate, of the families that have a name, and {family: its name}."""
    found = points.read([str(folder / "points.csv") for folder in folders])
    runs = [p for p in found if p.rule and p.loss is not None]
    families = list(dict.fromkeys(p.family for p in runs))
    if wrong := picture.wrong_labels(labels, families):
        raise PlanError(wrong[0])
    names = {family: label for family, label in zip(families, labels, strict=True) if label}
    return [p for p in runs if p.family in names], names


def of_the_rule(rows: list[Row], runs: list[points.Point]) -> list[Row]:
    """The rows of runs that have the rule's learning rate."""
    ruled = {key(p) for p in runs}
    return [row for row in rows if key(row) in ruled]


def measure(config: RecallConfig, folder: Path, known: set[tuple], runs: list[points.Point]):
    """Append the rows of the study's runs that are not known, and write recall.csv after each."""
    marks = read_json(Path(config.study) / "scaling.json", PlanError)["runs"]
    names, rows = {}, read(folder)
    for name, mark in marks.items():
        path = Path(config.study) / name / "config.json"
        if not path.is_file():
            continue  # a run that was planned and never started
        of_run = read_json(path, PlanError)
        names[mark["family"], mark["size"], of_run["learning_rate"], of_run["seed"]] = name
    lacking = [p for p in runs if key(p) in names and key(p) not in known]
    text = texts.open_text(config.text)
    for p in tqdm(lacking, unit="run", dynamic_ncols=True, disable=not lacking):
        loaded = open_model(str(Path(config.study) / names[key(p)]), "last").load(config.device, "bfloat16")
        streams = pieces(text.streams(loaded.tokenizer, None))
        found = recall.recall(loaded, streams, loaded.config.block_size // 2)
        for r in found["repeats"]:
            given = (*key(p), p.parameters, r["length"], r["tokens"], round(r["loss"], 5))
            rows.append(Row(*given))
        columns = [field.name for field in fields(Row)]
        write_whole(folder / "recall.csv", points.written([asdict(row) for row in rows], columns))


def pieces(streams: list[np.ndarray]) -> list[np.ndarray]:
    """PIECES of LENGTH tokens, at equal distances in all streams together."""
    tokens = np.concatenate(streams)
    starts = np.linspace(0, len(tokens) - LENGTH, PIECES).astype(int)
    return [tokens[start : start + LENGTH] for start in starts]


def key(row) -> tuple:
    return row.family, row.size, row.learning_rate, row.seed


def sizes_of(rows: list[Row]) -> list[str]:
    return sorted({row.size for row in rows}, key=lambda size: parse(size).target)


def losses(rows: list[Row], lengths: tuple[int, ...]) -> dict[tuple[str, str], list[float]]:
    """{(family, size): the mean loss of the tokens of these lengths, for each seed}"""
    sums: dict[tuple, list[float]] = {}
    for row in rows:
        if row.repeat in lengths:
            nats, tokens = sums.get(key(row), (0.0, 0))
            sums[key(row)] = [nats + row.loss * row.tokens, tokens + row.tokens]
    found: dict[tuple[str, str], list[float]] = {}
    for (family, size, _, _), (nats, tokens) in sums.items():
        found.setdefault((family, size), []).append(nats / tokens)
    return found


def page(rows: list[Row], names: dict[str, str], command: str) -> str:
    """recall.md: the mean losses of each part, and what each part holds of the difference from the first
    family at the same size.
    """
    parts = {part: losses(rows, lengths) for part, lengths in PARTS.items()}
    counts = {part: sum(row.tokens for row in rows if row.repeat in of) for part, of in PARTS.items()}
    shares = {part: count / sum(counts.values()) for part, count in counts.items()}
    overall, first = losses(rows, sum(PARTS.values(), ())), next(iter(names))
    of_losses, of_differences = [], []
    for size in sizes_of(rows):
        for family in (family for family in names if (family, size) in overall):
            head = {"size": size, "family": names[family], "seeds": str(len(overall[family, size]))}
            cells = {part: _spread(found[family, size]) for part, found in parts.items()}
            of_losses.append(head | {"all": _spread(overall[family, size])} | cells)
            if family == first or (first, size) not in overall:
                continue
            line = head | {"all": _difference(overall, family, first, size, 1.0)}
            line |= {p: _difference(parts[p], family, first, size, share) for p, share in shares.items()}
            of_differences.append(line)
    told = ", ".join(f"{share:.1%} {part}" for part, share in shares.items())
    return "\n".join(
        [
            "# Where the families' losses differ",
            "",
            f"    {command}",
            "",
            "![losses of new, known and copied tokens](recall.png)",
            "",
            "A token is *new in its window*; or *known, in a new pair* (it has stood in the window, but",
            "not after the token before it); or the end of a *copy* (both have stood there in a row).",
            f"{PIECES} pieces of {LENGTH:,} tokens, from all over the validation tokens:",
            f"{told}.",
            "",
            "Losses, in nats per token:",
            "",
            table(of_losses),
            "",
            f"Differences of means from {names[first]} at the same size, and how much of each is where",
            "(share times difference; the parts add up to all):",
            "",
            table(of_differences) if of_differences else "none yet",
            "",
        ]
    )


def command_of(config: RecallConfig) -> str:
    """The command that makes the page again, from the root of the repository."""
    words, usual = ["python", "results/scaling/recall.py"], RecallConfig()
    if config.folder != usual.folder:
        words.append(f"--folder={','.join(config.folder)}")
    if config.labels != usual.labels:
        words.append(f"--labels={config.labels}")
    return shlex.join(words)


def _spread(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def _difference(found: dict, family: str, first: str, size: str, share: float) -> str:
    return f"{share * (statistics.fmean(found[family, size]) - statistics.fmean(found[first, size])):+.3f}"


@picture.drawing()
def draw(rows: list[Row], names: dict[str, str]):
    """A panel for each part of the tokens: the mean loss against parameters, with a dot for each seed."""
    figure, (row_of_axes,) = picture.new(picture.PLAIN, 1, len(PARTS), (7.2, 3.0))
    sizes, handles = sizes_of(rows), []
    for axes, (part, lengths) in zip(row_of_axes, PARTS.items(), strict=True):
        found = losses(rows, lengths)
        for number, family in enumerate(names):
            at = {row.parameters: found[family, row.size] for row in rows if row.family == family}
            places, style = sorted(at), picture.line_style(number)
            (handle,) = axes.plot(places, [statistics.fmean(at[place]) for place in places], **style)
            dots = [(place, loss) for place in places for loss in at[place]]
            axes.plot(*zip(*dots, strict=True), ls="", marker=".", ms=3, alpha=0.5, color=style["color"])
            handles += [handle] if part == next(iter(PARTS)) else []
        axes.set_xscale("log")
        axes.set_xticks([], minor=True)
        axes.set_xticks([parse(size).target for size in sizes], labels=sizes)
        axes.set_xlabel("parameters without embeddings")
        axes.set_title(part)
    row_of_axes[0].set_ylabel("validation loss (nats per token)")
    picture.legend_below(figure, handles, list(names.values()))
    return figure


def main():
    config = configurator.parse(RecallConfig, sys.argv[1:])
    folders = [Path(folder) for folder in config.folder]
    folder = folders[-1]
    try:
        runs, names = runs_and_names(folders, config.labels.split(","))
        if config.study:
            measure(config, folder, {key(row) for each in folders for row in read(each)}, runs)
        rows = of_the_rule([row for each in folders for row in read(each)], runs)
        if not rows:
            sys.exit("recall.py: there is no recall.csv yet: give --study and --text")
        names = {f: label for f, label in names.items() if f in {row.family for row in rows}}
        write_whole(folder / "recall.md", page(rows, names, command_of(config)))
        picture.write(draw(rows, names), folder / "recall.png", own=True)
    except (CheckpointError, DataError, EvaluationError, PlanError, OSError) as error:
        sys.exit(f"recall.py: {error}")
    except KeyboardInterrupt:
        sys.exit("recall.py: interrupted; runs that were measured are in recall.csv")


if __name__ == "__main__":
    main()
