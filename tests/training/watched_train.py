"""Runs of train.py in the processes of one torchrun (or in one process); each rank writes what it holds.

    torchrun --nproc_per_node=2 tests/training/watched_train.py RUNS.json

RUNS.json: a list of {"arguments": [...], "poison": step, "kill": step, "file_limit": bytes}, all but the
first optional. Rank r of a run with --out_dir=X appends to X.rank<r>.jsonl: digests of every batch, and of
weights and ranges at each evaluation and checkpoint. poison: in that step the last rank's first ffn gives
NaN. kill: in that step the last rank is killed, unless torchrun has started it again. file_limit: no file
may grow beyond this size from the first checkpoint on.
"""

import hashlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from train import main
from training import distributed, trainer
from training.distributed import ends_process


def digest(tensors) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


class Watched(trainer.Trainer):
    options: ClassVar[dict] = {}

    def note(self, **values):
        path = f"{self.folder}.rank{self.ranks.rank}.jsonl"
        with open(path, "a") as file:
            file.write(json.dumps({"step": self.progress.step, **values}) + "\n")

    def held(self) -> dict:
        ranges = [buffer for name, buffer in self.model.named_buffers() if ".z_m" in name]
        return {"weights": digest(self.model.parameters()), "ranges": digest(ranges)}

    def evaluate(self, gradients):
        improved = super().evaluate(gradients)
        self.note(at="evaluation", **self.held())
        return improved

    def save(self, improved):
        super().save(improved)
        self.note(at="checkpoint", **self.held())
        if limit := self.options.get("file_limit"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def backward(self, step):
        batches, real = [], self.loader.batch

        def batch(first):
            tokens, targets = real(first)
            batches.append(digest([tokens, targets]))
            return tokens, targets

        self.loader.batch = batch
        last = self.ranks.rank == self.ranks.world - 1
        if step == self.options.get("kill") and last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.options.get("poison") and last:
            self.model.blocks[0].ffn.register_forward_hook(
                lambda module, inputs, output: output * torch.nan
            )
        local = []
        if wrapped := self.ranks.world > 1:
            no_sync = self.training_model.no_sync
            self.training_model.no_sync = lambda: (local.append(1), no_sync())[1]
        seed = torch.initial_seed()
        loss = super().backward(step)
        self.loader.batch = real
        if wrapped:
            del self.training_model.no_sync
        self.note(at="batches", digests=batches, local=len(local), seed=seed)
        return loss


if __name__ == "__main__":
    import train

    torch.set_num_threads(1)
    train.Trainer = Watched
    with ends_process():
        for run in json.loads(Path(sys.argv[1]).read_text()):
            Watched.options = run
            if "kill" in run:
                distributed.ANSWER_SECONDS = 2  # of waiting for the dead rank
            try:
                main(run["arguments"])
            except SystemExit as stop:
                print(f"exit: {stop.code}", file=sys.stderr, flush=True)
                if dist.is_initialized():
                    dist.destroy_process_group()
