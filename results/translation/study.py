"""Do continued fractions translate as well as a Transformer of the same size? English to French.

    python results/translation/study.py data                     # 75,638 pairs; needs apt-get and npm
    python results/translation/study.py rates --parallel=2       # one epoch of each model at four rates
    python results/translation/study.py runs --parallel=2        # three epochs at the best rates; 3M: one
    python results/translation/study.py scores --parallel=2      # BLEU and chrF, greedy and five beams
    python results/translation/study.py page                     # study.csv from the runs, and the tables
    python results/translation/study.py tables                   # the tables from study.csv alone

`rates` tries further rates until the best one is no edge. `runs` does what `rates` has left to do, and
trains a model as soon as its best rate is known. Each run is a train.py, `parallel` of them at a time,
whatever their models, which with --device=cuda share one GPU. A call that was interrupted goes on, and
finished runs are kept. --only=F,full trains these models alone.

With --domain=bible, data, runs and scores are of the Bible: one epoch, at the rates of technical text, and
for the baseline also at half and twice its rate. --rates=csv takes the best rates from study.csv. `page`
keeps the rows of runs that are not in --out.
"""

import itertools
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "results/translation/study.py"
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402
from ablation import execution  # noqa: E402
from ablation.command import mistakes_end  # noqa: E402
from ablation.plan import Plan, claimed  # noqa: E402
from ablation.product import Planned  # noqa: E402
from comparison.runs import Run, read_run  # noqa: E402
from models.architecture import model_config  # noqa: E402
from models.kinds import flops_per_token, parameter_counts, without_embeddings  # noqa: E402
from results.translation.tables import (  # noqa: E402
    DECODING,
    best_rates,
    joined,
    read_rows,
    run_of,
    tables,
    write_rows,
)
from training.config import DEFAULTS, TrainConfig  # noqa: E402
from training.inputs import saved_config  # noqa: E402
from training.log import RunFolderError  # noqa: E402
from training.stopping import Stop  # noqa: E402

# of each part; size: the models of SMALL, bible_rates: the baseline at other rates
EPOCHS = {"rates": 1, "runs": 3, "size": 1, "bible": 1, "bible_rates": 1}
BASELINE = "dense"
BATCH, SEEDS = 64, 3
# domain: {source: tokenizer}; None: that of the first
DOMAINS = {
    "technical": {"libreoffice": "bpe:4096", "manpages": None, "electron": None},
    "bible": {"bible": "bpe:4096"},
}
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
    # three million
    "dense 3M": (ROPE, {"n_layer": 7, "n_embd": 192, "n_head": 6}),
    "full 3M": (FULL, {"n_layer": 11, "n_embd": 232, "n_head": 8}),
}
SMALL = {"dense 3M": "dense", "full 3M": "full"}  # whose rate they take, divided by the ratio of widths
# the slowest first, so that none is left to train alone
ORDER = ("full 3M", "dense 3M", "full", "encoder F", "F", "encoder dense", "dense")
RATES = [2e-3, 4e-3, 8e-3, 1.6e-2]


@dataclass
class StudyConfig:
    """Train translators with and without continued fractions on equal pairs, and score them."""

    what: Literal["data", "rates", "runs", "scores", "page", "tables"]  # the step to take, in this order
    data: str = "data/en_fr"  # folder of the prepared pairs, a folder for each source
    out: str = "out/translation_study"  # folder of the runs
    only: list[str] | None = None  # models to train or score; None: all
    epoch: int | None = None  # steps of an epoch; None: all pairs, 1,182. Fewer try the script
    limit: int | None = None  # scores: pairs of each source, for a trial: page leaves them out; None: all
    domain: Literal["technical", "bible"] = "technical"  # bible: at the rates of technical text
    rates: Literal["swept", "csv"] = "swept"  # runs: csv takes the best ones of study.csv, as bible does
    device: Literal["cpu", "cuda"] = "cpu"  # of training and translating
    dtype: Literal["float32", "bfloat16"] = "float32"  # of matrix products in training
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
        if self.domain == "bible" and (large := [name for name in self.only or [] if name in SMALL]):
            wrong.append(f"only: {', '.join(large)} is for technical text: leave it or domain out")
        if self.what not in ("data", "page", "tables"):
            lacks = [
                name
                for name in DOMAINS[self.domain]
                if not (Path(self.data) / name / "meta.json").is_file()
            ]
            if lacks:
                wrong.append(
                    f"{self.data} lacks {', '.join(lacks)}: python results/translation/study.py data "
                    f"--domain={self.domain} --data={self.data}"
                )
        if self.what == "rates" and "csv" in (self.rates, {"bible": "csv"}.get(self.domain)):
            wrong.append("rates are swept on technical text: leave out domain and rates")
        return wrong


