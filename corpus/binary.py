"""Documents -> a prepared data set: a folder with everything that a model needs to know about its data.

    train.bin, val.bin   the tokens of each split, one end-of-text after each document (after each side of
                         a pair), little-endian uint16 (uint32 for a vocabulary above 65,536); also
                         test.bin if requested
    token_bytes.npy      int32 [vocab_size], the bytes of each token, 0 for end-of-text; only for a lossless
                         tokenizer: of others, meta.json counts the bytes of a split's original text
    tokenizer.json       only for a BPE or a tokenizer from a file
    meta.json            counts, tokenizer, source, versions, and the size and SHA-256 of each file

corpus/splits.py decides which split a document belongs to. Until the folder is complete, its name is
`<name>.partial`. A preparation from the hub stores its progress there in progress.json and continues from
it after it was stopped or killed.
"""

from host.disk import absence, open_to_read, read_json

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from corpus import DataError, checksums, commands
from corpus.encoding import Batch, encode_documents, token_dtype, up_to_tokens
from corpus.file_tokenizer import end_token_of
from corpus.partial import PROGRESS, blaming, partial_folder, writing
from corpus.progress import Progress, read_progress, save_progress
from corpus.splits import Choice, Document, check_splits, empty_split, training_documents
from corpus.tokenizer import END_OF_TEXT, Tokenizer
from corpus.tokenizer_registry import build_tokenizer, parse_tokenizer_name

FORMAT = 1
INEXACT = (
    "Training and sampling work. Bits per byte counts the original text, as the mean of a whole split. The "
    "tokens have no exact bytes: the .bin files cannot be read by a model of another tokenizer"
)
PORTION = 1 << 20  # tokens read at once
PROGRESS_SECONDS = 60  # time between saves of the progress


def prepare(
    documents: Callable[..., Iterator[Document | None]],
    source: dict,
    tokenizer: str,
    out: Path,
    val_fraction: float,
    workers: int,
    max_tokens: int | None = None,
    known_documents: int | None = None,
    min_tokens: int = 0,
    test_fraction: float = 0.0,
    contiguous: bool = False,
    scan: bool = False,
    pairs: bool = False,
    end_token: str | None = None,
) -> dict:
    """Writes the data set folder `out` and returns its meta.json, at once if the folder exists already.

    - documents: each call `documents()` starts the same documents from the beginning. None stands for a
      document that the source leaves out. If its iterator has `state()`, a dict of plain JSON values,
      `documents(state)` continues after the last document. If it has `about()`, meta.json records its
      result.
    - source: the origin of the documents, in plain JSON values. A finished folder must have the same
      source.
    - tokenizer, end_token: for `build_tokenizer`.
    - max_tokens: the data set ends with the document that brings the training split to so many tokens.
    - known_documents: the number of documents in the source, which is compared if max_tokens is None.
    - min_tokens: documents with fewer tokens are left out.
    - test_fraction: above 0, there is a third split, test.
    - contiguous: the end of each document is validation, see corpus/splits.py.
    - pairs: the documents are of `splits.Pair`. meta.json has their number as "pairs", and counts each as
      two documents.
    - scan: first read documents until each split has one, so that an empty split is found before anything
      is encoded. For documents that are cheap to read twice.

    Raises DataError. Written files are then removed, unless a later call can continue from them.
    """
    if not 0 < val_fraction < 1:
        raise DataError(f"--val_fraction must lie between 0 and 1, not {val_fraction}")
    if workers < 1:
        raise DataError(f"--workers must be at least 1, not {workers}")
    if not 0 <= test_fraction < 1 - val_fraction:
        raise DataError(
            f"--test_fraction must lie between 0 and what --val_fraction={val_fraction} leaves, not "
            f"{test_fraction}"
        )
    if min_tokens < 0:
        raise DataError(f"--min_tokens must not be below 0, not {min_tokens}")
    if max_tokens is not None and max_tokens < 1:
        raise DataError(f"--max_tokens must be at least 1, not {max_tokens}")
    asked = {"max_tokens": max_tokens, "min_tokens": min_tokens, "test_fraction": test_fraction}
    for key in ("max_tokens", "min_tokens"):
        if asked[key] and isinstance(parse_tokenizer_name(tokenizer)[1], int):
            raise DataError(
                f"--{key} counts tokens, and --tokenizer={tokenizer} has none before it was trained "
                "on all documents: choose gpt2, bytes or a tokenizer.json"
            )
    asked["contiguous"] = contiguous
    source = {**source, **{key: value for key, value in asked.items() if value}}
    choice = Choice(val_fraction, test_fraction, min_tokens, contiguous, pairs)
    recipe = {"source": source, "tokenizer": _identify(tokenizer, end_token), "val_fraction": val_fraction}
    out = Path(os.path.abspath(out))
    if finished := _finished(out, recipe):
        return finished
    out = Path(os.path.realpath(out))  # a link may lead to another disk

    if scan:
        check_splits(_Reader(documents()), choice)
    with partial_folder(out) as partial:
        built = build_tokenizer(
            tokenizer, lambda: training_documents(_Reader(documents()), choice), end_token
        )
        if not built.exact:
            print(f"{built.reason}. {INEXACT}", file=sys.stderr)
        identity = {"recipe": recipe, "tokenizer_hash": built.hash}
        done = read_progress(partial, identity, token_dtype(built.vocab_size).itemsize, choice)
        reader = _Reader(documents(done.state) if done.state else documents())
        encoded = encode_documents(reader, built, choice, workers)
        if max_tokens is not None:
            encoded = up_to_tokens(encoded, max_tokens - done.splits["train"]["tokens"])
        before = done.read
        cut = _write_tokens(partial, encoded, done, identity, choice.ends)
        if not built.exact:
            tell_unknown(partial, done.splits, built)
        token_bytes = built.byte_counts()
        saved = built.to_json()
        tokenizer_json = saved.pop("tokenizer.json", None)
        meta = {
            "format": FORMAT,
            **recipe,
            "tokenizer": {"name": recipe["tokenizer"], **saved},
            "vocab_size": built.vocab_size,
            "end_of_text": built.end_of_text,
            "dtype": token_dtype(built.vocab_size).name,
            "splits": done.splits,
            **({"pairs": sum(n["documents"] // 2 for n in done.splits.values())} if pairs else {}),
            "documents_read": done.read,
            "skipped_empty": done.empty,
            "left_out": done.left_out,
            **reader.about(),
            **({"command": command} if (command := commands.typed()) else {}),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "tiktoken", "tokenizers")},
            },
        }
        if known_documents is not None and max_tokens is None:
            meta["known_documents"] = known_documents
            meta["missing_documents"] = known_documents - done.read
        try:
            _check_counts(done, None if cut else before + reader.count, choice)
            _finish(partial, meta, token_bytes, tokenizer_json)
        except DataError:
            (partial / PROGRESS).unlink(missing_ok=True)  # continuing would only fail here again
            raise
    return meta


