"""SIGTERM, Ctrl-C, a dead launcher: the step at hand is finished, a checkpoint saved, then the run ends."""

import os
import signal
import sys
import time

from training.distributed import max_restarts, ranks_per_machine, world_size


class Stop:
    """Notes a signal instead of dying of it, as long as the context lasts.

    `signal` is None until one came. A second Ctrl-C, a second or more after the first, stops at once
    (KeyboardInterrupt): launchers often deliver the same one twice.

    A rank whose launcher (torchrun) has died stops too, as by SIGTERM: nobody else would end it, and it
    would hold its GPU and its run folder against a new start. If several machines may restart the run, it
    goes on instead: the launchers of the others would take its end for the end of the run.
    """

    def __init__(self, speak: bool = True):
        self.signal, self.speak, self.since = None, speak, 0.0
        several_machines = ranks_per_machine() < world_size()
        alone = "TORCHELASTIC_RUN_ID" not in os.environ or (several_machines and max_restarts())
        self.launcher = None if alone else os.getppid()

    def __enter__(self):
        self.before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *exception):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        if self.signal is None and self.launcher not in (None, os.getppid()):
            self._stop(signal.SIGTERM, "torchrun has died")
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status that shells give to a process that such a signal ended."""
        return 128 + (self.signal or signal.SIGTERM)

    @staticmethod
    def _because(number: int) -> str:
        alone = world_size() == 1
        if number == signal.SIGINT:  # torchrun passes on the first Ctrl-C only
            return "Ctrl-C again: at once" if alone else "Ctrl-C"
        # torchrun sends it to the others when a rank dies, and then the step does not end
        return "SIGTERM" if alone else "SIGTERM, which torchrun also sends when a rank has died"

    def _note(self, number, frame):
        if self.signal is None:
            self._stop(number, self._because(number))
        elif number == signal.SIGINT and time.monotonic() - self.since > 1:
            raise KeyboardInterrupt

    def _stop(self, number: int, reason: str):
        self.signal, self.since = number, time.monotonic()
        if not self.speak:
            return
        said = f"\nstopping after this step, with a checkpoint ({reason})"
        try:
            print(said, file=sys.stderr)
        except RuntimeError:  # the signal came within a write to stderr, which cannot be entered twice
            os.write(2, f"{said}\n".encode())
