"""Recall: how well a model predicts what its window has shown before.

What a token mixer finds again in its context (associative recall, induction) is told apart from the rest by
the length of the repeat that a token ends: that of token t in window w is

    r(t) = the largest n, up to LONGEST, so that w_{t-n+1} .. w_t stands in w_0 .. w_{t-1} too,

0 where the token is new in the window, 1 where it is not but the pair that it ends is, and so on. A model
that finds the place where the last tokens stood before gains on long repeats; what it knows of the language
counts everywhere, and alone on new tokens. (A phrase that it knows by heart is a repeat too, where it
stands a second time.)

The layout is that of `evaluation.perplexity`: windows of W tokens that move by S, each token scored once.
"""

from collections.abc import Sequence

import numpy as np

from evaluation import EvaluationError
from evaluation.models import Loaded, Opened
from evaluation.perplexity import check_layout, scored_batches
from kernels.linear_cross_entropy import IGNORED

LONGEST = 4  # longer repeats count as this


def repeats(window: np.ndarray, longest: int = LONGEST) -> np.ndarray:
    """How long a repeat each token of a window ends. window: int [T] -> int64 [T], 0 to `longest`.

    O(T^2 longest) comparisons.
    """
    earlier = np.tri(len(window), k=-1, dtype=bool)  # the repeat may overlap with what it repeats
    ends_alike = (window[:, None] == window) & earlier
    alike, found = ends_alike, ends_alike.any(1).astype(np.int64)
    for _ in range(1, longest):
        longer = np.zeros_like(alike)
        longer[1:, 1:] = alike[:-1, :-1]  # the tokens before both are a repeat already
        alike = longer & ends_alike
        found += alike.any(1)
    return found


def recall(
    loaded: Loaded,
    streams: Sequence[np.ndarray],
    stride: int,
    window: int | None = None,
    batch_size: int = 8,
    progress: str | None = None,
) -> dict:
    """The loss of a model, in nats per token, by the length of the repeat that a token ends.

    Arguments and errors as of `perplexity.perplexity`. Returns loss and tokens of all that is scored,
    window, stride, and "repeats": for each length from 0 to LONGEST its tokens, and their loss (None where
    there are none).
    """
    window = check_layout(loaded.name, loaded.config, stride, window)
    nats, counts = np.zeros(LONGEST + 1), np.zeros(LONGEST + 1, dtype=np.int64)
    for x, y, losses in scored_batches(loaded, streams, window, stride, batch_size, progress):
        scored = (y != IGNORED).numpy()
        # the last token of a window is a target only
        tokens = np.where(scored, y.numpy(), np.pad(x[:, 1:].numpy(), ((0, 0), (0, 1))))
        lengths = [repeats(np.append(first, rest))[1:] for first, rest in zip(x[:, 0], tokens, strict=True)]
        lengths = np.stack(lengths)[scored]
        nats += np.bincount(lengths, losses.numpy()[scored], LONGEST + 1)
        counts += np.bincount(lengths, minlength=LONGEST + 1)
    return {
        "loss": nats.sum() / counts.sum(),
        "tokens": int(counts.sum()),
        "window": window,
        "stride": stride,
        "repeats": [
            {"length": length, "tokens": int(count), "loss": sum_ / count if count else None}
            for length, (count, sum_) in enumerate(zip(counts, nats, strict=True))
        ],
    }


def check_comparable(models: Sequence[Opened]):
    """Raises EvaluationError where models have not one tokenizer: their repeats are not the same."""
    kinds = {model.tokenizer.hash: model for model in models}
    if len(kinds) > 1:
        told = [f"{model.name}: {model.tokenizer.kind}, {key[:12]}" for key, model in kinds.items()]
        raise EvaluationError(
            "recall is compared on the same tokens, and the models have several tokenizers "
            f"({'; '.join(told)}): evaluate them one by one"
        )
