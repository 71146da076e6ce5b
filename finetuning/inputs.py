"""Examples as tokens: encoded, cut to length, ordered into batches of similar length, padded."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from corpus.tokenizer import Tokenizer
from finetuning.glue import Example

PORTION = 1024  # examples encoded at a time
POOL = 50  # batches whose examples are sorted by length together
MULTIPLE = 8  # padded lengths are multiples of this


@dataclass(frozen=True)
class Inputs:
    """Encoded examples. tokens: int32 [length] each; labels: int64 [N]; cut: how many were shortened."""

    tokens: list[np.ndarray]
    labels: np.ndarray
    cut: int

    def __len__(self):
        return len(self.tokens)


def encode(examples: list[Example], tokenizer: Tokenizer, max_length: int, shown: str) -> Inputs:
    """Encodes each example as end-of-text, then its text or its two texts with a line break between them,
    or end-of-text where the tokenizer drops line breaks.

    End-of-text also precedes every document in training. A single text is cut at its end; of a pair the
    longer text is cut. shown: the label of the progress bar. Raises DataError if the tokenizer has no
    tokens for a text.
    """
    parting = tokenizer.encode("\n") or [tokenizer.end_of_text]
    tokens, cut = [], 0
    with tqdm(total=len(examples), desc=shown, unit=" examples", leave=False) as bar:
        for start in range(0, len(examples), PORTION):
            portion = examples[start : start + PORTION]
            columns = zip(*(example.texts for example in portion), strict=True)
            for texts in zip(*(tokenizer.encode_batch(list(column)) for column in columns), strict=True):
                room = max_length - 1 - len(parting) * (len(texts) - 1)
                kept = shortened(texts, room)
                cut += kept != list(texts)
                row = [tokenizer.end_of_text, *kept[0]]
                for text in kept[1:]:
                    row += [*parting, *text]
                tokens.append(np.array(row, dtype=np.int32))
            bar.update(len(portion))
    return Inputs(tokens, np.array([example.label for example in examples], dtype=np.int64), cut)


def shortened(texts: tuple[list[int], ...], room: int) -> list[list[int]]:
    """Cuts one or two texts to `room` tokens together.

    Tokens are removed one by one from the end of the longer text, or of the second one if both are equally
    long.
    """
    if len(texts) == 1:
        return [texts[0][:room]]
    first, second = texts
    longest = room - room // 2  # length of the first text if both are cut
    if len(first) + len(second) > room:
        length = max(longest, room - len(second))
        first = first[:length]
        second = second[: room - len(first)]
    return [first, second]


def training_order(inputs: Inputs, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch, as indices: every example once, shuffled, then grouped by similar length.

    The result depends on the arguments alone. The last batch of a pool may be smaller.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = random.permutation(len(inputs))
    lengths = np.array([len(tokens) for tokens in inputs.tokens])
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def steps_in_epoch(inputs: Inputs, batch_size: int) -> int:
    return -(-len(inputs) // batch_size)


def by_length(inputs: Inputs, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of indices for an evaluation, the longest first, so that lack of memory shows at once."""
    order = np.argsort([-len(tokens) for tokens in inputs.tokens], kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def padded(
    inputs: Inputs, indices: np.ndarray, padding: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> tokens [B, T] int64, padded on the right; lengths [B] int64; labels [B] int64.

    T is the largest length, rounded up so that a GPU sees few shapes, and at most `longest`.
    """
    rows = [inputs.tokens[i] for i in indices]
    lengths = torch.tensor([len(row) for row in rows])
    width = min(longest, -(-int(lengths.max()) // MULTIPLE) * MULTIPLE)
    tokens = torch.full((len(rows), width), padding, dtype=torch.int64)
    for row, values in zip(tokens, rows, strict=True):
        row[: len(values)] = torch.from_numpy(values)
    return tokens, lengths, torch.from_numpy(inputs.labels[indices])
