"""The start of a run of model=saffu: weights written down from counts, before the first step.

The passes of training/saffu_passes.py read the first `saffu_tokens` of the run's own samples, the same ones
in each pass. Rank r of n reads every n-th chunk, and sums are added up over the ranks at the end of a pass.
A checkpoint at step 0 holds the weights so far, the sums of the pass at hand and how far it came.
"""

import math
import sys
import time

import torch
from tqdm import tqdm

from corpus.mixture import Mixture
from training.endings import TrainingError
from training.saffu_passes import Pass, chunk_samples, plan
from training.trainer import Trainer

SAVE_SECONDS = 60.0  # between two checkpoints within the passes


def samples(config, data) -> int:
    """The samples that each pass reads; saffu_tokens=None: those of an epoch."""
    tokens = config.saffu_tokens
    if tokens is None:
        sources = data.sources if isinstance(data, Mixture) else [data]
        tokens = sum(len(source.tokens) - 1 for source in sources)
    return max(1, tokens // config.block_size)


def run(trainer: Trainer, saved: dict | None, stop) -> bool:
    """Make the passes that are left. saved: `start` of a checkpoint; None: a new run. stop: a Stop.

    Evaluates after the initialisation and after each tuning pass, and writes a checkpoint at the end. False
    if a signal ended it earlier, after a checkpoint. Raises TrainingError where there is no solution.
    """
    config, ranks, passes = trainer.config, trainer.ranks, plan(trainer.config)
    trainer.start = saved or {"number": 0, "samples": 0, "sums": None}
    first, total = trainer.start["number"], samples(config, trainer.data)
    if first == len(passes):
        return True
    trainer.model.eval()
    bar = tqdm(
        total=len(passes) * total * config.block_size,
        initial=(first * total + trainer.start["samples"]) * config.block_size,
        unit=" tokens", unit_scale=True, dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 30.0, disable=not ranks.first,
    )  # fmt: skip
    with bar:
        timer = Timer()
        for number in range(first, len(passes)):
            tuning, name = passes[number]
            label = f"tuning {tuning}, {name}" if tuning else name
            ranks.where = f"the explicit start ({label})"
            bar.set_description(label, refresh=False)
            made = Pass(trainer.model, config, tuning, name)
            sums = _summed(trainer, made, number, total, stop, bar, timer)
            if sums is None:
                trainer.finish_saving()
                bar.close()
                trainer.report.stopped()
                return False
            try:
                made.finish(sums)
            except ValueError as error:
                ranks.fail(TrainingError(f"the explicit start has no solution in pass {label!r}: {error}"))
            if number + 1 == len(passes) or passes[number + 1][0] != tuning:
                with trainer.clock.paused() as seconds, bar.external_write_mode(file=sys.stdout):
                    trainer.progress.seconds = seconds
                    trainer.evaluate({})
                    _check(trainer, label)
                    _save(trainer, number + 1, 0, None)
    return True


def _check(trainer: Trainer, label: str):
    if not math.isfinite(trainer.validation_loss):
        loss = trainer.validation_loss
        said = f"the explicit start has a validation loss of {loss} after pass {label!r}"
        how = "take values of saffu_floor, saffu_priming and saffu_temperature nearer to their defaults"
        trainer.ranks.fail(TrainingError(f"{said}: {how}"))


class Timer:
    """Whether a checkpoint is due."""

    def __init__(self):
        self.since = time.monotonic()

    def late(self) -> bool:
        if time.monotonic() - self.since <= SAVE_SECONDS:
            return False
        self.since = time.monotonic()
        return True


def _summed(trainer: Trainer, made: Pass, number: int, total: int, stop, bar, timer: Timer) -> dict | None:
    """The sums of a pass over all ranks, from where `trainer.start` left it; None: a signal came, and there
    is a checkpoint. bar: of tokens.
    """
    ranks, chunk = trainer.ranks, chunk_samples(trainer.model)
    sums, done, start = made.zeros(), 0, trainer.start
    if start["number"] == number and start["sums"] is not None:
        done = start["samples"]
        if ranks.first:  # they are of all ranks
            for key, value in start["sums"].items():
                sums[key].copy_(value)
    while done < total:
        begin, end = done + ranks.rank * chunk, min(total, done + ranks.world * chunk)
        if begin < end:
            windows = trainer.data.windows(begin, min(chunk, end - begin), trainer.config.seed)
            windows = torch.from_numpy(windows).to(trainer.device)
            made.add(sums, windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        bar.update((end - done) * trainer.config.block_size)
        done = end
        stopping, late = ranks.any(bool(stop)), ranks.any(ranks.first and timer.late())
        if stopping or late:
            _save(trainer, number, done, _whole(ranks, sums))
        if stopping:
            return None
    return _whole(ranks, sums)


def _whole(ranks, sums: dict) -> dict[str, torch.Tensor]:
    """The sums of all ranks."""
    with ranks.waiting("the sums of the other ranks"):
        return {key: ranks.sum(value.clone()) for key, value in sums.items()}


def _save(trainer: Trainer, number: int, done: int, sums: dict | None):
    if sums is not None:
        sums = {key: value.cpu() for key, value in sums.items()}
    trainer.start = {"number": number, "samples": done, "sums": sums}
    trainer.save(improved=False)
