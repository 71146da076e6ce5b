"""Train the product of models, varied keys and seeds, and compare what comes out.

    python ablate.py config/demo_dense.py config/demo_cofrgenet_f.py --vary=cf_depth=1,3,5 --seeds=1,2,3 \\
        --vary="learning_rate=1e-3,3e-3 min_lr=1e-4,3e-4" --max_iters=300
    python ablate.py config/gpt2.py config/cofrgenet_f.py+config/size/small.py --seeds=1,2,3 --parallel=8
    python ablate.py config/cofrgenet_f.py --vary=none,config/ablate/no_dyadic.py
    python ablate.py --out_dir=out/ablation               # go on with all that is on the list in there

Each positional argument is a model; `+` stacks config files. Every --vary multiplies the runs: by values of
one key, of several keys that change together (separated by spaces), or by files on top (`none`: no file).
Values are separated by commas, or by semicolons where one holds a comma. A key that a model does not use is
not varied there. Any other --key=value of train.py goes to all runs. All configurations and data sets are
checked before the first run starts.

Each run is a train.py with a folder of its own below --out_dir, where output.log keeps what it printed.
Called again, the same command skips what is done, goes on with what was interrupted and tries again what
failed. Another product in the same folder extends the list of runs (ablation.json); a run that is on it
with another configuration is refused. At the end stands compare.py's table of all runs on the list, also in
table.md and table.csv, with curves.png.
"""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import configurator
from ablation import execution
from ablation.plan import Plan, PlanError, claimed
from ablation.product import Planned, parse_axis, product
from comparison import report, table
from comparison.runs import INCIDENTAL
from configurator import ConfigError
from data import DataError
from training.config import DEFAULTS, TrainConfig
from training.inputs import open_data, saved_config
from training.log import RunFolderError
from training.stopping import Stop


@dataclass
class AblateConfig:
    """The keys of the ablation itself; all others are train.py's, for every run."""

    out_dir: str = "out/ablation"  # a folder for each run, ablation.json, table.md, table.csv, curves.png
    vary: list[str] | None = None  # KEY=VALUE,VALUE or files on top; may be given several times
    seeds: list[str] | None = None  # such as 1,2,3; None: the seed of each model's config
    parallel: int = 1  # runs at a time, each on a GPU of its own; without GPUs they share the cores
    against: Literal["steps", "tokens", "flops", "hours"] = "tokens"  # what the picture's losses stand over
    dry_run: bool = False  # check everything and show the runs, but start none

    def check(self) -> list[str]:
        wrong = []
        if self.parallel < 1:
            wrong.append(f"parallel must be above 0, not {self.parallel}")
        seeds = self.seeds or []
        wrong += [
            f"seeds: {seed!r} is no whole number of 0 or above" for seed in seeds if not seed.isdecimal()
        ]
        if len(set(seeds)) < len(seeds):
            wrong.append(f"seeds: one of {','.join(seeds)} stands there twice")
        return wrong


# what `open_data` depends on
OF_THE_DATA = (
    *("dataset", "block_size", "vocab_size", "eval_tokens"),
    *("batch_size", "gradient_accumulation_steps"),
)


def main(argv: list[str]):
    if any(argument in ("-h", "--help") for argument in argv):
        print(__doc__.strip(), end="\n\n")
        configurator.parse(AblateConfig, ["--help"])
    with told_shortly("ablate.py"):
        config, runs, study, remarks = read(argv)
        folder = Path(config.out_dir)
        with claimed(folder, config.dry_run):
            plan = Plan(folder)
            if runs is None and not plan.runs:
                raise PlanError(f"{folder} holds no ablation yet: name one config file or more")
            plan.extend(runs or [], study)
            runs = list(plan.runs.values()) if runs is None else runs
            prepare(plan, runs, config, remarks)
            if not config.dry_run:
                carry_out(plan, runs, config, f"python ablate.py --out_dir={folder} goes on")
                show(plan, config.against)
                sys.exit(1 if any(run.name in plan.failed for run in runs) else 0)


@contextlib.contextmanager
def told_shortly(script: str) -> Iterator[None]:
    """Mistakes in what was asked for end the script with a message: status 2 for its keys, else 1."""
    try:
        yield
    except ConfigError as error:
        print(f"{script}: {error}", file=sys.stderr)
        sys.exit(2)
    except (PlanError, RunFolderError, OSError) as error:
        sys.exit(f"{script}: {error}")


