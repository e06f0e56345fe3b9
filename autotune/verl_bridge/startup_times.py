"""How long does each part of a job's start take?

Runs in a trial's verl process and in verl's workers. Pure bookkeeping of durations; what the parts
are is said where they are timed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

PREFIX = "autotune/startup_"
"""Step metrics of a job's first step: ``autotune/startup_<part>_s``, seconds."""


class StartupTimes:
    """Seconds by part; a part that runs several times (a model for each role) is summed up."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._part: str | None = None
        self._since_s = 0.0

    def begin(self, part: str | None) -> None:
        """End the part that runs, if any, and begin another; None begins none."""
        now_s = time.monotonic()
        if self._part is not None:
            self._seconds[self._part] += now_s - self._since_s
        self._part, self._since_s = part, now_s

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed as a part of its own beside those of :meth:`begin`."""

        @wraps(function)
        def timed_function(*arguments: Any, **keywords: Any) -> Any:
            began_s = time.monotonic()
            try:
                return function(*arguments, **keywords)
            finally:
                self._seconds[part] += time.monotonic() - began_s

        return timed_function

    @property
    def so_far(self) -> dict[str, float]:
        """Seconds of the parts that have ended."""
        return dict(self._seconds)

    def take(self) -> dict[str, float]:
        """Return what was timed since the last call, and forget it."""
        self.begin(None)
        seconds = self.so_far
        self._seconds.clear()
        return seconds


def slowest(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each part's longest time over ranks."""
    longest: dict[str, float] = {}
    for seconds in ranks:
        for part, value in seconds.items():
            longest[part] = max(value, longest.get(part, 0.0))
    return longest


def as_metrics(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the times under the names of step metrics."""
    return {f"{PREFIX}{part}_s": value for part, value in seconds.items()}
