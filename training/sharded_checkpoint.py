"""Sharded checkpoints: folders that all ranks write at once, in the background, while training goes on.

    ckpt/step_00000100/__0_0.distcp   the pieces of tensors that rank 0 wrote, and so on
                       .metadata      which piece of which tensor lies where, as PyTorch's tools read it
                       run.pt         everything else

The pieces are those of torch.distributed.checkpoint, which reads them for any number of ranks.
"""

from host.disk import errnos, open_to_read, why_not_written

import dataclasses
import datetime
import io
import itertools
import pickle
import shutil
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from training import archive, checkpoint
from training.checkpoint import REST, SHARDED_FORMAT, CheckpointError
from training.distributed import Ranks

METADATA = ".metadata"
MODEL, OPTIMIZER = "model.", "optimizer."  # in front of names of tensors
# the longest that ranks wait for the slowest one's disk; a rank that died is noticed by training at once
SECONDS = 3600.0
# what PyTorch's metadata are made of; anything else in them would be code
OF_METADATA = {
    *(("torch.distributed.checkpoint.metadata", name) for name in (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
        "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}  # fmt: skip

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process reads or writes


class Saver:
    """Writes the checkpoints of a run, one at a time; `keep` of them stay, and the best one.

    Every method is called on all ranks.
    """

    def __init__(self, folder: Path, ranks: Ranks, keep: int):
        self.folder, self.ranks, self.keep = folder, ranks, keep
        self.path: Path | None = None
        self.writing: Future | None = None
        self.group = None
        if ranks.world > 1:
            # of its own, because collectives of two threads in one group could be taken for each other
            self.group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=SECONDS))

    def save(self, content: dict, model, optimizer, best: bool):
        """Copy the state to the CPU's memory, and begin to write it. content: everything but tensors.

        The folder has its name when it is whole. Waits for the checkpoint before. Raises OSError where that
        one, or this one's folder, could not be written: earlier checkpoints are then untouched.
        """
        self.finish()
        step = content["step"]
        name = self.ranks.gather(self.ranks.on_first(lambda: self._begin(step), (OSError,)))[0]
        path = self.path = self.folder / name

        def commit():
            self._commit(path, content, best)

        stager = DefaultStager(StagingOptions(False, False, False, False))
        self.writing = dcp.async_save(
            _state(model, optimizer),
            storage_writer=_Writer(_beside(path), commit),
            async_stager=stager,
            process_group=self.group,
            no_dist=self.group is None,
        )
        self.writing.add_done_callback(lambda _: stager.close())  # frees the copy

    def failed(self) -> bool:
        """Whether this rank knows that what is being written will not be whole; `finish` says why."""
        return self.writing is not None and self.writing.done() and self.writing.exception() is not None

    def finish(self):
        """Wait until the last checkpoint is whole. Raises OSError where it could not be written."""
        if self.writing is not None:
            writing, self.writing = self.writing, None
            self.ranks.agree(lambda: self._wait(writing), (OSError,))

    def _wait(self, writing: Future):
        try:
            with self.ranks.waiting("the checkpoint of the other ranks"):
                writing.result()
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            if self.ranks.first:
                shutil.rmtree(_beside(self.path), ignore_errors=True)
            where = f"rank {rank}: " if self.group is not None else ""
            raise OSError(
                f"{self.path} could not be written ({where}{why_not_written(cause)}); earlier checkpoints "
                "are untouched"
            ) from cause

    def _begin(self, step: int) -> str:
        """An empty folder to write in -> the name that it will have."""
        path = _free(self.folder / f"step_{step:08d}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.remove_left_overs(self.folder)
            _beside(path).mkdir()
        except OSError as error:
            raise OSError(
                f"{path} could not be written ({why_not_written(error)}); earlier checkpoints are untouched"
            ) from error
        return path.name

    def _commit(self, path: Path, content: dict, best: bool):
        """All ranks have written their pieces: make them a checkpoint. On the first rank, in its thread."""
        beside, newest_best = _beside(path), None
        rest = {"format": SHARDED_FORMAT, "versions": checkpoint.versions(), **content}
        rest["metadata"] = zlib.crc32((beside / METADATA).read_bytes())
        checkpoint.write_archive(beside / REST, rest)
        checkpoint.sync(beside)
        if best:
            # first, so that no numbered checkpoint knows of a best loss whose weights are not kept
            newest_best = _free(self.folder / f"best_{content['step']:08d}")
            copy = _beside(newest_best)
            copy.mkdir()
            for file in beside.iterdir():
                checkpoint.link(file, copy / file.name)
            checkpoint.sync(copy)
            copy.rename(newest_best)
        beside.rename(path)
        checkpoint.sync(self.folder)
        checkpoint.prune(self.folder, path, self.keep, newest_best)


def _free(path: Path) -> Path:
    """The path, with _2, _3 and so on at its end where that is taken."""
    paths = (path.with_name(f"{path.name}_{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], paths) if not one.exists())


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _state(model, optimizer) -> dict:
    """Weights and the optimizer's state under the names of the parameters, whatever their order."""
    slots = {name: optimizer.state.get(parameter) for name, parameter in model.named_parameters()}
    state = {
        "model": dict(model.state_dict()),
        "optimizer": {name: slot for name, slot in slots.items() if slot},
    }
    return {part: tensors for part, tensors in state.items() if tensors}


class _Writer(dcp.FileSystemWriter):
    """Writes this rank's pieces; when those of all ranks are on disk, the first rank calls `commit`."""

    def __init__(self, path: Path, commit: Callable[[], None]):
        super().__init__(path)
        self.commit = commit

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # without the path, which says nothing elsewhere

    def write_data(self, plan, planner):
        try:
            written = super().write_data(plan, planner)
            for result in written.value():
                place = result.storage_data
                with open(self.path / place.relative_path, "rb") as file:
                    place.identity = archive.identity(archive.Part(file, place.offset, place.length))
        except (OSError, RuntimeError) as error:
            # which reaches the other ranks in one piece, unlike the errors behind it
            raise OSError(*errnos(error)[:1], why_not_written(error)) from None
        return written

    def finish(self, metadata, results):
        super().finish(metadata, results)
        self.commit()


class _Reader(dcp.FileSystemReader):
    """Reads pieces and compares their checksums. Every rank reads what it needs, without the others."""

    def __init__(self, path: Path, metadata: Metadata):
        super().__init__(path)
        self.metadata = metadata

    def read_metadata(self, *arguments, **keys) -> Metadata:
        return self.metadata

    def read_data(self, plan, planner):
        for item in plan.items:
            self._check(item.storage_index)
            super().read_data(dataclasses.replace(plan, items=[item]), planner)
        return super().read_data(dataclasses.replace(plan, items=[]), planner)

    def _check(self, piece: MetadataIndex):
        place = self.metadata.storage_data[piece]
        path = self.path / place.relative_path
        try:
            with open_to_read(path) as file:
                found = archive.check(archive.Part(file, place.offset, place.length))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist: {self.path} was not copied as a whole") from None
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}); mend that, or take another checkpoint"
            ) from None
        except archive.DamagedError as error:
            raise checkpoint.damaged(path, f"{piece.fqn}: {error}") from None
        if found != place.identity:
            raise checkpoint.damaged(path, f"{piece.fqn} is not what was written here")


class _Unpickler(pickle.Unpickler):
    """Of PyTorch's metadata, and nothing else: no code runs."""

    def find_class(self, module: str, name: str):
        known = (module, name) in OF_METADATA
        if not known and not (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _metadata(path: Path, content: dict) -> Metadata:
    file = path / METADATA
    try:
        with open_to_read(file) as opened:
            data = opened.read()
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read ({error.strerror}); take another checkpoint"
        ) from None
    if zlib.crc32(data) != content["metadata"]:
        raise checkpoint.damaged(file, f"its checksum is not the one in {REST}")
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{file} holds code ({error}), which is never run") from None


def _read(path: Path, metadata: Metadata, tensors: dict[str, torch.Tensor]):
    """Fill tensors, which may be sharded, with what is stored under their names."""
    try:
        dcp.load(tensors, storage_reader=_Reader(path, metadata), no_dist=True)
    except CheckpointException as error:
        _, (cause, _) = min(error.failures.items())
        raise cause from None


def read_weights(path: Path, content: dict) -> dict[str, torch.Tensor]:
    """The model's weights, whole, on the CPU; content: what `checkpoint.load` returned."""
    metadata = _metadata(path, content)
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if name.startswith(MODEL)
    }
    _read(path, metadata, tensors)
    return {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}


