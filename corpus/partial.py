"""A data set folder while it is written: beside its place, locked, and renamed when it is whole."""

from host.disk import lock, no_link, why_not_written

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from corpus import DataError

PROGRESS = "progress.json"  # in a folder whose preparation can go on
WRITTEN = {"train.bin", "val.bin", "test.bin", "token_bytes.npy", "tokenizer.json", "meta.json"}
WRITTEN |= {f"{PROGRESS}.new"}


@contextlib.contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """Yields `<out>.partial`, and renames it to `out` at the end.

    If anything goes wrong, it is removed unless it holds progress.
    """
    partial = out.with_name(out.name + ".partial")
    with blaming(partial):
        if partial.is_symlink():
            raise OSError(errno.ELOOP, "")
        partial.mkdir(parents=True, exist_ok=True)
        try:
            # a second run must not delete what this one is writing
            claim = lock(partial.with_name(partial.name + ".lock"), keep=False)
        except BlockingIOError:
            raise DataError(f"another process is preparing {out} right now") from None
    with claim:
        if out.exists() and any(out.iterdir()):
            partial.rmdir()  # it was made just now
            raise DataError(f"another process has just finished {out}: run this again")
        if not (partial / PROGRESS).exists():
            if foreign := sorted({path.name for path in partial.iterdir()} - WRITTEN):
                raise DataError(
                    f"{partial} is written in, and holds {foreign[0]}, which is of something else: move it "
                    "away, or choose another --out"
                )
            with blaming(partial):
                for left_over in partial.iterdir():
                    left_over.unlink()
        try:
            yield partial
            with blaming(out):
                sync_folder(partial)
                partial.rename(out)
                sync_folder(out.parent)
                (out / PROGRESS).unlink(missing_ok=True)
        except BaseException:
            if (partial / PROGRESS).exists():
                print(f"{partial} is kept: the command that began it goes on from there", file=sys.stderr)
            else:
                shutil.rmtree(partial, ignore_errors=True)
            raise


def sync_folder(folder: Path) -> None:
    if os.name == "nt":  # which opens no folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path, mode: str = "wb"):
    """Opens a file for writing; at the end its content is on disk (fsync)."""
    with blaming(path), open(path, mode, opener=no_link) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def blaming(path: Path):
    """Turns an error of writing this file into a DataError that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {path}: {why_not_written(error)}") from None
