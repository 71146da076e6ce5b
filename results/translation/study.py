"""Do continued fractions translate as well as a Transformer of the same size? English to French.

    python results/translation/study.py data                     # 75,638 pairs; needs apt-get and npm
    python results/translation/study.py rates --parallel=2       # one epoch of each model at four rates
    python results/translation/study.py runs --parallel=2        # three epochs at the best rates
    python results/translation/study.py scores --parallel=2      # BLEU and chrF, greedy and five beams
    python results/translation/study.py page                     # study.csv from the runs, and the tables
    python results/translation/study.py tables                   # the tables from study.csv alone

`rates` tries further rates until the best one is no edge. `runs` does what `rates` has left to do, and
trains a model as soon as its best rate is known. Each run is a train.py, `parallel` of them at a time,
whatever their models, which with --device=cuda share one GPU. A call that was interrupted goes on, and
finished runs are kept. --only=F,full trains these models alone.
"""

import csv
import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402
from ablation import execution  # noqa: E402
from ablation.command import mistakes_end  # noqa: E402
from ablation.plan import Plan, claimed  # noqa: E402
from ablation.product import Planned  # noqa: E402
from architecture import model_config  # noqa: E402
from comparison.runs import Arm, Run, read_run  # noqa: E402
from comparison.significance import difference  # noqa: E402
from disk import write_whole  # noqa: E402
from markdown_table import table  # noqa: E402
from models import flops_per_token, parameter_counts, without_embeddings  # noqa: E402
from training.config import DEFAULTS, TrainConfig  # noqa: E402
from training.inputs import saved_config  # noqa: E402
from training.log import RunFolderError  # noqa: E402
from training.stopping import Stop  # noqa: E402

EPOCHS, BATCH, SEEDS = 3, 64, 3
# source: tokenizer; None: that of the first
SCRIPTS = {"libreoffice": "bpe:4096", "manpages": None, "electron": None}
BASE = ["config/translation.py"]
ROPE, FRACTIONS = ["config/study/rope.py"], ["config/study/cffn_gated.py", "config/study/recipe.py"]
FULL = [f"config/study/{name}.py" for name in ("full_content", "depth_1")]
# model: config files, keys. About a million parameters without the embeddings
MODELS = {
    "dense": (ROPE, {"n_layer": 5, "n_embd": 128, "n_head": 4}),
    "F": ([*ROPE, *FRACTIONS], {"n_layer": 6, "n_embd": 160, "n_head": 5}),
    "full": (FULL, {"n_layer": 8, "n_embd": 160, "n_head": 5}),
    "encoder dense": (ROPE, {"encoder_layers": 2, "n_layer": 2, "n_embd": 136, "n_head": 4}),
    "encoder F": (
        [*ROPE, *FRACTIONS],
        {"encoder_layers": 2, "n_layer": 2, "n_embd": 176, "n_head": 4},
    ),
}
# the slowest first, so that none is left to train alone
ORDER = ("full", "encoder F", "F", "encoder dense", "dense")
BASES = {"dense": "(d)", "encoder dense": "(e)"}  # what all models are compared with, and the sign of its p
RATES = [2e-3, 4e-3, 8e-3, 1.6e-2]
DECODING = {"greedy": [], "five beams": ["--beams=5"]}
FIELDS = ("part", "model", "learning_rate", "seed", "parameters", "steps", "tokens", "seconds")
FIELDS += ("validation_loss", "decoding", "source", "bleu", "chrf", "copy_bleu", "copy_chrf")


