"""The list of an ablation's runs, kept in its folder as ablation.json, and what became of each."""

from host.disk import lock, make_folder, read_json

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ablation.product import Planned
from comparison.runs import Arm, read_run
from config_keys import FREE, names, resume_rule
from training import checkpoint
from training.config import TrainConfig
from training.log import RunFolderError, read_log, write_whole

FORMAT = "cofrgenet ablation 1"
# what may change between two calls: nothing that a run's losses depend on
MAY_CHANGE = {key for key in names(TrainConfig) if resume_rule(TrainConfig, key) == FREE} - {"dataset"}


class PlanError(ValueError):
    """A folder or a list of runs that cannot be used; says why and what to do."""


class Plan:
    """The runs of the ablation in `folder`, in the order in which they were listed.

    runs: {name: Planned}. done: names of finished runs. failed: {name: reason} of the last attempt.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs: dict[str, Planned] = {}
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}
        self.study: list[str] = []
        path = folder / "ablation.json"
        if path.is_file():
            self.read(path)
        elif folder.is_dir() and {p.name for p in folder.iterdir()} - {".lock"}:
            raise PlanError(f"{folder} holds files but no ablation.json; choose another folder")

    def read(self, path: Path):
        try:
            content = read_json(path, ValueError)
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
            self.runs = {
                name: Planned(name, entry["arm"], TrainConfig.of_this_version(entry["config"]))
                for name, entry in content["runs"].items()
            }
            self.done, self.failed = set(content["done"]), dict(content["failed"])
            self.study = list(content["study"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{path} is not a list of runs that ablate.py wrote ({error})"
            raise PlanError(f"{reason}; choose another folder") from None

    def save(self):
        content = {
            "format": FORMAT,
            "study": self.study,
            "done": sorted(self.done),
            "failed": self.failed,
            "runs": {name: {"arm": run.arm, "config": run.config} for name, run in self.runs.items()},
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "ablation.json", json.dumps(content, indent=1) + "\n")

    def extend(self, runs: list[Planned], study: list[str]):
        """Add runs to the list. Raises PlanError where one of the same arm has another configuration, but
        for its seed.
        """
        wrong, arms = [], {run.arm: run for run in self.runs.values()}
        for run in runs:
            before = self.runs.get(run.name) or arms.get(run.arm)
            keys = before.config.keys() | run.config.keys() if before else set()
            for key in sorted(keys - MAY_CHANGE - {"seed"}):
                if before.config.get(key) != run.config.get(key):
                    wrong.append(
                        f"{run.name}: {key} was {before.config.get(key)!r}, now {run.config.get(key)!r}"
                    )
        if wrong:
            more = f"\n  and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            raise PlanError(
                f"{self.folder} has runs of the same models with another configuration; leave it as it "
                "was, or choose another folder:\n  " + "\n  ".join(wrong[:8]) + more
            )
        self.runs |= {run.name: run for run in runs}
        self.study += [key for key in study if key not in self.study]

    def find_finished(self):
        """Note which runs have come to their end, whoever trained them.

        Raises PlanError, and notes nothing, where a log is damaged: a run that ended would count as failed.
        """
        over, damaged = set(), []
        for name, run in self.runs.items():
            log, last = self.folder / name / "log.jsonl", run.config["max_iters"]
            try:
                if finished(log.parent, run.config, checkpoint_too=name not in self.done):
                    over.add(name)
                elif name in self.done and log.is_file():
                    damaged.append(
                        f"{log} has lost the evaluation at step {last:,}, with which the run ended: mend "
                        "its last line, or move the file away"
                    )
            except RunFolderError as error:
                damaged.append(str(error))
        if damaged:
            raise PlanError("\n  ".join(["no run was started, and nothing was written:", *damaged]))
        self.done = over
        self.failed = {name: reason for name, reason in self.failed.items() if name not in over}

    def arms(self) -> list[Arm]:
        """What is done and what failed, for the table; arms of which nothing is known are left out."""
        found: dict[str, Arm] = {}
        for name, run in self.runs.items():
            if name not in self.done and name not in self.failed:
                continue
            arm = found.setdefault(run.arm, Arm(run.arm, [], planned=run.config))
            if name in self.done:
                arm.runs.append(read_run(self.folder / name, name))
            else:
                arm.failed += 1
        return list(found.values())

    def expected(self, runs: list[Planned]) -> list[Arm]:
        """The arms that `arms` will have once these runs came to an end, without their runs."""
        names = {run.name for run in runs} | self.done | self.failed.keys()
        found: dict[str, Arm] = {}
        for run in (run for name, run in self.runs.items() if name in names):
            found.setdefault(run.arm, Arm(run.arm, [], planned=run.config))
        return list(found.values())


def finished(folder: Path, config: dict, checkpoint_too: bool) -> bool:
    """Whether the run in `folder` was evaluated at its last step and, if that is asked, saved there.

    The evaluation comes first: a run that was killed in between has something left to do. Of a run known
    to be done the checkpoints may have been deleted. Raises RunFolderError where the log is damaged.
    """
    last = config["max_iters"]
    # without steps, a SAFFU's initialisation and each of its tuning passes end with an evaluation at step 0
    wanted = 1 if last else 1 + config["saffu_tuning"]
    if sum(r["step"] == last and "val_loss" in r for r in read_log(folder)) < wanted:
        return False
    saved = checkpoint.numbered(folder / "ckpt")
    return not checkpoint_too or (bool(saved) and checkpoint.step_of(saved[-1]) == last)


@contextmanager
def claimed(folder: Path, dry_run: bool = False) -> Iterator[None]:
    """Claim the folder for this process. Raises PlanError where another process has claimed it. A dry run
    writes nothing and claims nothing.
    """
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise PlanError(f"{part} is a file, and a folder is needed: choose another --out_dir")
    if dry_run:
        yield
        return
    new = not folder.exists()
    make_folder(folder)
    try:
        claim = lock(folder / ".lock")
    except BlockingIOError:
        told = f"another process is running the study in {folder}"
        raise PlanError(f"{told}: wait for it, or choose another folder") from None
    with claim:
        try:
            yield
        finally:
            with suppress(OSError):
                if new and os.listdir(folder) == [".lock"]:  # the command was refused
                    (folder / ".lock").unlink()
                    folder.rmdir()