def prepare_tokens(
    splits: dict[str, Iterable[np.ndarray]], source: dict, tokenizer: Tokenizer, out: Path, about: dict
) -> dict:
    """Writes the data set folder `out` of tokens that no text gave, and returns its meta.json, at once if
    the folder exists already.

    splits: the tokens of each split, arrays of integers below tokenizer.vocab_size. source: see `prepare`.
    about: what else meta.json records. Raises DataError. Written files are then removed.
    """
    kind, saved = token_dtype(tokenizer.vocab_size), tokenizer.to_json()
    name = f"{tokenizer.kind}:{tokenizer.vocab_size}"
    out = Path(os.path.abspath(out))
    if finished := _finished(out, {"source": source, "tokenizer": name}):
        return finished
    out = Path(os.path.realpath(out))  # a link may lead to another disk
    token_bytes = tokenizer.byte_counts()
    with partial_folder(out) as partial:
        counts = {}
        for split, parts in splits.items():
            counts[split] = {"documents": 0, "tokens": 0, "bytes": 0}
            with writing(partial / f"{split}.bin") as file:
                for part in parts:
                    file.write(part.astype(kind).data)
                    checksums.count(part, tokenizer.end_of_text, token_bytes, counts[split])
                    counts[split]["tokens"] += part.size
        meta = {
            "format": FORMAT,
            "source": source,
            "tokenizer": {"name": name, **saved},
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text,
            "dtype": kind.name,
            "splits": counts,
            **about,
            **({"command": command} if (command := commands.typed()) else {}),
            "versions": {"python": platform.python_version(), "numpy": version("numpy")},
        }
        _finish(partial, meta, token_bytes)
    return meta


def tell_unknown(folder: Path, splits: Iterable[str], tokenizer: Tokenizer):
    """Say how many tokens of each split stand for text that the tokenizer does not know, if any do."""
    name, number = tokenizer.of_unknown()
    if number is None:
        return
    shares, lost = [], False
    for split in splits:
        found, size = _occurrences(folder / f"{split}.bin", number, token_dtype(tokenizer.vocab_size))
        shares.append(f"{split} {found / max(1, size):.1%} ({found:,} of {size:,})")
        lost = lost or found > 0
    if lost:
        print(
            f"tokens that are {name}, whose text is lost: {', '.join(shares)}. Take a tokenizer that was "
            "trained on such text",
            file=sys.stderr,
        )


def _occurrences(path: Path, number: int, dtype: np.dtype) -> tuple[int, int]:
    """(how often a token occurs in a .bin file, the tokens of the file)"""
    found = size = 0
    with open_to_read(path) as file:
        while part := file.read(PORTION * dtype.itemsize):
            tokens = np.frombuffer(part, dtype)
            found += int(np.count_nonzero(tokens == number))
            size += len(tokens)
    return found, size


class _Reader:
    """Counts documents, and tells OSErrors of reading them from those of writing."""

    def __init__(self, documents: Iterator[Document | None]):
        self.count = 0
        self._documents = documents
        if hasattr(documents, "state"):
            self.state = documents.state

    def __iter__(self):
        return self

    def __next__(self) -> Document | None:
        try:
            document = next(self._documents)
        except OSError as error:
            raise DataError(f"cannot read the documents: {error}") from None
        self.count += 1
        return document

    def about(self) -> dict:
        return self._documents.about() if hasattr(self._documents, "about") else {}


