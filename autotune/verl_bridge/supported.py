"""Is a package of a version that an override was written for?

Runs in every process of a trial's verl job; imports nothing heavy. An override of what a package
does by itself must not run over a release that nobody has read.
"""

from collections.abc import Sequence
from importlib.metadata import version

from autotune.errors import TrialStartError

VERL_VERSIONS = ("0.9.1",)
"""Releases of verl whose code this package's overrides were written for."""


def require_version(package: str, supported: Sequence[str], what: str) -> None:
    """Refuse a package of another version.

    Args:
        package: Distribution to look up.
        supported: Versions that the override was written for, the newest last.
        what: What works with them only, as the start of a clause.

    Raises:
        TrialStartError: Another version is installed.
    """
    installed = version(package)
    if installed not in supported:
        raise TrialStartError(
            f"{package} {installed} is installed; {what} {', '.join(supported)} only.",
            f"Install a supported version: `pip install {package}=={supported[-1]}`.",
        )
