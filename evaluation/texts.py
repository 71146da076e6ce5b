"""Texts to measure models on: the papers' data sets, local files, and prepared .bin files.

The way the documents of a text are joined decides what a model sees before a token:

    blank_line    one stream, an empty line between documents: "\\n\\n"
    space         one stream, a space between them
    end_of_text   one stream, an end-of-text token between them, which is scored too
    separate      one stream per document, so that no document sees another

Every stream begins with an end-of-text token, as documents do in training. This first token is not scored.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from tqdm import tqdm

from data import DataError, files, hub
from data.loader import Dataset
from data.tokenizer import Tokenizer
from evaluation import EvaluationError

Join = Literal["blank_line", "space", "end_of_text", "separate"]
JOINS = get_args(Join)
GLUE = {"blank_line": "\n\n", "space": " "}


@dataclass(frozen=True)
class Published:
    """A data set of the papers' table 3 on the hub, and the stride they give for a window of 1024."""

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
        self, tokenizer: Tokenizer, join: Join | None = None, max_tokens: int | None = None
    ) -> list[np.ndarray]:
        """The text as integer arrays that begin with end-of-text.

        join: None for the text's own way of joining. max_tokens: only so many tokens that are scored, from
        the beginning. Raises DataError or EvaluationError if the tokenizer is not the text's, or has no
        token for one of its bytes.
        """
        found, left = [], max_tokens
        for stream in self._streams(tokenizer, join or self.join, max_tokens):
            if left is not None:
                stream = stream[: left + 1]
                left -= len(stream) - 1
            if len(stream) > 1:
                found.append(stream)
            if left == 0:
                break
        return found

    @abstractmethod
    def _streams(self, tokenizer, join, max_tokens):
        """Yields the streams of the text joined by `join`: all of it, or at least `max_tokens` tokens."""


@dataclass
class Documents(Text):
    """A text whose documents are in memory."""

    documents: list[str]

    def _streams(self, tokenizer, join, max_tokens):
        documents, end = self.documents, tokenizer.end_of_text
        if join in GLUE:
            documents = [GLUE[join].join(documents)]
        elif join == "end_of_text":
            parts = [[end, *ids] for ids in tokenizer.encode_batch(documents)]
            yield np.array([i for part in parts for i in part], dtype=np.int64)
            return
        for document in documents:
            yield np.array([end, *tokenizer.encode(document)], dtype=np.int64)


@dataclass
class Prepared(Text):
    """A split of a prepared data set."""

    dataset: Dataset

    def _streams(self, tokenizer, join, max_tokens):
        own = self.dataset.tokenizer()
        if own.hash != tokenizer.hash and own.token_bytes() != tokenizer.token_bytes():
            raise EvaluationError(
                f"{self.name} was encoded with another tokenizer ({own.kind}, {own.hash[:12]}) than the "
                f"model's ({tokenizer.kind}, {tokenizer.hash[:12]}): prepare the text with the model's"
            )
        end = own.end_of_text
        tokens = self.dataset.tokens
        if join == "end_of_text":
            part = tokens if max_tokens is None else tokens[:max_tokens]
            yield np.concatenate(([end], part)).astype(np.int64)
            return
        if join != "separate":
            raise EvaluationError(
                f"{self.name} is encoded already: join must be end_of_text or separate, not {join}"
            )
        start = 0
        for place in np.flatnonzero(tokens == end):
            yield np.concatenate(([end], tokens[start:place])).astype(np.int64)
            start = place + 1
        if start < len(tokens):
            yield np.concatenate(([end], tokens[start:])).astype(np.int64)


def open_text(name: str, split: str | None = None, field: str = "text") -> Text:
    """Opens one of NAMED from the hub, a local file or folder of texts, or a prepared .bin file or folder.

    split: None means test for NAMED, and val for a prepared folder. field: the column with the text in
    local .jsonl, .csv and .parquet files. Raises DataError or EvaluationError.
    """
    path = Path(name)
    if name in NAMED:
        return _published(name, split or "test")
    if path.suffix == ".bin" and not path.exists():
        raise EvaluationError(f"there is no {name}: give a file of a prepared data set, or its folder")
    if path.suffix == ".bin" or (path / "meta.json").is_file():
        folder, of = (path.parent, path.stem) if path.suffix == ".bin" else (path, split or "val")
        dataset = Dataset(folder, of, block_size=1)
        if of != "train":  # the training split is too large to be read here for its checksum
            for _ in dataset.verified():
                pass
        source = {"prepared": str(folder), "split": of, "recipe": dataset.meta.get("source")}
        return Prepared(name, "end_of_text", None, source, dataset)
    if not path.exists() and not files.looks_local(name):
        raise EvaluationError(
            f"{name} is no text: give one of {', '.join(NAMED)}, a local file or folder "
            f"({', '.join(files.SUFFIXES)}), or a prepared .bin file"
        )
    documents = [text for text in files.documents(files.find([name]), field, None) if text.strip()]
    if not documents:
        raise DataError(f"{name} holds no text")
    return Documents(name, "end_of_text", None, {"files": name}, documents)


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
