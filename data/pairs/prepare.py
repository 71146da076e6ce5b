"""Prepares pairs of your own, such as sentences and their translations.

    python data/pairs/prepare.py --input=pairs.tsv --out=data/pairs/mine --tokenizer=bpe:8192
    python data/pairs/prepare.py --input=text.en,text.fr --out=data/pairs/mine --tokenizer=bpe:8192

A line of a TSV file is a pair: source, target and, if you like, the name of its group, with tabs between
them. Of two files, line n of the first and line n of the second are a pair. Files are UTF-8 and may be
compressed (.gz, .xz, .zst). The hash of its group decides the split of a pair, so that a whole page or
chapter is in training or in validation. Without groups, pairs with the same source share a split.
"""

import hashlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, preparing  # noqa: E402
from corpus.files import lines  # noqa: E402
from corpus.splits import Pair  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402
from reports.plural import counted  # noqa: E402

SHOWN = 10  # mistakes in the message


@dataclass
class PrepareConfig(Keys):
    """Pairs in a TSV file or two files -> a data set with train.bin, val.bin and meta.json."""

    input: str  # one TSV file, or the files of the sources and of the targets with a comma between them
    out: str  # folder to write
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the groups kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def check(self) -> list[str]:
        if not 1 <= len(names(self.input)) <= 2:
            return [f"--input takes one file of pairs or two files of lines, not {self.input!r}"]
        return []


def main(config: PrepareConfig) -> None:
    paths = [Path(name).expanduser() for name in names(config.input)]
    if pipes := [path for path in paths if path.is_fifo()]:
        raise DataError(f"--input={pipes[0]} is a pipe, and is read more than once: give a file")
    check_lines(paths)
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    source = {"files": [path.name for path in paths], "sha256": digest.hexdigest()}
    preparing.run(config, lambda: pairs_of(paths), source, scan=True, pairs=True)


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def check_lines(paths: list[Path]) -> None:
    """Raises DataError that names the lines which are no pairs."""
    wrong, count, number = [], 0, 0
    for number, fields in enumerate(rows(paths), 1):
        if mistake := mistake_of(fields, len(paths)):
            count += 1
            wrong += [f"  line {number:,}: {mistake}"] if count <= SHOWN else []
    if count > SHOWN:
        wrong.append(f"  and {count - SHOWN:,} more")
    if wrong:
        where = " and ".join(map(str, paths))
        raise DataError(
            "\n".join([f"{where}: {counted(count, 'line')} of {number:,} cannot be read as pairs", *wrong])
        )
    if not number:
        raise DataError(f"{paths[0]}: the file is empty")


def mistake_of(fields: list[str | None], files: int) -> str | None:
    """What is wrong with a line; None: nothing. A field is None where a file has ended."""
    if files == 2 and None in fields:
        return f"only the {'second' if fields[0] is None else 'first'} file has it: lines must be aligned"
    if not 2 <= len(fields) <= 3:
        return f"{counted(len(fields), 'column')}, where a pair has source, target and perhaps a group"
    for side, text in zip(("source", "target", "group"), fields, strict=False):
        if not text.strip():
            return f"the {side} is empty"
    return None


def rows(paths: list[Path]) -> Iterator[list[str | None]]:
    """The columns of each line."""
    if len(paths) == 1:
        yield from (line.split("\t") for line in lines(paths[0]))
    else:
        yield from map(list, itertools.zip_longest(*map(lines, paths)))


def pairs_of(paths: list[Path]) -> Iterator[Pair]:
    for fields in rows(paths):
        yield Pair(*fields)


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
