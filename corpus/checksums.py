"""Checks that the files of a data set still have the prepared content.

meta.json records under `files` the size in bytes and the SHA-256 of every other file in the folder. Sizes
are compared whenever a file is opened, and so is the SHA-256 of token_bytes.npy. The SHA-256 of a split is
compared when `verified` reads it completely, at 0.7 to 2 GB/s on one processor core. Data sets prepared
without `files` are compared with the counts of their splits instead, which takes about ten times as long.
"""

from host.disk import open_to_read

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from corpus import DataError

PORTION = 1 << 24  # bytes read at a time
MEND = "put back a sound copy, or delete the folder and prepare the data set again"


def of_file(path: Path) -> dict:
    """The size and SHA-256 that meta.json records of a file."""
    with open_to_read(path) as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def check_content(path: Path, files: dict):
    """Raises DataError if a small file's SHA-256 is not the recorded one."""
    if path.name in files:
        with open_to_read(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        _compare(path, found, files[path.name]["sha256"])


def of_splits(folder: Path, meta: dict, token_bytes: np.ndarray | None) -> dict:
    """The entries of meta.json for the .bin files that were just written.

    Reads the tokens back and compares their bytes with those of the texts, and the number of end-of-text
    tokens with that of documents. token_bytes: int32 [vocab_size], None where tokens have no fixed bytes.
    Raises DataError if they differ.
    """
    files = {}
    for split, written in meta["splits"].items():
        tokens = np.memmap(folder / f"{split}.bin", dtype=meta["dtype"], mode="r")
        found, digest = {"documents": 0, "tokens": len(tokens), "bytes": 0}, hashlib.sha256()
        if token_bytes is None:
            found["bytes"] = written["bytes"]
        for part in _portions(tokens):
            digest.update(part.data)
            count(part, meta["end_of_text"], token_bytes, found)
        if found != written:
            raise DataError(
                f"{split}.bin does not hold what was written: {found} instead of {written}. Either the "
                "disk lost something or the tokenizer is not lossless; nothing was kept"
            )
        files[f"{split}.bin"] = {"bytes": tokens.nbytes, "sha256": digest.hexdigest()}
    return files


def verified(
    path: Path, tokens: np.ndarray, counts: dict, meta: dict, token_bytes: np.ndarray | None
) -> Iterator[int]:
    """Reads a whole split, and yields the number of bytes of each portion.

    path, tokens, counts: of the split, tokens uint16 or uint32 [n_tokens]. token_bytes: int32 [vocab_size]
    or None, used if no SHA-256 is recorded. Raises DataError if the split does not match meta.json.
    """
    recorded = meta.get("files", {}).get(path.name)
    found, digest = {"documents": 0, "bytes": 0}, hashlib.sha256()
    if token_bytes is None:
        del found["bytes"]
    for part in _portions(tokens):
        if recorded:
            digest.update(part.data)
        elif part.max() >= meta["vocab_size"]:
            raise DataError(
                f"{path} holds token {part.max():,}, and the vocabulary of meta.json has "
                f"{meta['vocab_size']:,}: it is damaged or of another data set; {MEND}"
            )
        else:
            count(part, meta["end_of_text"], token_bytes, found)
        yield part.nbytes
    if recorded:
        _compare(path, digest.hexdigest(), recorded["sha256"])
    elif wrong := [key for key in found if found[key] != counts.get(key)]:
        told = ", ".join(f"{key} {found[key]:,}, not {counts.get(key, 0):,}" for key in wrong)
        raise DataError(
            f"{path} does not hold what meta.json counts ({told}): it is damaged or of another data set; "
            f"{MEND}"
        )


def _portions(tokens: np.ndarray) -> Iterator[np.ndarray]:
    step = PORTION // tokens.itemsize
    for start in range(0, len(tokens), step):
        yield np.asarray(tokens[start : start + step])


def count(part: np.ndarray, end_of_text: int, token_bytes: np.ndarray | None, found: dict):
    """Add the bytes of these tokens to found["bytes"], and the ends of texts to found["documents"]."""
    if token_bytes is not None:
        found["bytes"] += int(token_bytes[part].sum(dtype=np.int64))
    found["documents"] += int((part == end_of_text).sum())


def _compare(path: Path, found: str, recorded: str):
    if found != recorded:
        raise DataError(
            f"{path} is damaged or of another data set: its SHA-256 begins with {found[:12]}, that in "
            f"meta.json with {recorded[:12]}; {MEND}"
        )
