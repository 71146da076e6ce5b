"""Checkpoints: written beside, synced, renamed; read as data, never as code.

A checkpoint is a dict of tensors and plain values with everything that a model needs to be rebuilt
and a run needs to go on: format, step, config, model, optimizer, tokenizer, versions and the run's
own bookkeeping.
"""

import os
import pickle
import platform
import re
import shutil
import zipfile
from pathlib import Path

import torch

from disk import why_not_written
from history import weights_of_today
from training.log import RunFolderError, read_log

FORMAT = "cofrgenet checkpoint 2"
REQUIRED = {
    "step",
    "config",
    "model",
    "optimizer",
    "scaler",
    "samples",
    "tokenizer",
    "data",
    "best_val_loss",
    "seconds",
    "wandb_id",
}


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, foreign or of another model; says which and what to do."""


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


def save(folder: Path, step: int, content: dict, keep: int, best: bool) -> Path:
    """Write folder/step_00000100.pt (for step 100), keep the newest `keep`; `best` links it as best.pt too.

    At every moment the folder holds the previous checkpoint or the new one, whole. Raises OSError
    where the disk does not take it; the previous checkpoints are then untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:08d}.pt"
    temporary = path.with_suffix(".pt.tmp")
    try:
        _write(temporary, {"format": FORMAT, "versions": versions(), **content})
        if best:
            # first, so that no numbered checkpoint knows of a best loss whose weights are not kept
            copy(temporary, folder / "best.pt")
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        temporary.unlink(missing_ok=True)
        raise OSError(
            f"{path} could not be written ({why_not_written(error)}); earlier checkpoints are untouched"
        ) from error
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    for old in numbered(folder)[:-keep]:
        old.unlink()
    for left_over in folder.glob("*.tmp"):
        left_over.unlink()
    return path


def _write(path: Path, content: dict):
    with open(path, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def copy(source: Path, target: Path):
    """Put a whole file in the place of another; it takes no space where hard links are to be had."""
    beside = target.with_suffix(".pt.tmp")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:  # a file system without hard links
        with open(source, "rb") as read, open(beside, "wb") as write:
            shutil.copyfileobj(read, write)
            write.flush()
            os.fsync(write.fileno())
    os.replace(beside, target)


def numbered(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first."""
    return sorted(p for p in folder.glob("step_*.pt") if re.fullmatch(r"step_\d{8,}\.pt", p.name))


def find(run: Path, which: str = "last") -> Path:
    """The checkpoint that `run` means: a .pt file itself, or the last or best one of a run folder."""
    if run.is_file():
        return run
    folder = run / "ckpt"
    if not folder.is_dir():
        if (beside := run.parent).joinpath("config.json").is_file() and run.name == "ckpt":
            raise CheckpointError(
                f"{run} is a part of a run folder: give {beside}, or one of its .pt files"
            )
        reason = (
            "holds neither ckpt/ of a run nor a model's config.json" if run.is_dir() else "does not exist"
        )
        raise CheckpointError(
            f"{run} {reason}; give the out_dir of a train.py run, a .pt file, or a model's folder"
        )
    found = numbered(folder)
    if which == "best" and (folder / "best.pt").is_file():
        return folder / "best.pt"
    if not found:
        raise CheckpointError(
            f"{folder} holds no checkpoint yet; one is written every checkpoint_interval steps"
        )
    return found[-1]


def load(path: Path, mmap: bool = False) -> dict:
    """Read and check a checkpoint; its tensors are on the CPU.

    mmap: they are pages of the file, which the processes of a machine share, and which must stay there.
    Raises CheckpointError; never runs code from the file.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} is not plain tensors and values: it is damaged, or holds code, which is never run"
        ) from None
    except RuntimeError as error:
        # of other files PyTorch only says how it would have saved them
        reason = str(error).splitlines()[0] if zipfile.is_zipfile(path) else "no archive of torch.save"
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({reason})") from None
    except (EOFError, OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({reason})") from None
    found = content.get("format") if isinstance(content, dict) else None
    whole = isinstance(content, dict) and content.keys() >= REQUIRED and isinstance(content["model"], dict)
    if found != FORMAT or not whole:
        what = f"its format is {found!r}, not {FORMAT!r}" if found != FORMAT else "it lacks parts"
        raise CheckpointError(f"{path} was not written by this repository's train.py: {what}")
    content["model"] = weights_of_today(content["model"])
    return content


def check_origin(path: Path, content: dict):
    """Raises CheckpointError where the best.pt of a run folder is no checkpoint of that run.

    content: what `load` returned. The run's log has an evaluation at the step of best.pt, with exactly its
    loss. Only a log that does not begin at step 0 may lack that: an earlier log was moved away.
    """
    if (path.parent.name, path.name) != ("ckpt", "best.pt"):
        return
    run = path.parents[1]
    try:
        losses = {r["step"]: r["val_loss"] for r in read_log(run) if "val_loss" in r}
    except RunFolderError:
        return  # then nothing is known
    step, loss = content["step"], content["best_val_loss"]
    if losses.get(step, None if 0 in losses else loss) != loss:
        logged = f"{losses[step]:.6g}" if step in losses else "no evaluation"
        raise CheckpointError(
            f"{path} is not of this run: its validation loss is {loss:.6g} at step {step:,}, where "
            f"{run / 'log.jsonl'} has {logged}. Put back the run's own file, or move this one away: then "
            "the newest checkpoint of the run is used"
        )


def load_weights(model, content: dict, path: Path):
    """Put a checkpoint's weights into `model`; raises CheckpointError where the two do not match."""
    check_weights(model, content["model"], path)
    model.load_state_dict(content["model"])


def check_weights(model, stored: dict, path: Path):
    """Raises CheckpointError where stored weights are not of `model`, by name and shape."""
    own = model.state_dict()
    wrong = [f"it lacks {key}" for key in own if key not in stored]
    wrong += [f"it has {key}, the model has not" for key in stored if key not in own]
    wrong += [
        f"its {key} is {list(stored[key].shape)}, the model's {list(own[key].shape)}"
        for key in own
        if key in stored and stored[key].shape != own[key].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"{path} is of another model: {'; '.join(wrong[:3])}{more}")
