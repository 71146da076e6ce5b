"""The start of a run of model=saffu: weights written down from counts, before the first step.

The passes of training/saffu_passes.py read the first `saffu_tokens` of the run's own samples, the same ones
in each pass. Rank r of n reads every n-th chunk, and sums are added up over the ranks at the end of a pass.
A checkpoint at step 0 holds the weights so far, the sums of the pass at hand and how far it came.
"""

import sys
import time

import torch
from tqdm import tqdm

from data.mixture import Mixture
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
    config, ranks, model = trainer.config, trainer.ranks, trainer.model
    passes, total, chunk = plan(config), samples(config, trainer.data), chunk_samples(model)
    saved = saved or {"number": 0, "samples": 0, "sums": None}
    trainer.start = saved
    if saved["number"] == len(passes):
        return True
    first = saved["number"]
    bar = tqdm(
        total=len(passes) * total * config.block_size, initial=(first * total + saved["samples"])
        * config.block_size, unit=" tokens", unit_scale=True, dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 30.0, disable=not ranks.first,
    )  # fmt: skip
    trainer.model.eval()
    with bar:
        for number in range(first, len(passes)):
            tuning, name = passes[number]
            label = f"tuning {tuning}, {name}" if tuning else name
            ranks.where = f"the explicit start ({label})"
            bar.set_description(label, refresh=False)
            made = Pass(model, config, tuning, name)
            sums, done = made.zeros(), 0
            if number == first and saved["sums"] is not None:
                done = saved["samples"]
                if ranks.first:  # they are of all ranks
                    for key, value in saved["sums"].items():
                        sums[key].copy_(value)
            since = time.monotonic()
            while done < total:
                _add(trainer, made, sums, done + ranks.rank * chunk, min(total, done + ranks.world * chunk))
                before, done = done, min(total, done + ranks.world * chunk)
                bar.update((done - before) * config.block_size)
                late = ranks.first and time.monotonic() - since > SAVE_SECONDS
                stopping = ranks.any(bool(stop))
                if stopping or ranks.any(late):
                    _save(trainer, number, done, _whole(ranks, sums))
                    since = time.monotonic()
                if stopping:
                    trainer.finish_saving()
                    bar.close()
                    trainer.report.stopped()
                    return False
            sums = _whole(ranks, sums)
            try:
                made.finish(sums)
            except ValueError as error:
                ranks.fail(TrainingError(f"the explicit start has no solution in pass {label!r}: {error}"))
            if number + 1 == len(passes) or passes[number + 1][0] != tuning:
                with trainer.clock.paused() as seconds, bar.external_write_mode(file=sys.stdout):
                    trainer.progress.seconds = seconds
                    trainer.evaluate({})
                    _save(trainer, number + 1, 0, None)
    return True


def _add(trainer: Trainer, made: Pass, sums: dict, begin: int, end: int):
    """Add this rank's chunk of samples begin .. end - 1, if it has one."""
    count = min(chunk_samples(trainer.model), end - begin)
    if count <= 0:
        return
    windows = torch.from_numpy(trainer.data.windows(begin, count, trainer.config.seed))
    windows = windows.to(trainer.device)
    made.add(sums, windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def _whole(ranks, sums: dict) -> dict[str, torch.Tensor]:
    """The sums of all ranks."""
    with ranks.waiting("the sums of the other ranks"):
        return {key: ranks.sum(value.clone()) for key, value in sums.items()}


def _save(trainer: Trainer, number: int, done: int, sums: dict | None):
    if sums is not None:
        sums = {key: value.cpu() for key, value in sums.items()}
    trainer.start = {"number": number, "samples": done, "sums": sums}
    trainer.save(improved=False)
