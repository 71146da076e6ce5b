"""GLUE's data: from local files in its public TSV format, or from the Hugging Face hub.

    DIR/MNLI/{train,dev_matched,dev_mismatched}.tsv
    DIR/{QQP,QNLI,SST-2,CoLA,MRPC,RTE,WNLI}/{train,dev}.tsv

The test sets are not used, because their labels are not public. MRPC may also be given in the form of its
owner: MRPC/msr_paraphrase_train.txt, with GLUE's list of validation pairs in MRPC/dev_ids.tsv.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from corpus import DataError, hub
from finetuning.tasks import Task

HUB = "nyu-mll/glue"
MSR, MSR_DEV = "msr_paraphrase_train.txt", "dev_ids.tsv"
MSR_IDS = ("#1 ID", "#2 ID")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # all but tab and line ends


@dataclass(frozen=True)
class Example:
    texts: tuple[str, ...]  # one or two
    label: int  # its class


@dataclass(frozen=True)
class TaskData:
    """A task's training examples, and its validation sets by name."""

    task: Task
    train: list[Example]
    validation: dict[str, list[Example]]
    left_out: int = 0  # malformed rows

    def fingerprint(self) -> str:
        """A hash of all examples in order; it does not depend on their source."""
        digest = hashlib.blake2b(digest_size=16)
        for examples in (self.train, *self.validation.values()):
            for example in examples:
                digest.update(json.dumps([example.texts, example.label]).encode())
            digest.update(b"\n")
        return digest.hexdigest()


def read_folder(task: Task, folder: Path, max_bad_rows: int = 0) -> TaskData:
    """Reads the task's TSV files in `folder`/<title>. Raises DataError that names file and line.

    max_bad_rows: the number of malformed rows that may be left out of a file; one more is an error.
    """
    place = folder / task.title
    if task.name == "mrpc" and not (place / "train.tsv").exists() and (place / MSR).exists():
        return _read_msr(task, place, max_bad_rows)
    train, left_out = _read(task, place / "train.tsv", max_bad_rows)
    validation = {}
    for name, file, _ in task.validation:
        rows, bad = _read(task, place / file, max_bad_rows)
        validation[name] = [example for example, _ in rows]
        left_out += bad
    return TaskData(task, [example for example, _ in train], validation, left_out)


def read_hub(task: Task) -> TaskData:
    """Reads the task from the hub with the package `datasets`. Raises DataError."""
    return TaskData(
        task,
        _from_hub(task, "train"),
        {name: _from_hub(task, split) for name, _, split in task.validation},
    )


def _from_hub(task: Task, split: str) -> list[Example]:
    shown = f"{HUB} ({task.name}, {split})"
    try:
        rows = list(hub.library().load_dataset(HUB, task.name, split=split))
    except DataError:
        raise
    except Exception as error:  # the library has its own errors for network, names and disk
        reason = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")
        raise DataError(
            f"{shown} could not be had from the Hugging Face hub ({reason}). Local files in GLUE's TSV "
            "format can be given as --data_dir=DIR"
        ) from None
    if not rows:
        raise DataError(f"{shown} has no rows")
    examples = []
    for number, row in enumerate(rows, 1):
        where = f"{shown}, row {number}"
        if missing := [column for column in (*task.hub_columns, "label") if column not in row]:
            raise DataError(f"{where}: has no column {missing[0]!r} (it has {', '.join(row)})")
        label = row["label"]
        if type(label) is not int or not 0 <= label < len(task.labels):
            raise DataError(f"{where}: label {label!r} is none of 0 to {len(task.labels) - 1}")
        texts = tuple(row[column] for column in task.hub_columns)
        if wrong := _wrong_texts(texts):
            raise DataError(f"{where}: {wrong}")
        examples.append(Example(texts, label))
    return examples


