"""Secrets: which names bear them, and masking them in every text that reaches disk or a log.

Runs in every process (driver, trial actor). A secret comes from the environment of the machine that
needs it and from nowhere else: a sweep that writes one down is refused (:func:`written_secrets`),
and what the environment holds is masked where a text repeats it. A value that nobody would write by
chance is masked everywhere. A short one, a word, a number or an identifier (``postgres``,
``20000000``, ``train_batch_size``) also stands for other things, and masking those would make a
record unreadable: it is masked only where the text gives it as a secret, behind the name of one or
as a URL's password. Names are never masked.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

MIN_SECRET_LENGTH = 8
"""Shorter values (``1``, ``hunter2``) may stand in a text by chance."""
MIN_WORD_LENGTH = 16
"""Values of letters or digits alone are chance below this length: no word or number is longer."""

_WORD = re.compile(r"[a-z]+|[A-Z]+|[A-Z][a-z]+|[0-9]+")
_IDENTIFIER = re.compile(r"[a-z]+(_[a-z]+)+|[A-Z]+(_[A-Z]+)+")
_OF_PLACE = re.compile(r"_(FILE|DIR|PATH)$")
_OF_ENVIRONMENT = re.compile(r"(_KEY|_TOKEN|_PAT)$|SECRET|PASSWORD|PASSWD|CREDENTIAL")
_OF_SETTING = re.compile(
    r"(api|access|auth|private|secret)_?key$|(^|_)token$|secret|password|passwd|credential"
    r"|^authorization$"
)
_OF_TOKENIZER = re.compile(r"(bos|eos|pad|unk|sep|cls|mask)_token")
_OF_SIGNED_URL = re.compile(r"sig|.*signature")
_NOT_A_VALUE = ("", "null", "None", "~", "''", '""')

# A port and a path (``host:80/a@b``) are no password; a user without one is a token over HTTP only.
_URL_PASSWORD = re.compile(r"://[^/\s?#@:]*:(?!\d+/|<)[^\s?#@]+@")
_URL_TOKEN = re.compile(r"https?://(?!<)[^/\s?#@:]+@", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"(?P<before>^|[?&;,\s{\[('\"])(?P<name>[A-Za-z_][\w.-]*)['\"]?\s*"
    r"(?P<sign>[=:])\s*['\"]?(?=(?P<value>[^\s'\"&;,}\])]+))"
)


def is_secret_name(name: str) -> bool:
    """Say whether a variable or a setting of this name holds a secret.

    Names in capitals are judged as environment variables: there ``_KEY`` is a secret, while verl's
    settings have keys of columns (``data.prompt_key``).
    """
    if name.isupper():
        return bool(_OF_ENVIRONMENT.search(name.replace("-", "_")))
    plain = name.lower().replace("-", "_")
    return bool(_OF_SETTING.search(plain)) and not _OF_TOKENIZER.fullmatch(plain)


def written_secrets(data: object, key: str = "") -> list[str]:
    """Return the full keys of plain data whose values are secrets, or texts that hold one.

    A reference to the environment (``${oc.env:NAME}``) is none.

    Args:
        data: Nested mappings and lists of plain values.
        key: Full key of ``data``.
    """
    return list(_find_written(data, key, is_secret=False))


def holds_secret(text: str) -> bool:
    """Say whether a text that is no secret as a whole has one in it.

    That is a URL with a password (or over HTTP with any user: tokens stand there), a URL whose
    query names a secret or a signature, or ``NAME=value`` with the name of a secret.
    """
    if _URL_PASSWORD.search(text) or _URL_TOKEN.search(text):
        return True
    return any(_assigns_secret(match) for match in _ASSIGNMENT.finditer(text))


def without_userinfo(text: str) -> str:
    """Mask passwords and tokens in front of a URL's host."""
    for pattern in (_URL_PASSWORD, _URL_TOKEN):
        text = pattern.sub(lambda match: f"{match[0].partition('://')[0]}://<removed>@", text)
    return text


def _find_written(data: object, key: str, *, is_secret: bool) -> Iterator[str]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            last = str(name).split(".")[-1]
            inner = f"{key}.{name}" if key else str(name)
            yield from _find_written(value, inner, is_secret=is_secret or is_secret_name(last))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _find_written(value, f"{key}[{index}]", is_secret=is_secret)
    elif isinstance(data, str):
        if (is_secret and _is_written(data)) or holds_secret(data):
            yield key
    elif is_secret and data is not None and not isinstance(data, bool):
        yield key


def _is_written(value: str) -> bool:
    bare = value.strip("'\" ")
    return value.strip() not in _NOT_A_VALUE and not bare.startswith("${")


def _assigns_secret(match: re.Match[str]) -> bool:
    name = match["name"].split(".")[-1]
    if not _is_written(match["value"]) or match["value"].startswith("$"):
        return False
    if match["sign"] == ":" and not name.isupper():
        return False  # ``token: word`` is prose, ``HF_TOKEN: word`` a variable
    is_query = match["before"] in ("?", "&")
    return is_secret_name(name) or (is_query and bool(_OF_SIGNED_URL.fullmatch(name.lower())))


def redact(text: str) -> str:
    """Mask the environment's secrets (tokens, API keys, passwords) in a text.

    The module's docstring says which values are masked where.
    """
    return _mask_text(text, _secrets())


def mask(data: Any) -> Any:
    """Return JSON data with every text in it masked as by :func:`redact`; names stay."""
    return _mask(data, _secrets(), is_secret=False)


def _secrets() -> dict[str, str]:
    """Return secret -> name of its variable, the longest first."""
    found = {
        value: name
        for name, value in os.environ.items()
        if value and is_secret_name(name.upper()) and not _OF_PLACE.search(name.upper())
    }
    return {value: found[value] for value in sorted(found, key=len, reverse=True)}


def _is_chance(value: str) -> bool:
    """Say whether a text may hold a secret's value without meaning the secret."""
    if len(value) < MIN_SECRET_LENGTH or _IDENTIFIER.fullmatch(value):
        return True
    return len(value) < MIN_WORD_LENGTH and _WORD.fullmatch(value) is not None


def _mask(data: Any, secrets: Mapping[str, str], *, is_secret: bool) -> Any:
    if isinstance(data, str):
        if is_secret and data in secrets:
            return _left_of(secrets[data])
        return _mask_text(data, secrets)
    if isinstance(data, Mapping):
        return {
            name: _mask(value, secrets, is_secret=is_secret_name(str(name)))
            for name, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [_mask(value, secrets, is_secret=is_secret) for value in data]
    return data


def _mask_text(text: str, secrets: Mapping[str, str]) -> str:
    for value, name in secrets.items():
        if value not in text:
            continue
        if _is_chance(value):
            text = _mask_where_given(text, value, name)
        else:
            text = text.replace(value, _left_of(name))
    return text


def _mask_where_given(text: str, value: str, name: str) -> str:
    """Mask a value behind the name of a secret and as a URL's password."""

    def masked(match: re.Match[str]) -> str:
        return match[1] + _left_of(name) if is_secret_name(match["name"]) else match[0]

    literal = re.escape(value)
    text = re.sub(
        rf"((?<![\w-])(?P<name>[\w-]+)['\"]?\s*[=:]\s*['\"]?){literal}(?![\w-])", masked, text
    )
    return re.sub(
        rf"(://[^/\s?#@:]*:){literal}(?=@)", lambda match: match[1] + _left_of(name), text
    )


def _left_of(name: str) -> str:
    return f"<{name} removed>"
