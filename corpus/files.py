"""Reads documents from local files (.txt, .jsonl, .json, .csv and .parquet) as streams.

All but Parquet may be compressed (.jsonl.gz, .txt.xz, .csv.zst), and are read with the standard library. So
mistakes can be traced to a line, and a column of text that looks like numbers stays text.
"""

from host.disk import absence, parse_json, refuse_unreadable
from host.packages import install

import contextlib
import csv
import glob
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from corpus import DataError, compressed
from corpus.compressed import MAX_EXPANSION

SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".parquet")
FOREIGN = (".tsv", ".md", ".html", ".xml", ".arrow", ".zip", ".bin", *compressed.ENDINGS)
CHUNK = 1 << 20  # characters read at a time
BLANK = re.compile(r"[ \t\n\r]*")  # blanks that JSON allows between its parts
# characters: a JSON error this near to the end of what was read may only mean that more must be read
NEAR_THE_END = 16


def format_of(path: Path) -> str | None:
    """One of SUFFIXES: rows.jsonl and rows.jsonl.gz are both ".jsonl". None for any other file."""
    packed = path.suffix in compressed.ENDINGS
    suffix = Path(path.stem if packed else path).suffix.lower()
    return suffix if suffix in SUFFIXES and not (packed and suffix == ".parquet") else None


def looks_local(name: str) -> bool:
    """Whether a name means a local path, existing or not, rather than `name` or `owner/name` on the hub."""
    path = Path(name)
    if (
        os.path.lexists(path)  # Path.exists raises an error for a name that is too long
        or path.suffix in SUFFIXES + FOREIGN
        or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name)
    ):
        return True
    return path.parent != Path(".") and os.path.exists(path.parent)


def find(names: list[str]) -> list[Path]:
    """The files that the names stand for (files, folders with subfolders, globs), each once, in order.

    A folder's .json files are left out, because next to texts they usually hold metadata, and so are hidden
    files and folders.
    Raises DataError for a name without a file and for a file of an unknown format.
    """
    found = []
    for name in names:
        path = Path(name).expanduser()
        try:
            path.stat()
        except FileNotFoundError:
            pass  # the name may be a glob
        except OSError as error:
            raise DataError(f"{name}: {error.strerror}") from None
        if path.is_dir():
            wanted = [suffix for suffix in SUFFIXES if suffix != ".json"]
            below = glob.iglob(f"{glob.escape(str(path))}/**", recursive=True)  # goes into linked folders
            paths = [Path(p) for p in sorted(below) if format_of(Path(p)) in wanted and os.path.isfile(p)]
            if not paths:
                raise DataError(
                    f"{name}: the folder holds no {', '.join(wanted)} file; .json files must be named, as "
                    f"in '{name}/*.json'"
                )
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(p)]
            if not paths:
                raise DataError(
                    f"{name} {absence(path)}" if path.is_symlink() else f"{name}: no such file or folder"
                )
        for path in paths:
            if format_of(path) is None:
                raise DataError(
                    f"{path}: unknown format; the ending must be one of {', '.join(SUFFIXES)}, all but the "
                    f"last also with one of {', '.join(compressed.ENDINGS)} behind it"
                )
        found += paths
    return list({os.path.realpath(path): path for path in reversed(found)}.values())[::-1]


def rows(
    paths: list[Path], fields: list[str], separator: str | None = None, max_expansion: int = MAX_EXPANSION
) -> Iterator[tuple[dict, str]]:
    r"""(row, its place for messages) of each row of the files; of .txt files, {fields[0]: text}.

    Of Parquet files, only the columns `fields` are read. separator: cuts .txt files; each \n in it stands
    for \r\n too. max_expansion: see corpus/compressed.py. Raises DataError that names file and line.
    """
    for path in paths:
        if format_of(path) == ".parquet":
            yield from _parquet(path, fields)
            continue
        with readable(path, max_expansion), compressed.opened(path, max_expansion) as file:
            form = format_of(path)
            if form == ".json":  # many .json files are JSON lines
                begins_with = file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
                form = ".jsonl" if begins_with == b"{" else form
            # line ends stay as they are: in CSV they may be within texts, and JSON lines end in \n only
            newline = "" if form == ".csv" else "\n"
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)
            if form == ".txt":
                yield from (({fields[0]: part}, str(path)) for part in _text(text, separator))
            else:
                read = {".csv": _csv, ".json": _json_list, ".jsonl": _json_lines}[form]
                yield from read(text, path)


def lines(path: Path, max_expansion: int = MAX_EXPANSION) -> Iterator[str]:
    r"""The lines of a text file, without the \n or \r\n that ends each.

    Nothing else ends a line: a text may hold other line ends of Unicode, and a \r before \r\n is its own.
    """
    with readable(path, max_expansion), compressed.opened(path, max_expansion) as file:
        for line in io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n"):
            yield line.removesuffix("\n").removesuffix("\r")


