"""SIGTERM and Ctrl-C: the step at hand is finished, a checkpoint written, then the run ends."""

import signal
import sys
import time

from training.distributed import world_size


class Stop:
    """Notes a signal instead of dying of it, as long as the context lasts.

    `signal` is None until one came. A second Ctrl-C, a second or more after the first, stops at once
    (KeyboardInterrupt): launchers often deliver the same one twice.
    """

    def __init__(self, speak: bool = True):
        self.signal, self.speak, self.since = None, speak, 0.0

    def __enter__(self):
        self.before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *exception):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
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
            self.signal, self.since = number, time.monotonic()
            if self.speak:
                reason = self._because(number)
                print(f"\nstopping after this step, with a checkpoint ({reason})", file=sys.stderr)
        elif number == signal.SIGINT and time.monotonic() - self.since > 1:
            raise KeyboardInterrupt
