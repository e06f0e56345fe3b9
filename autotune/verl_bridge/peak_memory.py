"""The most memory that was in use on a device at once during a step, by whatever process, and when
what a process held has come back.

Runs in verl's worker processes. The rollout engine is a process of its own beside the worker's, and
each knows its own allocator only; the device knows all. A thread samples how much of it is taken.
Without an accelerator there is no such device.
"""

import threading
import time
from collections.abc import Callable

from verl.plugin.platform import get_platform

SAMPLE_INTERVAL_S = 0.05

SETTLE_S = 1.0
"""Memory that did not grow for so long has come back."""
SETTLE_LIMIT_S = 60.0
_SLACK_BYTES = 64 << 20


def free_bytes() -> int:
    """Return how much of this process's device is free."""
    return int(get_platform().device_module.mem_get_info()[0])


def settled(read: Callable[[], int], *, pause_s: float = SETTLE_S) -> int:
    """Return a number of bytes once it no longer grows, or after SETTLE_LIMIT_S."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    before = read()
    while True:
        time.sleep(pause_s)
        now = read()
        if now <= before + _SLACK_BYTES or time.monotonic() > deadline:
            return now
        before = now


class DeviceSampler:
    """Samples this process's device until the process ends."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        """Most bytes in use since the step began; 0 without an accelerator."""
        if get_platform().device_name != "cpu":
            threading.Thread(target=self._sample, daemon=True).start()

    def begin_step(self) -> None:
        """Forget the last step's peak."""
        self.peak_bytes = 0

    def _sample(self) -> None:
        # The device is a property of the thread.
        get_platform().set_device(get_platform().current_device())
        device = get_platform().device_module
        pause = threading.Event()
        while not pause.wait(SAMPLE_INTERVAL_S):
            free, total = device.mem_get_info()
            self.peak_bytes = max(self.peak_bytes, total - free)
