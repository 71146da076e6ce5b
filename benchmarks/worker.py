"""One process per model or kernel, so that each has its own memory; a waiting process is idle."""

import contextlib
import multiprocessing
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Generator
from multiprocessing import connection, resource_tracker

import torch

from benchmarks.timing import peak_bytes
from training.hardware import keep_freed_memory

# imported once for all processes, in a server from which they are forked
PRELOADED = ["torch", "benchmarks.preloaded"]


class BenchError(RuntimeError):
    """Something cannot be measured; the message says what and why."""


class Unanswered(RuntimeError):
    """The caller no longer wants the answer."""


class Worker:
    """The parent's handle of a process.

    `make(*arguments) -> {item: function}` runs in the process, so it must be a function at module level. An
    item's function returns its result, or is a generator function that yields between its turns.
    """

    def __init__(self, name: str, device: torch.device, threads: int | None, make: Callable, *arguments):
        self.name, self.arguments = name, (device, threads, make, arguments)
        self._start("forkserver")
        if device.type == "cuda" and not self.ask("usable"):
            self.__exit__(None)
            self._start("spawn")

    def _start(self, method: str):
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(PRELOADED)
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, *self.arguments))
        with _without_ctrl_c():
            self.process.start()
        other.close()

    def ask(self, *request, wanted: Callable[[], bool] = lambda: True, every: float = 0.5):
        """Sends a request and returns the answer. Raises BenchError if the process fails or dies.

        Raises Unanswered as soon as `wanted`, called every so many seconds, returns False.
        """
        try:
            self.pipe.send(request)
            while wanted():
                if self.pipe.poll(every):
                    break
            else:
                raise Unanswered
            failed, answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            raise BenchError(
                f"{self.name}: the process ended with exit code {self.process.exitcode}"
                + (": out of memory, perhaps" if self.process.exitcode == -9 else "")
            ) from None
        if failed:
            raise BenchError(f"{self.name}: {answer}")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        self.pipe.close()
        if kind is None:
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextlib.contextmanager
def _without_ctrl_c():
    """What starts meanwhile ignores Ctrl-C, and so do its children: the parent ends its workers."""
    resource_tracker.ensure_running()  # it unblocks the signal when it starts (seen with Python 3.11)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe, device, threads, make, arguments):
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory(device)  # as train.py does
    sections, begun = None, {}
    try:
        while True:
            request, *rest = pipe.recv()
            try:
                if request == "usable":  # CUDA does not survive a fork, should an import have asked for it
                    answer = not torch.cuda._is_in_bad_fork()
                elif request == "sections":
                    sections = make(*arguments)
                    answer = list(sections)
                elif request == "memory":
                    answer = peak_bytes(sections[rest[0]], device)
                else:
                    answer = turn(sections, begun, *rest)
                pipe.send((False, answer))
            except Exception as error:  # whatever a model raises is reported to the parent
                pipe.send((True, told(error)))
    except (EOFError, ConnectionError):
        return


def turn(sections: dict[str, Callable], begun: dict[str, Generator], item: str):
    """One turn of an item -> its result, or None if it needs more turns."""
    made = begun.pop(item, None) or sections[item]()
    if not isinstance(made, Generator):
        return made
    try:
        next(made)
    except StopIteration as end:
        return end.value
    begun[item] = made
    return None


def _end_with_parent():
    """A process whose parent was killed must not go on using the device."""
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def told(error: Exception) -> str:
    """What is said of an error to a reader."""
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of memory ({str(error).splitlines()[0]})"
    if asked := re.search(r"can't allocate memory: you tried to allocate (\d+)", str(error)):
        return f"out of memory ({int(asked[1]) / 1e9:,.1f} GB more were asked for)"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
