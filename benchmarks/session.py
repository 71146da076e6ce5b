"""Tasks in turns, one after the other or several at a time, until they are done or the time is over.

Each task has a process of its own. What fails writes a line with the error, and the next one goes on.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from benchmarks.lines import Key, Lines
from benchmarks.worker import BenchError, Unanswered, Worker


class NothingMeasured(BenchError):
    """No item of a task can be measured."""


@dataclass
class Task:
    """`make(*arguments) -> {item: function}`, as of a Worker, runs in a process of its own.

    settings: what each line says of how the results were measured. after: the result of another task; if
    that one failed, so does this, and of this the items that it has `refused`.
    """

    stage: str
    name: str
    items: list[str]
    make: Callable
    arguments: tuple
    settings: dict
    after: Key | None = None
    worker: Worker | None = None

    def turn(self, session: "Session", item: str) -> dict | None:
        """One turn -> the result, or None if it needs more. Raises BenchError, Unanswered."""
        before = session.lines.results.get(self.after, {})
        if failed := before.get("error"):
            raise NothingMeasured(failed)
        if failed := before.get("refused", {}).get(item):
            raise BenchError(failed)
        if self.worker is None:
            self.worker = Worker(self.name, session.device, session.threads, self.make, *self.arguments)
            try:
                self.worker.ask("sections", wanted=session.goes_on)
            except BenchError as error:
                raise NothingMeasured(str(error)) from None
        return self.worker.ask("turn", item, wanted=session.goes_on)

    def end(self, kind=None):
        """Ends the process; kind: of an error, at which it is killed."""
        if self.worker is not None:
            self.worker.__exit__(kind)
            self.worker = None


class Session:
    """Runs tasks and writes their results. threads: of PyTorch in a process, None: as many as it takes."""

    def __init__(
        self, lines: Lines, device: torch.device, threads: int | None, minutes: float, say: Callable
    ):
        self.lines, self.device, self.threads, self.say = lines, device, threads, say
        self.start, self.minutes = time.monotonic(), minutes
        self.stopped = threading.Event()

    def goes_on(self) -> bool:
        return not self.stopped.is_set() and time.monotonic() < self.start + 60 * self.minutes

    def todo(self, task: Task) -> list[str]:
        return [item for item in task.items if (task.stage, task.name, item) not in self.lines.results]

    def done(self, tasks: Iterable[Task]) -> bool:
        """Whether every task has its results."""
        return not any(self.todo(task) for task in tasks)

    def run(self, tasks: list[Task], slots: int = 1):
        """Runs tasks as long as there is time: `slots` at a time, or all of them in turns (0).

        In turns, a machine that slows down affects all of them alike. Raises OSError.
        """
        groups = [[task] for task in tasks] if slots else [tasks]
        with ThreadPoolExecutor(slots or 1) as pool:
            running = [pool.submit(self._in_turns, group) for group in groups]
            try:
                for one in running:
                    one.result()
            except BaseException:
                self.stopped.set()  # Ctrl-C, or a full disk: nothing more is started
                raise

    def _in_turns(self, tasks):
        """One item after the other, each of all tasks that have it to do."""
        try:
            while self.goes_on() and (items := [item for task in tasks for item in self.todo(task)]):
                began = time.monotonic()
                waiting = [(task, items[0]) for task in tasks if items[0] in self.todo(task)]
                while waiting:
                    turns, waiting = waiting, []
                    for asked in turns:
                        if not self._finished(*asked):
                            waiting.append(asked)
        except Unanswered:
            # a result that needs all of the time would never come: the next call must not try again, but
            # what was compiled is kept
            all_of_it = asked[0].stage != "compile" and began - self.start < 6 * self.minutes
            if all_of_it and not self.stopped.is_set():
                said = f"no result in {(time.monotonic() - began) / 60:.1f} minutes: give more --minutes"
                self.write(*asked, {"error": said})
        finally:
            for task in tasks:
                task.end(None if self.done(tasks) else BaseException)

    def _finished(self, task, item) -> bool:
        """Whether a turn brought the result."""
        try:
            result = task.turn(self, item)
        except NothingMeasured as error:
            for left in self.todo(task):
                self.write(task, left, {"error": str(error)})
            task.end()
            return True
        except BenchError as error:
            result = {"error": str(error)}
        if result is None:
            return False
        self.write(task, item, result)
        if "error" in result or result.get("wrong"):
            task.end()  # what failed may have left the GPU unusable for this process
        return True

    def write(self, task: Task, item: str, result: dict):
        self.lines.add(task.stage, task.name, item, {**result, "settings": task.settings})
        said = f"FAILED: {result['error']}" if "error" in result else summary(result)
        self.say(f"{time.monotonic() - self.start:6.1f} s  {task.stage}: {task.name}, {item}: {said}")


def summary(result: dict) -> str:
    """A result in a few words: its single numbers and texts."""
    short = {k: v for k, v in result.items() if isinstance(v, int | float | str) and k != "kernel"}
    if "distances" in result:
        short = {"wrong": result["wrong"]} if result["wrong"] else {"right": ", ".join(result["distances"])}
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in short.items()
    )
