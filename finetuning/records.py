"""Finished results: one JSON file per model, task, learning rate and seed, never overwritten.

out_dir/results/<model>/<task>_lr<rate>_seed<seed>.json has the results of finetuning.loop.finetune,
`model`, `task`, `settings` (on which the result depends), `data` (sizes, majority) and the environment.
"""

from host.disk import read_json

import json
from pathlib import Path

from training.log import RunFolderError, write_whole


def place(out_dir: Path, model: str, task: str, learning_rate: float, seed: int) -> Path:
    return out_dir / "results" / model / f"{task}_lr{learning_rate!r}_seed{seed}.json"


def read(path: Path, settings: dict) -> dict | None:
    """Reads a finished result; None if there is none yet.

    Raises RunFolderError if it was made with other settings or is damaged.
    """
    if not path.exists():
        return None
    try:
        record = read_json(path, ValueError)
        before = record["settings"]
        differing = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} is no result of finetune.py ({error}); move it away") from None
    if differing:
        changes = "; ".join(f"{key} was {before.get(key)!r}, is {settings.get(key)!r}" for key in differing)
        raise RunFolderError(f"{path} was made with other settings ({changes}): choose another --out_dir")
    return record


def write(path: Path, record: dict):
    """Writes a record atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record, indent=1) + "\n")