def _read_msr(task: Task, place: Path, max_bad_rows: int) -> TaskData:
    """Splits one file into training and validation: dev_ids.tsv lists GLUE's validation pairs."""
    ids = place / MSR_DEV
    if not ids.is_file():
        raise DataError(
            f"{place / MSR} lacks {ids} beside it, GLUE's list of the pairs of ids that are validation: "
            "put it there, or give train.tsv and dev.tsv"
        )
    listed = set()
    for number, line in _lines(ids)[0]:
        if len(pair := tuple(line.split("\t"))) != 2:
            raise DataError(f"{ids}, line {number}: {len(pair)} fields, not 2 ids")
        listed.add(pair)
    rows, left_out = _read(task, place / MSR, max_bad_rows)
    train = [example for example, pair in rows if pair not in listed]
    dev = [example for example, pair in rows if pair in listed]
    if not train or not dev:
        raise DataError(f"{ids} lists {'all' if dev else 'none'} of the pairs of {place / MSR}")
    return TaskData(task, train, {"dev": dev}, left_out)


def _read(task: Task, path: Path, max_bad_rows: int) -> tuple[list[tuple[Example, tuple]], int]:
    """([(example, MRPC's pair of ids)], the number of malformed rows that were left out).

    Only tabs separate columns. A quotation mark is part of the text, as in GLUE's own readers.
    """
    lines, cut_off = _lines(path)
    if not lines:
        raise DataError(f"{path}: is empty")
    header = task.headerless
    if header is None:
        header = tuple(lines.pop(0)[1].split("\t"))
        wanted = (*task.columns, task.label, *(MSR_IDS if path.name == MSR else ()))
        if missing := [column for column in wanted if column not in header]:
            raise DataError(
                f"{path}, line 1: lacks the column {' and '.join(map(repr, missing))} "
                f"(it has {', '.join(map(repr, header))})"
            )
        if not lines:
            raise DataError(f"{path}: holds names of columns and no rows")
    rows, bad = [], []
    for number, line in lines:
        fields = line.split("\t")
        row = dict(zip(header, fields, strict=False))
        texts = tuple(row.get(column, "") for column in task.columns)
        if len(fields) != len(header):
            wrong = f"{len(fields)} fields separated by tabs, not {len(header)}"
        elif row[task.label] not in task.labels:
            wrong = f"{task.label} {row[task.label]!r} is none of {', '.join(task.labels)}"
        else:
            wrong = _wrong_texts(texts)
        if cut_off and number == lines[-1][0] and header[-1] in task.columns:
            # if the label is the last column, a cut label was already reported as wrong
            wrong = wrong or "the file ends within this row, without a line break: it was cut off"
        if not wrong:
            pair = tuple(row.get(column, "") for column in MSR_IDS)
            rows.append((Example(texts, task.labels.index(row[task.label])), pair))
            continue
        bad.append(f"{path}, line {number}: {wrong}")
        if len(bad) > max_bad_rows:
            hint = "; --max_bad_rows=N leaves out up to N such rows of a file"
            if max_bad_rows:
                hint = f", and so are {max_bad_rows} rows before it; --max_bad_rows allows no more"
            raise DataError(bad[-1] + hint)
    if not rows:
        raise DataError(f"{path}: no row is sound; the first: {bad[0]}")
    return rows, len(bad)


def _wrong_texts(texts: tuple) -> str | None:
    if any(type(text) is not str for text in texts):
        return "a text is missing"
    if found := CONTROL.search("".join(texts)):
        return f"a text holds the control character {ord(found[0]):#04x}: the file is damaged"
    # QQP has pairs with one empty question
    return None if any(text.strip() for text in texts) else "there is no text"


def _lines(path: Path) -> tuple[list[tuple[int, str]], bool]:
    """([(number from 1, line)] without empty lines at the end, whether the last lacks its line break)."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: is not UTF-8 ({error.reason})") from None
    # not splitlines, which also splits at characters that a text may contain
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    cut_off = bool(lines[-1].strip())
    while lines and not lines[-1].strip():
        lines.pop()
    return list(enumerate(lines, 1)), cut_off
