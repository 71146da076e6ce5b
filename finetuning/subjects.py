"""The models to be fine-tuned, and the tasks encoded with their tokenizers."""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

from corpus import DataError
from corpus.tokenizer import Tokenizer
from finetuning.glue import TaskData
from finetuning.inputs import Inputs, encode
from training import pretrained
from training.checkpoint import CheckpointError

# the CoFrGeNet papers' learning rates for baselines, and for their own models
BASELINE_RATE, LADDERS_RATE = 2.5e-5, 1.25e-5
SHORTEST = 8  # smallest max_length, in tokens


@dataclass
class Subject:
    """A model to be fine-tuned. weights: their identity; max_length: the longest example in tokens."""

    name: str
    source: pretrained.Source
    tokenizer: Tokenizer
    weights: str
    learning_rates: list[float]
    max_length: int


def open_subjects(
    models: list[str], which: str, rates: list[float] | None, max_length: int | None, dropout: float
) -> list[Subject]:
    """Opens the models and reads their weights once, to find damaged ones before any training.

    rates: None takes the published learning rate of each model. max_length: in tokens, None for block_size.
    Raises CheckpointError with everything that is wrong with the models.
    """
    subjects, wrong = [], []
    for name, model in zip(shown_names(models), models, strict=True):
        try:
            source = pretrained.open_source(model, which)
            if source.config.model != "gpt":
                kind = f"{model} is of model={source.config.model}"
                raise CheckpointError(f"{kind}: its hidden state predicts one token and describes no text")
            pretrained.check_no_encoder(source, "finetune.py")
            tokenizer = pretrained.tokenizer_of(source)
            digest = hashlib.blake2b(digest_size=16)
            for key, weight in sorted(pretrained.read_checked(source).items()):
                digest.update(key.encode())
                digest.update(weight.contiguous().numpy())
        except (CheckpointError, DataError, OSError) as error:
            wrong.append(str(error))
            continue
        source.config = dataclasses.replace(source.config, dropout=dropout)
        published = LADDERS_RATE if source.config.has_ladders else BASELINE_RATE
        own_rates = list(dict.fromkeys(rates or [published]))
        length = min(max_length or source.config.block_size, source.config.block_size)
        if length < SHORTEST:
            wrong.append(f"{model}: block_size={source.config.block_size} is too short for any text")
        subjects.append(Subject(name, source, tokenizer, digest.hexdigest(), own_rates, length))
    if wrong:
        raise CheckpointError("\n".join(wrong))
    return subjects


def shown_names(models: list[str]) -> list[str]:
    """The last part of each path, or the whole path if two models would have the same name.

    Raises CheckpointError for a model that is named twice.
    """
    if len({str(Path(model)) for model in models}) < len(models):
        raise CheckpointError(f"a model is named twice: {', '.join(models)}")
    names = [Path(model).name or model for model in models]
    whole = [str(Path(model)).strip("/").replace("/", "_") for model in models]
    return [full if names.count(name) > 1 else name for name, full in zip(names, whole, strict=True)]


Encoded = dict[tuple[str, int, str], dict[str, Inputs]]  # tokenizer, length, task -> set -> examples


def encode_all(subjects: list[Subject], data: dict[str, TaskData]) -> Encoded:
    """Encodes the data once for all models that share a tokenizer and a length. Raises DataError."""
    encoded: Encoded = {}
    for subject in subjects:
        for name, of_task in data.items():
            key = (subject.tokenizer.hash, subject.max_length, name)
            if key not in encoded:
                sets = {"train": of_task.train, **of_task.validation}
                encoded[key] = {
                    split: encode(examples, subject.tokenizer, subject.max_length, f"{name} {split}")
                    for split, examples in sets.items()
                }
                if cut := sum(inputs.cut for inputs in encoded[key].values()):
                    total = sum(map(len, sets.values()))
                    print(f"{name}: {cut:,} of {total:,} examples are cut to {subject.max_length} tokens")
            highest = max(int(row.max()) for inputs in encoded[key].values() for row in inputs.tokens)
            if highest >= subject.source.config.vocab_size:
                raise DataError(
                    f"{subject.name}: its tokenizer gives token {highest}, and its vocabulary has "
                    f"{subject.source.config.vocab_size}"
                )
    return encoded
