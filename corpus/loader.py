"""A prepared data set -> batches of windows; the only state is the number of the next sample.

The tokens of a split are read as a ring, in windows of block_size + 1 tokens at a stride of block_size.
Targets are the inputs shifted by one. An epoch has n = (tokens - 1) // block_size windows. Sample i belongs
to epoch e = i // n, and a keyed permutation of i % n gives its window. The permutation and the shift of the
windows in the ring depend on (seed, e) alone. So sample i is a pure function of (data set, seed, block
size, i), and a resumed run needs the number i only.

Samples are rows of tokens. Those of pairs and of MQAR are masked (numpy.ma) where the loss does not score a
token.
"""

from host.disk import open_to_read, read_json

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from corpus import DataError, VocabularyError, checksums, commands
from corpus.binary import FORMAT
from corpus.file_tokenizer import InexactTokenizer
from corpus.tokenizer import Tokenizer
from corpus.tokenizer_registry import FROM_FILES, from_json
from kernels.linear_cross_entropy import IGNORED

ROUNDS = 8  # rounds of the Feistel network: four give a random-looking permutation, the rest is margin


class Dataset:
    """One split of a data set folder of texts, its tokens mapped into memory.

    `tokens` is uint16 or uint32 [n_tokens]; `token_bytes` int32 [vocab_size], the bytes of each token, None
    where tokens have no fixed bytes; `meta` the content of meta.json; `n_windows` the windows per epoch.
    `vocab_size` is that of the model, `batch_size` the samples per step. Raises DataError when the folder
    cannot serve them.
    """

    of_pairs = False
    unit = "tokens"  # what the length of a run is counted in
    shapes = 1  # widths that samples may have

    def __init__(
        self,
        folder: str | Path,
        split: str,
        block_size: int,
        vocab_size: int | None = None,
        batch_size: int = 1,
    ):
        self.folder, self.split, self.block_size = Path(folder), split, block_size
        self.meta = read_meta(self.folder)
        splits = self.meta["splits"]
        if split not in splits:
            raise DataError(f"{self.folder} has no split {split!r}; it has {' and '.join(splits)}")
        if vocab_size is not None and self.meta["vocab_size"] > vocab_size:
            raise VocabularyError(
                f"the vocabulary of {self.folder} has {self.meta['vocab_size']:,} tokens, the model's only "
                f"{vocab_size:,}; set --vocab_size={self.meta['vocab_size']} or more"
            )
        self.tokens = _map_tokens(self.folder / f"{split}.bin", splits[split]["tokens"], self.meta["dtype"])
        self.n_windows = self._count()
        if self.n_windows < batch_size:
            raise DataError(
                f"the {split} split of {self.folder} has {self._too_few()}, fewer than the {batch_size:,} "
                "of one step; give more text or take a smaller block size or batch"
            )

    @property
    def stride(self) -> int:
        """The tokens from the start of a window to that of the next one."""
        return self.block_size

    @cached_property
    def token_bytes(self) -> np.ndarray | None:
        if self.meta["tokenizer"]["kind"] == InexactTokenizer.kind:
            return None
        path = self.folder / "token_bytes.npy"
        try:
            checksums.check_content(path, self.meta.get("files", {}))
            with open_to_read(path) as file:
                table = np.lib.format.read_array(file, allow_pickle=False)
        except DataError:
            raise
        except Exception as error:  # NumPy reads the header as Python, whose errors are of all kinds
            raise DataError(f"{path} cannot be read: {error}") from None
        if table.dtype.kind not in "iu":
            raise DataError(f"{path} holds {table.dtype}, not whole numbers; prepare the data set again")
        if table.shape != (self.meta["vocab_size"],):
            raise DataError(
                f"{path} has shape {table.shape}, the vocabulary {self.meta['vocab_size']} tokens"
            )
        if table.min() < 0:
            raise DataError(f"{path} holds {table.min()}, and no token has so many bytes")
        return table

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, rebuilt from this folder and checked against the hash in meta.json."""
        saved = dict(self.meta["tokenizer"])
        if saved["kind"] in FROM_FILES:
            path = self.folder / "tokenizer.json"
            try:
                checksums.check_content(path, self.meta.get("files", {}))
                with open_to_read(path) as file:
                    saved["tokenizer.json"] = file.read().decode()
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{path} cannot be read: {error}") from None
        return from_json(saved)

    def verified(self) -> Iterator[int]:
        """Reads the whole split and compares it with meta.json, see corpus/checksums.py.

        Yields the number of bytes of each portion. Raises DataError.
        """
        path = self.folder / f"{self.split}.bin"
        counts = self.meta["splits"][self.split]
        return checksums.verified(path, self.tokens, counts, self.meta, self.token_bytes)

    def sample_hash(self) -> str:
        """A hash of up to 1,000 evenly spaced pieces of 64 tokens: enough to detect another order."""
        starts = np.unique(np.linspace(0, max(0, len(self.tokens) - 64), 1000, dtype=np.int64))
        found = hashlib.blake2b(digest_size=16)
        for start in starts:
            found.update(self.tokens[start : start + 64].tobytes())
        return found.hexdigest()

    def size(self) -> str:
        """How much a split for training holds, in words."""
        return f"{len(self.tokens):,} training tokens"

    def epochs(self, samples: int) -> float:
        return samples * self.stride / len(self.tokens)

    def targets(self, first_sample: int, count: int, seed: int = 0) -> int:
        """The tokens that the loss scores in these samples."""
        return count * self.block_size

    def windows(self, first_sample: int, count: int, seed: int = 0) -> np.ndarray:
        """Samples first_sample .. first_sample + count - 1 of a run: int64 [count, block_size + 1]."""
        starts = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            epoch, place = divmod(first_sample + done, self.n_windows)
            n = min(count - done, self.n_windows - place)
            places = np.arange(place, place + n, dtype=np.uint64)
            order = permute(places, self.n_windows, keys_of("order", seed, epoch))
            starts[done : done + n] = order.astype(np.int64) * self.stride + self._shift(seed, epoch)
            done += n
        return self._gather(starts)

    def pieces(self, samples: int, seed: int = 0) -> list[np.ndarray]:
        """The text of the windows among a run's first `samples` samples, each once: views of `tokens`.

        Windows that are neighbours in the text are one piece. Every token but the first of a piece is a
        target of a window; after a whole epoch, the only piece is the whole split.
        """
        if samples >= self.n_windows:
            return [self.tokens]
        places = np.arange(samples, dtype=np.uint64)
        order = permute(places, self.n_windows, keys_of("order", seed, 0)).astype(np.int64)
        order.sort()
        groups = np.split(order, np.flatnonzero(np.diff(order) > 1) + 1) if samples else []
        return [self.tokens[group[0] * self.stride : (group[-1] + 1) * self.stride + 1] for group in groups]

    def validation_windows(self, count: int) -> np.ndarray:
        """At most `count` evenly spaced windows that do not overlap, the same at every call.

        int64 [min(count, n_windows), block_size + 1]
        """
        count = min(count, self.n_windows)
        if count < 1:
            raise DataError(f"{count} validation windows: at least one is needed")
        return self._gather(np.arange(count) * self.n_windows // count * self.stride)

    def target_bytes(self, windows: np.ndarray) -> int:
        """The bytes of text of the scored targets of validation windows [count, block_size + 1].

        Bits per byte = summed loss in nats / ln 2 / these bytes. Where tokens have no fixed bytes, each
        counts the mean of the validation split: bytes of its original text / tokens, both in meta.json.
        """
        targets = np.ma.compressed(windows[:, 1:])
        if self.token_bytes is None:
            count = self.meta["splits"]["val"]
            return round(len(targets) * count["bytes"] / count["tokens"])
        return int(self.token_bytes[targets].sum(dtype=np.int64))

    def _count(self) -> int:
        """The windows of an epoch."""
        return (len(self.tokens) - 1) // self.block_size

    def _too_few(self) -> str:
        return f"{len(self.tokens):,} tokens: {self.n_windows:,} windows of block_size={self.block_size}"

    def _shift(self, seed: int, epoch: int) -> int:
        """The offset of an epoch's windows, so that each epoch cuts the text at other places."""
        return int(keys_of("shift", seed, epoch)[0] % np.uint64(self.block_size)) if epoch else 0

    def _gather(self, starts: np.ndarray) -> np.ndarray:
        length = self.block_size + 1
        windows = np.empty((len(starts), length), dtype=np.int64)
        for window, start in zip(windows, starts % len(self.tokens), strict=True):
            piece = self.tokens[start : start + length]
            window[: len(piece)] = piece
            window[len(piece) :] = self.tokens[: length - len(piece)]
        return self._checked(windows)

    def _checked(self, windows: np.ndarray) -> np.ndarray:
        """The windows; raises DataError if one holds a token that the vocabulary does not have."""
        if windows.size and (largest := np.ma.getdata(windows).max()) >= self.meta["vocab_size"]:
            raise DataError(
                f"{self.folder / self.split}.bin holds token {largest}, the vocabulary of meta.json "
                f"{self.meta['vocab_size']:,}: the file belongs to another data set; prepare it again"
            )
        return windows