@dataclass
class StudyConfig:
    """Train translators with and without continued fractions on equal pairs, and score them."""

    what: Literal["data", "rates", "runs", "scores", "page", "tables"]  # the step to take, in this order
    data: str = "data/en_fr"  # folder of the prepared pairs, a folder for each source
    out: str = "out/translation_study"  # folder of the runs
    only: list[str] | None = None  # models to train or score; None: all
    epoch: int | None = None  # steps of an epoch; None: all pairs, 1,182. Fewer try the script
    limit: int | None = None  # scores: pairs of each source, for a trial: page leaves them out; None: all
    device: Literal["cpu", "cuda"] = "cpu"  # of training and translating
    parallel: int = 1  # processes at a time; they share the processor's cores, and one GPU

    def check(self) -> list[str]:
        wrong = [f"{key} is empty: name a folder" for key in ("data", "out") if not getattr(self, key)]
        for key in ("parallel", "epoch", "limit"):
            if getattr(self, key) is not None and getattr(self, key) < 1:
                wrong.append(f"{key} must be above 0, not {getattr(self, key)}")
        if self.limit is not None and self.what != "scores":
            wrong.append("limit acts with scores only: leave it out")
        if unknown := [name for name in self.only or [] if name not in MODELS]:
            wrong.append(f"only: {', '.join(unknown)} is no model; the models: {'; '.join(MODELS)}")
        if self.what not in ("data", "page", "tables"):
            lacks = [name for name in SCRIPTS if not (Path(self.data) / name / "meta.json").is_file()]
            if lacks:
                wrong.append(
                    f"{self.data} lacks {', '.join(lacks)}: python results/translation/study.py data"
                )
        return wrong


def main(config: StudyConfig):
    config.data, config.out = Path(config.data).resolve(), Path(config.out).resolve()
    os.chdir(ROOT)
    models = config.only or list(MODELS)
    if config.what == "data":
        prepare(config.data)
    elif config.what in ("rates", "runs"):
        with mistakes_end("study.py"), claimed(config.out):
            train(config, [model for model in ORDER if model in models])
    elif config.what == "scores":
        score(config, models)
    else:
        if config.what == "page":
            if not (rows := collected(config.out)):
                sys.exit(f"study.py: {config.out} holds no finished run, and study.csv stays as it is")
            if any(row["steps"] < 1000 for row in rows):  # of a trial
                sys.exit(f"study.py: {config.out} holds short runs of a trial: study.csv stays as it is")
            write_rows(rows)
        print(tables(read_rows()))


def prepare(folder: Path):
    """Writes the pairs of each source, all with one tokenizer."""
    first = folder / next(iter(SCRIPTS)) / "tokenizer.json"
    for name, tokenizer in SCRIPTS.items():
        if (folder / name / "meta.json").is_file():
            continue
        keys = ["--language=fr", f"--out={folder / name}", f"--tokenizer={tokenizer or first}"]
        run([sys.executable, f"data/{name}/prepare.py", *keys])


def run(command: list[str]):
    """Ends the script with the status of a command that fails."""
    if status := subprocess.run(command).returncode:
        sys.exit(status)


