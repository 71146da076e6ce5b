"""What a run may change when it goes on, and what that means."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import config_keys
from corpus.loader import Dataset
from corpus.mixture import Mixture
from reports.plural import counted
from training import checkpoint, profiling, sharding
from training.checkpoint import CheckpointError
from training.log import RunFolderError, read_log

# of a group of parameters, what is the checkpoint's and not the configuration's
OF_STEP = ("params", "lr")


@dataclass
class Progress:
    """How far a run has come: what a checkpoint stores beside weights and optimizer."""

    step: int = 0  # finished updates
    samples: int = 0  # of the data's order, read so far
    tokens: int = 0  # of these samples, that the loss has scored
    best_val_loss: float = math.inf
    seconds: float = 0.0  # of training, evaluations and checkpoints left out
    tracker_id: str | None = None  # of the last run that a tracker has of it


def fingerprint(data: Dataset | Mixture) -> dict:
    """What tells one data set, or mixture of them, from another, wherever the folders lie."""
    if isinstance(data, Mixture):
        weights = [str(weight) for weight in data.shares.weights]
        return {"weights": weights, "sources": [fingerprint(source) for source in data.sources]}
    splits = data.meta["splits"]
    return {"tokenizer": data.meta["tokenizer"]["hash"], "splits": splits, "sample": data.sample_hash()}


def _difference(before: dict, now: dict, config_before: dict, config) -> str:
    """Why a run cannot go on with data of another fingerprint."""
    if "sources" in before and before["sources"] == now.get("sources"):
        weights = [", ".join(one["weights"]) for one in (before, now)]
        return (
            f"the weights of the data sets were {weights[0]}, now {weights[1]} (they decide which data set "
            "each sample is of)"
        )
    if "sources" in before or "sources" in now:
        return (
            f"the data were {config_before.get('dataset')!r}, now {config.dataset!r}: other data, or in "
            "another order (it decides which data set each sample is of)"
        )
    return f"{config.dataset} holds other data than the run was trained on"


def restore(
    folder: Path, config, data: dict, mmap: bool, check: bool, world: int
) -> tuple[Path, dict, dict[str, str]] | None:
    """(path, content, changes) of a run folder's last checkpoint, or None where there is none.

    data: `fingerprint` of the data set. mmap, check: see `checkpoint.load`. world: the number of ranks.
    changes: {key: what changed and what that means}. Raises CheckpointError that names every key, and why,
    where the run cannot go on like this, and RunFolderError where its log is damaged. Writes nothing.
    """
    # the best one alone: the first checkpoint was cut off between its two names
    found = checkpoint.saved(folder)
    if not found:
        return None
    records = read_log(folder)  # before anything is written: the log goes on behind the checkpoint's step
    path = found[-1]
    try:
        content = checkpoint.load(path, mmap, check)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {_instead_of(path)}") from None
    changes, wrong = _missing_records(folder, records, path, content), []
    checkpoint.check_origin(path, content)
    try:
        content["config"] = type(config).of_this_version(content["config"], content["commit"])
    except ValueError as error:
        raise CheckpointError(f"{path} cannot go on: {error}") from None
    for key in (field.name for field in dataclasses.fields(config) if field.name in config.keys_read()):
        value, before = getattr(config, key), content["config"][key]
        rule = config_keys.resume_rule(type(config), key)
        if rule == config_keys.FREE or before == value:
            continue
        change = f"{key} was {before!r}, now {value!r}"
        if isinstance(rule, config_keys.Changes):
            changes[key] = f"{change}: {rule.effect}"
        else:
            wrong.append(f"{change} ({rule.reason})")
    before = content["ranks"]
    if before != world:
        same = "samples, and other dropout" if config.dropout else "samples and losses, up to rounding"
        changes["ranks"] = f"ranks were {before}, now {world}: the same {same}"
    if "max_iters" in changes and config.max_iters < content["step"]:
        wrong.append(
            f"max_iters={config.max_iters}, but the run has done {counted(content['step'], 'step')}"
        )
    # no reason to refuse: a run that torchrun starts again has the same command line
    for line in profiling.mistakes(config, config.max_iters - content["step"]):
        changes["profile"] = line
    if content["data"] != data:
        wrong.append(_difference(content["data"], data, content["config"], config))
    if wrong:
        raise CheckpointError(
            f"{path} cannot go on with this configuration: {'; '.join(wrong)}. Leave these as they "
            "were, or start a new run with another --out_dir"
        )
    return path, content, changes


def _missing_records(folder: Path, records: list[dict], path: Path, content: dict) -> dict[str, str]:
    """What a log lacks that was moved away, for `changes`; raises RunFolderError where it was cut short."""
    step, before = content["step"], content["records"]
    kept = [record for record in records if record["step"] <= step]
    if len(kept) >= before:
        return {}
    log = folder / "log.jsonl"
    if any(record["step"] < step for record in kept):
        raise RunFolderError(
            f"{log} has {counted(len(kept), 'record')} up to step {step:,}, and had {before:,} when "
            f"{path.name} was written: lines were lost. Put back the whole file, or move this one away: "
            f"then the log begins at step {step:,}"
        )
    return {"log.jsonl": f"{log.name} has no records before step {step:,}: it begins there"}


def _instead_of(path: Path) -> str:
    """How a run goes on without its last checkpoint, which is damaged."""
    found = checkpoint.saved(path.parents[1])
    twins = [other for other in found if other != path and checkpoint.same(other, path)]
    rest = [other for other in found if other != path and other not in twins]
    files = "file" if path.suffix else "files"
    away = f"it and {twins[0].name}, the same {files}," if twins else "it"
    before = f"goes on from {rest[-1].name}" if rest else "starts from scratch"
    return f"move {away} away, and the run {before}"


def later_bests(path: Path, progress: Progress) -> list[str]:
    """What becomes of best checkpoints of later steps than the one at `path`, with which a run goes on; a
    line for each. progress: what that checkpoint holds.

    They stay until a better loss than `progress` knows replaces them: those steps are no longer in the log.
    """
    found, loss = [], progress.best_val_loss
    until = "next evaluation" if math.isinf(loss) else f"next evaluation below {loss:.4f}"
    for best in checkpoint.bests(path.parent):
        if checkpoint.same(best, path):
            continue
        try:
            content = checkpoint.load(best, mmap=True, check=False)
        except CheckpointError:  # damaged: it is no model to keep
            continue
        step, lower = content["step"], content["best_val_loss"]
        if step > progress.step:
            found.append(
                f"{best} is of step {step:,} (validation loss {lower:.4f}), and the steps after "
                f"{progress.step:,} are made again: the {until} replaces it. Copy it to keep it"
            )
    return found


def load_state(path: Path, content: dict, model, optimizer, scaler) -> Progress:
    """Put a checkpoint's state into model, optimizer and scaler, and empty `content`.

    Raises CheckpointError where it does not fit.
    """
    if path.is_dir():
        from training import sharded_checkpoint  # brings a part of PyTorch that few need

        try:
            sharded_checkpoint.read_state(path, content, model, optimizer)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {_instead_of(path)}") from None
    else:
        _load_whole(path, content, model, optimizer)
    if scaler.is_enabled() and content["scaler"]:
        scaler.load_state_dict(content["scaler"])
    progress = Progress(**{field.name: content[field.name] for field in dataclasses.fields(Progress)})
    content.clear()  # the caller still holds it: gigabytes
    return progress


def _load_whole(path: Path, content: dict, model, optimizer):
    checkpoint.load_weights(model, content, path)
    own = [{k: v for k, v in group.items() if k not in OF_STEP} for group in optimizer.param_groups]
    try:
        sharding.load_optimizer(optimizer, content["optimizer"])
    except ValueError as error:
        raise CheckpointError(f"the optimizer's state in {path} is of another model: {error}") from None
    # these are the configuration's, which may have changed
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)
