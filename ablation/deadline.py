"""The end of the minutes that a study may take: which runs still fit before it."""

import time
from dataclasses import dataclass, field

MARGIN = 30.0  # seconds before the end in which runs save and end, and the page is written


@dataclass
class Deadline:
    """minutes: from now on. left: names of runs that were not started, or were stopped."""

    minutes: float
    left: set[str] = field(default_factory=set)
    slowdown: float = 1.0  # seconds of the run that ended last over those expected; runs share a machine

    def __post_init__(self):
        self.end = time.monotonic() + 60 * self.minutes - MARGIN

    def over(self) -> bool:
        return time.monotonic() >= self.end

    def fits(self, hours: float) -> bool:
        """Whether a run that takes `hours` alone would end in time."""
        return time.monotonic() + 3600 * hours * self.slowdown <= self.end

    def ended(self, hours: float, seconds: float):
        """A run for which `hours` alone were expected took so many seconds."""
        self.slowdown = max(1.0, seconds / (3600 * hours)) if hours > 0 else 1.0
