"""Files opened as data, JSON read, small files and texts written whole, locks, and why the disk did not
take one. Every script and package may import this. What writes here follows no symbolic link.
"""

import contextlib
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import IO, BinaryIO

from filelock import FileLock, Timeout

LFS = b"version https://git-lfs.github.com/spec/v1\n"  # the first line of a pointer


def open_to_read(path: Path) -> BinaryIO:
    """Open a file that is read as data. Raises OSError as `open` and `refuse_unreadable` do."""
    refuse_unreadable(path)
    return Path(path).open("rb")


def refuse_unreadable(path: Path):
    """Raises OSError for a named pipe, whose writer would be waited for without end, and for what git
    leaves in the place of a large file. Pipes of a shell, as `<(zcat file)` makes them, have a writer: they
    lie in /dev.
    """
    about = os.stat(path)
    if stat.S_ISFIFO(about.st_mode) and not str(path).startswith("/dev/"):
        raise OSError(errno.EINVAL, "it is a named pipe: give a file", str(path))
    if stat.S_ISREG(about.st_mode) and about.st_size < 1024:
        with open(path, "rb") as file:
            if file.read(len(LFS)) == LFS:
                reason = "it is a Git LFS pointer, not the file: run git lfs pull in its repository"
                raise OSError(errno.EINVAL, reason, str(path))


def absence(path: Path) -> str:
    """Why there is nothing at `path`, for a message: it does not exist, or is a link to nothing."""
    if not os.path.islink(path):
        return "does not exist"
    return f"is a symbolic link to {os.readlink(path)}, where nothing is: mend or remove the link"


def parse_json(text: str | bytes):
    """The value that JSON text holds. Raises ValueError where it is not JSON, however deep it is nested."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, error: type[Exception], advice: str = "") -> dict:
    """The object in a JSON file. Raises `error`, with `advice` at the end of its message, where the file
    cannot be read or holds anything else.
    """
    try:
        with open_to_read(path) as file:
            content = parse_json(file.read())
    except (OSError, ValueError) as reason:
        told = getattr(reason, "strerror", None) or reason
        raise error(f"{path} cannot be read as JSON ({told}){advice}") from None
    if not isinstance(content, dict):
        raise error(f"{path} holds a JSON {type(content).__name__}, not an object{advice}")
    return content


def why_not_written(error: Exception) -> str:
    """Why a file could not be written, for a message."""
    numbers = errnos(error)
    if errno.ENOSPC in numbers:
        return "the disk is full: free some space on it"
    if errno.EDQUOT in numbers:
        return "the quota of disk space is used up: delete files of yours, or have it raised"
    if errno.ELOOP in numbers:
        return "it is a symbolic link, which is not followed: move it away"
    of_the_system = [one.strerror for one in _behind(error) if isinstance(one, OSError) and one.strerror]
    return of_the_system[0] if of_the_system else str(error)


def lacks_space(error: Exception) -> bool:
    """Whether a disk, a quota or a limit on the size of files did not take what was to be written."""
    return not {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}.isdisjoint(errnos(error))


def errnos(error: Exception) -> list[int]:
    """The numbers of the system's errors.

    PyTorch and safetensors raise errors of their own for a full disk: the number is in the exception behind
    theirs, or in their text.
    """
    numbers = [one.errno for one in _behind(error) if isinstance(one, OSError) and one.errno]
    return numbers + [int(number) for number in re.findall(r"os error (\d+)", str(error))]


def _behind(error: Exception) -> list[BaseException]:
    """The error, and those during which it was raised."""
    behind, seen = error, []
    while behind is not None and behind not in seen:
        seen.append(behind)
        behind = behind.__cause__ or behind.__context__
    return seen


def make_folder(path: Path):
    """Make a folder and those above it, where they are missing. Raises OSError with what to do."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if path.is_symlink():
            raise OSError(f"{path} {absence(path)}, or choose another folder") from error
        raise OSError(f"{path} cannot be made ({why_not_written(error)}): choose another folder") from error


def no_link(path: str, flags: int) -> int:
    """The opener of `open` for a file that may be there: a symbolic link in its place is an OSError."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)  # Windows has no such flag


def new_file(path: Path) -> IO[bytes]:
    """An empty file, open for writing bytes. What a killed process left in its place is removed, a symbolic
    link too.
    """
    path.unlink(missing_ok=True)
    return open(path, "xb")


def lock(path: Path, keep: bool = True) -> contextlib.ExitStack:
    """Lock a file, which is made where it is missing, until what is returned is closed.

    keep: whether the file stays then. Raises BlockingIOError where another process has locked it, OSError
    where it cannot be written.
    """
    held = FileLock(path)
    try:
        held.acquire(blocking=False)
    except Timeout:  # filelock's for whatever may pass
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OSError(f"{path} cannot be written: no right to write there") from None
        raise BlockingIOError(errno.EAGAIN, "another process has locked it", str(path)) from None
    except OSError as error:
        raise OSError(f"{path} cannot be written ({why_not_written(error)})") from error
    closing = contextlib.ExitStack()
    closing.callback(held.release)
    if not keep:
        closing.callback(_remove, path)
    return closing


def _remove(path: Path):
    with contextlib.suppress(OSError):  # Windows removes no open file
        path.unlink()


def write_whole(path: Path, data: str | bytes):
    """Replace a small file so that a reader or a crash never meets half of it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with new_file(temporary) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written ({why_not_written(error)})") from error


def append_whole(path: Path, text: str):
    """Append to a file, all of the text or nothing. Raises OSError where the disk does not take it."""
    new, size = not os.path.lexists(path), None
    try:
        with open(path, "a", encoding="utf-8", opener=no_link) as file:
            size = os.fstat(file.fileno()).st_size
            file.write(text)
    except OSError as error:
        if size is not None:
            with contextlib.suppress(OSError):
                path.unlink() if new else os.truncate(path, size)
        raise OSError(f"{path} could not be written ({why_not_written(error)})") from error


def unwritable(path: Path, folder: bool = False) -> str:
    """Why no new file, or new or empty folder, can be made at `path`; empty if it can."""
    if folder and path.is_dir():
        return "is a folder that holds something; give one of its own" if any(path.iterdir()) else ""
    if path.exists():
        return "exists already, and is not overwritten"
    if path.is_symlink():
        return absence(path)
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        return f"cannot be written: there is no folder {above}"
    return "" if os.access(above, os.W_OK) else f"cannot be written: no right to write into {above}"
