"""Which split a document, or a part of it, belongs to.

Documents stay whole, and the hash of a text decides its split, so that duplicates share a split and the
order of the documents does not matter. With `contiguous`, every document is cut in two instead, and its
end belongs to validation.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data import DataError
from data.tokenizer import valid_unicode


def in_validation(text: str, val_fraction: float) -> bool:
    """Whether a text is in validation. The text alone decides, so that duplicates share a split."""
    return _place(text) < val_fraction * 2**64


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=b"val").digest(), "little")


@dataclass(frozen=True)
class Choice:
    """Decides which documents are taken, and their split. `min_tokens` does not count end-of-text.

    contiguous: the last `val_fraction` of each document is in validation, the rest in training; needs
    test_fraction=0 and min_tokens=0.
    """

    val_fraction: float
    test_fraction: float = 0.0
    min_tokens: int = 0
    contiguous: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "val", "test") if self.test_fraction else ("train", "val")

    def parts(self, text: str) -> dict[str, str]:
        """{split: the part of the text that belongs to it}; joined in order, the parts are the text."""
        if not self.contiguous:
            return {self._split(text): text}
        place = cut(text, self.val_fraction)
        head, tail = text[:place], text[place:]
        # blanks alone are no document
        return {"train": head, "val": tail} if head.strip() and tail.strip() else {"train": text}

    def _split(self, text: str) -> str:
        if in_validation(text, self.val_fraction):
            return "val"
        # taken from the other end of the hash's range, so that no split depends on the size of the other
        return "test" if _place(text) >= (1 - self.test_fraction) * 2**64 else "train"


def cut(text: str, share: float) -> int:
    """The index at which the last `share` of a text begins, counted in characters.

    It moves to the nearest start of a line, else to the nearest space, if that changes the smaller part by
    at most half.
    """
    place = len(text) - round(share * len(text))
    room = min(place, len(text) - place) // 2
    for mark, behind in (("\n", 1), (" ", 0)):  # a tokenizer keeps a space with the word after it
        near = (text.rfind(mark, place - room, place), text.find(mark, place, place + room))
        if found := [index + behind for index in near if index >= 0]:
            return min(found, key=lambda index: abs(index - place))
    return place


def training_documents(documents: Iterable[str | None], choice: Choice) -> Iterator[str]:
    for text in documents:
        if text is not None and text.strip():
            parts = choice.parts(valid_unicode(text))
            if "train" in parts:
                yield parts["train"]


def check_splits(documents: Iterable[str | None], choice: Choice) -> None:
    """Raises DataError if a split would be empty. Stops reading as soon as each split has a document."""
    lacking, total, empty, left_out = set(choice.splits), 0, 0, 0
    for text in documents:
        if text is None or not text.strip():
            left_out += text is None
            empty += text is not None
            continue
        total += 1
        lacking -= choice.parts(valid_unicode(text)).keys()
        if not lacking:
            return
    for split in choice.splits:
        if split in lacking:
            raise DataError(empty_split(split, choice, total, empty, left_out))


def empty_split(split: str, choice: Choice, total: int, empty: int, left_out: int) -> str:
    """Why a split has no document, and what to do. total: the number of documents in all splits."""
    if not total and left_out:
        read = total + empty + left_out
        return f"none of {read:,} documents was kept: {left_out:,} were left out, {empty:,} empty"
    if not total:
        return f"no document with any text was found ({empty} were empty)"
    if choice.contiguous:
        return (
            f"no document is long enough that its last {choice.val_fraction:.3g} can be cut off for "
            "validation: raise --val_fraction, or give more text"
        )
    if total == 1:
        return (
            "there is one document only, and documents stay whole, in training or in validation: take "
            f"--split=contiguous, which puts the last {choice.val_fraction:.3g} of it into validation "
            r"(--val_fraction), or cut it into documents with --separator, --separator='\n\n' say, or give "
            "more"
        )
    change = (
        "lower --val_fraction"
        if split == "train"
        else f"raise --{split}_fraction, to {min(0.5, 5 / total):.2g} say"
    )
    return (
        f"none of the {total} documents fell into the {split} split: {change}, give more documents, cut "
        "big files into documents with --separator, or cut off the end of each with --split=contiguous"
    )
