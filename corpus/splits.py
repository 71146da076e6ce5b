"""Which split a document, or a part of it, belongs to.

Documents stay whole, and the hash of a text decides its split, so that duplicates share a split and the
order of the documents does not matter. With `contiguous`, every document is cut in two instead, and its
end belongs to validation. The hash of its group decides the split of a pair.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from corpus import DataError
from corpus.tokenizer import valid_unicode


class Pair(NamedTuple):
    """Two texts, such as a sentence and its translation.

    group: pairs of one group share a split, such as those of a page; None for a group of its own.
    """

    source: str
    target: str
    group: str | None = None


Document = str | Pair


def texts_of(document: Document) -> tuple[str, ...]:
    """The texts that a document is written as, one after the other."""
    return (document.source, document.target) if isinstance(document, Pair) else (document,)


def is_empty(document: Document) -> bool:
    """Whether a document has no text; of a pair, whether one side has none."""
    return not all(text.strip() for text in texts_of(document))


def in_validation(text: str, val_fraction: float) -> bool:
    """Whether a text is in validation. The text alone decides, so that duplicates share a split."""
    return _place(text) < val_fraction * 2**64


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=b"val").digest(), "little")


@dataclass(frozen=True)
class Choice:
    """Decides which documents are taken, and their split. `min_tokens` does not count end-of-text.

    contiguous: the last `val_fraction` of each document is in validation, the rest in training; needs
    test_fraction=0 and min_tokens=0. pairs: the documents are pairs; needs min_tokens=0.
    """

    val_fraction: float
    test_fraction: float = 0.0
    min_tokens: int = 0
    contiguous: bool = False
    pairs: bool = False

    @property
    def ends(self) -> int:
        """The end-of-text tokens of each document."""
        return 2 if self.pairs else 1

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train", "val", "test") if self.test_fraction else ("train", "val")

    def texts(self, document: Document) -> dict[str, tuple[str, ...]]:
        """{split: the texts of a document that belong to it}, in valid Unicode."""
        texts = tuple(map(valid_unicode, texts_of(document)))
        if isinstance(document, Pair):
            group = texts[0] if document.group is None else valid_unicode(document.group)
            return {self._split(group): texts}
        return {split: (part,) for split, part in self.parts(*texts).items()}

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


def training_documents(documents: Iterable[Document | None], choice: Choice) -> Iterator[str]:
    """The texts of the training split, for a tokenizer to be trained on."""
    for document in documents:
        if document is not None and not is_empty(document):
            yield from choice.texts(document).get("train", ())


def check_splits(documents: Iterable[Document | None], choice: Choice) -> None:
    """Raises DataError if a split would be empty. Stops reading as soon as each split has a document."""
    lacking, total, empty, left_out = set(choice.splits), 0, 0, 0
    for document in documents:
        if document is None or is_empty(document):
            left_out += document is None
            empty += document is not None
            continue
        total += 1
        lacking -= choice.texts(document).keys()
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
    if choice.pairs:
        return (
            f"none of the {total:,} pairs fell into the {split} split: the pairs of a group stay together, "
            f"and there are too few groups for --val_fraction={choice.val_fraction:.3g}: change it, or "
            "give more pairs"
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
