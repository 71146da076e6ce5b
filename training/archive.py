"""The checksums in files of torch.save.

Such a file is a zip archive. torch.save computes a CRC-32 for each of its records, which is a tensor's
bytes or a pickle; torch.load does not compare them.
"""

import concurrent.futures
import io
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator

import torch

THREADS = min(8, os.cpu_count() or 1)  # zlib releases Python's lock


class DamagedError(ValueError):
    """An archive that does not hold what was written; says what is wrong."""


class Part(io.RawIOBase):
    """`length` bytes of an open file from `start` on, as a file of its own."""

    def __init__(self, file, start: int, length: int):
        super().__init__()
        self.file, self.start, self.length, self.place = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.length}[whence]
        if self.place < 0:
            raise OSError("a place before the beginning")
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer) -> int:
        wanted = max(0, min(len(buffer), self.length - self.place))
        self.file.seek(self.start + self.place)
        read = self.file.readinto(memoryview(buffer)[:wanted])
        self.place += read
        return read


def identity(file) -> int:
    """A number that tells an archive from others by the names and checksums of its records, without reading
    the records.
    """
    with zipfile.ZipFile(file) as archive:
        return zlib.crc32(repr([(info.filename, info.CRC) for info in archive.infolist()]).encode())


def check(file) -> int:
    """Reads all of an archive and compares its checksums -> its `identity`; raises DamagedError."""
    try:
        with zipfile.ZipFile(file) as archive:
            wrong = archive.testzip()
    except Exception as error:
        if isinstance(error, OSError) and error.errno:  # of the disk
            raise
        # of many kinds: a flipped bit may name a password or a new compression
        raise DamagedError(str(error) or type(error).__name__) from None
    if wrong is not None:
        raise DamagedError(f"the checksum of its record {wrong} is wrong")
    return identity(file)


def checksums(file) -> dict[tuple[int, int], int]:
    """Checks all of an archive but its tensors -> {(CRC-32, bytes): how many tensors have them}.

    Raises DamagedError.
    """
    tensors: Counter = Counter()
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                # opening compares the name in front of the record with that in the directory
                with archive.open(info) as record:
                    if "/data/" in info.filename:
                        tensors[info.CRC, info.file_size] += 1
                    else:
                        record.read()
    except Exception as error:  # see check
        raise DamagedError(str(error) or type(error).__name__) from None
    return dict(tensors)


def check_tensors(content, known: dict[tuple[int, int], int]):
    """Compares the tensors in nested dicts and lists, all on the CPU, with `checksums` of their file.

    Raises DamagedError that names the first tensor that is none of them.
    """
    storages = {}
    for name, tensor in _tensors(content):
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages.setdefault(storage.data_ptr(), (name, storage))
    left = Counter(known)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(_crc32, [storage for _, storage in storages.values()])
        for (name, storage), crc in zip(storages.values(), found, strict=True):
            left[crc, storage.nbytes()] -= 1
            if left[crc, storage.nbytes()] < 0:
                raise DamagedError(f"the checksum of {name} is wrong")


def _crc32(storage: torch.UntypedStorage) -> int:
    return zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())


def _tensors(content, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield name, content
    elif isinstance(content, dict | list | tuple):
        entries = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in entries:
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
