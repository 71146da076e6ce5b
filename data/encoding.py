"""Documents -> tokens per split, in several processes, in an order that does not depend on their number."""

import hashlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from data import DataError
from data.tokenizer import Tokenizer, valid_unicode

BATCH_CHARACTERS = 1 << 20  # a worker's portion: enough to hide the cost of handing it over
TINY = 4  # this many batches are encoded before another process would have started


@dataclass
class Encoded:
    """What one batch adds to one split. `tokens` is uint16 or uint32, end-of-text after each document."""

    documents: int
    bytes: int
    tokens: np.ndarray


def token_dtype(vocab_size: int) -> np.dtype:
    """Little-endian uint16, or uint32 for a vocabulary above 65,536."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def in_validation(text: str, val_fraction: float) -> bool:
    """Decided by the text alone: duplicates share a split, and nothing need be remembered."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b"val").digest()
    return int.from_bytes(digest, "little") < val_fraction * 2**64


def training_documents(documents: Iterable[str], val_fraction: float) -> Iterator[str]:
    for text in map(valid_unicode, documents):
        if text.strip() and not in_validation(text, val_fraction):
            yield text


def encode_documents(
    documents: Iterable[str], tokenizer: Tokenizer, val_fraction: float, workers: int
) -> Iterator[tuple[dict[str, Encoded], int]]:
    """Yield ({"train": Encoded, "val": Encoded}, empty documents left out) batch by batch, in order.

    At most 2 * workers + 1 batches are in memory. Raises DataError when a worker process dies.
    """
    batches = _batches(documents)
    first = list(itertools.islice(batches, TINY))
    batches = itertools.chain(first, batches)
    if workers == 1 or len(first) < TINY:
        for batch in batches:
            yield _encode(batch, tokenizer, val_fraction)
        return
    # "spawn": forked children would inherit the locks of the threads that the tokenizers keep.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(tokenizer, val_fraction),
    )
    running = deque()
    try:
        for batch in batches:
            running.append(pool.submit(_encode_in_worker, batch))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except BrokenProcessPool:
        raise DataError(
            "a worker process died, most likely killed for lack of memory; nothing was kept. "
            f"Try fewer than --workers={workers}, or smaller documents"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch, characters = [], 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encode(texts: list[str], tokenizer: Tokenizer, val_fraction: float) -> tuple[dict[str, Encoded], int]:
    kept = [text for text in map(valid_unicode, texts) if text.strip()]
    dtype = token_dtype(tokenizer.vocab_size)
    chosen = {"train": [], "val": []}
    for text, ids in zip(kept, tokenizer.encode_batch(kept), strict=True):
        split = "val" if in_validation(text, val_fraction) else "train"
        chosen[split].append((len(text.encode()), np.array([*ids, tokenizer.end_of_text], dtype=dtype)))
    nothing = np.empty(0, dtype)
    encoded = {
        split: Encoded(
            documents=len(pairs),
            bytes=sum(size for size, _ in pairs),
            tokens=np.concatenate([nothing, *(tokens for _, tokens in pairs)]),
        )
        for split, pairs in chosen.items()
    }
    return encoded, len(texts) - len(kept)


def _start_worker(tokenizer: Tokenizer, val_fraction: float) -> None:
    global _of_this_worker
    _of_this_worker = tokenizer, val_fraction
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    def follow_parent():
        multiprocessing.parent_process().join()
        os._exit(1)  # a parent that was killed can no longer tell its children to stop

    threading.Thread(target=follow_parent, daemon=True).start()


def _encode_in_worker(texts: list[str]):
    return _encode(texts, *_of_this_worker)
