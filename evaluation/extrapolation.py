"""Length extrapolation as in tables 1 to 4 of the ExPE paper: the loss on windows of 1, 2, 4, .. times the
training length.

Long documents are other texts than short ones, so all lengths are scored on the same tokens. These are the
documents that are longer than the longest window, cut to a whole number of such windows. For a shorter
length L they are divided into windows of L that do not overlap. With a document's end-of-text token in
front as x_0, window w predicts x_{wL+1} .. x_{(w+1)L} from x_{wL} on.

A longer context alone lowers the loss. So besides the average there are the loss by position in the window,
and the loss on the last positions, as many as the training length. The latter is compared with the loss on
the same tokens in windows of the training length, where they have less context.
"""

from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from evaluation import EvaluationError
from evaluation.models import Loaded
from models.architecture import ModelConfig
from reports.plural import counted

BINS = 16  # bins of positions per training length, over which JSON and the picture average


def documents_for(streams: Sequence[np.ndarray], longest: int) -> list[np.ndarray]:
    """The documents (end-of-text first) with more than `longest` tokens, cut to whole windows plus a token.

    Raises EvaluationError if there is none.
    """
    kept = [s[: (len(s) - 1) // longest * longest + 1] for s in streams if len(s) > longest]
    if not kept:
        most = max((len(s) - 1 for s in streams), default=0)
        raise EvaluationError(
            f"no document has the {longest:,} tokens of the longest window: of "
            f"{counted(len(streams), 'document')} the longest has {most:,}; take longer documents or fewer "
            "--lengths"
        )
    return kept


def check_model(name: str, config: ModelConfig):
    """Raises EvaluationError for a model whose predictions read no more of a longer window."""
    if config.model == "saffu":
        reads = max((config.saffu_block or 1) - 1, config.saffu_radius or 0)
        raise EvaluationError(
            f"{name}: a SAFFU predicts from its block and its radius, here at most {reads} tokens, however "
            "long the window is: there is nothing to extrapolate. Take --task=perplexity"
        )


def check_documents(name: str, streams: Sequence[np.ndarray], block_size: int, factors: Sequence[int]):
    """Raises EvaluationError if `extrapolate` would, for a model of that name and block_size."""
    if wrong := [k for k in factors if k < 1 or max(factors) % k] or ([] if 1 in factors else [1]):
        raise EvaluationError(
            "lengths are multiples of the training length, not numbers of tokens: with 1 among them, and "
            f"each of them a divisor of the largest, {max(factors)}, so that all are measured on the same "
            f"tokens (not so with {', '.join(map(str, wrong))}); give --lengths=1,2,4, for example"
        )
    try:
        documents_for(streams, block_size * max(factors))
    except EvaluationError as error:
        times = f"{max(factors)} times the {block_size:,} tokens of training"
        raise EvaluationError(f"{name}, {times}: {error}") from None


def extrapolate(
    loaded: Loaded,
    streams: Sequence[np.ndarray],
    factors: Sequence[int] = (1, 2, 4, 8, 16),
    batch_size: int = 8,
    progress: str | None = None,
) -> dict:
    """The losses of a model in nats per token at `factors` times its block_size.

    streams: one integer array per document, end-of-text first. factors: must include 1, and each must
    divide the largest. batch_size: windows of the training length per batch; batches of longer windows have
    proportionally fewer. Lengths that the model does not take are listed under "refused" with the reason.
    Raises EvaluationError for other factors and if no document is long enough.
    """
    check_documents(loaded.name, streams, loaded.block_size, factors)
    train = loaded.block_size
    documents = documents_for(streams, train * max(factors))
    refused, measured, nats_at_train = {}, [], None
    for factor in sorted(factors):
        try:
            loaded.model.check_length(factor * train)
        except ValueError as error:
            refused[factor] = str(error)
            continue
        label = progress and f"{progress}, {factor * train:,} tokens"
        nats = _nats(loaded, documents, factor * train, max(1, batch_size // factor), label)
        nats_at_train = nats if factor == 1 else nats_at_train
        measured.append(_summary(nats, nats_at_train, factor, train))
    return {
        "train_length": train,
        "scale": loaded.config.expe_inference_scale,
        "documents": len(documents),
        "tokens": sum(len(document) - 1 for document in documents),
        "lengths": measured,
        "refused": refused,
    }


def _nats(loaded, documents, length, batch_size, label) -> np.ndarray:
    """The cross-entropy of every token of the documents except the first: float64 [windows, length]"""
    starts = [(d, at) for d, document in enumerate(documents) for at in range(0, len(document) - 1, length)]
    parts = []
    for at in tqdm(range(0, len(starts), batch_size), desc=label, disable=label is None, unit=" batches"):
        rows = np.stack(
            [documents[d][s : s + length + 1] for d, s in starts[at : at + batch_size]], dtype=np.int64
        )
        rows = torch.from_numpy(rows).to(loaded.device)
        with loaded.autocast():
            parts.append(loaded.model.token_losses(rows[:, :-1], rows[:, 1:]).double().cpu().numpy())
    return np.concatenate(parts)


def _summary(nats: np.ndarray, nats_at_train: np.ndarray, factor: int, train: int) -> dict:
    """nats: [windows, factor * train], nats_at_train: [windows * factor, train], of the same tokens"""
    size = max(1, train // BINS)
    by_position = nats.mean(0)
    edges = np.arange(0, len(by_position), size)
    counts = np.diff([*edges, len(by_position)])
    same = nats_at_train.reshape(nats.shape)[:, -train:]
    return {
        "factor": factor,
        "length": factor * train,
        "windows": len(nats),
        "loss": float(nats.mean()),
        "last": float(nats[:, -train:].mean()),  # on the last `train` positions
        "last_at_train_length": float(same.mean()),  # on the same tokens, in windows of `train`
        "positions_averaged": size,
        "by_position": (np.add.reduceat(by_position, edges) / counts).tolist(),
    }
