"""train.py under watch: a file in shared memory says what each rank is doing, and a fuse ends it there.

    python tests/faults/watched.py SPEC.json
    torchrun --nproc_per_node=2 tests/faults/watched.py SPEC.json

SPEC.json: {"arguments": [...], "watch": FILE, "fuse": {...} or null}. FILE holds a record of DTYPE for each
rank, which outlives a SIGKILL. The fuse is counted on one rank:

    rank     the rank that counts
    at       phase: the count-th time that the rank enters the phase `phase`; event: before the count-th
             `event` (a file is opened, written, ...); byte: within a write, after count bytes of all that
             was written
    action   kill (SIGKILL), term (SIGTERM) or full (this write and all later ones raise ENOSPC)
    victim   self, parent (torchrun), the number of another rank, or watcher: the rank sets `armed` only,
             and whoever watches does the rest

SPEC.json may have a `limit`, the largest size of a file in bytes.
"""

import contextlib
import errno
import functools
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PHASES = (
    *("importing", "starting", "restoring", "writing config.json", "opening the log", "the loop", "a step"),
    *("logging", "evaluating", "drawing", "saving", "syncing the log", "writing a checkpoint"),
    *("naming best.pt", "renaming", "pruning", "ending"),
)
EVENTS = ("none", "open", "write", "fsync", "rename", "link", "remove", "mkdir")
AUDITED = {
    "open": "open",
    "os.rename": "rename",
    "os.link": "link",
    "os.remove": "remove",
    "os.mkdir": "mkdir",
}
DTYPE = np.dtype(
    [
        ("pid", "i8"),
        ("phase", "i8"),
        ("event", "i8"),  # the last one
        ("armed", "i8"),  # 1: the phase of the fuse began, 2: the fuse is blown
        ("blown_phase", "i8"),  # phase and event when the fuse blew
        ("blown_event", "i8"),
        ("saved", "i8"),  # step of the last checkpoint whose saving came to its end
        ("synced", "i8"),  # bytes of the log that are synced
        ("events", "i8", len(EVENTS)),  # how many of each
        ("bytes", "i8"),
        ("counts", "i8", len(PHASES)),  # how often each phase began
        ("seconds", "f8", len(PHASES)),  # how long it took altogether
    ]
)
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM}


def new_slots(path: Path, ranks: int) -> np.memmap:
    """The shared file with a record for each rank, all zeros."""
    path.write_bytes(bytes(DTYPE.itemsize * ranks))
    return np.memmap(path, DTYPE, "r+")


class Watch:
    """What one rank tells of itself. folder: the run folder; only changes of its files are events."""

    def __init__(self, path: str, rank: int, folder: str, fuse: dict | None):
        self.slots, self.rank, self.folder = np.memmap(path, DTYPE, "r+"), rank, folder
        self.me = self.slots[rank]
        self.me["pid"], self.me["armed"] = os.getpid(), 0
        self.fuse = fuse if fuse and fuse["rank"] == rank else None
        self.full = False
        self.enter("starting")

    def enter(self, phase: str) -> int:
        """Begin a phase -> the number of the one before."""
        number, before = PHASES.index(phase), int(self.me["phase"])
        self.me["phase"] = number
        self.me["counts"][number] += 1
        wanted = self.fuse and self.fuse["at"] == "phase" and self.fuse["phase"] == phase
        if wanted and self.me["counts"][number] == self.fuse["count"]:
            self.blow()
        return before

    def event(self, name: str):
        """A file is about to change."""
        self.me["event"] = EVENTS.index(name)
        if PHASES[self.me["phase"]] == "saving" and name == "rename":
            self.enter("renaming")
        self.me["events"][self.me["event"]] += 1
        wanted = self.fuse and self.fuse["at"] == "event" and self.fuse["event"] == name
        if wanted and self.me["events"][self.me["event"]] == self.fuse["count"]:
            self.blow()

    def room(self, size: int) -> int:
        """How many of `size` bytes may be written before the fuse blows."""
        if self.full:
            return 0
        if not (self.fuse and self.fuse["at"] == "byte" and self.me["armed"] == 0):
            return size
        return max(0, min(size, self.fuse["count"] - int(self.me["bytes"])))

    def blow(self):
        if self.me["armed"]:
            return
        self.me["blown_phase"], self.me["blown_event"] = self.me["phase"], self.me["event"]
        self.me["armed"] = 1 if self.fuse["victim"] == "watcher" else 2
        if self.me["armed"] == 1:
            return
        if self.fuse["action"] == "full":
            self.full = True
            return
        victim = self.fuse["victim"]
        if victim == "self":
            pid = os.getpid()
        else:
            pid = os.getppid() if victim == "parent" else int(self.slots[int(victim)]["pid"])
        if pid > 1:
            os.kill(pid, SIGNALS[self.fuse["action"]])

    def during(self, phase: str, function):
        """The function, which is a phase as long as it runs."""

        @functools.wraps(function)
        def watched(*arguments, **keys):
            before, start = self.enter(phase), time.perf_counter()
            try:
                return function(*arguments, **keys)
            finally:
                self.me["seconds"][PHASES.index(phase)] += time.perf_counter() - start
                self.me["phase"] = before

        return watched

    def audit(self, event: str, arguments: tuple):
        """For sys.addaudithook: what changes files of the run folder, before it does."""
        if event not in AUDITED or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        if os.fspath(arguments[0]).startswith(self.folder):
            self.event(AUDITED[event])

    def open(self, path, mode="r", *rest, **keys):
        """In the place of the built-in: what is written to files is counted."""
        file = open(path, mode, *rest, **keys)  # noqa: SIM115
        return Counted(file, self) if set(mode) & set("wa") else file

    def fsync(self, function):
        @functools.wraps(function)
        def watched(descriptor):
            self.event("fsync")
            return function(descriptor)

        return watched


