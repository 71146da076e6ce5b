"""What a broken run must have kept, and whether it ended like an uninterrupted one, to the bit."""

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.faults import runs
from training import checkpoint
from training.checkpoint import CheckpointError
from training.log import RunFolderError, read_log

# what may differ between two equal runs
TIMES = {"seconds", "tokens_per_second", "mfu", "peak_memory", "peak_memory_reserved", "resumed"}


def without_times(records: list[dict]) -> list[dict]:
    """The records without what may differ between equal runs.

    An evaluation that was due when a signal stopped the run is made later, when its step has no gradients.
    """
    found = [{key: value for key, value in r.items() if key not in TIMES} for r in records]
    for record in found:
        if "ladders" in record:
            layers = record["ladders"].items()
            record["ladders"] = {name: {**values, "grad_norm": None} for name, values in layers}
    return [r for r in found if r.keys() > {"step", "tokens"}]


def first_difference(found: list[dict], wanted: list[dict]) -> str:
    """Where two logs differ; an empty text if they have the same numbers, to the bit."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=False), 1):
        if a != b:
            keys = [key for key in a.keys() | b.keys() if a.get(key) != b.get(key)]
            return f"record {number} (step {b['step']}): {', '.join(sorted(keys))}"
    return "" if len(found) == len(wanted) else f"{len(found)} records in place of {len(wanted)}"


def digest(value) -> str:
    """Of tensors and plain values in any nest of dicts and lists."""
    found = hashlib.sha256()

    def add(one):
        if isinstance(one, torch.Tensor):
            found.update(f"{one.dtype}{list(one.shape)}".encode())
            found.update(one.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(one, dict):
            for key in sorted(one, key=repr):
                found.update(repr(key).encode())
                add(one[key])
        elif isinstance(one, list | tuple):
            for part in one:
                add(part)
        else:
            found.update(repr(one).encode())

    add(value)
    return found.hexdigest()[:16]


def whole(path: Path) -> dict:
    """Everything in a checkpoint, with its checksums compared; of a sharded one without the optimizer.

    Raises CheckpointError.
    """
    content = checkpoint.load(path)
    if path.is_dir():
        from training import sharded_checkpoint

        content["model"] = sharded_checkpoint.read_weights(path, content)
    return content


def state_of(path: Path) -> str:
    """A digest of everything in a checkpoint that a run's future depends on."""
    content = whole(path)
    keys = ("step", "samples", "best_val_loss", "model", "optimizer", "scaler")
    return digest({key: content.get(key) for key in keys})


@dataclass
class Reference:
    """An uninterrupted run: its numbers, and how long and how often it did what."""

    records: list[dict]
    last: str
    best: str
    slots: np.ndarray
    seconds: float  # from the start of its first rank, imports left out

    @classmethod
    def of(cls, kind: str, ranks: int, arguments: list[str], folder: Path, scratch: Path) -> "Reference":
        started = runs.start(kind, ranks, arguments, scratch)
        while not started.slots["pid"].any() and not started.ended():
            time.sleep(0.001)
        begun = time.monotonic()
        if not started.finish() or started.status:
            raise RuntimeError(f"the uninterrupted run failed:\n{started.said()}")
        seconds = time.monotonic() - begun
        records = without_times(read_log(folder))
        last, best = (state_of(checkpoint.find(folder, which)) for which in ("last", "best"))
        return cls(records, last, best, np.array(started.slots), seconds)


class Ledger:
    """What a run folder must hold after a kill, in view of all that came before."""

    def __init__(self, folder: Path, reference: Reference, keep: int = runs.KEYS["keep_checkpoints"]):
        self.folder, self.reference, self.keep = folder, reference, keep
        self.saved = self.count = 0
        self.best = False

    def newest(self) -> int:
        found = checkpoint.numbered(self.folder / "ckpt")
        return int(re.search(r"\d+", found[-1].name)[0]) if found else 0

    def lost(self, slots: np.ndarray) -> list[str]:
        """What is gone or damaged now; "" is never in it."""
        wrong, folder = [], self.folder / "ckpt"
        found, saved = checkpoint.numbered(folder), checkpoint.saved(self.folder)
        for path in saved:
            try:
                whole(path)
            except CheckpointError as error:
                wrong.append(f"{path.name} does not load: {error}")
        self.saved = max(self.saved, int(slots[0]["saved"]))
        if self.newest() < self.saved:
            wrong.append(f"the checkpoint of step {self.saved} was saved and is gone")
        if len(found) < self.count:
            wrong.append(f"{len(found)} checkpoints, there were {self.count}")
        self.count = min(self.keep, max(self.count, len(found)))
        if self.best and len(saved) == len(found):
            wrong.append("the best checkpoint is gone")
        self.best = self.best or len(saved) > len(found)
        return wrong + self._lost_of_the_log(slots)

    def _lost_of_the_log(self, slots: np.ndarray) -> list[str]:
        path, newest = self.folder / "log.jsonl", self.newest()
        size = path.stat().st_size if path.exists() else 0
        if size < slots[0]["synced"]:
            return [f"log.jsonl has {size} bytes, {slots[0]['synced']} were synced"]
        try:
            records = without_times(read_log(self.folder))
        except RunFolderError as error:
            return [str(error)]
        # an evaluation at the step of the checkpoint may be still to come
        wanted = [r for r in self.reference.records if r["step"] < newest]
        wrong = first_difference(records[: len(wanted)], wanted)
        return [f"log.jsonl before step {newest}: {wrong}"] if wrong else []

    def at_the_end(self) -> list[str]:
        """How the finished run differs from the uninterrupted one."""
        wrong = []
        if difference := first_difference(without_times(read_log(self.folder)), self.reference.records):
            wrong.append(f"log.jsonl: {difference}")
        for which in ("last", "best"):
            if state_of(checkpoint.find(self.folder, which)) != getattr(self.reference, which):
                wrong.append(f"the {which} checkpoint is another one")
        left = [path.name for path in self.folder.rglob("*.tmp*")]
        return wrong + ([f"left over: {', '.join(left)}"] if left else [])