def pairs_of(folder: Path) -> dict[str, int]:
    """{data set: its training pairs}"""
    metas = {name: json.loads((folder / name / "meta.json").read_text()) for name in SCRIPTS}
    return {str(folder / name): m["splits"]["train"]["documents"] // 2 for name, m in metas.items()}


class Training(Planned):
    """A run of this study."""

    def work(self, tokens: int) -> float:
        return tokens * 3 * flops_per_token(model_config(self.config))


def train(config: StudyConfig, models: list[str]):
    """Trains what is not finished yet; ends the script where a run fails, after all others."""
    plan = Plan(config.out)
    plan.look()
    plan.failed.clear()  # they are tried again
    asked = set()

    def more() -> tuple[list[Training], float]:
        runs = [
            planned(config, *one)
            for model in models
            for one in wanted(plan, model, config.what == "runs")
            if run_name(*one) not in asked
        ]
        plan.extend(runs, ["learning_rate"])
        plan.save()
        for run in runs:
            asked.add(run.name)
            (plan.folder / run.name).parent.mkdir(parents=True, exist_ok=True)
        return [run for run in runs if run.name not in plan.done], 0.0

    # no GPU of its own for each: CUDA_VISIBLE_DEVICES stays as it is
    keys = {"folder": plan.folder, "defaults": DEFAULTS, "gpus": [], "parallel": config.parallel}
    try:
        with Stop(speak=False) as stop:
            execution.execute(plan, [], partial(execution.train, **keys), config.parallel, stop, more)
    except KeyboardInterrupt:
        sys.exit("study.py: interrupted at once. The same command goes on")
    if stop:
        print("study.py: stopped. The same command goes on", file=sys.stderr)
        sys.exit(stop.status)
    if lost := [f"{name}: {why}" for name, why in plan.failed.items() if name in asked]:
        sys.exit("study.py: failed:\n  " + "\n  ".join(lost))


def run_name(part: str, model: str, rate: float, seed: int) -> str:
    return f"{part}/{model.replace(' ', '_')}/learning_rate={rate:g}_seed={seed}"


def planned(config: StudyConfig, part: str, model: str, rate: float, seed: int) -> Training:
    pairs, first = pairs_of(config.data), config.data / next(iter(SCRIPTS)) / "meta.json"
    files, shape = MODELS[model]
    epoch = config.epoch or round(sum(pairs.values()) / BATCH)
    keys = shape | {
        "dataset": ",".join(f"{name}:{count}" for name, count in pairs.items()),
        "vocab_size": json.loads(first.read_text())["vocab_size"],
        "learning_rate": rate, "seed": seed, "batch_size": BATCH,
        "max_iters": epoch * (EPOCHS if part == "runs" else 1),
        "warmup_iters": min(400, epoch // 3), "eval_interval": epoch // 2,
        "checkpoint_interval": epoch // 2, "keep_checkpoints": 1,
        "log_interval": 50, "compile": False, "dtype": "float32", "device": config.device,
    }  # fmt: skip
    arguments = [*BASE, *files, *(f"--{key}={value}" for key, value in keys.items())]
    resolved = configurator.resolve(TrainConfig, arguments, saved=saved_config)
    name = run_name(part, model, rate, seed)
    return Training(name, name.rpartition("_seed=")[0], asdict(resolved))


def wanted(plan: Plan, model: str, runs: bool) -> list[tuple[str, str, float, int]]:
    """(part, model, rate, seed) of the runs of a model that are known by now, the finished ones too.

    One epoch at each of RATES, and at further ones, by factors of two, until the best is no edge. Then, if
    `runs`, all seeds at the best.
    """
    rates = list(RATES)
    while True:
        losses = {rate: loss_of(plan, run_name("rates", model, rate, 1)) for rate in rates}
        sweep = [("rates", model, rate, 1) for rate in rates]
        if None in losses.values() or math.inf == min(losses.values()):
            return sweep
        best = min(losses, key=losses.get)
        if best == min(rates):
            rates.insert(0, best / 2)
        elif best == max(rates):
            rates.append(best * 2)
        else:
            return sweep + [("runs", model, best, seed) for seed in range(1, SEEDS + 1) if runs]


def loss_of(plan: Plan, name: str) -> float | None:
    """The lowest validation loss of a finished run; of one that failed, infinity; None before its end."""
    if name in plan.done:
        return best_loss(read_run(plan.folder / name))
    return math.inf if name in plan.failed else None


def finished(out: Path) -> list[tuple[str, str, Run, Path]]:
    """(part, model, run, folder) of each finished run."""
    found = []
    for part, model in itertools.product(("rates", "runs"), MODELS):
        for folder in sorted((out / part / model.replace(" ", "_")).glob("*/")):
            try:
                run = read_run(folder)
            except RunFolderError:
                continue
            if run.last_step >= run.config["max_iters"]:
                found.append((part, model, run, folder))
    return found


def best_loss(run: Run) -> float:
    return min(at["val_loss"] for at in run.evaluations.values())


def score_file(folder: Path, decoding: str, source: str, limit: int | None = None) -> Path:
    of = f"_of_{limit}" if limit else ""
    return folder / f"scores_{decoding.replace(' ', '_')}_{source}{of}.json"


def score(config: StudyConfig, models: list[str]):
    """Translates the validation pairs of each source with each finished run of `runs`."""
    folders = [
        folder for part, model, _, folder in finished(config.out) if part == "runs" and model in models
    ]
    commands = []
    for (decoding, beams), source, folder in itertools.product(DECODING.items(), SCRIPTS, folders):
        file = score_file(folder, decoding, source, config.limit)
        if not file.is_file():
            keys = [f"--pairs={config.data / source / 'val.bin'}", f"--json={file}", *beams]
            keys += [f"--device={config.device}", *([f"--limit={config.limit}"] if config.limit else [])]
            commands.append([sys.executable, "translate.py", str(folder), *keys])
    if config.parallel > 1:
        cores = max(1, (os.cpu_count() or 1) // config.parallel)
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    with ThreadPoolExecutor(config.parallel) as pool:
        if any(list(pool.map(lambda command: subprocess.run(command).returncode, commands))):
            sys.exit("study.py: not all scores could be had. The same command goes on")


def collected(out: Path) -> list[dict]:
    """A row for each finished run of `rates`, and one for each score of those of `runs`."""
    rows = []
    for part, model, run, folder in finished(out):
        own = {
            "part": part, "model": model, "learning_rate": run.config["learning_rate"],
            "seed": run.config["seed"], "steps": run.last_step,
            "parameters": without_embeddings(parameter_counts(model_config(run.config))),
            "tokens": run.evaluations[run.last_step]["tokens"],
            "seconds": round(run.evaluations[run.last_step]["seconds"]),
            "validation_loss": round(best_loss(run), 5),
        }  # fmt: skip
        scores = []
        for decoding in DECODING if part == "runs" else ():
            for source in SCRIPTS:
                if (file := score_file(folder, decoding, source)).is_file():
                    found = json.loads(file.read_text())
                    scores.append({"decoding": decoding, "source": source} | scores_of(found))
        rows += [own | score for score in scores] or [own]
    names = list(MODELS)
    rows.sort(key=lambda row: (row["part"], names.index(row["model"]), row["learning_rate"], row["seed"]))
    return rows


def scores_of(found: dict) -> dict:
    """BLEU and chrF of the translations and of copied sources, from the JSON of translate.py."""
    model, copy = found["scores"].values()
    own = {
        "bleu": model["bleu"],
        "chrf": model["chrf"],
        "copy_bleu": copy["bleu"],
        "copy_chrf": copy["chrf"],
    }
    return {key: round(value, 2) for key, value in own.items()}


def write_rows(rows: list[dict]):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(HERE / "study.csv", text.getvalue())


def read_rows() -> list[dict]:
    if not (HERE / "study.csv").is_file():
        sys.exit("study.py: there is no study.csv yet: call it with page, after runs and scores")
    with (HERE / "study.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for key in FIELDS:
            if key not in ("part", "model", "decoding", "source") and row[key]:
                row[key] = float(row[key])
    return rows


def tables(rows: list[dict]) -> str:
    """Losses at each rate, losses and differences after three epochs, and scores, in Markdown."""
    parts = []
    if swept := [row for row in rows if row["part"] == "rates"]:
        parts += ["One epoch, one seed: validation loss at each learning rate", "", rate_table(swept)]
    if run := [row for row in rows if row["part"] == "runs"]:
        parts += ["", f"{EPOCHS} epochs", "", loss_table(run)]
    for decoding in DECODING:
        if scored := [row for row in run if row["decoding"] == decoding]:
            parts += ["", f"BLEU / chrF, {decoding}", "", score_table(scored)]
    return "\n".join(parts)


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
        line["validation loss"] = spread(losses, 4)
        for base in BASES:
            line |= {f"to {base}": "", f"p {BASES[base]}": ""}
            if base in arms and base != name and (found := difference(own, arms[base])):
                deviation = "" if found.deviation is None else f" ± {found.deviation:.4f}"
                line[f"to {base}"] = f"{found.mean:+.4f}{deviation}"
                line[f"p {BASES[base]}"] = "" if found.p is None else f"{found.p:.2g}"
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
        for source in SCRIPTS:
            own = [row for row in rows if (row["model"], row["source"]) == (name, source)]
            kinds = [spread([row[kind] for row in own], 1) for kind in ("bleu", "chrf") if own]
            line[source] = " / ".join(kinds)
        lines.append(line)
    copied = {s: f"{row['copy_bleu']:.1f} / {row['copy_chrf']:.1f}" for s, row in copies.items()}
    return table([*lines, {"model": "the source, copied"} | {s: copied.get(s, "") for s in SCRIPTS}])


def spread(values: list[float], digits: int) -> str:
    """Mean, and the standard deviation of two values or more."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main(configurator.parse(StudyConfig, sys.argv[1:], positional="what", files=False))
