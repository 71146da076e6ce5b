"""Checkpoints: written beside, synced, renamed; read as data, never as code, and compared with checksums.

A checkpoint is a dict of tensors and plain values with everything that a model needs to be rebuilt
and a run needs to go on: format, step, config, model, optimizer, tokenizer, versions and the run's
own bookkeeping. There are two kinds:

    step_00000100.pt   whole: one file, and best.pt
    step_00000100/     sharded: a folder, see sharded_checkpoint.py, and best_00000100/
"""

from host.disk import absence, new_file, why_not_written

import math
import os
import pickle
import platform
import re
import shutil
import zipfile
from pathlib import Path

import torch

from models.architecture import ModelConfig
from reports.plural import counted
from training import archive, sharding
from training.log import RunFolderError, read_log

FORMAT = "cofrgenet checkpoint 2"
SHARDED_FORMAT = "cofrgenet sharded checkpoint 1"
REST = "run.pt"  # of a sharded checkpoint: everything but weights and the optimizer's state
REQUIRED = {
    "step",
    "config",
    "commit",
    "model",
    "optimizer",
    "scaler",
    "samples",
    "tokens",
    "ranks",
    "records",
    "tokenizer",
    "data",
    "best_val_loss",
    "seconds",
    "tracker_id",
}
TENSORS = ("model", "optimizer")


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
        write_archive(temporary, {"format": FORMAT, "versions": versions(), **content})
        if best:
            # first, so that no numbered checkpoint knows of a best loss whose weights are not kept
            copy(temporary, folder / "best.pt")
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        temporary.unlink(missing_ok=True)
        raise OSError(
            f"{path} could not be written ({why_not_written(error)}); earlier checkpoints are untouched"
        ) from error
    sync(folder)
    prune(folder, path, keep, folder / "best.pt" if best else None)
    return path


def sync(folder: Path):
    """The names in a folder, on disk."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def prune(folder: Path, newest: Path, keep: int, best: Path | None):
    """Remove what the checkpoint `newest` takes the place of, and what is left of unfinished ones.

    best: the new best checkpoint, if it is one.
    """
    same_step = [path for path in numbered(folder) if step_of(path) == step_of(newest) and path != newest]
    for path in same_step:
        _remove(path)
    for path in numbered(folder)[:-keep]:
        _remove(path)
    for path in bests(folder) if best else ():
        if path != best:
            _remove(path)
    remove_left_overs(folder)


def remove_left_overs(folder: Path):
    for path in folder.glob("*.tmp"):
        _remove(path)


def _remove(path: Path):
    """A folder that is removed halfway must not look like a checkpoint. One that another process reads may
    stay a while on a network's disk.
    """
    if not path.is_dir():
        path.unlink()
        return
    if path.suffix != ".tmp":
        path = path.rename(path.with_name(f"{path.name}.tmp"))
    shutil.rmtree(path, ignore_errors=True)


def write_archive(path: Path, content: dict):
    """A new file: a killed run may have left this name for best.pt, which writing into it would damage."""
    with new_file(path) as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def copy(source: Path, target: Path):
    """Put a whole file in the place of another; it takes no space where hard links are to be had."""
    beside = target.with_suffix(".pt.tmp")
    beside.unlink(missing_ok=True)
    link(source, beside)
    os.replace(beside, target)


def link(source: Path, target: Path):
    """Another name for a file; it takes no space where hard links are to be had."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        with open(source, "rb") as read, new_file(target) as write:
            shutil.copyfileobj(read, write)
            write.flush()
            os.fsync(write.fileno())


