"""How far a preparation has come, in progress.json of its folder, from which a stopped one goes on."""

from host.disk import read_json

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from corpus import DataError
from corpus.encoding import Batch
from corpus.partial import PROGRESS, blaming, sync_folder, writing
from corpus.splits import Choice


@dataclass
class Progress:
    """What is on disk: the counts, and the state of the documents after the last one on disk."""

    splits: dict[str, dict]
    read: int = 0
    left_out: int = 0
    empty: int = 0
    state: dict | None = None

    def add(self, batch: Batch, ends: int) -> None:
        """ends: the end-of-text tokens of a document; each side of a pair counts as a document."""
        self.read += batch.read
        self.left_out += len(batch.left_out)
        self.empty += len(batch.empty)
        self.state = batch.state
        for split, part in batch.splits.items():
            count = self.splits[split]
            count["documents"] += ends * len(part.places)
            count["tokens"] += len(part.tokens)
            count["bytes"] += int(part.byte_counts.sum())


def read_progress(folder: Path, identity: dict, item: int, choice: Choice) -> Progress:
    """The progress of a stopped run with the same identity.

    The .bin files, with `item` bytes per token, are cut to it. If there is no progress, the folder is
    emptied. The progress of another preparation may be worth hours, so only its owner may delete it.
    """
    nothing = Progress({split: {"documents": 0, "tokens": 0, "bytes": 0} for split in choice.splits})
    if not (folder / PROGRESS).exists():
        return nothing
    try:
        saved = read_json(folder / PROGRESS, ValueError)
        progress = Progress(**saved.pop("progress"))
        if saved != identity:
            raise DataError(
                f"{folder} holds what another command has prepared so far: run that command again, "
                "delete the folder, or choose another --out"
            )
        for split in choice.splits:
            size = progress.splits[split]["tokens"] * item
            path = folder / f"{split}.bin"
            if path.stat().st_size < size:
                raise ValueError(f"{path.name} is shorter than it says")
            os.truncate(path, size)
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{folder / PROGRESS} is of no use ({error}): starting over", file=sys.stderr)
        with blaming(folder):
            for left_over in folder.iterdir():
                left_over.unlink()
        return nothing
    print(f"going on behind the first {progress.read:,} documents: {folder}", file=sys.stderr)
    return progress


def save_progress(folder: Path, files: dict, identity: dict, progress: Progress) -> None:
    for file in files.values():
        with blaming(Path(file.name)):
            file.flush()
            os.fsync(file.fileno())
    beside = folder / f"{PROGRESS}.new"
    with writing(beside) as file:
        file.write(json.dumps({**identity, "progress": asdict(progress)}).encode())
    with blaming(folder / PROGRESS):
        beside.rename(folder / PROGRESS)
        sync_folder(folder)
