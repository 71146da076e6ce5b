"""The command line of a scaling study -> its own keys, its families and the recipe that they share."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import config_keys
import configurator
import overlays
from ablation.plan import MAY_CHANGE
from ablation.product import LONGEST_NAME, file_name
from config_keys import AtLeast, Count, CountOrNone, Positive
from configurator import ConfigError
from models.architecture import ModelConfig
from reports import picture
from scaling import sizing
from scaling.sizing import Size
from training.config import TrainConfig

# the keys that each family brings; all others, of recipe and data, are those of the first stack
OF_FAMILY = {*config_keys.names(ModelConfig), *config_keys.marked(TrainConfig, config_keys.OF_LADDERS)}
OF_FAMILY -= {"block_size", "vocab_size", "dropout"}
INSTEAD = {
    "seed": "give --seeds=1,2,3",
    "resume": "leave it out, interrupted runs always go on",
    "max_iters": "it follows from --sizes and --tokens_per_parameter",
    "learning_rate": "give --rates, which are swept at the smallest size",
    "wsd_decay_iters": "the decay is a fifth of every run",
    "dyadic_iters": "the schedule always spans the whole run",
    "init_from": "runs of a scaling study start from random weights",
    **dict.fromkeys(("n_layer", "n_head", "n_embd"), "it follows from --sizes"),
}


# the keys of the study that act with --points
OF_PAGE = {"points", "out_dir", "baseline", "losses", "shared_e", "samples"}
OF_PAGE |= {"plot", "plot_size", "plot_title", "plot_labels"}


@dataclass
class ScaleConfig:
    """The keys of the study itself; all other keys are train.py's and apply to every run."""

    sizes: list[str] | None = None  # parameters without embeddings: 0.5M,1M; 1M:2 for two of the seeds
    tokens_per_parameter: Positive = 20.0  # length of the runs, of the size that was asked for
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])  # seeds of every family and size
    rates: list[float] | None = None  # first learning rates to try; None: half, once, twice the recipe's
    #: the rate falls with the width to it; None: from a second sweep
    rate_exponent: Annotated[float | None, AtLeast(0)] = None
    #: size of the second sweep or check; None: the second largest, or a wider one
    check_size: str | None = None
    check_rate: bool = True  # sweep again at check_size, or check a given rate_exponent there
    out_dir: str = "out/scaling"  # a folder for each run, scaling.json, scaling.md, scaling.png, CSVs
    parallel: CountOrNone = None  # runs at the same time; None: one on each core, on GPUs as many as fit
    #: the command ends after them, with the page of what there is; None: when all is done
    minutes: Annotated[float | None, AtLeast(1)] = None
    points: list[str] | None = None  # points.csv of studies: draw them again in out_dir, and train nothing
    #: families with which all others are compared, the main one first; None: the first family
    baseline: list[str] | None = None
    losses: list[float] | None = None  # losses at which multipliers are given; None: four that both reached
    shared_e: bool = True  # the families share the irreducible loss E in every fit
    samples: Count = 300  # studies drawn anew with other seeds, for the 95 % intervals
    plot: str | None = None  # one more picture file (.png, .pdf, .svg), which must not exist
    plot_size: str | None = None  # width and height of that picture in inches, such as 7x5
    plot_title: str | None = None  # title of that picture
    plot_labels: str | None = None  # what legend and tables call the families: dense,ours
    dry_run: bool = False  # check everything, measure steps and show what would be trained, but start none

    def check(self) -> list[str]:
        wrong = []
        try:
            sizes = [sizing.parse(text) for text in self.sizes or []]
        except ValueError as error:
            wrong.append(f"sizes: {error}")
            sizes = []
        if len({size.target for size in sizes}) < len(sizes):
            wrong.append(f"sizes: one of {','.join(self.sizes)} is given twice")
        if most := [size for size in sizes if size.seeds and size.seeds > len(self.seeds)]:
            wrong.append(f"sizes: {most[0].label}:{most[0].seeds} is more than the {len(self.seeds)} seeds")
        for key in ("seeds", "rates", "losses", "baseline"):
            values = getattr(self, key)
            if values is not None and len(set(values)) < len(values):
                wrong.append(f"{key}: one of {','.join(map(str, values))} is given twice")
        for key in ("rates", "losses"):
            if wrong_ones := [value for value in getattr(self, key) or [] if value <= 0]:
                wrong.append(f"{key} must be above 0, not {wrong_ones[0]}")
        wrong += [f"seeds: {seed} is below 0" for seed in self.seeds if seed < 0]
        labels = [size.label for size in sorted(sizes, key=lambda size: size.target)]
        if self.check_size is not None:
            try:
                label = sizing.parse(self.check_size).label
                if label not in labels and sizes:
                    wrong.append(f"check_size={self.check_size} is none of the sizes: {', '.join(labels)}")
                elif len(sizes) > 1 and label == self.targets()[0].label:
                    wrong.append(f"check_size={self.check_size} is swept anyway: take a larger one")
            except ValueError as error:
                wrong.append(f"check_size: {error}")
        own = [Path(self.out_dir) / "scaling.png"]
        return wrong + picture.mistakes(self, always=["plot_labels"], own=own)

    def targets(self) -> list[Size]:
        """The sizes, smallest first."""
        return sorted(map(sizing.parse, self.sizes or []), key=lambda size: size.target)

    def checked(self) -> str | None:
        """The label of the size at which the rate is swept again or checked; None: nowhere."""
        targets = self.targets()
        if not self.check_rate or len(targets) < 2:
            return None
        if self.check_size is not None:
            return sizing.parse(self.check_size).label
        return targets[max(1, len(targets) - 2)].label