class Samples(Protocol):
    """The interface that a Loader reads: a Dataset of any kind or a Mixture."""

    def windows(self, first_sample: int, count: int, seed: int) -> np.ndarray:
        """Samples first_sample .. first_sample + count - 1 of a run: int64 [count, T + 1]."""

    def targets(self, first_sample: int, count: int, seed: int) -> int:
        """The tokens that the loss scores in these samples."""


class Loader:
    """Iterates over batches on `device`, without end: what `to_batch` makes of samples [batch_size, T + 1].

    `next_sample` is the global index of the first sample of the next batch, `first_sample` that of the
    first batch. Of n ranks, rank r starts at first_sample = done + r * batch_size with a stride of
    n * batch_size samples, so that together they read the samples that a single rank would read.
    On CUDA the next batch is gathered into pinned memory by a thread.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int,
        seed: int,
        device: str | torch.device,
        first_sample: int = 0,
        stride: int | None = None,
        to_batch: Callable[[np.ndarray], tuple[torch.Tensor, ...]] | None = None,
    ):
        self.to_batch = to_batch or batch_of
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.stride = stride or batch_size
        self.device = torch.device(device)
        self.next_sample = first_sample
        self._ahead = None  # (first sample, future)
        on_cuda = self.device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, initializer=self._use_device) if on_cuda else None

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return self

    def __next__(self) -> tuple[torch.Tensor, ...]:
        batch = self.batch(self.next_sample)
        self.next_sample += self.stride
        if self._thread:
            self._ahead = self.next_sample, self._thread.submit(self._gather, self.next_sample)
        return batch

    def targets(self, first_sample: int, count: int) -> int:
        """The tokens that the loss scores in these samples of the run."""
        return self.dataset.targets(first_sample, count, self.seed)

    def batch(self, sample_index: int) -> tuple[torch.Tensor, ...]:
        """The batch whose first sample has this global index; does not move `next_sample`."""
        if self._ahead and self._ahead[0] == sample_index:
            batch = self._ahead[1].result()
        else:
            batch = self._gather(sample_index)
        return tuple(part.to(self.device, non_blocking=True) for part in batch)

    def _gather(self, sample_index: int) -> tuple[torch.Tensor, ...]:
        batch = self.to_batch(self.dataset.windows(sample_index, self.batch_size, self.seed))
        return tuple(part.pin_memory() for part in batch) if self._thread else batch

    def _use_device(self) -> None:
        # A thread that pins memory without choosing a device would open a context on the first device.
        if self.device.index is not None:
            torch.cuda.set_device(self.device)


def batch_of(windows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of tokens [B, T + 1] -> what a model takes: tokens and targets, int64 [B, T] each.

    A token that is not scored is an input like any other, and as a target it is IGNORED.
    """
    tokens, targets = np.ma.getdata(windows)[:, :-1], np.ma.filled(windows, IGNORED)[:, 1:]
    return torch.from_numpy(tokens).contiguous(), torch.from_numpy(targets).contiguous()


