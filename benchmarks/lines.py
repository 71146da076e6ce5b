"""Results as JSON lines: one flushed line for each result as it comes.

So a killed process loses nothing. A result is named by its stage, its task and its item.
"""

from host.disk import lock, no_link, parse_json, why_not_written

import contextlib
import json
import os
import threading
from pathlib import Path

# what all lines of a file must agree on; what was mended on the way has another commit, as its lines say
SAME = ("device", "python", "torch", "triton", "sizes")
Key = tuple[str, str, str]


class LinesError(ValueError):
    """A file of lines that cannot be used; says why and what to do."""


def key_of(line: dict) -> Key:
    return line["stage"], line["task"], line["item"]


def read(path: Path) -> list[dict]:
    """The lines of a file, without what a killed process left half-written.

    Of two lines of the same result the later one counts. Raises LinesError if the file cannot be read or
    holds something else.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise LinesError(f"--json={path} cannot be read: {error.strerror or error}") from None
    found, others = {}, 0
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = parse_json(line)
            found[key_of(record)] = record
        except (ValueError, TypeError, KeyError):
            others += bool(line.strip())
            if others > 1 and not found:
                raise LinesError(
                    f"--json={path}, line {number}: no result of this script; name a file that it wrote, "
                    "or a new one"
                ) from None
    return list(found.values())


class Lines:
    """A file of lines that one process appends to; `results` holds those that were there and those added.

    path: None keeps them in memory alone. facts: what every line says of hardware, versions and sizes.
    Raises LinesError if the file cannot be written, if another process is writing to it, and if its lines
    are of another device, version or size.
    """

    def __init__(self, path: Path | None, facts: dict):
        self.path, self.facts, self.lock = path, facts, threading.Lock()
        self.results, self.file, self.open = {}, None, contextlib.ExitStack()
        if path is not None:
            with contextlib.ExitStack() as opened:
                self._open(path, facts, opened)
                self.open = opened.pop_all()

    def _open(self, path: Path, facts: dict, opened: contextlib.ExitStack):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened.enter_context(lock(path.with_name(path.name + ".lock"), keep=False))
            self.file = open(path, "a+", opener=no_link)  # noqa: SIM115 (closed by __exit__)
            opened.callback(self.file.close)
        except BlockingIOError:
            raise LinesError(f"another process is writing to --json={path}") from None
        except OSError as error:
            raise LinesError(f"--json={path} cannot be written: {why_not_written(error)}") from None
        self.results = {key_of(line): line for line in read(path)}
        for line in self.results.values():
            for fact in SAME:
                if line.get(fact) != facts[fact]:
                    raise LinesError(
                        f"--json={path} was measured with {fact}={line.get(fact)}, this would be with "
                        f"{fact}={facts[fact]}: numbers of both do not belong in one table; name a new file"
                    )
        self.file.seek(0)
        if (text := self.file.read()) and not text.endswith("\n"):
            self.file.write("\n")  # after what a killed process left half-written

    def add(self, stage: str, task: str, item: str, result: dict):
        """Appends a line. Raises OSError if the disk does not take it."""
        line = {"stage": stage, "task": task, "item": item, **result, **self.facts}
        with self.lock:
            self.results[key_of(line)] = line
            if self.file is not None:
                self.file.write(json.dumps(line) + "\n")
                self.file.flush()
                os.fsync(self.file.fileno())

    def check(self, task):
        """Raises LinesError if there are results of a task that were measured with other settings."""
        wanted = json.loads(json.dumps(task.settings))
        for item in task.items:
            there = self.results.get((task.stage, task.name, item), {}).get("settings", wanted)
            if other := [key for key in wanted | there if there.get(key) != wanted.get(key)]:
                key = other[0]
                raise LinesError(
                    f"--json={self.path} has {task.name}, {item} with {key}={there.get(key)}, this would "
                    f"be with {key}={wanted.get(key)}: name a new file"
                )

    def of(self, stage: str) -> list[dict]:
        return [line for line in self.results.values() if line["stage"] == stage]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.open.close()
