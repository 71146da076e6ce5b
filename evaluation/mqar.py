"""Accuracy on MQAR, multi-query associative recall (Arora et al. 2023, "Zoology"; see corpus/mqar.py).

    accuracy = mean over answers t of [ argmax_v logit_v(row_0 .. row_{t-1}) = row_t ],   v of all V tokens

A model that knows no more than that a value follows a key has 2 / V. One that draws from the values of a
row with D pairs has about 1 / D.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from corpus import mixture
from corpus.loader import batch_of, read_meta
from corpus.mqar import MqarDataset
from evaluation import EvaluationError
from evaluation.models import Loaded, Opened
from kernels.linear_cross_entropy import IGNORED


@torch.no_grad()
def mqar(loaded: Loaded, data: MqarDataset, batch_size: int = 8, progress: str | None = None) -> dict:
    """Accuracy and loss (nats per answer) of all answers in the rows of `data`.

    progress: the label of a progress bar, None for no bar. Returns accuracy, loss, answers and rows, and
    "by_pairs": the same for each number of pairs, which is "pairs" there.
    """
    windows = data.validation_windows(data.n_windows)
    pairs = windows.count(axis=1)  # each key is asked once
    right, nats = np.zeros(len(windows), dtype=np.int64), np.zeros(len(windows))
    with tqdm(total=len(windows), unit=" rows", desc=progress, disable=progress is None) as bar:
        for start in range(0, len(windows), batch_size):
            tokens, targets = batch_of(windows[start : start + batch_size])
            scored = targets != IGNORED
            with loaded.autocast():
                logits = loaded.model.logits_at(tokens.to(loaded.device), scored.to(loaded.device))
            logits, wanted = logits.float().cpu(), targets[scored]
            losses = F.cross_entropy(logits, wanted, reduction="none").double().numpy()
            rows = start + scored.nonzero()[:, 0].numpy()
            right += np.bincount(rows, (logits.argmax(-1) == wanted).numpy(), len(right)).astype(np.int64)
            nats += np.bincount(rows, losses, len(nats))
            bar.update(len(tokens))

    def summary(chosen):
        answers = int(pairs[chosen].sum())
        return {
            "accuracy": int(right[chosen].sum()) / answers,
            "loss": float(nats[chosen].sum()) / answers,
            "answers": answers,
            "rows": int(chosen.sum()),
        }

    by_pairs = [{"pairs": int(number), **summary(pairs == number)} for number in np.unique(pairs)]
    return {**summary(pairs > 0), "by_pairs": by_pairs}


def open_rows(models: Sequence[Opened], folder: str | None = None) -> MqarDataset:
    """The validation rows of a folder; None: of the data set that all the models were trained on.

    Raises EvaluationError or DataError where there is none, or where a model cannot read its rows.
    """
    if folder is None:
        trained = {model.source.dataset: model.name for model in models}
        if None in trained:
            raise EvaluationError(
                f"{trained[None]} is no run of train.py: name the rows with --data=FOLDER"
            )
        if len(trained) > 1:
            told = "; ".join(f"{name}: {dataset}" for dataset, name in trained.items())
            raise EvaluationError(
                f"the models were trained on different data sets ({told}): name the rows for all of them "
                "with --data=FOLDER"
            )
        (folder,) = trained
    folders = mixture.parse(folder)[0]
    if len(folders) > 1:
        raise EvaluationError(f"{folder} is a mixture: name one of its folders with --data=FOLDER")
    kind = mixture.kind_of(read_meta(Path(folders[0]), "recall"))
    if kind is not MqarDataset:
        raise EvaluationError(
            f"{folder} holds {mixture.HELD[kind]}, not rows of MQAR: name such a folder with --data=FOLDER "
            "(data/recall/prepare.py writes one)"
        )
    data = MqarDataset(folders[0], "val", min(model.config.block_size for model in models))
    for model in models:
        if not model.tokenizer.same_tokens(tokenizer := data.tokenizer()):
            raise EvaluationError(
                f"{model.name} has another vocabulary ({model.tokenizer.kind}, "
                f"{model.tokenizer.vocab_size:,} tokens) than {folder} ({tokenizer.vocab_size:,} symbols "
                "of MQAR): give models that were trained on such rows"
            )
    for _ in data.verified():
        pass
    return data
