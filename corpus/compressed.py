"""Reads files as bytes and decompresses those that end in .gz, .xz or .zst, up to a limit.

A few kilobytes can decompress to gigabytes. Text is compressed to between a third and a tenth, very
repetitive text to a fiftieth. So a file that grows by more than MAX_EXPANSION is refused as a decompression
bomb.
"""

from host.disk import open_to_read
from host.packages import install

import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from corpus import DataError

ENDINGS = (".gz", ".xz", ".zst")
MAX_EXPANSION = 100
ALWAYS = 64 << 20  # so many bytes are always allowed, even from a small file


@contextlib.contextmanager
def opened(path: Path, max_expansion: int = MAX_EXPANSION) -> Iterator[BinaryIO]:
    """Opens a file for reading; a compressed file yields its decompressed bytes.

    Raises DataError, also while the bytes are read, if the file is damaged or cut off, or if it
    decompresses to more than `max_expansion` times its size. Errors of opening it are OSErrors.
    """
    with open_to_read(path) as file:
        if path.suffix not in ENDINGS:
            yield file
            return
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise DataError(f"{path}: is empty, and no {path.suffix} file is; it was cut off")
        advice = "If you trust the file, raise --max_expansion, or decompress it first"
        stream, limit = _decompressor(path, path.suffix, file), most(size, max_expansion)
        with _Limited(stream, path, path.suffix, limit, advice) as limited:
            yield io.BufferedReader(limited, 1 << 16)


def most(size: int, max_expansion: int = MAX_EXPANSION) -> int:
    """The bytes to which `size` compressed bytes may be decompressed."""
    return max(ALWAYS, max_expansion * size)


def decompressed(name: str, content: bytes, kind: str = ".gz") -> bytes:
    """What a file in memory holds; kind: one of ENDINGS. Raises DataError, with this name, as `opened`."""
    stream = _decompressor(name, kind, io.BytesIO(content))
    with _Limited(stream, name, kind, most(len(content)), "Get it again") as limited:
        return io.BufferedReader(limited, 1 << 16).read()


def _decompressor(path: Path | str, kind: str, file: BinaryIO):
    if kind == ".gz":
        return gzip.GzipFile(fileobj=file)
    if kind == ".xz":
        return lzma.LZMAFile(file)
    try:
        import pyarrow
    except ImportError:
        needed = f"reading .zst needs the package pyarrow: {install('pyarrow')}"
        raise DataError(f"{path}: {needed}") from None
    # unlike other Zstandard readers, this one raises an error for a file that was cut off
    return pyarrow.input_stream(file, compression="zstd")


class _Limited(io.RawIOBase):
    """Reads `stream` up to `limit` bytes, and turns its errors into DataErrors that name the file."""

    def __init__(self, stream, path: Path | str, kind: str, limit: int, advice: str):
        self.stream, self.path, self.kind = stream, path, kind
        self.limit, self.advice, self.count = limit, advice, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            data = self.stream.read(len(buffer))
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                f"{self.path}: cannot be decompressed ({error}): it was cut off or damaged, or is no "
                f"{self.kind} file; get it again"
            ) from None
        self.count += len(data)
        if self.count > self.limit:
            raise DataError(
                f"{self.path}: decompresses to more than {self.limit:,} bytes, as no ordinary text does. "
                f"{self.advice}"
            )
        buffer[: len(data)] = data
        return len(data)