def read_state(path: Path, content: dict, model, optimizer):
    """Put weights and the optimizer's state where the model has its own, sharded or not.

    content: what `checkpoint.load` returned. Raises CheckpointError where they do not fit.
    """
    metadata = _metadata(path, content)
    stored = metadata.state_dict_metadata
    shapes = {
        name.removeprefix(MODEL): torch.empty(entry.size, device="meta")
        for name, entry in stored.items()
        if name.startswith(MODEL)
    }
    checkpoint.check_weights(model, shapes, path)
    tensors = {f"{MODEL}{name}": tensor for name, tensor in model.state_dict().items()}
    parameters, slots = dict(model.named_parameters()), {}
    for name, entry in stored.items():
        if name.startswith(OPTIMIZER):
            owner, _, slot = name.removeprefix(OPTIMIZER).rpartition(".")
            if owner not in parameters:
                raise CheckpointError(
                    f"the optimizer's state in {path} is of another model: it has {owner}"
                )
            tensors[name] = slots.setdefault(owner, {})[slot] = _like(parameters[owner], entry)
    _read(path, metadata, tensors)
    optimizer.state.clear()
    for owner, slot in slots.items():
        optimizer.state[parameters[owner]] = slot


def _like(parameter: torch.Tensor, entry: TensorStorageMetadata) -> torch.Tensor:
    """An empty tensor for a part of the parameter's state: sharded as it is, or one number."""
    if entry.size == parameter.shape:
        return torch.empty_like(parameter.detach(), dtype=entry.properties.dtype)
    return torch.empty(entry.size, dtype=entry.properties.dtype, device=parameter.device)
