"""Explicit SAFFU of many sizes from the same tokens, each unit computed once.

Without hidden bits nothing is shared. With them, W and U of a unit, and its hidden distribution, depend on
the embeddings and that unit alone, and F(g, Y) of the head has the rows of both units. So a model of two
known units costs the closed form of M and its evaluation. The embeddings of all units depend on
saffu_block: the number of further blocks is the count of <frg>.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from configurator import resolve
from corpus.loader import Dataset
from models.architecture import model_config
from models.saffu import Saffu
from training.config import TrainConfig
from training.explicit_start import samples
from training.saffu_passes import Pass, chunk_samples, plan

ROOT = Path(__file__).resolve().parents[2]
PAPER = str(ROOT / "config/paper/saffu.py")
SCORED = 50_000  # tokens of train and of held that are scored, at most
ROWS = 4096  # predictions whose logits are computed at once


def config_of(dataset: str, **keys) -> TrainConfig:
    """The run of a cell: config/paper/saffu.py, the explicit start alone, and `keys`."""
    keys = {"dataset": dataset, "saffu_only": True, "saffu_tuning": 0, "compile": False} | keys
    config = resolve(TrainConfig, [PAPER, *(f"--{key}={value}" for key, value in keys.items())])
    end = Dataset(ROOT / dataset, "train", config.block_size).meta["end_of_text"]
    return dataclasses.replace(config, saffu_end_of_text=end)


class Corpus:
    """The windows [count, T + 1] int64 that are counted and scored, as train.py takes them.

    counted: the run's first saffu_tokens. scored: {split: windows}; train: evenly spaced ones of those that
    are counted, dev: those of train.py's evaluations, held: the next ones of the training data, which are
    not counted.
    """

    def __init__(self, config: TrainConfig, held: bool = False):
        folder, length = ROOT / config.dataset, config.block_size
        data = Dataset(folder, "train", length)
        count, scored = samples(config, data), SCORED // length
        read = lambda begin, number: torch.from_numpy(data.windows(begin, number, config.seed))  # noqa: E731
        self.counted = read(0, count)
        dev = Dataset(folder, "val", length).validation_windows(config.eval_tokens // length)
        self.scored = {
            "train": self.counted[torch.arange(scored) * count // scored],
            "dev": torch.from_numpy(dev),
        }
        if held:
            self.scored["held"] = read(count, min(scored, data.n_windows - count))
        self.pieces = data.pieces(count, config.seed)
        self.bytes = torch.from_numpy(data.token_bytes.astype(np.int64))
        self.end_of_text = config.saffu_end_of_text


@dataclass
class Known:
    """What a unit gives to a model: `rows` of F(g, Y), float64 [N, D_H], and its hidden distributions
    {split: [tokens, D_H]}.
    """

    rows: torch.Tensor
    hidden: dict[str, torch.Tensor]


def counted(config: TrainConfig, corpus: Corpus) -> Saffu:
    """A model whose embeddings and counts are known, and nothing else."""
    model = _model(config)
    _passed(model, config, "counts", corpus)
    return model


def unit(config: TrainConfig, kind: str, corpus: Corpus, source: Saffu) -> Known:
    """The unit of a kind, with the embeddings of `source`, which has both."""
    other = {"block": "radius", "radius": "block"}[kind]
    alone = dataclasses.replace(config, **{f"saffu_{other}": None})
    model = _model(alone)
    model.counts.copy_(source.counts)
    (only,) = model.units
    (same,) = [one for one in source.units if one.kind == kind]
    with torch.no_grad():
        only.embedding.copy_(same.embedding)
        only.attention.zero_()
    for _, name in plan(alone):
        if name not in ("counts", "head"):
            _passed(model, alone, name, corpus)
    last = Pass(model, alone, 0, "head")
    rows = _sums(last, model, corpus)["head"]
    return Known(rows, {split: _hidden(model, windows) for split, windows in corpus.scored.items()})


def joined(config: TrainConfig, corpus: Corpus, known: list[Known]) -> dict[str, dict[str, float]]:
    """The model of these units, block first: {split: its `summary`}."""
    model = _model(config)
    Pass(model, config, 0, "head").finish({"head": torch.cat([one.rows for one in known], 1)})
    return {
        split: _scored(model, torch.cat([one.hidden[split] for one in known], 1), windows, corpus)
        for split, windows in corpus.scored.items()
    }


def whole(config: TrainConfig, corpus: Corpus) -> dict[str, dict[str, float]]:
    """As `joined`, by all passes of the explicit start over a model of both units."""
    model = _model(config)
    for _, name in plan(config):
        _passed(model, config, name, corpus)
    return {
        split: _scored(model, _hidden(model, windows), windows, corpus)
        for split, windows in corpus.scored.items()
    }


def summary(nats: torch.Tensor, targets: torch.Tensor, corpus: Corpus) -> dict[str, float]:
    """nats, targets: [tokens] -> loss in nats per token, the same without end-of-text tokens as targets,
    and bits per byte.
    """
    nats = nats.double()
    text = targets != corpus.end_of_text
    return {
        "loss": nats.mean().item(),
        "loss without end": nats[text].mean().item(),
        "bits per byte": nats.sum().item() / math.log(2) / corpus.bytes[targets].sum().item(),
    }


@torch.no_grad()
def _scored(model: Saffu, hidden: torch.Tensor, windows: torch.Tensor, corpus: Corpus) -> dict[str, float]:
    """hidden: [tokens, C] of the windows -> `summary`"""
    targets = windows[:, 1:].flatten()
    found = [
        F.cross_entropy(model.logits(h), y, reduction="none")
        for h, y in zip(hidden.split(ROWS), targets.split(ROWS), strict=True)
    ]
    return summary(torch.cat(found), targets, corpus)


def _model(config: TrainConfig) -> Saffu:
    model = Saffu(model_config(config))
    return model.eval()


def _passed(model: Saffu, config: TrainConfig, name: str, corpus: Corpus):
    one = Pass(model, config, 0, name)
    one.finish(_sums(one, model, corpus))


def _sums(one: Pass, model: Saffu, corpus: Corpus) -> dict[str, torch.Tensor]:
    sums = one.zeros()
    for windows in corpus.counted.split(chunk_samples(model)):
        one.add(sums, windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
    return sums


@torch.no_grad()
def _hidden(model: Saffu, windows: torch.Tensor) -> torch.Tensor:
    """[tokens, C]"""
    parts = windows[:, :-1].split(chunk_samples(model))
    return torch.cat([model.hidden(part.contiguous()).flatten(0, 1) for part in parts])
