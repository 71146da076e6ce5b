"""Tasks one after the other, or several at a time, until they are done or the time is over.

Each task has a process of its own. What fails writes a line with the error, and the next one goes on.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from benchmarks.lines import Key, Lines
from benchmarks.worker import BenchError, Unanswered, Worker


@dataclass
class Task:
    """`make(*arguments) -> {item: function that returns a result}` runs in a process of its own.

    settings: what each line says of how the results were measured. after: the result of another task; if
    that one failed, so does this.
    """

    stage: str
    name: str
    items: list[str]
    make: Callable
    arguments: tuple
    settings: dict
    after: Key | None = None

    def measure(self, session: "Session", todo: list[str]):
        """Writes a line for each item of `todo`. Raises Unanswered if the time is over."""
        failed = session.lines.results.get(self.after, {}).get("error")
        while todo and failed:
            session.write(self, todo.pop(0), {"error": failed})
        while todo:
            worker = Worker(self.name, session.device, session.threads, self.make, *self.arguments)
            with worker:
                try:
                    worker.ask("sections", wanted=session.goes_on)
                except BenchError as error:  # nothing of the task can be measured
                    while todo:
                        session.write(self, todo.pop(0), {"error": str(error)})
                    return
                try:
                    while todo:
                        result = worker.ask("call", todo[0], wanted=session.goes_on)
                        session.write(self, todo.pop(0), result)
                        if result.get("wrong"):
                            break
                except BenchError as error:
                    session.write(self, todo.pop(0), {"error": str(error)})
            # a new process for the others: what failed may have left the GPU unusable for this one


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

    def done(self, phases: list[tuple[list[Task], int]]) -> bool:
        """Whether every task has its results."""
        return not any(self.todo(task) for tasks, _ in phases for task in tasks)

    def run(self, tasks: list[Task], slots: int = 1):
        """Runs tasks, `slots` at a time, as long as there is time. Raises OSError."""
        with ThreadPoolExecutor(slots) as pool:
            running = [pool.submit(self._one, task) for task in tasks]
            try:
                for one in running:
                    one.result()
            except BaseException:
                self.stopped.set()  # Ctrl-C, or a full disk: nothing more is started
                raise

    def _one(self, task):
        todo, began = self.todo(task), time.monotonic()
        if not todo or not self.goes_on():
            return
        try:
            task.measure(self, todo)
        except Unanswered:
            # a result that needs all of the time would never come: the next call must not try again
            if todo and not self.stopped.is_set() and began - self.start < 6 * self.minutes:
                said = f"no result in {(time.monotonic() - began) / 60:.1f} minutes: give more --minutes"
                self.write(task, todo[0], {"error": said})

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
