"""Sliding-window perplexity, in the window layout of the papers' table 3.

A text is a stream x_0 .. x_n of tokens. x_0 is an end-of-text token, which is context and is not scored. A
window holds up to W tokens and moves by the stride S:

    window i = x[iS : min(iS + W, n + 1)],   until one reaches the end.

A window scores the tokens that no window before it held, each given all tokens before it in the window. So
the first window scores W - 1 tokens, each further one S, and the last one the rest. Each of x_1 .. x_n is
scored once, with at least W - S tokens of context as soon as there are that many. Loss = summed nats /
tokens.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from tqdm import tqdm

from evaluation import EvaluationError
from evaluation.models import Loaded
from kernels.linear_cross_entropy import IGNORED
from models.architecture import ModelConfig


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, first scored, end) of each window over a stream of `count` tokens, including x_0."""
    begin, scored = 0, 1
    while scored < count:
        end = min(begin + window, count)
        yield begin, scored, end
        begin, scored = begin + stride, end


def perplexity(
    loaded: Loaded,
    streams: Sequence[np.ndarray],
    stride: int,
    window: int | None = None,
    batch_size: int = 8,
    progress: str | None = None,
    sizes: Sequence[float] | None = None,
) -> dict:
    """Scores every token of each stream except its first.

    streams: one-dimensional integer arrays, an end-of-text token first; windows do not cross from one to
    the next. window: tokens in a window, None for block_size. progress: the label of a progress bar, None
    for no bar. sizes: see `scored_bytes`. Returns loss (nats per token), perplexity, bits_per_byte (None if
    the scored bytes are 0 or not known; end-of-text has none), tokens scored, those of them that stand for
    what the tokenizer does not know, bytes scored, windows, window and stride. Raises EvaluationError if
    the model does not take the window or the stride, or if there is no token to score.
    """
    window = check_layout(loaded.name, loaded.config, stride, window)
    nats, tokens, count = [], 0, 0
    for x, y, losses in scored_batches(loaded, streams, window, stride, batch_size, progress):
        scored = y[y != IGNORED]
        nats.append(losses.sum().item())
        tokens += scored.numel()
        count += len(x)
    _, unknown = loaded.tokenizer.of_unknown()
    lost = 0 if unknown is None else int(sum((stream[1:] == unknown).sum() for stream in streams))
    loss, size = math.fsum(nats) / tokens, scored_bytes(loaded.tokenizer.byte_counts(), streams, sizes)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "bits_per_byte": loss * tokens / math.log(2) / size if size else None,
        "tokens": tokens,
        "unknown_tokens": lost,
        "bytes": size,
        "streams": len(streams),
        "windows": count,
        "window": window,
        "stride": stride,
    }


def scored_bytes(
    byte_counts: np.ndarray | None, streams: Sequence[np.ndarray], sizes: Sequence[float] | None
) -> int | None:
    """The bytes of all tokens of each stream except its first; None if they are not known.

    byte_counts: int [vocab_size], or None for tokens without fixed bytes. sizes: for those, the bytes of
    each stream, see `texts.Text.sized`.
    """
    if byte_counts is None:
        return None if sizes is None else round(sum(sizes))
    return int(sum(byte_counts[stream[1:]].sum(dtype=np.int64) for stream in streams))


def check_layout(name: str, config: ModelConfig, stride: int, window: int | None = None) -> int:
    """The window in tokens. Raises EvaluationError if the model or the stride does not allow it."""
    window = window or config.block_size
    if window > config.block_size and (limits := config.length_limits()):
        raise EvaluationError(
            f"{name}: window={window} does not fit into block_size={config.block_size}, which is the end "
            f"for {' and '.join(limits)}"
        )
    if window < 2:
        raise EvaluationError(f"{name}: a window of {window} token has nothing to predict: take at least 2")
    if not 0 < stride < window:
        raise EvaluationError(
            f"{name}: stride={stride} must lie between 1 and {window - 1}: a window of {window} tokens "
            "that moves further would leave tokens out, or score one without any context"
        )
    return window


def scored_batches(
    loaded: Loaded,
    streams: Sequence[np.ndarray],
    window: int,
    stride: int,
    batch_size: int,
    progress: str | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields batches that score every token of each stream except its first, once.

    A batch is (tokens, targets, losses): int64, int64 and float64 in nats, all [B, at most window - 1] on
    the CPU. Targets that are not scored are IGNORED, and their losses are 0. progress: the label of a
    progress bar, None for no bar. Raises EvaluationError if there is no token, or one that the tokenizer
    does not know.
    """
    layout = [
        (number, *place)
        for number, stream in enumerate(streams)
        for place in windows(len(stream), window, stride)
    ]
    if not layout:
        raise EvaluationError("there is no token to score: the text is empty; name another with --texts")
    # sorted by length, so that there is little padding
    layout.sort(key=lambda place: place[1] - place[3])
    total, vocab_size = sum(end - first for _, _, first, end in layout), loaded.tokenizer.vocab_size
    with tqdm(total=total, unit=" tokens", unit_scale=True, desc=progress, disable=progress is None) as bar:
        for at in range(0, len(layout), batch_size):
            x, y = _batch(streams, layout[at : at + batch_size], loaded.end_of_text)
            scored = y[y != IGNORED]
            check_tokens(int(scored.max()) if scored.numel() else 0, vocab_size)
            with loaded.autocast():
                losses = loaded.model.token_losses(x.to(loaded.device), y.to(loaded.device))
            yield x, y, losses.double().cpu()
            bar.update(scored.numel())


def _batch(streams, places, padding) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, targets) [B, longest - 1] int64; the targets that are not scored are IGNORED.

    Padding is on the right, where a causal model's scored tokens do not see it.
    """
    length = max(end - begin for _, begin, _, end in places) - 1
    x = np.full((len(places), length), padding, dtype=np.int64)
    y = np.full((len(places), length), IGNORED, dtype=np.int64)
    for row, (number, begin, first, end) in enumerate(places):
        piece = streams[number][begin:end]
        x[row, : len(piece) - 1] = piece[:-1]
        y[row, first - begin - 1 : len(piece) - 1] = piece[first - begin :]
    return torch.from_numpy(x), torch.from_numpy(y)


def check_tokens(largest: int, vocab_size: int):
    """Raises EvaluationError if a text holds a token that the tokenizer does not know."""
    if largest >= vocab_size:
        raise EvaluationError(
            f"the text holds token {largest}, the tokenizer only {vocab_size:,} tokens: the text was "
            "encoded with another tokenizer; prepare it again with the model's"
        )
