"""Secrets: which names bear them, and masking them in every text that reaches disk or a log.

Runs in every process (driver, trial actor). A secret comes from the environment of the machine that
needs it and from nowhere else: a base job that writes one down is refused
(:func:`written_secrets`), and whatever the environment holds is masked wherever a text repeats it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

MIN_SECRET_LENGTH = 6
"""Shorter values (``1``, ``none``) are words that a text may hold by chance."""

_OF_ENVIRONMENT = re.compile(r"(_KEY|_TOKEN|_PAT)$|SECRET|PASSWORD|PASSWD|CREDENTIAL")
_OF_SETTING = re.compile(
    r"(api|access|auth|private|secret)_?key$|(^|_)token$|secret|password|passwd|credential"
)
_NOT_A_VALUE = ("", "null", "None", "~", "''", '""')


def is_secret_name(name: str) -> bool:
    """Say whether a variable or a setting of this name holds a secret.

    Names in capitals are judged as environment variables: there ``_KEY`` is a secret, while verl's
    settings have keys of columns (``data.prompt_key``).
    """
    return bool(
        _OF_ENVIRONMENT.search(name) if name.isupper() else _OF_SETTING.search(name.lower())
    )


def written_secrets(overrides: Sequence[str]) -> list[str]:
    """Return the keys of ``key=value`` texts that hold a secret written out.

    A reference to the environment (``${oc.env:NAME}``) is none.
    """
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        is_written = value.strip() not in _NOT_A_VALUE and not value.strip("'\" ").startswith("${")
        if is_written and is_secret_name(key.strip().split(".")[-1].lstrip("+~")):
            found.append(key.strip().lstrip("+~"))
    return found


def redact(text: str) -> str:
    """Mask the environment's secrets (tokens, API keys, passwords) wherever a text holds them."""
    return str(mask(text))


def mask(data: Any) -> Any:
    """Return JSON data with every text in it masked, keys included."""
    return _mask(data, _secrets())


def _secrets() -> dict[str, str]:
    """Return secret -> name of its variable, the longest first."""
    found = {
        value: name
        for name, value in os.environ.items()
        if is_secret_name(name.upper()) and len(value) >= MIN_SECRET_LENGTH
    }
    return {value: found[value] for value in sorted(found, key=len, reverse=True)}


def _mask(data: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(data, str):
        for value, name in secrets.items():
            data = data.replace(value, f"<{name} removed>")
        return data
    if isinstance(data, Mapping):
        return {_mask(key, secrets): _mask(value, secrets) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_mask(value, secrets) for value in data]
    return data
