"""Recall: how well a model predicts tokens that repeat what its window has shown before.

This separates what a token mixer retrieves from its context (associative recall, induction) from the rest,
by the length of the repeat that a token ends. For token t in window w the length is

    r(t) = the largest n, up to LONGEST, such that w_{t-n+1} .. w_t also occurs in w_0 .. w_{t-1}.

r(t) is 0 if the token is new in the window, 1 if the token is known but the pair that it ends is new, and
so on. A model that finds the earlier occurrence of the last tokens gains on long repeats. Its knowledge of
the language helps everywhere, and is all that helps on new tokens. (A phrase that it knows by heart also
counts as a repeat at its second occurrence.)

The layout is that of `evaluation.perplexity`: windows of W tokens that move by S, each token scored once.
"""

from collections.abc import Sequence

import numpy as np

from evaluation import EvaluationError
from evaluation.models import Loaded, Opened, different_tokenizers
from evaluation.perplexity import check_layout, scored_batches
from kernels.linear_cross_entropy import IGNORED

LONGEST = 4  # longer repeats count as repeats of this length


def repeats(window: np.ndarray, longest: int = LONGEST) -> np.ndarray:
    """The length of the repeat that each token of a window ends: int [T] -> int64 [T], 0 to `longest`.

    O(T^2 longest) comparisons.
    """
    earlier = np.tri(len(window), k=-1, dtype=bool)  # both occurrences may overlap
    ends_alike = (window[:, None] == window) & earlier
    alike, found = ends_alike, ends_alike.any(1).astype(np.int64)
    for _ in range(1, longest):
        longer = np.zeros_like(alike)
        longer[1:, 1:] = alike[:-1, :-1]  # the repeat grows by one where the previous tokens are alike too
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

    Arguments and errors are those of `perplexity.perplexity`. Returns loss and tokens of everything scored,
    window, stride, and "repeats": for each length from 0 to LONGEST the number of tokens and their loss
    (None if there are none).
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
    """Raises EvaluationError if the models have different tokenizers, because their repeats differ then."""
    if told := different_tokenizers(models):
        raise EvaluationError(
            f"recall is compared on the same tokens, and the models have different tokenizers ({told}): "
            "evaluate them one by one"
        )
