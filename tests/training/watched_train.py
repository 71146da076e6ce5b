"""Runs of train.py in the processes of one torchrun (or in one process); each rank writes what it holds.

    torchrun --nproc_per_node=2 tests/training/watched_train.py RUNS.json

RUNS.json: a list of {"arguments": [...]} with options. Rank r of a run with --out_dir=X appends to
X.rank<r>.jsonl: digests of every batch, and of weights and ranges at each evaluation and checkpoint.
Options:

    poison: in that step the last rank's first ffn gives NaN
    unreadable: in that step the first rank cannot read its data
    file_limit: no file may grow beyond this size from the first checkpoint on
    slow: writing a checkpoint takes so many seconds more
    stop: a signal ends the run after so many steps, with a checkpoint
    die: in that step the last rank is killed, unless torchrun has started it again
    answer_seconds: how long ranks wait for the answer of one that is missing
    count: [a rank's share of bytes, what the first rank may hold besides when it saves]. Write down the
        most bytes that a rank holds while it loads a checkpoint, and while it saves one
"""

import errno
import gc
import hashlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import train
from tests.training.held_bytes import HeldBytes
from training import checkpoint, distributed, sharding, trainer
from training.distributed import Ranks, ends_process
from training.log import Log
from training.resume import load_state


def digest(tensors) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


class Watched(trainer.Trainer):
    options: ClassVar[dict] = {}
    loading: ClassVar[int | None] = None  # bytes

    def note(self, **values):
        path = f"{self.folder}.rank{self.ranks.rank}.jsonl"
        with open(path, "a") as file:
            file.write(json.dumps({"step": self.progress.step, **values}) + "\n")

    def held(self) -> dict:
        ranges = [buffer for name, buffer in self.model.named_buffers() if ".z_m" in name]
        weights = (sharding.whole(parameter.detach()) for parameter in self.model.parameters())
        return {"weights": digest(weights), "ranges": digest(ranges)}

    def evaluate(self, gradients):
        improved = super().evaluate(gradients)
        self.note(at="evaluation", **self.held())
        return improved

    def step(self, stop):
        if self.progress.step + 1 == self.options.get("stop") and self.ranks.first:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(stop)

    def save(self, improved):
        if "count" in self.options:
            share, besides = self.options["count"]
            with HeldBytes(share + besides * self.ranks.first) as counted:
                states = (state.values() for state in self.optimizer.state.values())
                for tensor in itertools.chain(self.model.parameters(), *states):
                    tensor.detach()  # an operation, so that it counts
                super().save(improved)
            self.note(at="saving", saving=counted.peak, loading=self.loading)
        else:
            super().save(improved)
        self.note(at="checkpoint", **self.held())
        if limit := self.options.get("file_limit"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def backward(self, step):
        batches, real = [], self.loader.batch

        def batch(first):
            found = real(first)
            batches.append(digest(list(found)))
            return found

        self.loader.batch = batch
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if step == self.options.get("die") and self.ranks.rank == self.ranks.world - 1 and not restarted:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.options.get("poison") and self.ranks.rank == self.ranks.world - 1:
            self.model.blocks[0].ffn.register_forward_hook(
                lambda module, inputs, output: output * torch.nan
            )
        if step == self.options.get("unreadable") and self.ranks.first:
            raise OSError(errno.EIO, "Input/output error", "train.bin")
        local = []
        if wrapped := self.ranks.world > 1 and not self.sharded:
            no_sync = self.training_model.no_sync
            self.training_model.no_sync = lambda: (local.append(1), no_sync())[1]
        seed = torch.initial_seed()
        loss = super().backward(step)
        self.loader.batch = real
        if wrapped:
            del self.training_model.no_sync
        self.note(at="batches", digests=batches, local=len(local), seed=seed)
        return loss


def counted_load_state(path, content, *parts):
    if "count" not in Watched.options:
        return load_state(path, content, *parts)
    with HeldBytes(Watched.options["count"][0], apart=content) as counted:
        progress = load_state(path, content, *parts)
    Watched.loading = counted.peak
    return progress


saved = checkpoint.save


def slow_save(*given):
    time.sleep(Watched.options["slow"])
    return saved(*given)


def play(runs: list[dict]):
    """Train all of them, one after the other, in this process."""
    torch.set_num_threads(1)
    train.Trainer, train.load_state = Watched, counted_load_state
    drawn, Log.draw = Log.draw, lambda self, interval=0.0: None  # as in tests/conftest.py
    for run in runs:
        Watched.options, Watched.loading = run, None
        distributed.ANSWER_SECONDS = run.get("answer_seconds", distributed.ANSWER_SECONDS)
        checkpoint.save = slow_save if "slow" in run else saved
        try:
            train.main(run["arguments"])
        except SystemExit as stop:
            print(f"exit: {stop.code}", file=sys.stderr, flush=True)
        if dist.is_initialized():
            dist.destroy_process_group()
        # a process that ends closes its connections, for which other ranks may wait; here, cycles hold them
        gc.collect()
    train.Trainer, train.load_state, Log.draw = trainer.Trainer, load_state, drawn
    checkpoint.save = saved


def ranks_end_at_once():
    """Ranks that end without a message need not wait: no rank's end is that of a process here."""
    Ranks.let_another_speak = lambda self, first=False: None


def read_and_play(path: str):
    play(json.loads(Path(path).read_text()))


if __name__ == "__main__":
    ranks_end_at_once()
    with ends_process():
        read_and_play(sys.argv[1])
