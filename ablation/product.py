"""Models, varied keys and seeds -> the runs of an ablation, each with its whole configuration."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import config_keys
from comparison.runs import INCIDENTAL
from configurator import ConfigError, stacked
from training.config import TrainConfig

OF_LADDERS = config_keys.marked(TrainConfig, config_keys.OF_LADDERS)
LONGEST_NAME = 240  # bytes; most file systems take 255


@dataclass
class Choice:
    """One value of something varied: files to put on top, or keys with their values as texts."""

    files: list[str]
    overrides: dict[str, str]


@dataclass
class Planned:
    """A run of an ablation: its folder's name, its arm (the name without the seed), its resolved config."""

    name: str
    arm: str
    config: dict

    @property
    def tokens(self) -> int:
        """Tokens of the whole run; of pairs, those that as many full windows would have."""
        return self.tokens_at(self.config["max_iters"])

    def tokens_at(self, step: int) -> int:
        per_step = self.config["batch_size"] * self.config["gradient_accumulation_steps"]
        return step * per_step * self.config["block_size"]

    def work(self, tokens: int) -> float:
        """What a progress bar counts of a run that is at so many tokens."""
        return tokens


def parse_axis(text: str) -> list[Choice]:
    """What --vary was given; raises ValueError that says how to write it.

    `cf_depth=1,3,5`: one key. `learning_rate=1e-3,3e-3 min_lr=1e-4,3e-4`: keys that change together.
    `a.py,b.py+c.py,none`: files on top of the model's. Values with commas are separated by `;` instead.
    """
    parts = text.split()
    if not parts:
        raise ValueError("is empty: write --vary=cf_depth=1,3,5")
    if len(parts) == 1 and "=" not in text:
        values = values_of(text)
        if wrong := [v for v in values if v != "none" and not all(f.endswith(".py") for f in stacked(v))]:
            raise ValueError(f"{wrong[0]!r} is neither KEY=VALUE,VALUE nor a list of config files (.py)")
        refuse_repetition(values)
        return [Choice([] if value == "none" else stacked(value), {}) for value in values]
    columns = {}
    for part in parts:
        key, equals, values = part.partition("=")
        if not equals or not key:
            raise ValueError(f"{part!r}: write KEY=VALUE,VALUE")
        columns[key.replace("-", "_")] = values_of(values)
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{length} of {key}" for key, length in lengths.items())
        raise ValueError(f"keys that change together need equally many values, not {told}")
    rows = list(zip(*columns.values(), strict=True))
    refuse_repetition([" ".join(row) for row in rows])  # a single key of several may keep its value
    return [Choice([], dict(zip(columns, row, strict=True))) for row in rows]


def values_of(text: str) -> list[str]:
    values = text.split(";" if ";" in text else ",")
    if "" in values:
        raise ValueError(f"{text!r} has an empty value")
    return values


def refuse_repetition(values: list[str]):
    if repeated := [value for value in dict.fromkeys(values) if values.count(value) > 1]:
        raise ValueError(f"{repeated[0]} is given twice")


