"""The end of the minutes that a study may take: which runs still fit before it."""

import statistics
import time
from dataclasses import dataclass, field

MARGIN = 30.0  # seconds before the end in which runs save and end, and the page is written


@dataclass
class Deadline:
    """minutes: from now on. left: names of runs that were not started, or were stopped."""

    minutes: float
    left: set[str] = field(default_factory=set)
    overhead: float = 0.0  # seconds of a run besides its steps, such as those of its start
    slowdown: float = 1.0  # of its steps: runs share a machine

    def __post_init__(self):
        self.end = time.monotonic() + 60 * self.minutes - MARGIN
        self._ended: list[tuple[float, float]] = []  # seconds that a run needs alone, and took

    def over(self) -> bool:
        return time.monotonic() >= self.end

    def fits(self, hours: float) -> bool:
        """Whether a run that takes `hours` alone would end in time."""
        return time.monotonic() + self.overhead + 3600 * hours * self.slowdown <= self.end

    def ended(self, hours: float, seconds: float):
        """A run for which `hours` alone were expected took so many seconds from its beginning.

        A line through all that ended: least squares, with no overhead below 0 and no slowdown below 1.
        While one length has ended, what it took longer counts as overhead.
        """
        self._ended.append((3600 * hours, seconds))
        alone, took = map(statistics.fmean, zip(*self._ended, strict=True))
        spread = sum((a - alone) ** 2 for a, _ in self._ended)
        slope = sum((a - alone) * t for a, t in self._ended) / spread if spread else 1.0
        self.slowdown = max(1.0, min(slope, took / alone))
        self.overhead = max(0.0, took - self.slowdown * alone)
