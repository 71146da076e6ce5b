"""Trackers: services that draw the curves of many runs together. `track` names one; its package is imported
only then.

A tracker gets the records of log.jsonl. A run that goes on after a kill makes some steps again. wandb keeps
what a run first said of a step, and trackio would show both; so such a run is a new one there, in the same
group, and gets the whole log.
"""

from host.packages import install

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from config_keys import INCIDENTAL
from training.log import RunFolderError


@dataclass
class Keys:
    MARKS = (INCIDENTAL,)

    # tracking
    track: Literal["none", "wandb", "trackio"] = "none"  # service that gets the records of log.jsonl too
    track_project: str = "cofrgenet"  # project of the run there
    track_name: str | None = None  # name of the run there; None: name of the run folder


@dataclass
class Tracker:
    """A run of a tracker. log: takes the values of a record and its step. continues: the run has what the
    log holds so far.
    """

    id: str
    log: Callable[[dict, int], None]
    finish: Callable[[], None]
    continues: bool = False


def mistakes(keys: Keys) -> list[str]:
    """The mistake of asking for a tracker that is not installed, for a config's `check`."""
    if keys.track == "none":
        return []
    spec = importlib.util.find_spec(keys.track)
    # no origin: a folder of that name, such as the wandb/ of earlier runs
    if spec is None or spec.origin is None:
        return [f"track={keys.track} needs the {keys.track} package: {install(keys.track)}"]
    return []


def start(keys: Keys, folder: Path, config: dict, before: str | None, step: int, again: bool) -> Tracker:
    """The run of a tracker that is not "none". Raises RunFolderError where it does not start.

    config: what the tracker shows as the run's configuration. A training that goes on does so at `step`;
    before: the id of its run so far, None if there was none; again: it makes steps again that the log had.
    """
    name = keys.track_name or folder.name
    resumed = {"resumed_from": before, "resumed_at_step": step} if before else {}
    told = {"project": keys.track_project, "name": name, "group": name, "config": config | resumed}
    try:
        package = importlib.import_module(keys.track)
        if keys.track == "wandb":
            run = package.init(dir=folder, **told)
            return Tracker(run.id, run.log, run.finish)
        continues = not again and before is not None and _is_alone(package, before, told)
        run = package.init(resume="must" if continues else "never", embed=False, **told)
        return Tracker(run.id, run.log, package.finish, continues)
    except Exception as error:
        hint = "; log in with `wandb login`, or set WANDB_MODE=offline" if keys.track == "wandb" else ""
        raise RunFolderError(f"{keys.track} did not start ({error}){hint}") from error


def _is_alone(trackio: ModuleType, run: str, told: dict) -> bool:
    """Whether a run is the only one of its name in a project on this machine: trackio goes on by name."""
    try:
        runs = trackio.Api().runs(told["project"])
        return [one.id for one in runs if one.name == told["name"]] == [run]
    except ValueError:  # there is no such project here
        return False
