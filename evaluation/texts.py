"""Texts to measure models on: the papers' data sets, local files, and prepared .bin files.

The way the documents of a text are joined decides what a model sees before a token:

    blank_line    one stream, an empty line between documents: "\\n\\n"
    space         one stream, a space between them
    end_of_text   one stream, an end-of-text token between them, which is scored too
    separate      one stream per document, so that no document sees another

Every stream begins with an end-of-text token, as documents do in training. This first token is not scored.
(A tokenizer of transformers may have another token for beginnings: see `Tokenizer.start_of_text`.)
Of a prepared data set of pairs, every pair is a stream of its own, with both sides scored.
A limit in bytes gives every tokenizer the same text; a limit in tokens does not.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from tqdm import tqdm

from corpus import DataError, files, hub, sources
from corpus.loader import Dataset
from corpus.tokenizer import Tokenizer, valid_unicode
from evaluation import EvaluationError

Join = Literal["blank_line", "space", "end_of_text", "separate"]
JOINS = get_args(Join)
GLUE = {"blank_line": "\n\n", "space": " "}
# tokens of a text, and the bytes that each of them stands for; None: those of `Tokenizer.byte_counts`
Piece = tuple[Sequence[int] | np.ndarray, np.ndarray | None]
NO_BYTES = np.zeros(1, dtype=np.int64)
PORTION = 1 << 20  # tokens whose bytes are counted at once


@dataclass(frozen=True)
class Published:
    """A data set of the papers' table 3 on the hub, and the stride they give; a window of 1024 is ours."""

    path: str
    config: str | None
    field: str
    join: Join
    stride: int


# WikiText's rows are lines, and "\n\n" between them is the convention for GPT-2. The papers do not say how
# rows are joined. PTB's rows are consecutive sentences; rows of the last three data sets have no order.
NAMED = {
    "ptb": Published("ptb-text-only/ptb_text_only", "penn_treebank", "sentence", "space", 256),
    "wikitext2": Published("Salesforce/wikitext", "wikitext-2-raw-v1", "text", "blank_line", 512),
    "wikitext103": Published("Salesforce/wikitext", "wikitext-103-raw-v1", "text", "blank_line", 512),
    "lambada": Published("EleutherAI/lambada_openai", "default", "text", "end_of_text", 256),
    "ag_news": Published("fancyzhx/ag_news", None, "text", "end_of_text", 256),
    "lm1b": Published("billion-word-benchmark/lm1b", None, "text", "end_of_text", 256),
}


TABLE_3 = "table_3"  # a name for all of them


@dataclass
class Text(ABC):
    """A text to measure models on.

    stride: the published one, None for a text that no paper names. source: its origin, for the JSON.
    """

    name: str
    join: Join
    stride: int | None
    source: dict

    def streams(
        self,
        tokenizer: Tokenizer,
        join: Join | None = None,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
    ) -> list[np.ndarray]:
        """The text as integer arrays that begin with end-of-text. Arguments and errors: see `sized`."""
        return self.sized(tokenizer, join, max_tokens, max_bytes)[0]

    def sized(
        self,
        tokenizer: Tokenizer,
        join: Join | None = None,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
    ) -> tuple[list[np.ndarray], list[float] | None]:
        """(`streams`, the bytes of the text that each stream's scored tokens stand for; None: those of
        `tokenizer.byte_counts()`)

        join: None for the text's own way of joining. max_tokens: only so many tokens that are scored, from
        the beginning. max_bytes: only so many bytes of UTF-8 from the beginning, or a few less: the same
        text for every tokenizer. Raises DataError or EvaluationError if the text cannot be joined in this
        way, or if the tokenizer has no token for one of its bytes.
        """
        found, sizes, left = [], [], max_tokens
        for stream, of_tokens in self._streams(tokenizer, join or self.join, max_tokens, max_bytes):
            if left is not None:
                stream = stream[: left + 1]
                left -= len(stream) - 1
            if len(stream) > 1:
                found.append(stream)
                if of_tokens is not None:
                    sizes.append(float(of_tokens[1 : len(stream)].sum()))
            if left == 0:
                break
        return found, None if tokenizer.exact else sizes

    @abstractmethod
    def _streams(self, tokenizer, join, max_tokens, max_bytes):
        """Yields the streams of the text joined by `join`, as `_joined` gives them: the text up to
        `max_bytes` (None: all of it), or at least `max_tokens` tokens of it.
        """


