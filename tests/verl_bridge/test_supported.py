"""Overrides refuse a release that they were not written for."""

from importlib.metadata import version

import pytest

from autotune.errors import TrialStartError
from autotune.verl_bridge.supported import require_version


def test_a_supported_version_is_accepted() -> None:
    require_version("verl", ("0.0.1", version("verl")), "this works with")


def test_another_version_is_refused_with_both_and_the_mend() -> None:
    with pytest.raises(TrialStartError) as caught:
        require_version("verl", ("0.0.1", "0.0.2"), "this works with")
    assert str(caught.value) == (
        f"verl {version('verl')} is installed; this works with 0.0.1, 0.0.2 only. "
        "Install a supported version: `pip install verl==0.0.2`."
    )
