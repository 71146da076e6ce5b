"""Tiny runs of train.py to break: how they are started, and what they said."""

from host import openmp  # noqa: F401 (before torch)

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from corpus.binary import prepare
from training.log import draw_losses

ROOT = Path(__file__).resolve().parents[2]
WATCHED = Path(__file__).with_name("watched.py")
MODELS = {
    "dense": ["--dropout=0.1"],
    "ladders": ["--attention=cattn_m", "--ffn=cffn_product", "--cf_eval_clip=True", "--dyadic=True"],
    "muon": ["--optimizer=muon", "--ffn=cffn_added", "--dtype=bfloat16", "--dropout=0.1"],
}
STEPS = 24
KEYS = {
    "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "cf_ladders": 2, "batch_size": 2,
    "gradient_accumulation_steps": 2, "max_iters": STEPS, "warmup_iters": 1, "learning_rate": 3e-3,
    "min_lr": 3e-4, "log_interval": 1, "eval_interval": 6, "eval_tokens": 96, "checkpoint_interval": 4,
    "keep_checkpoints": 2, "device": "cpu", "dtype": "float32", "compile": False,
    "distributed_timeout": 120,
}  # fmt: skip
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "15"}
PATIENCE = 900  # seconds until a process that should end is called hanging; long, for busy machines


def documents(seed: int = 7) -> Iterator[str]:
    """200 short texts of a made-up language."""
    dice = np.random.Generator(np.random.PCG64(seed))
    words = ["".join("abcdefgh"[i] for i in dice.integers(0, 8, 1 + n % 5)) for n in range(40)]
    for _ in range(200):
        yield " ".join(words[i] for i in dice.zipf(1.3, int(dice.integers(5, 60))) % 40)


def make_dataset(folder: Path, tokenizer: str = "bytes", seed: int = 7) -> Path:
    with quiet():
        prepare(lambda: documents(seed), {"made": f"up {seed}"}, tokenizer, folder, 0.1, workers=1)
    return folder


@contextlib.contextmanager
def quiet():
    with open(os.devnull, "w") as no, contextlib.redirect_stdout(no), contextlib.redirect_stderr(no):
        yield


def command_line(dataset: Path, model: str, folder: Path, *more: str) -> list[str]:
    keys = [f"--{key}={value}" for key, value in KEYS.items()]
    return [f"--dataset={dataset}", *keys, *MODELS[model], *more, "--resume=True", f"--out_dir={folder}"]


def warm_up(scratch: Path):
    """Import all that a run imports, also in its course, and use one thread: a child has no other threads.

    Nothing is trained here, so that PyTorch starts no thread before the forks.
    """
    import torch._dynamo

    import train  # noqa: F401
    from reports import picture

    torch.set_num_threads(1)
    some = draw_losses("a run", [{"step": 0, "tokens": 0, "loss": 1.0}])
    picture.write(some, scratch / "warm_up.png", own=True)


