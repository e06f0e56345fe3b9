"""A verl job as one Hydra configuration file: writing it, composing it, and holding it against the
job that it stands for.

``python -m verl.trainer.main_ppo --config-path FOLDER --config-name NAME`` loads such a file.

Runs in the driver and loads neither verl nor torch. The file names verl's own configuration in its
``defaults`` and holds what the job's overrides say, nothing else: a group choice becomes an entry
of ``defaults``, a value its key, an interpolation stays text. Hydra merges files and has no word
for taking a key out of another file, so that a job that deletes a key (``~key``) cannot be written
as one; deleting a group (``~group``) can. :func:`job_file` composes what it wrote and refuses any
difference, so that no rule of Hydra's that this module misses can end in another job.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from autotune.errors import BadInputError
from autotune.verl_bridge.overrides import (
    compose_base,
    compose_folder,
    config_folder,
    parse_override,
)

SEARCH_PATH = "pkg://verl.trainer.config"
"""Where the file finds verl's own configuration, on whatever machine verl is installed."""

MAX_SHOWN = 5
"""Keys that a message names."""

KeyPath = tuple[Any, ...]


@dataclass(slots=True)
class _Parts:
    """A job's overrides, sorted by how a file says them."""

    appended: list[dict[str, Any]] = field(default_factory=list)
    """Groups that verl's ``defaults`` lack."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """Group -> choice; None takes it out."""
    paths: list[KeyPath] = field(default_factory=list)
    """Keys with a value of their own, from the outside in."""


def job_file(
    config_name: str,
    overrides: Sequence[str],
    *,
    header: str = "",
    comments: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Write a job as a Hydra configuration that composes to exactly the same.

    Args:
        config_name: One of verl's configurations, e.g. ``ppo_trainer``.
        overrides: The job's overrides, in their order.
        header: Comment lines that stand first.
        comments: Dotted key -> lines that stand above it, without ``#``.

    Raises:
        BadInputError: The job cannot be said in one file; the message names the overrides.
    """
    job = compose_base(config_name, overrides)
    parts = _sort(overrides)
    text = _write(config_name, parts, _raw(job), header, comments or {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        found = differences(job, compose_file(path))
    if found:
        raise _cannot_be_said(found, overrides)
    return text


def compose_file(path: Path) -> DictConfig:
    """Compose a configuration file as verl does, with verl's own configuration in reach.

    Raises:
        BadInputError: Hydra cannot compose it.
    """
    # The package's folder instead of its name: Hydra would import verl, for ten seconds.
    search_path = f"hydra.searchpath=['file://{config_folder()}']"
    try:
        return compose_folder(path.parent.absolute(), path.stem, (search_path,))
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadInputError(f"{path} is not a configuration that verl composes: {reason}.") from (
            error
        )


def differences(one: DictConfig, other: DictConfig) -> list[str]:
    """Return the keys in which two configurations differ, interpolations compared as text."""
    first, second = _flat(_raw(one)), _flat(_raw(other))
    missing = object()
    return [
        ".".join(map(str, path))
        for path in {**first, **second}
        if not _same(first.get(path, missing), second.get(path, missing))
    ]


def _sort(overrides: Sequence[str]) -> _Parts:
    parts = _Parts()
    for text in overrides:
        override = parse_override(text)
        if _chooses_file(override):
            _add_group(override, parts)
        elif not override.is_delete():
            key = tuple(override.key_or_group.split("."))
            parts.paths += _value_paths(key, override.value())
    return parts


def _chooses_file(override: Override) -> bool:
    """Say, as Hydra does, whether an override is about a group; a mapping never is."""
    is_mapping = isinstance(override.value(), dict)
    return not is_mapping and (config_folder() / override.key_or_group).is_dir()


def _add_group(override: Override, parts: _Parts) -> None:
    name = override.get_key_element().lstrip("~+")
    if override.is_delete():
        parts.chosen[name] = None
    elif override.is_add():
        parts.appended.append({name: override.value()})
    else:
        parts.chosen[name] = override.value()


def _value_paths(key: KeyPath, value: object) -> list[KeyPath]:
    """Return what an override writes: a mapping is merged, so that its parts count."""
    if not isinstance(value, dict) or not value:
        return [key]
    return [path for name, item in value.items() for path in _value_paths((*key, name), item)]


def _write(
    config_name: str,
    parts: _Parts,
    raw: Mapping[Any, Any],
    header: str,
    comments: Mapping[str, Sequence[str]],
) -> str:
    defaults: list[Any] = [config_name, *parts.appended, "_self_"]
    # Overrides of other files' choices must stand last.
    defaults += [{f"override {group}": choice} for group, choice in parts.chosen.items()]
    blocks = [
        header.rstrip(),
        _yaml({"defaults": defaults}),
        _yaml({"hydra": {"searchpath": [SEARCH_PATH]}}),
        "\n".join(_body(_tree(parts.paths, raw), comments)),
    ]
    return "\n\n".join(block.rstrip() for block in blocks if block) + "\n"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value of the file; mappings around it are plain dictionaries."""

    value: Any


def _tree(paths: Sequence[KeyPath], raw: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the composed job's values at some keys, nested; of what is no more, nothing."""
    tree: dict[Any, Any] = {}
    for path in paths:
        found = _find(path, raw)
        if found is None:
            continue
        *outer, last = found[0]
        node = tree
        for name in outer:
            inner = node.setdefault(name, {})
            if isinstance(inner, _Leaf):
                break
            node = inner
        else:
            node.setdefault(last, _Leaf(found[1]))
    return tree


def _find(path: KeyPath, raw: Mapping[Any, Any]) -> tuple[KeyPath, Any] | None:
    """Return where a key's value stands, and the value: a list's items are not keys of a file."""
    node: Any = raw
    for depth, name in enumerate(path):
        if not isinstance(node, Mapping):
            return path[:depth], node
        if name not in node:
            return None
        node = node[name]
    return path, node


def _body(
    tree: Mapping[Any, Any], comments: Mapping[str, Sequence[str]], outer: KeyPath = ()
) -> list[str]:
    lines: list[str] = []
    indent = "  " * len(outer)
    for name, inner in tree.items():
        path = (*outer, name)
        lines += [f"{indent}# {line}".rstrip() for line in comments.get(_dotted(path), ())]
        if isinstance(inner, _Leaf):
            text = _yaml({name: inner.value})
            lines += [f"{indent}{line}" if line else "" for line in text.splitlines()]
        else:
            lines.append(f"{indent}{_yaml({name: None}).partition(': null')[0]}:")
            lines += _body(inner, comments, path)
    return lines


def _yaml(content: Mapping[Any, Any]) -> str:
    """Write plain data so that Hydra reads it back: OmegaConf quotes what it takes for numbers."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(content))).rstrip("\n")


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _raw(config: DictConfig) -> dict[Any, Any]:
    content = OmegaConf.to_container(config, resolve=False, throw_on_missing=False)
    assert isinstance(content, dict)
    return content


def _flat(node: Mapping[Any, Any], outer: KeyPath = ()) -> dict[KeyPath, Any]:
    flat: dict[KeyPath, Any] = {}
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, (*outer, name))
        else:
            flat[(*outer, name)] = value
    return flat


def _same(one: object, other: object) -> bool:
    """Say whether two values are equal and of one type, also inside lists: 1 is not true here."""
    return repr(one) == repr(other)


def _cannot_be_said(found: Sequence[str], overrides: Sequence[str]) -> BadInputError:
    shown = ", ".join(found[:MAX_SHOWN]) + (", ..." if len(found) > MAX_SHOWN else "")
    deleting = [text for text in overrides if text.startswith("~")]
    if deleting:
        return BadInputError(
            f"The job deletes keys ({', '.join(deleting)}), which a Hydra configuration file "
            f"cannot do; the file would differ in {shown}.",
            "Use the overrides or the launch script, which can.",
        )
    return BadInputError(
        f"The job cannot be written as one Hydra configuration file: it would differ in {shown}.",
        "Use the overrides or the launch script.",
    )
