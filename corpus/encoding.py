"""Encodes documents into tokens per split. The order does not depend on the number of processes."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import numpy as np

from corpus import DataError
from corpus.splits import Choice, Document, is_empty, texts_of
from corpus.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20  # per batch: enough to hide the cost of sending it to a worker
TINY = 4  # so few batches are encoded sooner than another process starts


@dataclass
class Encoded:
    """The documents of one batch that belong to one split, in order.

    `tokens` is uint16 or uint32, with end-of-text after each document and after each side of a pair. The
    other arrays have one number per document or pair: its place in the batch, its number of tokens
    (end-of-text included) and the bytes of its text.
    """

    places: np.ndarray
    token_counts: np.ndarray
    byte_counts: np.ndarray
    tokens: np.ndarray

    def until(self, place: int) -> "Encoded":
        """The documents up to this place."""
        n = int(np.searchsorted(self.places, place, side="right"))
        counts = self.token_counts[:n]
        return Encoded(self.places[:n], counts, self.byte_counts[:n], self.tokens[: counts.sum()])


@dataclass
class Batch:
    """Consecutive documents, encoded. read: their number, including those that are in no split."""

    read: int
    left_out: np.ndarray  # places of documents that the source leaves out (None)
    empty: np.ndarray  # places of documents without text
    splits: dict[str, Encoded]
    state: dict | None = None  # state of the source after the last document, if it has one
    cut: bool = False  # whether later documents were dropped

    def until(self, place: int) -> "Batch":
        """The documents up to this place. The result has no state to continue from."""
        splits = {split: part.until(place) for split, part in self.splits.items()}
        left_out, empty = (places[places <= place] for places in (self.left_out, self.empty))
        return Batch(place + 1, left_out, empty, splits, cut=True)


def token_dtype(vocab_size: int) -> np.dtype:
    """Little-endian uint16, or uint32 for a vocabulary above 65,536."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def up_to_tokens(batches: Iterator[Batch], max_tokens: int) -> Iterator[Batch]:
    """Stops after the document with which the training split reaches `max_tokens`.

    The cut depends on the documents and their order alone, not on their division into batches.
    """
    total = 0
    for batch in batches:
        train = batch.splits["train"]
        reached = total + np.cumsum(train.token_counts)
        if len(reached) and reached[-1] >= max_tokens:
            yield batch.until(int(train.places[np.searchsorted(reached, max_tokens)]))
            return
        total += int(train.token_counts.sum())
        yield batch


def encode_documents(
    documents: Iterable[Document | None], tokenizer: Tokenizer, choice: Choice, workers: int
) -> Iterator[Batch]:
    """Yields the encoded documents batch by batch, in order.

    If `documents` has a method `state()`, each batch holds its result after the batch's last document. At
    most 2 * workers + 1 batches are in memory. Raises DataError if a worker process dies.
    """
    batches = _batches(documents)
    first = list(itertools.islice(batches, TINY))
    batches = itertools.chain(first, batches)
    if workers == 1 or len(first) < TINY:
        for texts, state in batches:
            yield replace(_encode(texts, tokenizer, choice), state=state)
        return
    # "spawn": forked children would inherit the locks of the threads that the tokenizers keep.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer, choice),
    )
    running = deque()
    try:
        for texts, state in batches:
            running.append((pool.submit(_encode_in_worker, texts), state))
            if len(running) > 2 * workers:
                yield _result(*running.popleft())
        while running:
            yield _result(*running.popleft())
    except BrokenProcessPool:
        raise DataError(
            "a worker process died, most likely killed for lack of memory. "
            f"Try fewer than --workers={workers}, or smaller documents"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _result(future: Future, state: dict | None) -> Batch:
    return replace(future.result(), state=state)


def _batches(
    documents: Iterable[Document | None],
) -> Iterator[tuple[list[Document | None], dict | None]]:
    state = getattr(documents, "state", lambda: None)
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        # documents without text fill a batch too
        characters += 1 + sum(map(len, texts_of(document or "")))
        if characters >= BATCH_CHARACTERS:
            yield batch, state()
            batch, characters = [], 0
    if batch:
        yield batch, state()


def _encode(documents: list[Document | None], tokenizer: Tokenizer, choice: Choice) -> Batch:
    left_out = [place for place, document in enumerate(documents) if document is None]
    empty = [
        place for place, document in enumerate(documents) if document is not None and is_empty(document)
    ]
    kept = [
        place for place, document in enumerate(documents) if document is not None and not is_empty(document)
    ]
    parts = [
        (place, sum(len(text.encode()) for text in texts), split, texts)
        for place in kept
        for split, texts in choice.texts(documents[place]).items()
    ]
    dtype = token_dtype(tokenizer.vocab_size)
    chosen = {split: [] for split in choice.splits}
    # a token has at least one byte, so a text with too few bytes need not be encoded (a normalizer may
    # make a text longer)
    long = [part for part in parts if not tokenizer.exact or part[1] >= choice.min_tokens]
    encoded = iter(tokenizer.encode_batch([text for *_, texts in long for text in texts]))
    for place, size, split, texts in long:
        sides = [next(encoded) for _ in texts]
        if sum(map(len, sides)) >= choice.min_tokens:
            end = [tokenizer.end_of_text]
            tokens = np.concatenate([np.array(ids, dtype=dtype) for side in sides for ids in (side, end)])
            chosen[split].append((place, len(tokens), size, tokens))
    taken = {row[0] for rows in chosen.values() for row in rows}
    left_out += [place for place in kept if place not in taken]
    nothing = np.empty(0, dtype)
    splits = {
        split: Encoded(
            *(np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)),
            tokens=np.concatenate([nothing, *(row[3] for row in rows)]),
        )
        for split, rows in chosen.items()
    }
    places = (np.array(sorted(some), dtype=np.int64) for some in (left_out, empty))
    return Batch(len(documents), *places, splits)


def _start_worker(tokenizer: Tokenizer, choice: Choice) -> None:
    global _of_this_worker
    _of_this_worker = tokenizer, choice
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    def follow_parent():
        multiprocessing.parent_process().join()
        os._exit(1)  # a parent that was killed can no longer tell its children to stop

    threading.Thread(target=follow_parent, daemon=True).start()


def _encode_in_worker(documents: list[Document | None]) -> Batch:
    return _encode(documents, *_of_this_worker)