def _identify(tokenizer: str, end_token: str | None) -> str:
    """The name as meta.json records it: a file is identified by its content, not by its path."""
    _, argument = parse_tokenizer_name(tokenizer)
    if not isinstance(argument, Path):
        return tokenizer
    try:
        with open_to_read(argument) as file:
            name = f"tokenizer.json {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise DataError(f"tokenizer {tokenizer} cannot be read: {error.strerror}") from None
    end_token = end_token_of(argument, end_token)
    return name if end_token == END_OF_TEXT else f"{name}, end token {end_token}"


def _finished(out: Path, recipe: dict) -> dict | None:
    if os.path.realpath(out) == os.getcwd():
        raise DataError("--out is the folder that you are in: name one for the data set alone")
    if os.path.islink(out) and not os.path.exists(out):
        raise DataError(f"{out} {absence(out)}, or choose another --out")
    if not os.path.exists(out) or (out.is_dir() and not any(out.iterdir())):
        return None
    elsewhere = "choose another --out or delete it"
    try:
        meta = read_json(out / "meta.json", ValueError)
        there = {**{key: meta[key] for key in recipe}, "tokenizer": meta["tokenizer"]["name"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{out} exists and is not a prepared data set: choose another --out") from None
    old, new = ({**r.pop("source"), **r} for r in (dict(there), dict(recipe)))
    if old == new:
        for name, about in meta["files"].items():
            if not (out / name).is_file() or (out / name).stat().st_size != about["bytes"]:
                raise DataError(f"{out / name} is not whole any more: {elsewhere}")
        print(f"{out} is already prepared")
        return meta
    differences = [
        f"  {key}: {old.get(key)!r} there, {new.get(key)!r} asked for"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    raise DataError("\n".join([f"{out} was prepared otherwise; {elsewhere}:", *differences]))


def _write_tokens(
    folder: Path, encoded: Iterator[Batch], done: Progress, identity: dict, ends: int
) -> bool:
    """Appends to the .bin files and to `done`. Returns whether the last batch was cut short."""
    start = saved = time.monotonic()
    cut = False
    bytes_before = sum(count["bytes"] for count in done.splits.values())
    # A terminal is redrawn ten times a second, a log file gets a line a minute.
    interval = 0.1 if sys.stderr.isatty() else 60
    with contextlib.ExitStack() as stack:
        tokens = sum(count["tokens"] for count in done.splits.values())
        bar = stack.enter_context(
            tqdm(unit="tok", unit_scale=True, mininterval=interval, desc=folder.stem, initial=tokens)
        )
        files = {
            split: stack.enter_context(writing(folder / f"{split}.bin", "ab")) for split in done.splits
        }
        for batch in encoded:
            for split, part in batch.splits.items():
                with blaming(folder / f"{split}.bin"):
                    files[split].write(part.tokens.data)
                bar.update(len(part.tokens))
            done.add(batch, ends)
            cut = batch.cut
            if done.state is not None and time.monotonic() - saved >= PROGRESS_SECONDS:
                save_progress(folder, files, identity, done)
                saved = time.monotonic()
            seconds = max(time.monotonic() - start, 1e-3)
            total = {key: sum(c[key] for c in done.splits.values()) for key in ("documents", "bytes")}
            speed = (total["bytes"] - bytes_before) / 1e6 / seconds
            bar.set_postfix_str(f"{total['documents']:,} documents, {speed:.1f} MB/s", refresh=False)
    return cut


def _finish(
    partial: Path, meta: dict, token_bytes: np.ndarray | None, tokenizer_json: str | None = None
) -> None:
    """Writes the files of a data set besides its splits, and enters the checksums of all into `meta`."""
    meta["files"] = checksums.of_splits(partial, meta, token_bytes)
    written = []
    if token_bytes is not None:
        with writing(partial / "token_bytes.npy") as file:
            np.save(file, token_bytes)
        written.append("token_bytes.npy")
    if tokenizer_json is not None:
        with writing(partial / "tokenizer.json") as file:
            file.write(tokenizer_json.encode())
        written.append("tokenizer.json")
    for name in written:
        meta["files"][name] = checksums.of_file(partial / name)
    with writing(partial / "meta.json") as file:
        file.write(json.dumps(meta, indent=2).encode())


def _check_counts(done: Progress, given: int | None, choice: Choice) -> None:
    """Raises DataError if documents were lost, as far as their number is known, or if a split is empty."""
    # of a document that is cut, a part is always in training
    counted = ["train"] if choice.contiguous else done.splits
    written = sum(done.splits[split]["documents"] for split in counted) // choice.ends
    if done.read != written + done.empty + done.left_out or given not in (None, done.read):
        raise DataError(f"documents were lost: of {given or done.read:,} these arrived: {done}")
    for split in done.splits:
        if not done.splits[split]["documents"]:
            raise DataError(empty_split(split, choice, written, done.empty, done.left_out))