@dataclass
class Documents(Text):
    """A text whose documents are in memory."""

    documents: list[str]

    def _streams(self, tokenizer, join, max_tokens, max_bytes):
        documents = self.documents
        if join in GLUE:
            documents = [GLUE[join].join(documents)]
        if max_bytes is not None:
            documents = first_bytes(documents, max_bytes)
        if join == "end_of_text":
            found = tokenizer.encode_sized(documents)
            pieces = [piece for each in found for piece in (_end(tokenizer), each)]
            yield _joined([_start(tokenizer), *pieces[1:]])
            return
        for document in documents:
            yield _joined([_start(tokenizer), *tokenizer.encode_sized([document])])


@dataclass
class Prepared(Text):
    """A split of a prepared data set. For another tokenizer than the data set's, its text is decoded."""

    dataset: Dataset

    def _streams(self, tokenizer, join, max_tokens, max_bytes):
        if join not in ("end_of_text", "separate"):
            raise EvaluationError(
                f"{self.name} is encoded already: join must be end_of_text or separate, not {join}"
            )
        own, start, end = self.dataset.tokenizer(), _start(tokenizer), _end(tokenizer)
        tokens, same = self.dataset.tokens, own.same_tokens(tokenizer)
        if not own.exact and (max_bytes is not None or not same):
            raise EvaluationError(
                f"{self.name} holds tokens without exact bytes: it can be measured by models of its own "
                "tokenizer only, whole or up to --max_tokens. Give the text itself, as a local file"
            )
        if max_bytes is not None:
            tokens = tokens[: _within(tokens, own, max_bytes)]
        if "pairs" in self.dataset.meta:
            yield from self._pairs(tokenizer, own, tokens, join, same)
            return
        if same and join == "end_of_text":
            yield _joined([start, self._piece(tokens[:max_tokens])])
            return
        pieces, count = [start], 0
        for document, ended in _documents(tokens, own.end_of_text):
            piece = self._piece(document) if same else self._encoded_again(own, document, tokenizer)
            if join == "separate":
                yield _joined([start, piece])
                continue
            pieces += [piece, end] if ended else [piece]
            count += len(piece[0]) + ended
            if max_tokens is not None and count >= max_tokens:
                break
        if join == "end_of_text":
            yield _joined(pieces)

    def _pairs(self, tokenizer, own, tokens, join, same):
        """Yields a stream for each pair: end-of-text, source, end-of-text, target, end-of-text."""
        if join == "separate":
            raise EvaluationError(
                f"{self.name} holds pairs, whose sides do not stand alone: join must be end_of_text"
            )
        end, sides = _end(tokenizer), []
        for document, ended in _documents(tokens, own.end_of_text):
            piece = self._piece(document) if same else self._encoded_again(own, document, tokenizer)
            sides += [piece, end] if ended else [piece]
            if len(sides) == 4 or not ended:  # a limit may cut the last pair off
                yield _joined([_start(tokenizer), *sides])
                sides = []

    def _piece(self, tokens: np.ndarray) -> Piece:
        """Tokens of the data set. Those without fixed bytes count their mean in the original texts."""
        if self.dataset.token_bytes is not None:
            return tokens, None
        return tokens, np.where(tokens == self.dataset.meta["end_of_text"], 0, self._mean)

    @cached_property
    def _mean(self) -> float:
        """The bytes of the original texts of the split / its tokens without end-of-text."""
        scored = np.count_nonzero(self.dataset.tokens != self.dataset.meta["end_of_text"])
        return self.dataset.meta["splits"][self.dataset.split]["bytes"] / scored

    def _encoded_again(self, own: Tokenizer, document: np.ndarray, tokenizer: Tokenizer) -> Piece:
        try:
            text = own.decode_bytes(document).decode()
        except UnicodeDecodeError as error:
            raise EvaluationError(
                f"{self.name} holds a document that is not UTF-8 ({error}), so it cannot be decoded for a "
                "model of another tokenizer: give the text itself, as a local file"
            ) from None
        return next(iter(tokenizer.encode_sized([text])))


def _start(tokenizer: Tokenizer) -> Piece:
    """The token before a stream."""
    return [tokenizer.start_of_text], NO_BYTES


def _end(tokenizer: Tokenizer) -> Piece:
    """The token between documents of a stream."""
    return [tokenizer.end_of_text], NO_BYTES


def _joined(pieces: list[Piece]) -> Piece:
    """A stream of pieces, int64, and the bytes of its tokens; None where a piece has None."""
    tokens = np.concatenate([ids for ids, _ in pieces]).astype(np.int64)
    sizes = [sizes for _, sizes in pieces]
    return tokens, None if any(of is None for of in sizes) else np.concatenate(sizes)


