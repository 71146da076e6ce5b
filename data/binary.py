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
import itertools
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data import DataError
from data.tokenizer import Tokenizer, build_tokenizer, parse_tokenizer_name, valid_unicode

FORMAT = 1
SPLITS = ("train", "val")
BATCH_CHARACTERS = 1 << 20  # a worker's portion: enough to hide the cost of handing it over
TINY_BATCHES = 4  # fewer are encoded before a second process has started


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
        raise DataError(f"val_fraction must lie between 0 and 1, not {val_fraction}")
    recipe = {"source": source, "tokenizer": _identify(tokenizer), "val_fraction": val_fraction}
    out = Path(os.path.abspath(out))
    if finished := _finished(out, recipe):
        return finished

    def training_documents():
        cleaned = map(valid_unicode, documents())
        return (text for text in cleaned if text.strip() and not in_validation(text, val_fraction))

    with _partial_folder(out) as partial:
        built = build_tokenizer(tokenizer, training_documents)
        batches = _batches(documents())
        encoded = _encode_all(batches, built, val_fraction, workers)
        counts, skipped = _write_tokens(partial, encoded, built)
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
            "dtype": _dtype(built).name,
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


def in_validation(text: str, val_fraction: float) -> bool:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b"validation split").digest()
    return int.from_bytes(digest, "little") < val_fraction * 2**64


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def _identify(tokenizer: str) -> str:
    """The name as the recipe records it: a file is known by its content, not by where it lies."""
    _, argument = parse_tokenizer_name(tokenizer)
    if isinstance(argument, Path):
        return f"tokenizer.json {hashlib.sha256(argument.read_bytes()).hexdigest()}"
    return tokenizer


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


@contextlib.contextmanager
def _partial_folder(out: Path) -> Iterator[Path]:
    """A clean `<out>.partial`, renamed to `out` at the end, removed if anything goes wrong."""
    partial = out.with_name(out.name + ".partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        # Held while this process lives: a second run must not sweep away what the first is writing.
        lock = os.open(partial, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot write {partial}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process is preparing {out} right now") from None
        for left_over in partial.iterdir():
            left_over.unlink()
        try:
            yield partial
            try:
                os.fsync(lock)
                partial.rename(out)
                _sync_folder(out.parent)
            except OSError as error:
                raise DataError(f"cannot write {out}: {error.strerror}") from None
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
    """A file open for writing, on disk at the end. What is done inside must be writing and nothing else."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