def read(argv: list[str]) -> tuple[AblateConfig, list[Planned] | None, list[str], list[str]]:
    """(own keys, runs, varied keys, remarks); runs is None where no model was named. Raises ConfigError."""
    own, varied, others, mistakes = [], [], [], []
    known = {field.name for field in dataclasses.fields(AblateConfig)}
    instead = {"seed": "give --seeds=1,2,3", "resume": "what was interrupted always goes on"}
    for argument in (a for a in argv if a.startswith("-")):
        key, equals, value = argument.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        if key == "vary" and equals:
            varied.append(value)
        elif key in instead:
            mistakes.append(f"{argument}: {instead[key]}")
        else:
            (own if key in known else others).append(argument)
    axes = []
    for text in varied:
        try:
            axes.append(parse_axis(text))
        except ValueError as error:
            mistakes.append(f"--vary={text}: {error}")
    study = [key for axis in axes for key in axis[0].overrides]
    given = [argument.removeprefix("--").partition("=")[0].replace("-", "_") for argument in others]
    mistakes += [f"{key} is both varied and given to all" for key in study if key in given]
    mistakes += [f"{key} is varied twice" for key in dict.fromkeys(study) if study.count(key) > 1]
    for key in study:
        if key in instead or key in known:
            mistakes.append(f"{key} cannot be varied: " + instead.get(key, "it is a key of the ablation"))
    models = [argument for argument in argv if not argument.startswith("-")]
    if not models and (varied or others):
        mistakes.append("name the models that these are for: one config file or more")
    config, runs, remarks = None, None, []
    try:
        config = configurator.resolve(AblateConfig, own)
        config.vary = varied or None
    except ConfigError as error:
        mistakes += error.mistakes
    if models and not mistakes:
        seeds = config.seeds and [int(seed) for seed in config.seeds]
        resolve = functools.partial(configurator.resolve, TrainConfig, saved=saved_config)
        runs, remarks = product(models, axes, seeds, others, resolve)
        keys = [key for key in DEFAULTS if key not in INCIDENTAL | {"seed"}]
        study += [key for key in keys if len({str(run.config[key]) for run in runs}) > 1]
    if mistakes:
        raise ConfigError(mistakes)
    return config, runs, study, remarks


def prepare(plan: Plan, runs: list[Planned], config: AblateConfig, remarks: list[str]):
    """Look at what is done, check the rest, and say what there is to do. Raises ConfigError."""
    plan.look()
    check(plan, runs, config)
    for line in [*remarks, *announcement(plan, runs, config.parallel)]:
        print(line, flush=True)


def check(plan: Plan, runs: list[Planned], config: AblateConfig):
    """The data sets of the runs that are left, and the GPUs; raises ConfigError with all mistakes."""
    mistakes: dict[str, None] = {}
    seen = set()
    for run in runs:
        if unknown := run.config.keys() - DEFAULTS.keys():
            told = f"{run.name} was listed with keys that train.py does not have: {', '.join(unknown)}"
            mistakes[told] = None
            continue
        if run.name in plan.done or (data := tuple(run.config[key] for key in OF_THE_DATA)) in seen:
            continue
        seen.add(data)
        try:
            open_data(TrainConfig(**run.config))
        except (DataError, OSError) as error:
            mistakes[str(error)] = None
    count = len(gpus(runs))
    if count and config.parallel > count:
        mistakes[f"parallel={config.parallel}, but there are {count} GPUs"] = None
    if mistakes:
        raise ConfigError(list(mistakes))


def gpus(runs: list[Planned]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES can name for the runs; empty where they are for the processor."""
    if not torch.cuda.is_available() or any(run.config["device"] == "cpu" for run in runs):
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def announcement(plan: Plan, runs: list[Planned], parallel: int) -> list[str]:
    """The runs, what is done, and how much there is to do."""
    todo = [run for run in runs if run.name not in plan.done]
    lines = [f"  {run.name}{': done' if run.name in plan.done else ''}" for run in runs]
    tokens = sum(run.tokens - execution.tokens_so_far(plan.folder / run.name) for run in todo)
    done = [run for arm in plan.arms() for run in arm.runs]
    hours = sum(run.evaluations[run.last_step]["seconds"] for run in done) / 3600
    arms = len({run.arm for run in runs})
    how = "one after the other" if parallel == 1 else f"{parallel} at a time"
    lines.append(
        f"{len(runs)} runs of {arms} arms in {plan.folder}, {len(runs) - len(todo)} of them done"
        + (f" (all that is done on the list took {hours:.2f} hours)" if hours else "")
        + f"; to train: {len(todo)} runs, {how}, {tokens:,} tokens"
    )
    if others := len(plan.runs.keys() - {run.name for run in runs}):
        lines.append(
            f"{others} more on the list are of earlier commands: in the table where done, else left alone"
        )
    return lines


def carry_out(plan: Plan, runs: list[Planned], config: AblateConfig, go_on: str):
    """Train what is left; exits with a signal's status where one stopped it. go_on: what to do then."""
    plan.save()
    todo = [run for run in runs if run.name not in plan.done]
    script = Path(sys.argv[0]).name
    try:
        with Stop(speak=False) as stop:
            start = functools.partial(
                execution.train,
                folder=plan.folder,
                defaults=DEFAULTS,
                gpus=gpus(runs),
                parallel=config.parallel,
            )
            if todo:
                execution.execute(plan, todo, start, config.parallel, stop)
    except KeyboardInterrupt:
        sys.exit(f"{script}: interrupted at once. {go_on}")
    if stop:
        left = sum(run.name not in plan.done for run in runs)
        print(f"{script}: stopped with {left} of {len(runs)} runs left. {go_on}", file=sys.stderr)
        sys.exit(stop.status)


def show(plan: Plan, against: str):
    """Print and write the table of all that is done or failed."""
    arms = plan.arms()
    lines = report.remarks(arms, plan.study)
    for name, reason in plan.failed.items():
        lines.append(f"failed: {name}: {reason} ({plan.folder / name / execution.OUTPUT})")
    files = {"plot": "curves.png", "markdown": "table.md", "csv": "table.csv"}
    paths = {key: plan.folder / name for key, name in files.items()}
    written = report.write(arms, lines, against, **paths)
    print("\n".join([table.markdown(arms), *lines, *written]))


if __name__ == "__main__":
    main(sys.argv[1:])
