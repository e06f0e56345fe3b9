"""The line of an exported file that says what its settings reach, for a later verification.

Runs in the driver. Pure functions from plain data to one line of text and back.
"""

import json
from collections.abc import Mapping
from typing import Any

from autotune.metrics import METRICS

MARK = "# autotune-claim: "
VERSION = 1


def claim_line(
    *, sweep: str, trial: int, objective: str, proven: bool, gain_ratio: list[float] | None
) -> str:
    """Return the line.

    Args:
        sweep: Name of the sweep.
        trial: The trial whose setting the file holds.
        objective: What the gain is a gain in.
        proven: Whether a verification has proven it.
        gain_ratio: Lower end, value and upper end of the verified gain; None where there is none.
    """
    claim = {
        "claim_version": VERSION,
        "sweep": sweep,
        "trial": trial,
        "objective": objective,
        "proven": proven,
        "gain_ratio": gain_ratio,
    }
    return MARK + json.dumps(claim)


def read_claim(text: str) -> dict[str, Any] | None:
    """Return the claim of an exported file, see :func:`claim_line`; None where it states none that
    can be read, as a file may that was edited by hand."""
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    if line is None:
        return None
    try:
        claim = json.loads(line.removeprefix(MARK))
    except ValueError:
        return None
    return dict(claim) if isinstance(claim, Mapping) and _is_whole(claim) else None


def _is_whole(claim: Mapping[str, Any]) -> bool:
    gain, objective = claim.get("gain_ratio"), claim.get("objective")
    has_ends = isinstance(gain, list) and len(gain) == 3 and all(_is_number(end) for end in gain)
    return (
        (gain is None or has_ends)
        and claim.get("claim_version") == VERSION
        and isinstance(objective, str)
        and objective in METRICS
        and isinstance(claim.get("proven"), bool)
        and isinstance(claim.get("trial"), int)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
