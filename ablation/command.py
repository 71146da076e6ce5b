"""The command line of an ablation -> its own keys, and the runs that it asks for."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import configurator
import overlays
from ablation.plan import PlanError
from ablation.product import Planned, parse_axis, product
from comparison import report
from comparison.runs import INCIDENTAL
from config_keys import Count, names
from configurator import ConfigError
from reports import picture
from training.config import DEFAULTS, TrainConfig
from training.inputs import saved_config
from training.log import RunFolderError


@dataclass
class AblateConfig:
    """The keys of the ablation itself; all other keys are train.py's and apply to every run."""

    out_dir: str = "out/ablation"  # a folder for each run, ablation.json, table.md, table.csv, curves.png
    vary: list[str] | None = None  # KEY=VALUE,VALUE or files on top; may be given several times
    seeds: list[str] | None = None  # such as 1,2,3; None: the seed of each model's config
    parallel: Count = 1  # runs at the same time, in turn on the GPUs; without GPUs they share the cores
    against: str = "tokens"  # horizontal axis of the pictures: steps, tokens, flops, hours, or a varied key
    plot: str | None = None  # one more picture file (.png, .pdf, .svg), which must not exist
    plot_size: str | None = None  # width and height of that picture in inches, such as 3.3x2.4
    plot_title: str | None = None  # title of that picture
    plot_labels: str | None = None  # what its legend calls the lines, in the order of the table: dense,ours
    dry_run: bool = False  # check everything and list the runs, but start none

    def check(self) -> list[str]:
        wrong = []
        seeds = self.seeds or []
        wrong += [
            f"seeds: {seed!r} is not a whole number from 0 on" for seed in seeds if not seed.isdecimal()
        ]
        if len(set(seeds)) < len(seeds):
            wrong.append(f"seeds: one of {','.join(seeds)} is given twice")
        own = [Path(self.out_dir) / f"{name}.png" for name in ("curves", *DEFAULTS)]
        return wrong + picture.mistakes(self, own=own) + report.wrong_axis(self.against)


@contextlib.contextmanager
def mistakes_end(script: str) -> Iterator[None]:
    """Mistakes of the user end the script with a message and status 2 (wrong keys) or 1 (all others)."""
    try:
        yield
    except ConfigError as error:
        print(f"{script}: {error}", file=sys.stderr)
        sys.exit(2)
    except (PlanError, RunFolderError, OSError) as error:
        sys.exit(f"{script}: {error}")


def parsed(argv: list[str]) -> tuple[AblateConfig, list[Planned] | None, list[str], list[str]]:
    """(own keys, runs, varied keys, remarks); runs is None where no model was named. Raises ConfigError."""
    own, varied, others, mistakes = [], [], [], []
    known = {field.name for field in dataclasses.fields(AblateConfig)}
    instead = {"seed": "give --seeds=1,2,3", "resume": "leave it out, interrupted runs always go on"}
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
        mistakes.append("name the models that these keys are for: one config file or more")
    repeated = [model for model in dict.fromkeys(models) if models.count(model) > 1]
    mistakes += [f"{model} is named twice: for repetitions, give --seeds=1,2,3" for model in repeated]
    config, runs, remarks = None, None, []
    try:
        remarks = overlays.check("ablate.py", argv)
    except ConfigError as error:
        mistakes += error.mistakes
    try:
        config = configurator.resolve(AblateConfig, own)
        config.vary = varied or None
    except ConfigError as error:
        mistakes += error.mistakes
    if models and not mistakes:
        seeds = config.seeds and [int(seed) for seed in config.seeds]
        resolve = functools.partial(
            configurator.resolve, TrainConfig, saved=saved_config, known=names(AblateConfig)
        )
        try:
            runs, idle = product(models, axes, seeds, others, resolve)
        except ConfigError as error:  # which may come of what the remarks say
            *before, last = error.mistakes
            raise ConfigError([*before, "\n  ".join([last, *remarks])]) from None
        remarks += idle
        keys = [key for key in DEFAULTS if key not in INCIDENTAL | {"seed"}]
        differing = [key for key in keys if len({str(run.config[key]) for run in runs}) > 1]
        study += [key for key in differing if key not in study]
    if mistakes:
        raise ConfigError(mistakes)
    return config, runs, study, remarks
