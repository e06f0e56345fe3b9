"""What an exported file claims of itself, written and read back."""

import json
from typing import Any

import pytest

from autotune.claim import MARK, claim_line, read_claim

CLAIM: dict[str, Any] = {
    "claim_version": 1,
    "sweep": "tiny",
    "trial": 3,
    "objective": "step_s",
    "proven": True,
    "gain_ratio": [1, 2.5, 3],
}


def changed(**changes: Any) -> str:
    return MARK + json.dumps({**CLAIM, **changes}) + "\n"


@pytest.mark.parametrize("gain", [[1.0, 2.5, 3.0], None])
def test_a_claim_is_found_among_comments(gain: list[float] | None) -> None:
    line = claim_line(sweep="tiny", trial=3, objective="step_s", proven=True, gain_ratio=gain)
    assert read_claim(f"# a\n{line}\na: 1\n") == {**CLAIM, "gain_ratio": gain}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1\n",
        f"{MARK}not json\n",
        f"{MARK}[1]\n",
        changed(claim_version=99),
        changed(gain_ratio=[1, 2]),
        changed(gain_ratio="1.5"),
        changed(gain_ratio=[1, None, 2]),
        changed(objective="speed"),
        changed(objective=[]),
        changed(proven="yes"),
        changed(trial=None),
    ],
)
def test_a_file_without_a_whole_claim_claims_nothing(text: str) -> None:
    assert read_claim(text) is None
