"""Reads run folders and groups runs that differ in the seed only into arms."""

from host.disk import absence, read_json

import functools
import itertools
import os
import re
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path

import config_keys
from corpus import mixture
from models.architecture import model_config
from models.kinds import flops_per_token, parameter_counts
from training.config import TrainConfig
from training.log import RunFolderError, read_log
from training.schedule import wake_step

# keys that do not change the results of a run
INCIDENTAL = config_keys.marked(TrainConfig, config_keys.INCIDENTAL)


@dataclass
class Run:
    """A run folder of train.py: its configuration and the records of its log, in order."""

    name: str
    folder: Path
    config: dict
    records: list[dict]

    @functools.cached_property
    def evaluations(self) -> dict[int, dict]:
        """The records with a validation loss, by step."""
        return {record["step"]: record for record in self.records if "val_loss" in record}

    @functools.cached_property
    def tokenizer(self) -> str | None:
        """The hash of its data's tokenizer; None where the data set is not on this machine."""
        try:
            folders, _ = mixture.parse(self.config["dataset"])
            return read_json(Path(folders[0]) / "meta.json", ValueError)["tokenizer"]["hash"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def last_step(self) -> int:
        """The last step that was evaluated."""
        return max(self.evaluations)

    @property
    def training_flops(self) -> int:
        """Model FLOPs of a training token: three times those of the forward pass."""
        return 3 * flops_per_token(model_config(self.config))

    def quantities(self, step: int) -> dict[str, float | None]:
        """The measures of the run at an evaluated step; None for those that it does not have.

        Losses are in nats per token, minutes those of training without evaluations. tokens_per_second is
        the median of the records up to that step, without the first one, which includes compilation.
        clamped is the share of denominators below cf_eps, averaged over the layers with ladders.
        """
        at = self.evaluations[step]
        so_far = [evaluation for s, evaluation in self.evaluations.items() if s <= step]
        rates = [
            r["tokens_per_second"] for r in self.records if r["step"] <= step and "tokens_per_second" in r
        ]
        clamped = [layer["clamped"] for layer in at.get("ladders", {}).values()]
        return {
            "loss": at["val_loss"],
            "best": min(evaluation["val_loss"] for evaluation in so_far),
            "bits_per_byte": at["val_bits_per_byte"],
            "tokens_per_second": statistics.median(rates[1:] or rates) if rates else None,
            "minutes": at["seconds"] / 60,
            "clamped": statistics.fmean(clamped) if clamped else None,
        }


@dataclass
class Arm:
    """Runs that differ in the seed only. failed: how many more were started and failed. planned: the config
    that ablate.py asked for, before train.py replaced its None by values; None: not known.
    """

    name: str
    runs: list[Run]
    failed: int = 0
    planned: dict | None = None

    @property
    def config(self) -> dict:
        return self.runs[0].config

    @property
    def given(self) -> dict:
        """The config as it was planned, which arms without runs have too, or else that of the runs."""
        return self.config if self.planned is None else self.planned

    @property
    def steps(self) -> list[int]:
        """The steps that every run evaluated, in order. Never empty: all runs evaluate at step 0."""
        return sorted(set.intersection(*(set(run.evaluations) for run in self.runs)))

    @property
    def parameters(self) -> dict[str, int]:
        return parameter_counts(model_config(self.config))

    @property
    def wakes(self) -> list[int] | None:
        """The step at which each depth of the ladders wakes; None without the dyadic schedule."""
        if not self.config["dyadic"]:
            return None
        iterations = self.config["dyadic_iters"] or self.config["max_iters"]
        return [wake_step(depth, iterations) for depth in range(1, self.config["cf_depth"] + 1)]

    def quantities(self) -> dict[str, list[float]]:
        """`Run.quantities` of each run at the last step that all of them evaluated."""
        each = [run.quantities(self.steps[-1]) for run in self.runs]
        return {key: [m[key] for m in each if m[key] is not None] for key in each[0]}


def read_run(folder: Path, name: str | None = None) -> Run:
    """Reads a run. Raises RunFolderError if the folder is no run or has no evaluation yet."""
    if not folder.exists():
        raise RunFolderError(f"{folder} {absence(folder)}: give a run folder of train.py")
    if not (folder / "config.json").exists() and any(folder.glob("*/config.json")):
        raise RunFolderError(f"{folder} is a folder of runs: write {shlex.quote(str(folder))}/*/")
    try:
        config = read_json(folder / "config.json", ValueError)
        if not (folder / "log.jsonl").exists():  # of a model that export.py wrote
            raise ValueError("it has no log.jsonl")
        model_config(TrainConfig.of_this_version(config))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder} is not a run folder of train.py ({error})") from None
    run = Run(name or str(folder), folder, config, read_log(folder))
    if not run.evaluations:
        raise RunFolderError(f"{folder} has no evaluation in its log yet")
    for step, evaluation in run.evaluations.items():
        for key in ("val_bits_per_byte", "seconds"):
            if type(value := evaluation.get(key)) not in (int, float):
                raise RunFolderError(
                    f"{folder / 'log.jsonl'}: {key} of the evaluation at step {step:,} is {value!r}, no "
                    "number; mend the line, or take it out"
                )
    return run


def read_runs(folders: list[str]) -> list[Run]:
    """The runs of several folders, each once, with short names. Raises RunFolderError."""
    by_place: dict[Path, str] = {}
    for folder in folders:
        by_place.setdefault(os.path.realpath(folder), folder)
    folders = list(by_place.values())
    names = [os.path.basename(os.path.realpath(folder)) for folder in folders]
    if len(set(names)) < len(names):
        names = folders
    return [read_run(Path(folder), name) for folder, name in zip(folders, names, strict=True)]


def arms(runs: list[Run]) -> list[Arm]:
    """Groups runs that differ in the seed only, in the order in which they were given.

    Two runs with the same seed become two arms, because their mean would count one sample twice.
    """
    found: list[list[Run]] = []
    for run in runs:
        for group in found:
            if run.config["seed"] not in [r.config["seed"] for r in group] and same(run, group[0]):
                group.append(run)
                break
        else:
            found.append([run])
    together = [Arm(shared_name([run.name for run in group]), group) for group in found]
    names = [arm.name for arm in together]
    for arm in together:
        if names.count(arm.name) > 1:
            arm.name = arm.runs[0].name
    return together


def same(a: Run, b: Run) -> bool:
    """Whether two runs differ in nothing but the seed."""
    keys = (a.config.keys() | b.config.keys()) - INCIDENTAL - {"seed"}
    return all(a.config.get(key) == b.config.get(key) for key in keys)


def different_tokenizers(arms: list[Arm]) -> bool:
    """Whether the runs of arms read different tokens, so that their nats per token cannot be compared.

    Where a data set is not on this machine, the size of the vocabulary decides.
    """
    runs = [arm.runs[0] for arm in arms if arm.runs]
    hashes = {run.tokenizer for run in runs}
    return len({run.config.get("vocab_size") for run in runs} if None in hashes else hashes) > 1


def shared_name(names: list[str]) -> str:
    """The common beginning of the names of an arm's runs: `dense_seed1`, `dense_seed2` -> `dense`."""
    if len(names) == 1:
        return names[0]
    pairs = zip(min(names), max(names), strict=False)
    start = "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return re.sub(r"([-_.,/= ]+(seed|s)?|seed)?[-_.,/= ]*\d*$", "", start, count=1) or names[0]