def _documents(tokens: np.ndarray, end: int) -> Iterator[tuple[np.ndarray, bool]]:
    """(the tokens of a document, whether an end-of-text token follows it) of each document."""
    start = 0
    for place in np.flatnonzero(tokens == end):
        yield tokens[start:place], True
        start = place + 1
    if start < len(tokens):
        yield tokens[start:], False


def _within(tokens: np.ndarray, own: Tokenizer, max_bytes: int) -> int:
    """The most tokens that hold at most `max_bytes` bytes and end with a whole character."""
    table = own.token_bytes()
    lengths = own.byte_counts()
    count = 0
    for start in range(0, len(tokens), PORTION):
        ends = lengths[tokens[start : start + PORTION]].cumsum(dtype=np.int64)
        fitting = int(np.searchsorted(ends, max_bytes, side="right"))
        count += fitting
        if fitting < len(ends):
            break
        max_bytes -= ends[-1]
    # a token that begins with a continuation byte of UTF-8 is within a character
    while 0 < count < len(tokens) and any(0x80 <= byte < 0xC0 for byte in table[tokens[count]][:1]):
        count -= 1
    return count


def first_bytes(documents: list[str], max_bytes: int) -> list[str]:
    """The documents up to the first `max_bytes` bytes of UTF-8, the last cut after a whole character."""
    kept = []
    for document in documents:
        encoded = valid_unicode(document).encode()
        kept.append(encoded[:max_bytes].decode(errors="ignore"))  # ignores the beginning of a character
        max_bytes -= len(encoded)
        if max_bytes <= 0:
            break
    return kept


def open_text(name: str, split: str | None = None, field: str = "text") -> Text:
    """Opens one of NAMED from the hub, a local file or folder of texts (also of `save_to_disk` or
    `hf download`), or a prepared .bin file or folder.

    split: None means val for a prepared folder, and test for what else has splits. field: the column with
    the text in local .jsonl, .csv and .parquet files. Raises DataError or EvaluationError.
    """
    path = Path(name)
    if name in NAMED:
        return _published(name, split or "test")
    if path.suffix == ".bin" and not path.exists():
        raise EvaluationError(f"there is no {name}: give a file of a prepared data set, or its folder")
    if path.suffix == ".bin" or (path / "meta.json").is_file():
        if path.suffix == ".bin" and split not in (None, path.stem):
            raise EvaluationError(f"{name} is one split: leave out --split={split}, or give its folder")
        folder, of = (path.parent, path.stem) if path.suffix == ".bin" else (path, split or "val")
        dataset = Dataset(folder, of, block_size=1)
        if "mqar" in dataset.meta:
            raise EvaluationError(
                f"{name} holds rows of MQAR, of which the answers alone can be predicted: give --task=mqar"
            )
        if of != "train":  # the training split is too large to be read here for its checksum
            for _ in dataset.verified():
                pass
        source = {"prepared": str(folder), "split": of, "recipe": dataset.meta.get("source")}
        source["pairs"] = "pairs" in dataset.meta
        return Prepared(name, "end_of_text", None, source, dataset)
    if not path.exists() and not files.looks_local(name):
        raise EvaluationError(
            f"{name} is no text: give one of {', '.join([*NAMED, TABLE_3])}, a local file or folder "
            f"({', '.join(files.SUFFIXES)}), or a prepared .bin file"
        )
    source = sources.local(
        name, [field], None, split or "test", chosen_by=("a folder within it", "--split")
    )
    if split is not None and "files" in source.about and "split" not in source.about:
        raise EvaluationError(f"{name} is one text without splits: leave out --split={split}")
    documents = [text for text in source.texts(field)() if text and text.strip()]
    if not documents:
        raise DataError(f"{name} holds no text")
    return Documents(name, "end_of_text", None, {"files": name, **source.about}, documents)


def _published(name: str, split: str) -> Documents:
    known = NAMED[name]
    where = (known.path, known.config, split)
    stream = hub.Stream(
        [hub.plain(*where), hub.parquet(*where, whole=True)],
        lambda row, place: files.text_of(row, known.field, place),
        f"{name} ({known.path}, {split})",
        f"Without the hub, give a file of its text in the place of {name}: --texts=PATH, with "
        f"--stride={known.stride} (or less, where the model's window is no longer) and --join={known.join} "
        "for the layout of the papers",
    )
    documents = list(tqdm(stream, desc=f"reading {name}", unit=" rows"))
    if not any(text.strip() for text in documents):
        raise DataError(f"{name}: the split {split} of {known.path} holds no text")
    source = {"hub": known.path, "config": known.config, "split": split, **stream.about()}
    return Documents(name, known.join, known.stride, source, documents)
