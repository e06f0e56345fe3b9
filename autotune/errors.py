"""The error family: what may go wrong, said so that the reader knows what to do.

Runs in every process (driver, trial actor, verl worker). Every class holds a message that names
the full key and the value seen, and a hint that says what is allowed; each also derives from the
built-in it refines.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command of ``autotune`` ended."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


class AutotuneError(Exception):
    """Base class of the errors that a user is expected to meet.

    Args:
        message: What was wrong, with the full key and the value seen.
        hint: What is allowed or what to do; empty when the message says it all.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class BadInputError(AutotuneError, ValueError):
    """The sweep file, the base job or the command line is wrong; nothing was started:
    :attr:`ExitCode.BAD_INPUT`."""


class SweepError(AutotuneError, RuntimeError):
    """A sweep that started could not go on: :attr:`ExitCode.FAILED`."""


class WriteError(AutotuneError, OSError):
    """A file could not be written; what was in it before is still there."""


class TrialStartError(AutotuneError, RuntimeError):
    """A trial's verl job could not be brought to its first step."""


class RolloutFailedError(AutotuneError, RuntimeError):
    """Responses of a step are missing: verl would go on without them, and measure less work."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return a "did you mean" clause for a misspelt name, or the empty string when nothing is
    close."""
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f"Did you mean '{matches[0]}'?" if matches else ""