def text_of(row: dict, field: str, where: str) -> str:
    """The text of a row. An empty cell (None) is an empty document."""
    if field not in row:
        raise DataError(
            f"{where}: no field {field!r}; choose with --field among {', '.join(map(str, row))}"
        )
    text = row[field]
    if not isinstance(text, str | None):
        raise DataError(f"{where}: field {field!r} holds {type(text).__name__}, not text")
    return text or ""


@contextlib.contextmanager
def readable(path: Path, max_expansion: int = MAX_EXPANSION):
    """Turns the errors of opening, reading and decoding a file into a DataError."""
    try:
        yield
    except UnicodeDecodeError:
        line = _undecodable_line(path, max_expansion)
        raise DataError(f"{path}{line}: not UTF-8; convert it first") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _undecodable_line(path: Path, max_expansion: int) -> str:
    with compressed.opened(path, max_expansion) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f", line {number}"
    return ""


def _text(file: TextIO, separator: str | None) -> Iterator[str]:
    if separator is None:
        yield file.read()
        return
    rest, pattern = "", re.compile("\r?\n".join(map(re.escape, separator.split("\n"))))
    # Reads as much again as is left over, so that a file without the separator is scanned at most twice.
    while chunk := file.read(max(CHUNK, len(rest))):
        *complete, rest = pattern.split(rest + chunk)
        yield from complete
    yield rest


def _json_lines(file: TextIO, path: Path) -> Iterator[tuple[dict, str]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                row = parse_json(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON ({error})") from None
            yield _object(row, where), where


def _object(row, where: str) -> dict:
    if not isinstance(row, dict):
        raise DataError(f"{where}: holds {type(row).__name__}, not an object")
    return row


def _json_list(file: TextIO, path: Path) -> Iterator[tuple[dict, str]]:
    """Decodes the elements of a list one at a time, so that only one is in memory."""
    characters = _Characters(file)
    if (mark := characters.next()) != "[":
        raise DataError(
            f"{path}: begins with {mark!r}: a .json file must hold a list of objects, or an object a line"
        )
    characters.place += 1
    number, mark = 0, "," if characters.next() != "]" else "]"
    while mark == ",":
        characters.place += number > 0  # the comma
        number += 1
        where = f"{path}, element {number}"
        try:
            row = characters.decode()
        except (DataError, UnicodeDecodeError):  # the file cannot be read, which is not a JSON error
            raise
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error})") from None
        yield _object(row, where), where
        mark = characters.next()
    if mark != "]":
        found = repr(mark) if mark else "the end of the file"
        raise DataError(f"{path}: {found} follows element {number}, not a comma or the end of the list")
    characters.place += 1
    if mark := characters.next():
        raise DataError(f"{path}: {mark!r} follows the end of the list; nothing may")


class _Characters:
    """The part of a file's text that was read. `place` is the index of the next character in `text`."""

    def __init__(self, file: TextIO):
        self.file, self.text, self.place = file, "", 0
        self.decoder = json.JSONDecoder()

    def read_on(self) -> bool:
        # reads as much again as is left over, so that a long value is scanned at most twice
        chunk = self.file.read(max(CHUNK, len(self.text) - self.place))
        self.text, self.place = self.text[self.place :] + chunk, 0
        return bool(chunk)

    def next(self) -> str:
        """Moves `place` to the next non-blank character, and returns it; "" at the end of the file."""
        while (place := BLANK.match(self.text, self.place).end()) == len(self.text):
            self.place = place
            if not self.read_on():
                return ""
        self.place = place
        return self.text[place]

    def decode(self):
        """Decodes the next value. Raises ValueError or RecursionError."""
        self.next()
        while True:
            try:
                value, self.place = self.decoder.raw_decode(self.text, self.place)
                return value
            except json.JSONDecodeError as error:
                string_goes_on = error.msg.startswith("Unterminated string")
                near_the_end = error.pos > len(self.text) - NEAR_THE_END
                if not (string_goes_on or near_the_end) or not self.read_on():
                    raise


def _csv(file: TextIO, path: Path) -> Iterator[tuple[dict, str]]:
    csv.field_size_limit(sys.maxsize)  # a document may be longer than the 128 KiB that csv allows
    rows = csv.DictReader(file, strict=True)
    try:
        names = rows.fieldnames or []
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{path}: the first line names {', '.join(map(repr, twice))} twice")
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if None in row or None in row.values():
                raise DataError(f"{where}: not as many columns as in the first line")
            yield row, where
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.reader.line_num}: not CSV ({error})") from None


def _parquet(path: Path, fields: list[str]) -> Iterator[tuple[dict, str]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        needed = f"reading Parquet needs the package pyarrow: {install('pyarrow')}"
        raise DataError(f"{path}: {needed}") from None

    with readable(path):
        try:
            refuse_unreadable(path)
            file = parquet.ParquetFile(path)
            columns = dict.fromkeys(file.schema_arrow.names, "")
            for field in fields:
                text_of(columns, field, str(path))
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=fields):
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{path}, row {number}"
        except pyarrow.ArrowException as error:
            raise DataError(f"{path}: not Parquet ({error})") from None
