"""Real training steps by train.py: one run to its end, one that is killed and resumed, and their losses
compared to the bit.
"""

from host.disk import no_link

import os
import runpy
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.session import Session
from benchmarks.worker import BenchError, Unanswered, Worker
from corpus.binary import prepare
from training.checkpoint import numbered, step_of
from training.log import read_log

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class TrainingTask:
    """For each item, train.py with the arguments of this name, for `steps` steps.

    dataset: a prepared folder; None: a text of random words, encoded as bytes.
    """

    stage: str
    name: str
    items: list[str]
    models: dict[str, list[str]]
    steps: int
    dataset: str | None
    settings: dict

    def turn(self, session: Session, item: str) -> dict:
        """The result of an item. Raises BenchError, and Unanswered if the time is over."""
        with tempfile.TemporaryDirectory() as folder:
            return self._compare(session, Path(folder), item)

    def end(self, kind=None):
        """Nothing of it runs between its items."""

    def _compare(self, session, folder, item) -> dict:
        whole, killed = (folder / f"{item}_{kind}" for kind in ("whole", "killed"))
        half = self.steps // 2

        def past_half():
            log = read_log(killed)
            return bool(log and log[-1]["step"] > half and numbered(killed / "ckpt"))

        self._train(session, item, whole)
        if not self._train(session, item, killed, until=past_half):
            raise BenchError(f"{item}: the run was over before it could be killed: it needs more steps")
        seen = read_log(killed)[-1]["step"]
        start = step_of(numbered(killed / "ckpt")[-1])
        self._train(session, item, killed)
        first, second = (losses(run) for run in (whole, killed))
        differ = [step for step in first if first[step] != second.get(step)]
        rates = [record["tokens_per_second"] for record in read_log(whole) if "tokens_per_second" in record]
        return {
            "steps": len(first),
            "killed_after_step": seen,
            "resumed_from_step": start,
            "equal_to_the_bit": not differ and len(first) == len(second) == self.steps,
            "first_difference": differ[0] if differ else None,
            "largest_difference": max((abs(first[s] - second.get(s, 0.0)) for s in differ), default=0.0),
            "losses": {step: loss for step, loss in first.items() if step % max(1, self.steps // 10) == 0},
            "tokens_per_second": statistics.median(rates),
        }

    def _train(self, session, item, folder, until: Callable[[], bool] = lambda: False) -> bool:
        """Runs or resumes; kills the run as soon as `until` holds, and returns whether that was so."""
        data = self.dataset or str(folder.parent / "words")
        arguments = [*self.models[item], f"--dataset={data}", f"--out_dir={folder}", "--resume=True"]
        arguments += [f"--max_iters={self.steps}", f"--checkpoint_interval={max(1, self.steps // 5)}"]
        arguments += ["--log_interval=1", "--keep_checkpoints=1"]
        make = (train, arguments, None if self.dataset else data, folder.parent / f"{folder.name}.txt")
        with Worker(item, session.device, session.threads, *make) as worker:
            worker.ask("sections", wanted=session.goes_on)
            try:
                worker.ask("turn", "train", wanted=lambda: session.goes_on() and not until(), every=0.02)
            except Unanswered:
                worker.process.kill()
                if not session.goes_on():
                    raise
                return True
        return False


def train(arguments: list[str], words: str | None, output: Path) -> dict[str, Callable[[], dict]]:
    """{"train": train.py with these arguments}; words: a folder for data to make, unless it is there."""

    def run():
        with open(output, "a", opener=no_link) as file:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(file.fileno(), stream.fileno())
        tqdm.set_lock(threading.RLock())  # its own one would be left behind by a process that is killed
        if words is not None:
            prepare(documents, {"words": "random"}, "bytes", Path(words), 0.1, workers=1)
        sys.argv = ["train.py", *arguments]
        try:
            runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
        except SystemExit as end:
            if end.code:
                said = end.code if isinstance(end.code, str) else output.read_text()[-1000:]
                raise RuntimeError(said) from None
        return {}

    return {"train": run}


def documents() -> Iterator[str]:
    """About a million characters of random words, the same on every machine."""
    random = np.random.Generator(np.random.PCG64(7))
    words = ["".join(random.choice(list("abcdefghijklmnop"), 1 + n % 7)) for n in range(500)]
    for _ in range(1000):
        yield " ".join(words[i] for i in random.zipf(1.3, 200) % 500)


def losses(folder: Path) -> dict[int, float]:
    """{step: training loss}"""
    return {record["step"]: record["loss"] for record in read_log(folder) if "loss" in record}
