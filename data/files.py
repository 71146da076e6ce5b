"""Documents out of local files: .txt, .jsonl, .csv and .parquet, each read as a stream.

The standard library reads all but Parquet: its mistakes can be traced to a line, and a column of text
that looks like numbers stays text.
"""

import contextlib
import csv
import glob
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from data import DataError
from disk import parse_json

SUFFIXES = (".txt", ".jsonl", ".csv", ".parquet")
FOREIGN = (".json", ".tsv", ".md", ".html", ".xml", ".arrow", ".gz", ".zst", ".zip", ".bin")
CHUNK = 1 << 20  # characters read at a time


def looks_local(name: str) -> bool:
    """Whether a name means a local path, there or not, rather than `name` or `owner/name` of the hub."""
    path = Path(name)
    if (
        path.exists()
        or path.suffix in SUFFIXES + FOREIGN
        or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name)
    ):
        return True
    return path.parent != Path(".") and path.parent.exists()


def find(names: list[str]) -> list[Path]:
    """The files that the names stand for (files, folders searched in depth, globs), each once, in order.

    Raises DataError for a name without a file and for a file whose format is not known.
    """
    found = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            paths = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if not paths:
                raise DataError(f"{name}: the folder holds no {', '.join(SUFFIXES)} file")
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(p)]
            if not paths:
                raise DataError(f"{name}: no such file or folder")
        for path in paths:
            if path.suffix not in SUFFIXES:
                raise DataError(f"{path}: unknown format; the ending must be one of {', '.join(SUFFIXES)}")
        found += paths
    return list(dict.fromkeys(found))


def documents(paths: list[Path], field: str, separator: str | None) -> Iterator[str]:
    """The documents of the files, in order. Raises DataError that names the file and the line."""
    for path in paths:
        if path.suffix == ".txt":
            yield from _text(path, separator)
        elif path.suffix == ".jsonl":
            yield from _json_lines(path, field)
        elif path.suffix == ".csv":
            yield from _csv(path, field)
        else:
            yield from _parquet(path, field)


def text_of(row: dict, field: str, where: str) -> str:
    """The text of a row; an empty cell (None) is an empty document."""
    if field not in row:
        raise DataError(
            f"{where}: no field {field!r}; choose with --field among {', '.join(map(str, row))}"
        )
    text = row[field]
    if not isinstance(text, str | None):
        raise DataError(f"{where}: field {field!r} holds {type(text).__name__}, not text")
    return text or ""


@contextlib.contextmanager
def readable(path: Path):
    """Turn the errors of opening, reading and decoding a file into a DataError."""
    try:
        yield
    except UnicodeDecodeError:
        raise DataError(f"{path}{_undecodable_line(path)}: not UTF-8; convert it first") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _undecodable_line(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f", line {number}"
    return ""


def _text(path: Path, separator: str | None) -> Iterator[str]:
    with readable(path), path.open(encoding="utf-8-sig") as file:
        if separator is None:
            yield file.read()
            return
        rest = ""
        # As much again as is left over: a file without the separator costs no more than two readings.
        while chunk := file.read(max(CHUNK, len(rest))):
            *complete, rest = (rest + chunk).split(separator)
            yield from complete
        yield rest


def _json_lines(path: Path, field: str) -> Iterator[str]:
    with readable(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = parse_json(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise DataError(f"{where}: holds {type(row).__name__}, not an object")
            yield text_of(row, field, where)


def _csv(path: Path, field: str) -> Iterator[str]:
    csv.field_size_limit(sys.maxsize)  # a document may be longer than the 128 KiB that csv allows
    with readable(path), path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                if None in row or None in row.values():
                    raise DataError(f"{where}: not as many columns as in the first line")
                yield text_of(row, field, where)
        except csv.Error as error:
            raise DataError(f"{path}, line {rows.reader.line_num}: not CSV ({error})") from None


def _parquet(path: Path, field: str) -> Iterator[str]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path}: reading Parquet needs the package pyarrow: pip install pyarrow") from None

    with readable(path):
        try:
            file = parquet.ParquetFile(path)
            columns = dict.fromkeys(file.schema_arrow.names, "")
            text_of(columns, field, str(path))
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for row in batch.to_pylist():
                    number += 1
                    yield text_of(row, field, f"{path}, row {number}")
        except pyarrow.ArrowException as error:
            raise DataError(f"{path}: not Parquet ({error})") from None
