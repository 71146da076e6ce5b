"""Rows of n-gram models beside the models of runs: counts of the tokens that the runs were trained on."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from corpus import DataError
from corpus.mixture import open_dataset
from corpus.tokenizer import Tokenizer
from evaluation import EvaluationError
from evaluation.models import Opened
from evaluation.ngrams import NAMES, Ngrams, score
from training import checkpoint, explicit_start, saffu_passes
from training.resume import fingerprint


@dataclass
class TrainingTokens:
    """The tokens that one or more runs have read, each once. `runs` are the models of these runs."""

    pieces: list[np.ndarray]
    runs: list[Opened]
    read: str  # what the samples of the first run or its start hold, repeated tokens or pairs too

    def about(self) -> str:
        counted = sum(len(piece) - 1 for piece in self.pieces)
        names = " and ".join(model.name for model in self.runs)
        return f"counts of {counted:,} training tokens of {names}, which read {self.read}"


def training_tokens(models: list[Opened], max_tokens: int) -> list[TrainingTokens]:
    """What the runs of these models have read, once for all runs that have read the same.

    max_tokens: only so many tokens, of the first samples of a run. Raises EvaluationError
    if a model is no run, or if its training data are not there or are not what it was trained on.
    """
    found: dict[tuple, TrainingTokens] = {}
    for model in models:
        if model.source.dataset is None:
            raise EvaluationError(
                f"{model.name} is no run of train.py, so its training tokens are not known, and ngrams "
                "counts those: give run folders or checkpoints only, or leave ngrams out"
            )
        content = checkpoint.load(model.source.path, mmap=True, check=False)
        config = content["config"]
        name, block_size = config["dataset"], config["block_size"]
        try:
            data = open_dataset(name, "train", block_size)
        except DataError as error:
            raise EvaluationError(
                f"ngrams counts the training tokens of {model.name}, and they cannot be opened: {error}"
            ) from None
        if (now := fingerprint(data)) != content["data"]:
            raise EvaluationError(
                f"ngrams counts the training tokens of {model.name}, but {name} holds other data "
                "than the run was trained on: put the former data set there, or leave ngrams out"
            )
        read = content["samples"]
        if config["model"] == "saffu" and saffu_passes.plan(Namespace(**config)):
            # its start has counted these
            read = max(read, explicit_start.samples(Namespace(**config), data))
        samples = min(read, max_tokens // block_size)
        pieces = data.pieces(samples, config["seed"])
        # of whole splits, the seed and the block size say nothing
        sources = getattr(data, "sources", [data])
        whole = [len(piece) for piece in pieces] == [len(source.tokens) for source in sources]
        key = (str(now), None if whole else (config["seed"], block_size, samples))
        if key in found:
            found[key].runs.append(model)
            continue
        what = f"{read:,} pairs" if data.of_pairs else f"{read * block_size:,}"
        found[key] = TrainingTokens(pieces, [model], what)
    return list(found.values())


def measured(
    counted: list[TrainingTokens], taken: set[str], sized: Callable[[Tokenizer], dict[str, tuple]]
) -> tuple[dict[str, dict], list[dict]]:
    """({row: {text: result}}, for JSON), with the results of `ngrams.score`.

    taken: names of other rows. sized(tokenizer): what `texts.Text.sized` gives, of each text.
    """
    alone = len(counted) == 1 and not taken & {*NAMES}
    rows, found = {}, []
    for tokens in counted:
        first = tokens.runs[0]
        model = Ngrams(tokens.pieces, first.tokenizer.vocab_size, f"n-grams of {first.name}")
        own: dict[str, dict] = {name if alone else f"{name} of {first.name}": {} for name in NAMES}
        for text, (streams, sizes) in sized(first.tokenizer).items():
            results = score(model, streams, first.tokenizer.byte_counts(), sizes).values()
            for row, result in zip(own.values(), results, strict=True):
                row[text] = result
        rows |= own
        found.append({"of": tokens.about(), "weights": model.weights(), "results": own})
    return rows, found