def product(
    models: list[str],
    axes: list[list[Choice]],
    seeds: list[int] | None,
    others: list[str],
    resolve: Callable[[list[str]], object],
) -> tuple[list[Planned], list[str]]:
    """Every model with every combination of choices under every seed -> (runs, remarks).

    models: config files stacked with `+`. others: --key=value for all. resolve: a command line of train.py
    -> its config; raises ConfigError. A key without effect in a model is not varied there, so that a dense
    model beside CoFrGeNets of several depths runs once. Raises ConfigError with the mistakes of all runs.
    """
    found: dict[str, Planned] = {}
    mistakes: dict[str, list[str]] = {}
    remarks: list[str] = []
    known: dict[tuple, object] = {}
    twins: dict[tuple, str] = {}  # (model, what its runs depend on): the first name
    trained, repeated = set(), {}  # files on top that make a model of their own, and those that do not
    try:
        stacks = {model: stacked(model) for model in models}
    except ValueError as error:
        raise ConfigError([str(error)]) from None

    def resolved(*arguments):
        if arguments not in known:
            known[arguments] = resolve(list(arguments))
        return known[arguments]

    wrong = [
        f"{model}: {file!r} is no config file; write a.py, or a.py+b.py for b.py on top of a.py"
        for model in models
        for file in stacks[model]
        if not file.endswith(".py")
    ]
    if wrong:
        raise ConfigError(wrong)
    for model, choices in itertools.product(models, itertools.product(*axes)):
        files = [f for stack in (stacks[model], *(c.files for c in choices)) for f in stack]
        overrides = {key: value for c in choices for key, value in c.overrides.items()}
        name = "_".join(map(file_name, [stacks[model], *(c.files for c in choices if c.files)]))
        remark = f"has no effect in {name} and is not varied there"
        try:
            rest = options({key: value for key, value in overrides.items() if key not in OF_LADDERS})
            if overrides.keys() & OF_LADDERS and without_ladders(resolved, [*files, *others, *rest]):
                for key in [key for key in overrides if key in OF_LADDERS]:
                    del overrides[key]
                    remarks.append(f"{key} {remark}")
            resolved(*files, *others, *options(overrides))
            for axis in axes:
                for key in [key for key in axis[0].overrides if key in overrides]:
                    tried = [{**overrides, key: choice.overrides[key]} for choice in axis]
                    if any(idle(resolved, [*files, *others, *options(one)], key) for one in tried):
                        del overrides[key]
                        remarks.append(f"{key} {remark}")
            arm = "_".join([name, *(f"{key}={value}" for key, value in overrides.items())])
            arguments = [*files, *others, *options(overrides)]
            on_top = "_".join(file_name(c.files) for c in choices if c.files)
            twin = twins.setdefault((model, dependence(resolved(*arguments))), name)
            if twin != name:
                same = f"{name} is the same model as {twin}"
                remarks.append(f"{same} and is not trained")
                repeated[on_top] = f"{same}: a file of --vary changes nothing; leave it out"
                continue
            trained.add(on_top)
            for seed in seeds or [resolved(*arguments).seed]:
                config = resolved(*arguments, f"--seed={seed}")
                run = Planned(folder_name(f"{arm}_seed={seed}"), arm, dataclasses.asdict(config))
                if (length := len(run.name.encode())) > LONGEST_NAME:
                    mistake = f"its folder's name would have {length} bytes, more than {LONGEST_NAME}: put "
                    mistake += "the values into config files, and vary those"
                    mistakes.setdefault(mistake, []).append(arm)
                if found.setdefault(run.name, run).config != run.config:
                    mistakes.setdefault(f"there would be two runs in a folder {run.name}", []).append(arm)
        except ConfigError as error:
            arm = "_".join([name, *(f"{key}={value}" for key, value in overrides.items())])
            for mistake in error.mistakes:
                mistakes.setdefault(mistake, []).append(arm)
    if not mistakes and (wrong := [why for on_top, why in repeated.items() if on_top not in trained]):
        raise ConfigError(wrong)
    if mistakes:
        raise ConfigError([f"{first_of(arms)}: {mistake}" for mistake, arms in mistakes.items()])
    return list(found.values()), list(dict.fromkeys(remarks))


def dependence(config) -> tuple:
    """What a run depends on besides its seed: the keys with their values that its training reads."""
    read = config.keys_read() - INCIDENTAL - {"seed"}
    return tuple((key, value) for key, value in dataclasses.asdict(config).items() if key in read)


def first_of(arms: list[str]) -> str:
    return arms[0] + (f" and {len(arms) - 1} more" if len(arms) > 1 else "")


def options(overrides: dict[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in overrides.items()]


def idle(resolve: Callable, arguments: list[str], key: str) -> bool:
    """Whether the model of a command line does not use a key; the values of other runs may be mistakes."""
    try:
        return any(text.startswith(f"{key}=") for text in resolve(*arguments).unused_keys())
    except ConfigError:
        return False


def without_ladders(resolve: Callable, arguments: list[str]) -> bool:
    try:
        return not resolve(*arguments).has_ladders
    except ConfigError:
        return False


def file_name(files: list[str]) -> str:
    """config/paper/gpt2_xl.py, config/size/tiny.py -> paper-gpt2_xl+size-tiny"""
    names = []
    for file in files:
        path = Path(file).with_suffix("")
        parts = path.parts[path.parts.index("config") + 1 :] if "config" in path.parts else path.parts[-1:]
        names.append("-".join(parts))
    return "+".join(names)


def folder_name(text: str) -> str:
    """Without what a shell, a path or compare.py's list of runs would take for something else."""
    return re.sub(r"[^\w.+=-]+", "-", text)