def main(config: StudyConfig):
    config.data, config.out = Path(config.data).resolve(), Path(config.out).resolve()
    os.chdir(ROOT)
    models = config.only or [model for model in MODELS if config.domain != "bible" or model not in SMALL]
    if config.what == "data":
        prepare(config.data, DOMAINS[config.domain])
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
            write_rows(in_order(joined(rows, read_rows())))
        print(tables(read_rows()))


def prepare(folder: Path, sources: dict[str, str | None]):
    """Writes the pairs of each source, all with one tokenizer."""
    first = folder / next(iter(sources)) / "tokenizer.json"
    for name, tokenizer in sources.items():
        if (folder / name / "meta.json").is_file():
            continue
        keys = ["--language=fr", f"--out={folder / name}", f"--tokenizer={tokenizer or first}"]
        run([sys.executable, f"data/{name}/prepare.py", *keys])


def run(command: list[str]):
    """Ends the script with the status of a command that fails."""
    if status := subprocess.run(command).returncode:
        sys.exit(status)


def pairs_of(folder: Path, domain: str) -> dict[str, int]:
    """{data set: its training pairs}"""
    metas = {name: json.loads((folder / name / "meta.json").read_text()) for name in DOMAINS[domain]}
    return {str(folder / name): m["splits"]["train"]["documents"] // 2 for name, m in metas.items()}


class Training(Planned):
    """A run of this study."""

    def work(self, tokens: int) -> float:
        return tokens * 3 * flops_per_token(model_config(self.config))


def train(config: StudyConfig, models: list[str]):
    """Trains what is not finished yet; ends the script where a run fails, after all others."""
    plan = Plan(config.out)
    plan.find_finished()
    plan.failed.clear()  # they are tried again
    asked, known = set(), {}
    if config.rates == "csv" or config.domain == "bible":
        known = best_rates(read_rows())
        if lacks := [model for model in models if SMALL.get(model, model) not in known]:
            sys.exit(
                f"study.py: study.csv has no rates of {', '.join(lacks)}: python {COMMAND} rates, then page"
            )
    part = None if config.what == "rates" else "bible" if config.domain == "bible" else "runs"

    def more() -> tuple[list[Training], float]:
        runs = [
            planned(config, *one)
            for model in models
            for one in wanted(plan, model, part, known)
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
    pairs, first = pairs_of(config.data, config.domain), next(iter(DOMAINS[config.domain]))
    files, shape = MODELS[model]
    epoch = config.epoch or round(sum(pairs.values()) / BATCH)
    keys = shape | {
        "dataset": ",".join(f"{name}:{count}" for name, count in pairs.items()),
        "vocab_size": json.loads((config.data / first / "meta.json").read_text())["vocab_size"],
        "learning_rate": rate, "seed": seed, "batch_size": BATCH,
        "max_iters": epoch * EPOCHS[part],
        "warmup_iters": min(400, epoch // 3), "eval_interval": epoch // 2,
        "checkpoint_interval": epoch // 2, "keep_checkpoints": 1,
        "log_interval": 50, "compile": False, "dtype": config.dtype, "device": config.device,
    }  # fmt: skip
    arguments = [*BASE, *files, *(f"--{key}={value}" for key, value in keys.items())]
    resolved = configurator.resolve(TrainConfig, arguments, saved=saved_config)
    name = run_name(part, model, rate, seed)
    return Training(name, name.rpartition("_seed=")[0], asdict(resolved))


def wanted(plan: Plan, model: str, part: str | None, known: dict[str, float]) -> list[tuple]:
    """(part, model, rate, seed) of the runs of a model that are known by now, the finished ones too.

    One epoch at each of RATES, and at further ones, by factors of two, until the best is no edge. Then all
    seeds of `part` at the best, unless it is None. known: {model: best rate} of an earlier sweep. Larger
    models have one epoch, one seed, and the rate of the smaller one by the ratio of their widths. On the
    Bible, the baseline's rate, which is of technical text, is checked at half and twice.
    """
    if model in SMALL:
        small = SMALL[model]
        sweep, best = swept(plan, small, known)
        if best is not None:
            best = float(f"{best * MODELS[small][1]['n_embd'] / MODELS[model][1]['n_embd']:.2g}")
    else:
        sweep, best = swept(plan, model, known)
    if model in SMALL:
        part, seeds = part and "size", [1]
    else:
        seeds = range(1, 1 + SEEDS)
    if best is None or part is None:
        return sweep
    runs = sweep + [(part, model, best, seed) for seed in seeds]
    if part == "bible" and model == BASELINE:
        runs += [("bible_rates", model, rate, 1) for rate in (best / 2, best * 2)]
    return runs


def swept(plan: Plan, model: str, known: dict[str, float]) -> tuple[list[tuple], float | None]:
    """(the runs of the sweep, the best rate once it is known)"""
    if model in known:
        return [], known[model]
    rates = list(RATES)
    while True:
        losses = {rate: loss_of(plan, run_name("rates", model, rate, 1)) for rate in rates}
        sweep = [("rates", model, rate, 1) for rate in rates]
        if None in losses.values() or math.inf == min(losses.values()):
            return sweep, None
        best = min(losses, key=losses.get)
        if best == min(rates):
            rates.insert(0, best / 2)
        elif best == max(rates):
            rates.append(best * 2)
        else:
            return sweep, best


def loss_of(plan: Plan, name: str) -> float | None:
    """The lowest validation loss of a finished run; of one that failed, infinity; None before its end."""
    if name in plan.done:
        return best_loss(read_run(plan.folder / name))
    return math.inf if name in plan.failed else None


def finished(out: Path) -> list[tuple[str, str, Run, Path]]:
    """(part, model, run, folder) of each finished run."""
    found = []
    for part, model in itertools.product(EPOCHS, MODELS):
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
    """Translates the validation pairs of each source of a domain with each finished run of it."""
    wanted = {"technical": ("runs", "size"), "bible": ("bible",)}[config.domain]
    folders = [
        folder for part, model, _, folder in finished(config.out) if part in wanted and model in models
    ]
    commands, sources = [], DOMAINS[config.domain]
    for (decoding, beams), source, folder in itertools.product(DECODING.items(), sources, folders):
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
            "dtype": run.config["dtype"],
            "parameters": without_embeddings(parameter_counts(model_config(run.config))),
            "tokens": run.evaluations[run.last_step]["tokens"],
            "seconds": round(run.evaluations[run.last_step]["seconds"]),
            "validation_loss": round(best_loss(run), 5),
        }  # fmt: skip
        scores = []
        for decoding in DECODING if part not in ("rates", "bible_rates") else ():
            for source in itertools.chain(*DOMAINS.values()):
                if (file := score_file(folder, decoding, source)).is_file():
                    found = json.loads(file.read_text())
                    scores.append({"decoding": decoding, "source": source} | scores_of(found))
        rows += [own | score for score in scores] or [own]
    return rows


def in_order(rows: list[dict]) -> list[dict]:
    names = list(MODELS)
    return sorted(rows, key=lambda row: (names.index(row["model"]), *run_of(row)))


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


if __name__ == "__main__":
    main(configurator.parse(StudyConfig, sys.argv[1:], positional="what", files=False))
