"""Documents -> a prepared data set: a folder that holds everything a model needs to know of its data.

    train.bin, val.bin   the tokens of each split, one end-of-text after each document, little-endian
                         uint16 (uint32 for a vocabulary above 65,536)
    token_bytes.npy      int32 [vocab_size], the bytes of each token, 0 for end-of-text
    tokenizer.json       only for a BPE
    meta.json            counts, tokenizer, source, versions

A document belongs to a split by the hash of its text, so its duplicates follow it and the split does not
depend on the order. The folder appears under its name only when it is complete.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import DataError
from data.encoding import encode_documents, token_dtype, training_documents
from data.tokenizer import build_tokenizer, parse_tokenizer_name

FORMAT = 1
SPLITS = ("train", "val")


def prepare(
    documents: Callable[[], Iterator[str]],
    source: dict,
    tokenizer: str,
    out: Path,
    val_fraction: float,
    workers: int,
) -> dict:
    """Write the data set folder `out` and return its meta.json; return at once if it is there already.

    `documents()` starts the same documents over at each call; `source` says where they come from, in
    plain JSON values, and takes part in deciding whether a finished folder is the same. `tokenizer` is
    a name for `build_tokenizer`. Raises DataError; what was written is removed then.
    """
    if not 0 < val_fraction < 1:
        raise DataError(f"--val_fraction must lie between 0 and 1, not {val_fraction}")
    if workers < 1:
        raise DataError(f"--workers must be at least 1, not {workers}")
    recipe = {"source": source, "tokenizer": _identify(tokenizer), "val_fraction": val_fraction}
    out = Path(os.path.abspath(out))
    if finished := _finished(out, recipe):
        return finished

    def read() -> Iterator[str]:
        try:
            yield from documents()
        except OSError as error:  # not to be mistaken for one of writing
            raise DataError(f"cannot read the documents: {error}") from None

    with _partial_folder(out) as partial:
        built = build_tokenizer(tokenizer, lambda: training_documents(read(), val_fraction))
        counts, skipped = _write_tokens(partial, encode_documents(read(), built, val_fraction, workers))
        for split in SPLITS:
            if not counts[split]["documents"]:
                raise DataError(_empty_split(split, counts, skipped))
        token_bytes = np.array([len(token) for token in built.token_bytes()], dtype=np.int32)
        with _writing(partial / "token_bytes.npy") as file:
            np.save(file, token_bytes)
        saved = built.to_json()
        if "tokenizer.json" in saved:
            with _writing(partial / "tokenizer.json") as file:
                file.write(saved.pop("tokenizer.json").encode())
        meta = {
            "format": FORMAT,
            **recipe,
            "tokenizer": {"name": recipe["tokenizer"], **saved},
            "vocab_size": built.vocab_size,
            "end_of_text": built.end_of_text,
            "dtype": token_dtype(built.vocab_size).name,
            "splits": counts,
            "skipped_empty": skipped,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "tiktoken", "tokenizers")},
            },
        }
        _verify(partial, meta, token_bytes)
        with _writing(partial / "meta.json") as file:
            file.write(json.dumps(meta, indent=2).encode())
    return meta


def describe(out: Path, meta: dict) -> str:
    """The closing lines of a prepare script: what each split holds, and where it lies."""
    lines = [f"tokenizer {meta['tokenizer']['name']}, vocabulary {meta['vocab_size']:,}"]
    for split, count in meta["splits"].items():
        lines.append(
            f"{split:>5}: {count['documents']:,} documents, {count['tokens']:,} tokens, "
            f"{count['bytes']:,} bytes of text, {count['bytes'] / count['tokens']:.3f} bytes per token"
        )
    if meta["skipped_empty"]:
        lines.append(f"skipped {meta['skipped_empty']:,} empty documents")
    return "\n".join([*lines, f"data set: {out}"])


def _identify(tokenizer: str) -> str:
    """The name as the recipe records it: a file is known by its content, not by where it lies."""
    _, argument = parse_tokenizer_name(tokenizer)
    if not isinstance(argument, Path):
        return tokenizer
    try:
        return f"tokenizer.json {hashlib.sha256(argument.read_bytes()).hexdigest()}"
    except OSError as error:
        raise DataError(f"tokenizer {tokenizer} cannot be read: {error.strerror}") from None


def _finished(out: Path, recipe: dict) -> dict | None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    elsewhere = "choose another --out or delete it"
    try:
        meta = json.loads((out / "meta.json").read_text())
        there = {**{key: meta[key] for key in recipe}, "tokenizer": meta["tokenizer"]["name"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{out} exists and is not a prepared data set: {elsewhere}") from None
    old, new = ({**r.pop("source"), **r} for r in (dict(there), dict(recipe)))
    if old == new:
        print(f"{out} is already prepared")
        return meta
    differences = [
        f"  {key}: {old.get(key)!r} there, {new.get(key)!r} asked for"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    raise DataError("\n".join([f"{out} was prepared otherwise; {elsewhere}:", *differences]))


def _write_tokens(folder: Path, encoded: Iterator) -> tuple[dict, int]:
    """Write the .bin files; returns ({split: {documents, tokens, bytes}}, empty documents)."""
    counts = {split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}
    skipped = 0
    start = time.monotonic()
    # A terminal is redrawn ten times a second, a log file gets a line a minute.
    interval = 0.1 if sys.stderr.isatty() else 60
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(tqdm(unit="tok", unit_scale=True, mininterval=interval, desc=folder.stem))
        files = {split: stack.enter_context(_writing(folder / f"{split}.bin")) for split in SPLITS}
        for batch, empty in encoded:
            skipped += empty
            for split, part in batch.items():
                with _blaming(folder / f"{split}.bin"):
                    files[split].write(part.tokens.data)
                counts[split]["documents"] += part.documents
                counts[split]["tokens"] += len(part.tokens)
                counts[split]["bytes"] += part.bytes
                bar.update(len(part.tokens))
            seconds = max(time.monotonic() - start, 1e-3)
            total = {key: sum(count[key] for count in counts.values()) for key in ("documents", "bytes")}
            bar.set_postfix_str(
                f"{total['documents']:,} documents, {total['bytes'] / 1e6 / seconds:.1f} MB/s",
                refresh=False,
            )
    return counts, skipped


def _empty_split(split: str, counts: dict, skipped: int) -> str:
    total = sum(count["documents"] for count in counts.values())
    if not total:
        return f"no document with any text was found ({skipped} were empty)"
    if total == 1:
        return (
            "there is one document only, and documents are not cut into training and validation: cut it "
            r"with --separator, --separator='\n\n' say, or give more"
        )
    change = (
        f"raise --val_fraction, to {min(0.5, 5 / total):.2g} say"
        if split == "val"
        else "lower --val_fraction"
    )
    return (
        f"none of the {total} documents fell into the {split} split: {change}, give more "
        "documents, or cut one big file with --separator"
    )


def _verify(folder: Path, meta: dict, token_bytes: np.ndarray) -> None:
    """Read the tokens back: their bytes must be those of the texts, their end-of-texts the documents."""
    for split, count in meta["splits"].items():
        tokens = np.memmap(folder / f"{split}.bin", dtype=meta["dtype"], mode="r")
        found = {"documents": 0, "tokens": len(tokens), "bytes": 0}
        for start in range(0, len(tokens), 1 << 24):
            part = tokens[start : start + (1 << 24)]
            found["bytes"] += int(token_bytes[part].sum(dtype=np.int64))
            found["documents"] += int((part == meta["end_of_text"]).sum())
        if found != count:
            raise DataError(
                f"{split}.bin does not hold what was written: {found} instead of {count}. Either the disk "
                "lost something or the tokenizer is not lossless; nothing was kept"
            )


@contextlib.contextmanager
def _partial_folder(out: Path) -> Iterator[Path]:
    """A clean `<out>.partial`, renamed to `out` at the end, removed if anything goes wrong."""
    partial = out.with_name(out.name + ".partial")
    with _blaming(partial):
        partial.mkdir(parents=True, exist_ok=True)
        # Held while this process lives: a second run must not sweep away what the first is writing.
        lock = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process is preparing {out} right now") from None
        if not partial.exists() or not os.path.samestat(partial.stat(), os.fstat(lock)):
            raise DataError(f"another process has just finished {out}: run this again")
        with _blaming(partial):
            for left_over in partial.iterdir():
                left_over.unlink()
        try:
            yield partial
            with _blaming(out):
                os.fsync(lock)
                partial.rename(out)
                _sync_folder(out.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@contextlib.contextmanager
def _writing(path: Path):
    """A file open for writing, on disk at the end."""
    with _blaming(path), path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _blaming(path: Path):
    """Turn an error of writing this file into a DataError that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
