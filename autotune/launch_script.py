"""A base job read from the launch script that the team already has, and the same script with other
settings.

Runs in the driver. Reads text and executes nothing: :mod:`autotune.shell_words` says what of the
shell is understood. The script must start ``python -m verl.trainer.main_ppo`` once; its arguments
are the base job. :func:`with_overrides` changes the words of some settings and leaves every other
character alone. What the script exports is noted by name only: trials get the environment of the
sweep, not the script's.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInputError
from autotune.redaction import is_secret_name, without_userinfo
from autotune.shell_scanner import Command
from autotune.shell_words import Field, Script

MODULE = "verl.trainer.main_ppo"
DEFAULT_CONFIG_NAME = "ppo_trainer"
"""What verl's command composes without ``--config-name``."""

_CONFIG_NAME = ("--config-name", "-cn")
_CONFIG_PATH = ("--config-path", "-cp", "--config-dir", "-cd")
_VERLS_OWN_PATH = re.compile(r"(.*/)?(verl/trainer/)?config/?")
_KEY = re.compile(r"(\+{0,2})([^=+~][^=]*)=")
_ASSIGNED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|]+)")


@dataclass(frozen=True, slots=True)
class OverrideWord:
    """One override of the job with its place in the script."""

    text: str
    """The override as verl gets it."""
    start: int
    end: int
    is_whole: bool
    """Whether the word at this place gives this override and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchScript:
    """A base job as its launch script says it."""

    name: str
    text: str
    config_name: str
    words: tuple[OverrideWord, ...]
    insert_at: int
    """Where further overrides go: behind the last word of verl's command."""
    exported: tuple[str, ...]
    """Environment variables that the script sets for verl."""

    @property
    def overrides(self) -> list[str]:
        """The job's overrides in their order."""
        return [word.text for word in self.words]


def read_launch_script(path: Path) -> LaunchScript:
    """Read a script file.

    Raises:
        BadInputError: It cannot be read, or does not start verl exactly once, or a setting of the
            job would need a shell.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInputError(
            f"base.launch_script: {path} cannot be read: {reason}.",
            "Relative paths start from the folder in which the command runs.",
        ) from error
    return parse_launch_script(text, str(path))


def parse_launch_script(text: str, name: str) -> LaunchScript:
    """Read a script's text; ``name`` is what messages call it. Raises as read_launch_script."""
    script = Script(text, name)
    found: LaunchScript | None = None
    for command in script.commands():
        if not any(MODULE in word.plain or _is_file(word.plain) for word in command.words):
            continue
        if found is not None:
            raise BadInputError(
                f"{name} starts {MODULE} more than once.", "Keep the command that is to be tuned."
            )
        found = _read_command(script, command)
    if found is None:
        raise BadInputError(
            f"{name} does not start {MODULE}.", f"It needs a line 'python3 -m {MODULE} ...'."
        )
    return found


def script_of(config_name: str, overrides: Sequence[str]) -> str:
    """Write the launch script of a job that was given without one."""
    name = [] if config_name == DEFAULT_CONFIG_NAME else [f"--config-name={config_name}"]
    words = [f"python3 -m {MODULE}", *name, *map(quoted, overrides)]
    return "#!/usr/bin/env bash\nset -e\n\n" + " \\\n    ".join(words) + ' "$@"\n'


def with_overrides(script: LaunchScript, overrides: Sequence[str], note: Sequence[str]) -> str:
    """Return the script's text with other settings.

    Args:
        script: The script.
        overrides: ``key=value``, ``+key=value`` or ``++key=value``; the last word of a key is
            changed where it stands, a key that the script lacks is added behind its last one.
        note: Comment lines for the top, without ``#``.
    """
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    for override in overrides:
        word = _last_word(script, _key(override))
        if word is None:
            added.append(override)
        else:
            prefix = _KEY.match(word.text)
            assert prefix is not None
            changed = prefix.group(1) + override.lstrip("+")
            edits.append((word.start, word.end, quoted(changed)))
    lines = "".join(f" \\\n    {quoted(override)}" for override in added)
    edits.append((script.insert_at, script.insert_at, lines))
    first = script.text.find("\n") + 1 if script.text.startswith("#!") else 0
    edits.append((first, first, "".join(f"# {line}".rstrip() + "\n" for line in note)))
    text = script.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def without_secrets(text: str) -> str:
    """Mask what a script assigns to variables that bear secrets, and who logs in in its URLs."""

    def masked(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"{name}='<removed>'" if is_secret_name(name) else match.group()

    return without_userinfo(_ASSIGNED.sub(masked, text))


def quoted(override: str) -> str:
    """Return an override as one word of a shell, its key left readable."""
    key, equals, value = override.partition("=")
    if not equals or shlex.quote(key.lstrip("+")) != key.lstrip("+"):
        return shlex.quote(override)
    return f"{key}={shlex.quote(value)}" if value else f"{key}="


def _is_file(word: str) -> bool:
    return word.endswith("verl/trainer/main_ppo.py")


def _read_command(script: Script, command: Command) -> LaunchScript:
    first = command.words[0]
    if command.is_nested:
        raise BadInputError(
            f"{script.name}, line {script.line(first.start)}: {MODULE} is started inside a "
            "condition, a loop or a function.",
            "Move the command to the script's own level.",
        )
    fields = [found for word in command.words for found in script.fields(word)]
    begin = next(
        index
        for index, found in enumerate(fields)
        if found.text == MODULE or _is_file(found.text)
    )
    config_name, overrides = _arguments(script, fields[begin + 1 :])
    ends = [
        word.end
        for word in command.words
        if not (len(word.parts) == 1 and word.parts[0].kind == "arguments")
    ]
    return LaunchScript(
        name=script.name,
        text=script.text,
        config_name=config_name,
        words=tuple(
            OverrideWord(found.text, found.word.start, found.word.end, found.is_whole)
            for found in overrides
        ),
        insert_at=max(ends),
        exported=tuple(script.exported),
    )


def _arguments(script: Script, fields: Sequence[Field]) -> tuple[str, list[Field]]:
    """Split verl's arguments into its configuration's name and overrides."""
    config_name = DEFAULT_CONFIG_NAME
    overrides: list[Field] = []
    left = list(fields)
    while left:
        found = left.pop(0)
        if not found.text.startswith("-"):
            overrides.append(found)
            continue
        flag, equals, value = found.text.partition("=")
        if flag not in _CONFIG_NAME + _CONFIG_PATH:
            raise _bad_argument(script, found, "is no argument that a base job can have")
        if not equals:
            if not left:
                raise _bad_argument(script, found, "has no value")
            value = left.pop(0).text
        if flag in _CONFIG_NAME:
            config_name = value.removesuffix(".yaml")
        elif not _VERLS_OWN_PATH.fullmatch(value):
            raise _bad_argument(script, found, "names a folder that is not verl's own")
    return config_name, overrides


def _bad_argument(script: Script, found: Field, what: str) -> BadInputError:
    return BadInputError(
        f"{script.name}, line {script.line(found.word.start)}: '{found.text}' {what}.",
        "A base job is one of verl's own configurations and overrides.",
    )


def _key(override: str) -> str:
    match = _KEY.match(override)
    return match.group(2) if match else override


def _last_word(script: LaunchScript, key: str) -> OverrideWord | None:
    """Return the word that decides a key's value, if it can be changed where it stands."""
    words = [word for word in script.words if _KEY.match(word.text) and _key(word.text) == key]
    return words[-1] if words and words[-1].is_whole else None
