"""The run folder: who may write to it, its log and its picture.

out/<run>/config.json   every key of the run, none of them left open
          given.json    the keys that differ from their defaults, as they were given
          log.jsonl     one object per logged step: training records hold `loss`, evaluations `val_loss`
          loss.png      both, redrawn at evaluations, every ten seconds at most, and at the end
          ckpt/         see training/checkpoint.py
"""

from host.disk import lock, make_folder, no_link, parse_json, why_not_written, write_whole

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reports import picture

FILES = ("config.json", "given.json", "log.jsonl", "loss.png")
# left by a start that ended before its run began, or written by ablate.py: a folder of these alone is empty
LEFT_OVERS = {".lock", "output.log", "wandb", *(f"{name}.tmp" for name in FILES)}


class RunFolderError(ValueError):
    """A run folder that cannot be used; says why and what to do."""


@contextmanager
def open_run(out_dir: str, resume: bool) -> Iterator[Path]:
    """The run folder, claimed for this process as long as the context lasts.

    Without `resume` the folder must be new or empty. Raises RunFolderError where it is not, where it
    cannot be written, and where another process is training in it.
    """
    folder = Path(out_dir)
    try:
        content = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        content -= LEFT_OVERS
        is_run = (folder / "config.json").is_file() or (folder / "ckpt").is_dir()
        if not content or (is_run and resume):
            _check_places(folder)
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"{folder} cannot be read ({reason}); choose another --out_dir") from None
    if content and not resume:
        raise RunFolderError(
            f"{folder} is not empty, and a run is never overwritten: continue it with --resume=True, or "
            "choose another --out_dir"
        )
    if content and not is_run:
        raise RunFolderError(f"{folder} holds files but no run (no config.json); choose another --out_dir")
    try:
        make_folder(folder)
    except OSError as error:
        raise RunFolderError(f"{error} (--out_dir)") from None
    try:
        claim = lock(folder / ".lock")
    except BlockingIOError:
        raise RunFolderError(f"another process is training in {folder}") from None
    except OSError as error:
        raise RunFolderError(f"{error}, or choose another --out_dir") from None
    with claim:
        yield folder


def _check_places(folder: Path):
    """Raises RunFolderError where something lies in the place of what a run writes, which would end the run
    at its first evaluation or checkpoint.
    """
    checkpoints = folder / "ckpt"
    files = [folder / f"{name}{ending}" for name in FILES for ending in ("", ".tmp")]
    for path in [*files, *checkpoints.glob("*.pt*")]:
        if path.is_dir():
            raise RunFolderError(
                f"{path} is a folder, and a run writes a file there: move the folder away, or choose "
                "another --out_dir"
            )
    if checkpoints.exists() and not (checkpoints.is_dir() and os.access(checkpoints, os.W_OK | os.X_OK)):
        what = "cannot be written" if checkpoints.is_dir() else "is a file"
        raise RunFolderError(
            f"{checkpoints} {what}, and a run keeps its checkpoints in that folder: mend that, or choose "
            "another --out_dir"
        )


def read_log(folder: Path) -> list[dict]:
    """The records of log.jsonl in order; a last line that was cut off by a kill is left out.

    Raises RunFolderError where the file cannot be read, or where any other line is no record.
    """
    records = []
    path = folder / "log.jsonl"
    try:
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read ({error.strerror or error}); move it away") from None
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line)
            numbers = {key: record[key] for key in ("loss", "val_loss") if key in record}
            if type(record["step"]) is not int or type(record["tokens"]) is not int:
                raise ValueError("no record")
            if any(type(number) not in (int, float) for number in numbers.values()):
                raise ValueError("no loss")
            records.append(record)
        except (ValueError, KeyError, TypeError, IndexError):
            if number < len(lines):
                raise RunFolderError(
                    f"{path}, line {number}: damaged; mend the line, or move the file away"
                ) from None
    return records


class Log:
    """Appends records to log.jsonl (and to a tracker), and redraws loss.png.

    step: where the run begins or goes on. Later records are dropped, because their steps run again; if that
    would drop all, the file is renamed to log.1.jsonl, log.2.jsonl and so on. records: how many the log had
    when a checkpoint of step 0 was written. tracker: see `tracking.Tracker`. whole: see `draw_losses`.
    """

    def __init__(self, folder: Path, step: int, tracker=None, whole: bool = False, records: int = 0):
        self.folder, self.tracker, self.whole = folder, tracker, whole
        found = read_log(folder) if step or records else []
        self.records = [r for r in found if r["step"] <= step] if step else found[:records]
        if not self.records and (folder / "log.jsonl").is_file():
            names = (folder / f"log.{number}.jsonl" for number in itertools.count(1))
            os.replace(folder / "log.jsonl", next(name for name in names if not name.exists()))
        write_whole(folder / "log.jsonl", "".join(json.dumps(r) + "\n" for r in self.records))
        self.file = open(folder / "log.jsonl", "a", opener=no_link)  # noqa: SIM115 (closed by close)
        self.drawn_at, self.drawn = time.perf_counter(), 0  # when, and with how many records
        for record in () if tracker is None or tracker.continues else self.records:
            self._track(record)

    def add(self, record: dict):
        self.records.append(record)
        try:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        except OSError as error:
            raise OSError(f"{self.file.name} could not be written ({why_not_written(error)})") from error
        self._track(record)

    def _track(self, record: dict):
        if self.tracker is not None:
            self.tracker.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])

    def sync(self):
        """On disk, so that no checkpoint is ahead of its log."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OSError(f"{self.file.name} could not be written ({why_not_written(error)})") from error

    def draw(self, interval: float = 10.0):
        """loss.png, unless it was drawn, or the log opened, less than `interval` seconds ago: drawing takes
        a good part of a second.
        """
        if time.perf_counter() - self.drawn_at >= interval and self.drawn < len(self.records):
            figure = draw_losses(self.folder.name, self.records, self.whole)
            picture.write(figure, self.folder / "loss.png", own=True)
            self.drawn_at, self.drawn = time.perf_counter(), len(self.records)

    def close(self):
        self.draw(interval=0.0)
        self.file.close()
        if self.tracker is not None:
            self.tracker.finish()


@picture.drawing()
def draw_losses(name: str, records: list[dict], whole: bool = False):
    """A figure of validation and training loss in nats per token against tokens.

    whole: the first losses must be seen, because the run did not start from random weights.
    """
    figure, ((axes,),) = picture.new(picture.PLAIN)
    end = max((record["tokens"] for record in records), default=0)
    size, label = picture.unit("tokens", end)
    curves = []
    for key, words, style in (
        ("loss", "training", {"color": picture.COLOURS[4], "lw": 0.8}),
        ("val_loss", "validation", {"color": picture.COLOURS[0], "marker": "o"}),
    ):
        points = [(r["tokens"] / size, r[key]) for r in records if key in r]
        if points:
            style.setdefault("marker", picture.marker(points))
            axes.plot(*zip(*points, strict=True), label=f"{picture.plain(name)}: {words}", **style)
            curves.append((*zip(*points, strict=True), whole))
    axes.set_xlabel(label)
    axes.set_ylabel("loss (nats per token)")
    if curves:
        axes.legend()
        picture.focus(axes, curves)
    return figure