class Counted:
    """A file of which every write is an event, and every byte is counted."""

    def __init__(self, file, watch: Watch):
        self.file, self.watch = file, watch

    def write(self, data):
        watch, size = self.watch, len(data)
        watch.event("write")
        if (room := watch.room(size)) < size:
            self.file.write(data[:room])
            if room:
                self.file.flush()
            watch.blow()
            if watch.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[room:]
        watch.me["bytes"] += size
        self.file.write(data)
        return size

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.file.close()


def install(watch: Watch, sharded: bool):
    """Watch the parts of train.py in this process, from here on. sharded: it writes such checkpoints."""
    from host import disk

    import train
    from training import checkpoint, log, reporting, trainer

    def phase(place, name, what):
        setattr(place, name, watch.during(what, getattr(place, name)))

    phase(train, "restore", "restoring")
    phase(train, "load_state", "restoring")
    phase(reporting, "write_whole", "writing config.json")
    phase(trainer.Trainer, "train", "the loop")
    phase(trainer.Trainer, "step", "a step")
    phase(trainer.Trainer, "evaluate", "evaluating")
    phase(trainer.Trainer, "save", "saving")
    phase(log.Log, "add", "logging")
    phase(log.Log, "draw", "drawing")
    phase(log.Log, "close", "ending")
    phase(checkpoint, "write_archive", "writing a checkpoint")
    phase(checkpoint, "copy", "naming best.pt")
    phase(checkpoint, "prune", "pruning")
    noted(watch, log.Log, "__init__", "opening the log")
    noted(watch, log.Log, "sync", "syncing the log")
    save = checkpoint.save

    def saved(folder, step, *rest):
        path = save(folder, step, *rest)
        watch.me["saved"] = step
        return path

    checkpoint.save = saved
    if sharded:
        install_sharded(watch)
    for module in (checkpoint, log, disk):
        module.open = watch.open
    os.fsync = watch.fsync(os.fsync)
    sys.addaudithook(watch.audit)


def install_sharded(watch: Watch):
    """Sharded checkpoints are written by PyTorch in a thread, whose phase is then that of the process."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    from training import sharded_checkpoint

    writer, saver = sharded_checkpoint._Writer, sharded_checkpoint.Saver
    writer.write_data = watch.during("writing a checkpoint", writer.write_data)
    commit, stream = watch.during("saving", saver._commit), FileSystem.create_stream

    def committed(self, path, content, best):
        commit(self, path, content, best)
        watch.me["saved"] = content["step"]

    @contextlib.contextmanager
    def counted(self, path, mode):
        with stream(self, path, mode) as file:
            yield Counted(file, watch) if mode == "wb" else file

    saver._commit, FileSystem.create_stream = committed, counted


def noted(watch: Watch, place, name: str, what: str):
    """Watch a method of the log after which all of its bytes are on disk."""
    method = watch.during(what, getattr(place, name))

    @functools.wraps(method)
    def watched(self, *arguments, **keys):
        method(self, *arguments, **keys)
        watch.me["synced"] = (self.folder / "log.jsonl").stat().st_size

    setattr(place, name, watched)


def run(spec: dict):
    """Train as the specification says; the fuse may end the process at any moment."""
    import train
    from training.distributed import ends_process

    sys.argv[0] = "train.py"  # for its messages
    (folder,) = (a.partition("=")[2] for a in spec["arguments"] if a.startswith("--out_dir="))
    if limit := spec.get("limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    watch = Watch(spec["watch"], int(os.environ.get("RANK", 0)), folder, spec["fuse"])
    install(watch, "--checkpoint_format=sharded" in spec["arguments"])
    with ends_process():
        train.main(spec["arguments"])


if __name__ == "__main__":
    from host import openmp  # noqa: F401 (before torch)

    import json

    run(json.loads(Path(sys.argv[1]).read_text()))