@dataclass
class Family:
    """A stack of config files: what it is called, and its config with the recipe of the first stack."""

    name: str
    config: TrainConfig

    @property
    def model(self) -> ModelConfig:
        names = [f.name for f in dataclasses.fields(ModelConfig)]
        return ModelConfig(**{name: getattr(self.config, name) for name in names})


def parsed(argv: list[str]) -> tuple[ScaleConfig, list[Family], list[str]]:
    """(own keys, families, remarks); no families where no model was named. Raises ConfigError."""
    own, others, mistakes = [], [], []
    known = {f.name for f in dataclasses.fields(ScaleConfig)}
    for argument in (a for a in argv if a.startswith("-")):
        key = _key(argument)
        if key in INSTEAD:
            mistakes.append(f"{argument}: {INSTEAD[key]}")
        elif key == "tokens_per_parameter" and "," in argument:
            mistakes.append(
                f"{argument}: all runs of a study have one length, so that losses compare; give one "
                "number, and each length its own --out_dir"
            )
        else:
            (own if key in known else others).append(argument)
    config, families, remarks = None, [], []
    try:
        config = configurator.resolve(ScaleConfig, own)
    except ConfigError as error:
        mistakes += error.mistakes
    stacks = [argument for argument in argv if not argument.startswith("-")]
    repeated = [stack for stack in dict.fromkeys(stacks) if stacks.count(stack) > 1]
    mistakes += [f"{stack} is named twice: for repetitions, give --seeds=1,2,3" for stack in repeated]
    if config is not None:
        mistakes += _missing(config, stacks, own, others)
    try:
        remarks = overlays.check("scale.py", argv)
        families, left = _families(stacks, others)
        remarks = [*remarks, *left]
    except ConfigError as error:
        mistakes += error.mistakes
    if mistakes:
        raise ConfigError(mistakes)
    return config, families, remarks


def _key(argument: str) -> str:
    return argument.removeprefix("--").partition("=")[0].replace("-", "_")


def _missing(config: ScaleConfig, stacks: list[str], own: list[str], others: list[str]) -> list[str]:
    if config.points is not None:
        named = [*stacks, *(argument for argument in own if _key(argument) not in OF_PAGE), *others]
        return [f"--points trains nothing: leave out {' '.join(named)}"] if named else []
    if not stacks and (config.sizes or others):
        return ["name the families: one stack of config files or more"]
    if stacks and not config.sizes:
        return ["give the sizes, as in --sizes=0.25M,0.5M,1M"]
    return []


def _families(stacks: list[str], others: list[str]) -> tuple[list[Family], list[str]]:
    """(the families, each with its own model and the first one's recipe; keys that are not taken)

    Raises ConfigError.
    """
    families, mistakes, first, remarks = [], {}, None, []
    for stack in stacks:
        try:
            config = configurator.resolve(
                TrainConfig, [*configurator.stacked(stack), *others], known=config_keys.names(ScaleConfig)
            )
        except ValueError as error:  # ConfigError is one
            for mistake in getattr(error, "mistakes", [str(error)]):
                mistakes.setdefault(mistake, []).append(stack)
            continue
        if config.model != "gpt":
            mistake = f"model={config.model} has no depth and width to scale: scale.py takes model=gpt"
            mistakes.setdefault(mistake, []).append(stack)
            continue
        first = first or config
        if left := _not_taken(config, first):
            remarks.append(f"{stack}: {left} not taken, because the recipe is the first family's")
        values = {k: v for k, v in vars(config).items() if k in OF_FAMILY}
        name = file_name(configurator.stacked(stack))
        families.append(Family(name, dataclasses.replace(first, **values)))
        for key in ("init_from", "wsd_decay_iters", "dyadic_iters"):
            if getattr(config, key) is not None:
                mistakes.setdefault(f"{key}={getattr(config, key)}: {INSTEAD[key]}", []).append(stack)
        if len(name.encode()) > LONGEST_NAME - 100:
            mistakes.setdefault("its name is too long for a folder's: stack fewer files", []).append(stack)
    names = [family.name for family in families]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            mistakes.setdefault(f"two families would be called {name}: rename a file", []).append(name)
    if mistakes:
        of_all = {
            mistake for mistake, who in mistakes.items() if mistake.startswith("--") and who == stacks
        }
        told = [m if m in of_all else f"{', '.join(who)}: {m}" for m, who in mistakes.items()]
        raise ConfigError(told)
    return families, remarks


def _not_taken(config: TrainConfig, first: TrainConfig) -> str:
    """The keys of a family's recipe and data that differ from the first family's."""
    leave_out = OF_FAMILY | MAY_CHANGE | (INSTEAD.keys() - {"learning_rate"}) | {"out_dir", "vocab_size"}
    pairs = {k: v for k, v in vars(config).items() if k not in leave_out and v != getattr(first, k)}
    return ", ".join(f"{key}={value}" for key, value in pairs.items())