def permute(places: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    """Applies the permutation of range(n) that the keys define to places 0 .. n - 1; both uint64 [count].

    A Feistel network permutes the numbers of 2h bits, the smallest such range that includes n. A number at
    or above n is permuted again until it is below n, which must happen because its cycle began below n.
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    out = places.copy()
    walking = np.ones(len(out), dtype=bool)
    while walking.any():
        left, right = out[walking] >> half, out[walking] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        out[walking] = left << half | right
        walking = out >= np.uint64(n)
    return out


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of a uint64 acts on every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys_of(purpose: str, seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.blake2b(f"{purpose} {seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8")


def read_meta(folder: Path, kind: str = "text") -> dict:
    """The content of meta.json; raises DataError if there is none, or none that this code can read.

    kind: as in `commands.missing`.
    """
    path = folder / "meta.json"
    if not path.is_file():
        raise DataError(commands.missing(folder, kind=kind))
    meta = read_json(path, DataError, "; prepare the data set again")
    version = meta.get("format")
    if version != FORMAT:
        raise DataError(
            f"{path} is of format {version}, this code reads {FORMAT}; prepare the data set again"
        )
    missing = {"dtype", "splits", "tokenizer", "vocab_size", "end_of_text"} - meta.keys()
    if missing:
        raise DataError(f"{path} lacks {', '.join(sorted(missing))}; prepare the data set again")
    if not _sound(meta):
        raise DataError(f"{path} was edited into something else; prepare the data set again")
    return meta


def _sound(meta: dict) -> bool:
    tokenizer, splits = meta["tokenizer"], meta["splits"]
    return (
        isinstance(meta["vocab_size"], int)
        and isinstance(tokenizer, dict)
        and {"kind", "hash"} <= tokenizer.keys()
        and isinstance(splits, dict)
        and all(isinstance(s, dict) and isinstance(s.get("tokens"), int) for s in splits.values())
        and isinstance(files := meta.get("files", {}), dict)
        and all(isinstance(f, dict) and {"bytes", "sha256"} <= f.keys() for f in files.values())
    )


def _map_tokens(path: Path, count: int, dtype: str) -> np.ndarray:
    if dtype not in ("uint16", "uint32"):
        raise DataError(f"{path}: meta.json says dtype {dtype!r}; it must be uint16 or uint32")
    if not path.is_file():
        raise DataError(f"{path} is missing; delete the folder and prepare the data set again")
    kind = np.dtype(dtype).newbyteorder("<")
    size, expected = path.stat().st_size, count * kind.itemsize
    if size != expected:
        raise DataError(
            f"{path} has {size:,} bytes where meta.json says {expected:,}: it was cut short or belongs to "
            "another data set; delete the folder and prepare it again"
        )
    if not count:
        raise DataError(f"{path} is empty; delete the folder and prepare the data set again")
    # A plain view: slices of np.memmap itself cost several times as much.
    try:
        return np.asarray(np.memmap(path, dtype=kind, mode="r"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