def numbered(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first."""
    return _named(folder, "step")


def step_of(path: Path) -> int:
    """The step of a numbered checkpoint."""
    return int(path.stem.split("_")[1])


def bests(folder: Path) -> list[Path]:
    """The best checkpoint, last; before it those that a killed run did not come to remove."""
    found = _named(folder, "best")
    if not (file := folder / "best.pt").is_file():
        return found
    if found:
        try:
            newer = load(file, mmap=True, check=False)["step"] > step_of(found[-1])
        except CheckpointError:
            newer = False
        return [*found, file] if newer else [file, *found]
    return [file]


def _named(folder: Path, what: str) -> list[Path]:
    """Files step_00000100.pt and folders step_00000100, or step_00000100_2 if that step was saved again."""
    found = []
    for path in folder.glob(f"{what}_*"):
        name = re.fullmatch(rf"{what}_(\d{{8,}})(\.pt|(?:_(\d+))?)", path.name)
        if name and (name[2] == ".pt" or path.is_dir()):
            found.append((int(name[1]), name[2] != ".pt", int(name[3] or 1), path))
    return [path for *_, path in sorted(found)]


def saved(run: Path) -> list[Path]:
    """The checkpoints of a run folder. The last one is the newest."""
    return [*bests(run / "ckpt"), *numbered(run / "ckpt")]


def is_sharded(path: Path) -> bool:
    return path.suffix != ".tmp" and (path / REST).is_file()


def is_checkpoint(path: Path) -> bool:
    return path.suffix == ".pt" or is_sharded(path)


def same(one: Path, other: Path) -> bool:
    """Whether two checkpoints are two names of the same files."""
    files = [path / REST if path.is_dir() else path for path in (one, other)]
    try:
        return files[0].samefile(files[1])
    except OSError:  # a folder that lacks the file
        return one == other


def find(run: Path, which: str = "last") -> Path:
    """The checkpoint that `run` means: a checkpoint itself, or the last or best one of a run folder."""
    if run.is_file() or is_sharded(run):
        return run
    if run.suffix == ".tmp" and run.is_dir():
        raise CheckpointError(
            f"{run} is what is left of a checkpoint that was not written to its end; give the run folder, "
            "or another checkpoint"
        )
    folder = run / "ckpt"
    if not folder.is_dir():
        if (beside := run.parent).joinpath("config.json").is_file() and run.name == "ckpt":
            raise CheckpointError(
                f"{run} is a part of a run folder: give {beside}, or one of its checkpoints"
            )
        reason = "holds neither ckpt/ of a run nor a model's config.json" if run.is_dir() else absence(run)
        raise CheckpointError(
            f"{run} {reason}; give the out_dir of a train.py run, a checkpoint, or a model's folder"
        )
    if which == "best" and (best := bests(folder)):
        return best[-1]
    found = numbered(folder)
    if not found:
        raise CheckpointError(
            f"{folder} holds no checkpoint yet; one is written every checkpoint_interval steps"
        )
    return found[-1]


def load(path: Path, mmap: bool = False, check: bool = True) -> dict:
    """Read and check a checkpoint; its tensors are on the CPU. Of a sharded one, everything but tensors.

    mmap: they are pages of the file, which the processes of a machine share, and which must stay there.
    check: compare the checksums of the tensors too; without it, do so with `check_tensors` before use.
    Raises CheckpointError; never runs code from the file.
    """
    sharded = path.is_dir()
    if path.suffix == ".distcp" or path.name == ".metadata":
        raise CheckpointError(f"{path} is a part of a sharded checkpoint: give its folder, {path.parent}")
    content, checksums = _read(path / REST if sharded else path, mmap)
    form, required = (SHARDED_FORMAT, REQUIRED - {*TENSORS}) if sharded else (FORMAT, REQUIRED)
    found = content.get("format") if isinstance(content, dict) else None
    whole = isinstance(content, dict) and content.keys() >= required
    whole = whole and (sharded or isinstance(content["model"], dict))
    if found == SHARDED_FORMAT and not sharded:
        raise CheckpointError(f"{path} is a part of a sharded checkpoint: give its folder, {path.parent}")
    if found != form or not whole:
        what = f"its format is {found!r}, not {form!r}" if found != form else "it lacks parts"
        raise CheckpointError(f"{path} was not written by this repository's train.py: {what}")
    if not sharded:
        content["checksums"] = checksums
        if check:
            check_tensors(path, content, *TENSORS, *({"start"} & content.keys()))
    return content


def _read(path: Path, mmap: bool) -> tuple[object, dict | None]:
    """(what torch.save wrote, `archive.checksums`; None where the file is not an archive)"""
    try:
        checksums = archive.checksums(path) if zipfile.is_zipfile(path) else None
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap), checksums
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


def check_tensors(path: Path, content: dict, *parts: str):
    """Raises CheckpointError where a tensor in these parts of a whole checkpoint is damaged."""
    if content["checksums"] is None:
        return
    try:
        archive.check_tensors({part: content[part] for part in parts}, content["checksums"])
    except archive.DamagedError as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: {reason}. It was changed after it was written, by a failing disk or an "
        "unfinished copy: take another checkpoint, or copy this one again"
    )


def check_origin(path: Path, content: dict):
    """Raises CheckpointError where a checkpoint in a run folder is not of that run.

    content: what `load` returned. Every checkpoint holds the lowest validation loss so far, which the run's
    log has too, and the best one that of its own step. Only a log that does not begin at step 0 may lack
    it: an earlier log was moved away.
    """
    if path.parent.name != "ckpt":
        return
    run = path.parents[1]
    try:
        losses = {r["step"]: r["val_loss"] for r in read_log(run) if "val_loss" in r}
    except RunFolderError:
        return  # then nothing is known
    step, loss = content["step"], content["best_val_loss"]
    if not path.name.startswith("best"):
        lowest = {_lowest(losses, step), _lowest(losses, step - 1)}  # with and without a later evaluation
        if 0 in losses and loss not in lowest:
            raise CheckpointError(
                f"{path} is not of this run: the lowest validation loss up to step {step:,} is {loss:.6g}, "
                f"and {_lowest(losses, step):.6g} in {run / 'log.jsonl'}. Put back the run's own file, or "
                "move away the one of the two that is not"
            )
        return
    if 0 in losses and step > max(losses):
        raise CheckpointError(
            f"{path} is of step {step:,}, and {run / 'log.jsonl'} ends at step {max(losses):,}: the run "
            "was killed while it saved and has not come there again, or the file is another run's. Resume "
            "the run, or take its newest checkpoint (--which=last)"
        )
    if losses.get(step, None if 0 in losses else loss) != loss:
        logged = f"{losses[step]:.6g}" if step in losses else "no evaluation"
        raise CheckpointError(
            f"{path} is not of this run: its validation loss is {loss:.6g} at step {step:,}, where "
            f"{run / 'log.jsonl'} has {logged}. Put back the run's own, or move this one away: then "
            "the newest checkpoint of the run is used"
        )


def _lowest(losses: dict[int, float], step: int) -> float:
    """Of the evaluations after step 0, up to `step`; those that are not a number do not count."""
    found = [loss for at, loss in losses.items() if 0 < at <= step and loss == loss]
    return min(found, default=math.inf)


def load_weights(model, content: dict, path: Path):
    """Put a checkpoint's weights into `model`; of a sharded one each rank reads its part of each tensor.

    Raises CheckpointError where the two do not match.
    """
    check_weights(model, content["model"], path)
    sharding.load(model, content["model"])


def check_layers(config: ModelConfig, stored: dict, path: Path):
    """Raises CheckpointError where stored weights are fewer than the layers. So a damaged number is seen
    before so many layers are built.
    """
    layers = config.n_layer + config.encoder_layers if config.model == "gpt" else 0
    if layers > len(stored):
        raise CheckpointError(
            f"{path} holds {counted(len(stored), 'tensor')}, and its configuration says {layers:,} layers: "
            "it is damaged, or the configuration is another model's"
        )


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
