"""The Tune callback that ends a sweep when somebody asks for it with a file.

Runs in the driver. No further trial is started; those that run end as usual, and are kept. The next
run of the sweep goes on from there.
"""

from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback


class Closable(Protocol):
    """What is asked of :class:`autotune.search.SweepSearcher`."""

    def close(self) -> None: ...


class StopOnRequest(Callback):
    """Closes the searcher once the file exists.

    Args:
        file: Whoever makes it asks for the end; a request left from an earlier run is removed.
        searcher: Suggests nothing more once closed.
    """

    def __init__(self, file: Path, searcher: Closable) -> None:
        file.unlink(missing_ok=True)
        self._file = file
        self._searcher = searcher
        self.is_requested = False

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its configuration for Tuner.restore, which we never call.
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **_info: Any) -> None:
        """Look for the file; Tune calls this in every round of its loop."""
        if not self.is_requested and self._file.exists():
            self.is_requested = True
            self._searcher.close()
