"""Processes that are measured in turns, and the CSV that keeps what they measured."""

import contextlib
import csv
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """A process of a script in this folder, which answers each line of its input with one number."""

    def __init__(self, script: str | Path, *arguments, **environment):
        command = [sys.executable, str(Path(__file__).parent / script), *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **pipes)

    def ask(self, question):
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        """Raises RuntimeError where the process has ended."""
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{self.process.args} ended without an answer")
        return float(line)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextlib.contextmanager
def started(workers: dict[str, Worker], question) -> Iterator[dict[str, Worker]]:
    """The workers, when all have answered a first question, at the same time; ends them afterwards."""
    try:
        for worker in workers.values():
            worker.ask(question)
        for worker in workers.values():
            worker.answer()
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def spread(values: list[float]) -> str:
    """Median (smallest to largest), or nothing where there are no values."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" if values else ""


class Rows:
    """Values of a CSV by their keys; an added row is in the file at once.

    fields: the columns of a key, all texts. Raises ValueError for a file of other columns.
    """

    def __init__(self, path: Path, fields: list[str], value: str):
        self.path, self.values = path, {}
        columns = [*fields, value]
        if not path.exists():
            path.write_text(",".join(columns) + "\n")
        with path.open() as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != columns:
                raise ValueError(
                    f"{path} has the columns {rows.fieldnames}, not {columns}: name another file"
                )
            self.values = {tuple(row[field] for field in fields): float(row[value]) for row in rows}

    def add(self, key: tuple[str, ...], value: float):
        self.values[key] = round(value, 3)
        with self.path.open("a") as file:
            csv.writer(file, lineterminator="\n").writerow([*key, f"{value:.3f}"])
        print(*key, f"{value:.1f}", flush=True)

    def of(self, *key: str) -> list[float]:
        """All values whose keys begin like this."""
        return [value for known, value in self.values.items() if known[: len(key)] == key]