def fork(action: Callable[[], object], output: Path, environment: dict[str, str] | None = None) -> int:
    """A child of this process that runs `action` as if it were a program -> its process id.

    What it prints goes into the file `output`; its exit status is that of Python.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        tqdm.set_lock(threading.RLock())  # its own is shared by all children, and a killed one may hold it
        os.environ.update(ENVIRONMENT | (environment or {}))
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        action()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def wait(pid: int, seconds: float = PATIENCE) -> int | None:
    """The exit status of a child, as subprocess has it; None: it did not end and was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := os.waitpid(pid, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(found[1])
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def alive(pid: int) -> bool:
    """Whether a process exists that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Started:
    """A run under way. pids: those that this process has started, and must wait for."""

    pids: list[int]
    slots: np.memmap
    scratch: Path
    statuses: dict[int, int] = field(default_factory=dict)

    def ended(self) -> bool:
        """Whether every process has ended that this one has started."""
        for pid in self.pids:
            if pid not in self.statuses and (found := os.waitpid(pid, os.WNOHANG))[0]:
                self.statuses[pid] = os.waitstatus_to_exitcode(found[1])
        return len(self.statuses) == len(self.pids)

    def pid(self, rank: int) -> int:
        """0 as long as the rank imports its modules."""
        return int(self.slots[rank]["pid"])

    def left(self) -> list[int]:
        """Processes that have not ended, ranks without a launcher too."""
        found = [pid for pid in self.pids if pid not in self.statuses]
        found += [pid for pid in map(int, self.slots["pid"]) if pid and alive(pid)]
        spec = str(self.scratch / "spec.json").encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if spec in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return sorted(set(found))

    def finish(self, seconds: float = PATIENCE) -> bool:
        """Wait until all processes have ended, ranks without a launcher too. False: some hung."""
        end, hung = time.monotonic() + seconds, False
        while not self.ended() or self.left():
            if time.monotonic() > end:
                hung = True
                for pid in self.left():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.005 if self.pids[0] not in self.statuses else 0.05)
        return not hung

    @property
    def status(self) -> int:
        """0 if every process ended well."""
        return next((status for status in self.statuses.values() if status), 0)

    def said(self) -> str:
        path = self.scratch / "output"
        return path.read_text(errors="replace") if path.exists() else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(
    kind: str,
    ranks: int,
    arguments: list[str],
    scratch: Path,
    fuse: dict | None = None,
    limit: int | None = None,
) -> Started:
    """kind: warm (forked children), cold (a new process) or torchrun. scratch: a folder for this start.

    fuse, limit: see watched.py.
    """
    from tests.faults import watched

    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    watch, output = scratch / "watch", scratch / "output"
    slots = watched.new_slots(watch, ranks)
    spec = {"arguments": arguments, "watch": str(watch), "fuse": fuse, "limit": limit}
    if kind == "warm":
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        places = [{**meeting, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
        pids = [fork(lambda: watched.run(spec), output, place) for place in places]
        return Started(pids, slots, scratch)
    (scratch / "spec.json").write_text(json.dumps(spec))
    program = [str(WATCHED), str(scratch / "spec.json")]
    if kind == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        program = [*launcher, *program]
    with output.open("ab") as file:
        environment = {**os.environ, **ENVIRONMENT}
        process = subprocess.Popen(
            [sys.executable, *program], cwd=ROOT, env=environment, stdout=file, stderr=file
        )
    process.returncode = 0  # waited for here, not by subprocess
    return Started([process.pid], slots, scratch)


def killed_half_way(arguments: list[str], scratch: Path):
    """Leave a run with checkpoints of steps 8 and 12, the best one, and a log up to step 16.

    It is killed before it writes its fifth checkpoint. A sharded one is written in two parts.
    """
    count = 9 if "--checkpoint_format=sharded" in arguments else 5
    fuse = {"rank": 0, "at": "phase", "phase": "writing a checkpoint", "count": count, "action": "kill"}
    fuse["victim"] = "self"
    started = start("warm", 1, arguments, scratch, fuse)
    if not started.finish() or started.status != -signal.SIGKILL:
        raise RuntimeError(f"the run was not killed half way:\n{started.said()}")


# the launcher's own traceback, which torchrun prints after every failure
OF_TORCHRUN = re.compile(
    r"Traceback \(most recent call last\):\n(?:  .*\n|    .*\n)*"
    r"torch\.distributed\.elastic\.multiprocessing\.(?:errors\.ChildFailedError|api\.SignalException).*\n"
)


def messages(text: str) -> tuple[list[str], int]:
    """(the messages of our scripts, how many tracebacks that are not torchrun's own)"""
    text = OF_TORCHRUN.sub("", text)
    lines = re.findall(r"^(?:train|sample|export|evaluate)\.py: .*$", text, re.M)
    return lines, text.count("Traceback (most recent call last)") + text.count("Exception ignored in")
