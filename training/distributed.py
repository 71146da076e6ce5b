"""The processes of one run: ranks under torchrun, or a single process without it.

Tensors on a CPU travel over gloo, tensors on a GPU over nccl. Every collective has a time limit: a rank
that died or hangs ends the run with a message that names it.
"""

import contextlib
import datetime
import inspect
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reports.plural import counted

# How long a rank waits for the answers of the others once its own collective has failed. torchrun kills all
# ranks that are left 30 s after one has failed.
ANSWER_SECONDS = 20
BEAT_SECONDS = 10  # between two signs of life of a rank that works for longer
OF_A_COLLECTIVE = re.compile(r"gloo|nccl|timed? ?out|connection (closed|reset)|broken pipe", re.IGNORECASE)


class LostRankError(RuntimeError):
    """Some ranks do not answer; the message names them. `speak`: whether this rank prints it."""

    def __init__(self, message: str, speak: bool = True):
        super().__init__(message)
        self.speak = speak


class OtherRankError(RuntimeError):
    """Another rank prints what is wrong; this one exits without a message."""


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def max_restarts() -> int:
    """How often torchrun may start the ranks of this machine again when one has failed."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))


def ranks_per_machine() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def tell_torchrun(message: str):
    """torchrun repeats it as the cause, in the last lines that it prints below its own traceback."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        content = {"message": message.strip(), "extraInfo": {"timestamp": str(int(time.time()))}}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": content}))


@contextlib.contextmanager
def ends_process() -> Iterator[None]:
    """Around a whole program: if torchrun started it, end the process without Python's shutdown.

    A thread of gloo may hold the last tensor of a collective until then, and PyTorch aborts a process that
    frees such a tensor during shutdown (pytorch/pytorch#190489, seen with 2.13).

    A program that says why it ends (SystemExit) would say the same after a restart. It ends torchrun too,
    which would otherwise start it again.
    """
    status, final = 0, False
    one_of_several, launcher = world_size() > 1 or max_restarts() > 0, os.getppid()
    try:
        yield
    except SystemExit as end:
        if not one_of_several:
            raise
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        final = status != 0 and max_restarts() > 0
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            tell_torchrun(end.code)
    except Exception:
        if not one_of_several:
            raise
        traceback.print_exc()
        status = 1
    if one_of_several:
        sys.stdout.flush()
        sys.stderr.flush()
        if final and os.getppid() == launcher > 1:  # if torchrun is dead, the parent is another process
            os.kill(launcher, signal.SIGTERM)
        os._exit(status)


class Ranks:
    """rank (0 .. world - 1), local_rank (on this machine) and world, from torchrun's environment variables.

    Without torchrun there is one rank, and every collective returns at once.
    """

    def __init__(self):
        self.rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.world = world_size()
        self.store = self.cpu_group = None
        self.limit = None  # of a collective between tensors on the device
        self.answer_seconds, self.beat_seconds = ANSWER_SECONDS, BEAT_SECONDS
        self.where = "the start"  # for messages

    @property
    def first(self) -> bool:
        return self.rank == 0

    def say(self, text: str):
        """Print on rank 0 alone."""
        if self.first:
            print(text, flush=True)

    @contextlib.contextmanager
    def joined(self, device: torch.device, seconds: float) -> Iterator["Ranks"]:
        """Meet the other ranks; a collective that takes longer than `seconds` raises LostRankError."""
        if restarts := int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
            times = f"restart {restarts} of at most {max_restarts()}"
            self.say(f"torchrun started the run again, {times}, with {counted(self.world, 'rank')}")
        if self.world == 1:
            yield self
            return
        limit = datetime.timedelta(seconds=seconds)
        # nccl kills a process whose collective is late without a message, so let gloo notice first
        self.limit = 2 * limit if device.type == "cuda" else limit
        self.answer_seconds = min(seconds + 3, ANSWER_SECONDS)
        self.beat_seconds = min(seconds / 4, BEAT_SECONDS)
        try:
            store, rank, world = next(dist.rendezvous("env://", timeout=limit))
            store.set_timeout(limit)
            self.store = dist.PrefixStore(self._meeting(store, seconds), store)
            place = f"process {os.getpid()} on {socket.gethostname()}"
            self.store.set(f"place of rank {self.rank}", place)
            options = {"store": self.store, "rank": rank, "world_size": world}
            if device.type == "cuda":
                torch.cuda.set_device(device)
                dist.init_process_group("nccl", device_id=device, timeout=self.limit, **options)
                self.cpu_group = dist.new_group(backend="gloo", timeout=limit)
            else:
                dist.init_process_group("gloo", timeout=self.limit, **options)
                self.cpu_group = dist.group.WORLD
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise LostRankError(
                f"rank {self.rank} did not meet all {self.world} ranks within {seconds:g} s ({reason})"
            ) from None
        yield self
        # not after an error: if a rank is missing, this could wait for ever
        dist.destroy_process_group()

    def _meeting(self, store, seconds: float) -> str:
        """A name that rank 0 draws for this meeting: the prefix of what its ranks put into the store.

        When torchrun starts ranks again, its store still holds what the ranks before put there, such as the
        addresses of dead processes (seen with PyTorch 2.13). So each rank asks by a name of its own, and
        only a rank 0 that is alive can answer to it.
        """
        own = uuid.uuid4().hex
        if not self.first:
            store.set(f"rank {self.rank} asks", own)
            name = store.get(f"answer to {own}").decode()
            store.set(f"{name} is known to rank {self.rank}", "")
            return name
        end, missing = time.monotonic() + seconds, set(range(1, self.world))
        while missing:
            for rank in sorted(missing):
                if store.check([f"{own} is known to rank {rank}"]):
                    missing.remove(rank)
                elif store.check([f"rank {rank} asks"]):
                    store.set(f"answer to {store.get(f'rank {rank} asks').decode()}", own)
            if missing and time.monotonic() > end:
                raise RuntimeError(f"rank {min(missing)} did not come")
            time.sleep(0.01)
        return own

    def wrap(self, model):
        """The model in DistributedDataParallel; with one rank, the model itself.

        Gradients travel during the backward pass, compiled or not, because blocks are compiled one by one.
        Buffers are not synchronised: `extremes` reduces the ranges of the ladders.
        """
        if self.world == 1:
            return model
        known = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        with self.waiting("the other ranks' model"):
            return DistributedDataParallel(model, gradient_as_bucket_view=True, **{buffers: False})

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. Does not wait for a GPU."""
        if self.world == 1:
            return flag
        return bool(self._reduce(torch.tensor(int(flag)), dist.ReduceOp.MAX))

    def extremes(self, smallest: list[torch.Tensor], largest: list[torch.Tensor]):
        """Element-wise minimum and maximum over all ranks, in place."""
        for tensors, operation in ((smallest, dist.ReduceOp.MIN), (largest, dist.ReduceOp.MAX)):
            for tensor in tensors:
                self._reduce(tensor, operation)

    def gather(self, value) -> list:
        """The values of all ranks, plain Python, on every rank."""
        if self.world == 1:
            return [value]
        values = [None] * self.world
        with self.waiting("a message"):
            dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def agree(self, check: Callable, errors: tuple[type[Exception], ...], long: bool = False):
        """Run `check()` on every rank -> its value. If it fails on any rank, no rank goes on.

        The lowest failing rank raises its own error, one of `errors` or an OSError, the others
        OtherRankError. long: it may take longer on some rank than the others wait for a collective; it
        makes none itself.
        """
        value = failure = None
        with self._showing_life() if long and self.world > 1 else contextlib.nullcontext():
            try:
                value = check()
            except (*errors, OSError) as error:
                failure = error
        failed = [rank for rank, bad in enumerate(self.gather(failure is not None)) if bad]
        if failure is not None and self.rank == failed[0]:
            raise failure
        if failed:
            raise OtherRankError(f"rank {failed[0]} cannot go on")
        return value

    @contextlib.contextmanager
    def _showing_life(self):
        """All ranks enter and leave together; within, a thread of each tells the others that it lives."""
        done, lost = threading.Event(), []

        def beat():
            try:
                while self.any(not done.wait(self.beat_seconds)):
                    pass
            except RuntimeError as error:
                lost.append(error)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if lost:
            raise lost[0]

    def on_first(self, action: Callable, errors: tuple[type[Exception], ...], long: bool = False):
        """Run `action()` on rank 0 alone. If it fails, no rank goes on. long: as in `agree`."""
        return self.agree(action if self.first else lambda: None, errors, long)

    def fail(self, error: Exception):
        """Every rank has found the same error: rank 0 raises it, the others OtherRankError."""
        raise error if self.first else OtherRankError("rank 0 says why")

    def speaks(self):
        """Let the ranks that miss this one know that it says why it ends."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):  # its machine is gone
                self.store.set(f"rank {self.rank} says why", "")

    def let_another_speak(self, first: bool = False):
        """Sleep before exiting without a message, so that the rank that has one exits first.

        torchrun ends all ranks of a machine as soon as one has failed.
        """
        if self.world > 1 and not first:
            time.sleep(20)

    def same(self, what: str, value) -> str | None:
        """None if all ranks hold the same value, else a sentence that names a rank that does not."""
        values = self.gather(value)
        others = [rank for rank, other in enumerate(values) if other != values[0]]
        return f"{what} of rank {others[0]} is not that of rank 0" if others else None

    @contextlib.contextmanager
    def waiting(self, what: str):
        """Raise LostRankError for errors of a collective."""
        try:
            yield
        except LostRankError:
            raise
        except RuntimeError as error:
            if self.world == 1 or not OF_A_COLLECTIVE.search(str(error)):
                raise
            reason = re.sub(r"^\[.*?\] ?", "", str(error).splitlines()[0]).split(" This is typically")[0]
            missing, speak = self._missing()
            message = f"{what} did not arrive at {self.where} ({reason.rstrip('.')}); {missing}"
            raise LostRankError(message, speak) from None

    def _missing(self) -> tuple[str, bool]:
        """(which ranks do not answer in the store; whether this is the lowest rank that does)

        Raises OtherRankError where one of them says by itself why it ended.
        """
        try:
            self.store.set(f"rank {self.rank} answers", socket.gethostname())
            end = time.monotonic() + self.answer_seconds
            while silent := [r for r in range(self.world) if not self.store.check([f"rank {r} answers"])]:
                if self.store.check([f"rank {silent[0]} says why"]):
                    raise OtherRankError(f"rank {silent[0]} says why")
                if time.monotonic() > end:
                    break
                time.sleep(0.2)
        except OtherRankError:
            raise
        except RuntimeError:
            return "nothing is known of the other ranks: the machine of rank 0 does not answer", True
        first = min(set(range(self.world)) - set(silent))
        if not silent:
            return "all ranks answer, so it was the network", self.rank == first
        names = f"rank {silent[0]} is" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} are"
        return f"{names} dead or hanging{self._places(silent)}", self.rank == first

    def _places(self, ranks: list[int]) -> str:
        """Where these ranks run, as far as the store knows from the start."""
        keys = [f"place of rank {rank}" for rank in ranks]
        places = [self.store.get(key).decode() for key in keys if self.store.check([key])]
        return f" ({'; '.join(places)})" if places else ""

    def _reduce(self, tensor, operation):
        if self.world > 1:
            with self.waiting("a sum over the ranks"):
                dist.all_reduce(tensor, operation, group=None if tensor.is_cuda else self.cpu_group)
        return tensor
