"""verl's Hydra configuration on the driver's side: composing it, checking overrides, writing
overrides.

Runs in the driver and loads neither verl nor torch nor Ray. A base job is a configuration name and
the overrides that stand behind ``python -m verl.trainer.main_ppo``; they are composed here with
verl's own YAML files, so that an unknown key or a value of the wrong type is an error before
anything starts. Validity rules between keys are in :mod:`autotune.verl_bridge.rules`, files on disk
in :mod:`autotune.verl_bridge.paths`.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from autotune.errors import BadInputError, nearest
from autotune.verl_bridge import schema
from autotune.yaml_file import MAX_DEPTH, MAX_SHOWN

_ALSO_ACCEPTED: dict[str, type] = {
    "data.train_files": list,
    "data.val_files": list,
    "trainer.logger": str,
    "trainer.v1.colocate_async.num_warmup_batches": float,
    "trainer.v1.separate_async.num_warmup_batches": float,
}
"""Keys outside verl's dataclasses that take a second type besides that of their default in the
YAML."""

_SOURCE = re.compile(r"^\$\{(?:oc\.select:)?\s*(\.*)([\w.]+)\s*[,}]")
_PLAIN_TEXT = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_READ_AS_OTHER_TYPES = frozenset({"null", "true", "false", "inf", "nan"})


def config_folder() -> Path:
    """Return the folder of verl's Hydra configurations."""
    return schema.package_folder() / "trainer" / "config"


def compose_base(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose verl's configuration with a job's overrides and check every one of them.

    Args:
        config_name: One of verl's configurations, e.g. ``ppo_trainer``.
        overrides: Hydra overrides; appending (``+``, ``++``) and deleting (``~``) are legal.

    Returns:
        The composed configuration, interpolations unresolved.

    Raises:
        BadInputError: Unknown configuration or key, bad syntax, or a value whose type verl would
            not take.
    """
    _check_config_name(config_name)
    parsed = [parse_override(text) for text in overrides]
    groups = tuple(
        text for text, override in zip(overrides, parsed, strict=True) if _is_group(override)
    )
    try:
        default = _default(config_name, groups)
        _check_known(parsed, default)
        config = _compose(config_name, tuple(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(error, config_name, overrides) from error
    _check_types(parsed, container(config), default)
    return config


def container(config: DictConfig) -> dict[str, object]:
    """Return the configuration as nested plain containers, interpolations resolved."""
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise BadInputError(
            f"verl's configuration cannot be resolved: {_first_line(error)}"
        ) from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


class JobLeaves(dict[str, object]):
    """A job's leaves; a key that verl's configuration has, and the job has deleted, says so."""

    def __missing__(self, key: str) -> object:
        raise BadInputError(
            f"base.overrides: the job has no key '{key}', which trials need.",
            f"Remove the override that deletes it, e.g. '~{key.partition('.')[0]}' or '~{key}'.",
        )


def leaves(config: DictConfig) -> JobLeaves:
    """Flatten a configuration: dotted key -> resolved value; see :func:`flatten`.

    Raises:
        BadInputError: It cannot be resolved; also later, when a key is read that the job deletes.
    """
    return JobLeaves(flatten(container(config)))


def flatten(node: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested mappings: dotted key -> value; lists and empty mappings are values."""
    flat: dict[str, object] = {}
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def sources(config: DictConfig) -> dict[str, str]:
    """Return the keys that take their value from another: key -> the key that verl's YAML names.

    An override of the second key moves the first along with it, unless the first has an override of
    its own.
    """
    raw = OmegaConf.to_container(config, resolve=False, throw_on_missing=False)
    assert isinstance(raw, dict)
    flat = flatten({str(key): value for key, value in raw.items()})
    found = {key: _source(key, value) for key, value in flat.items() if isinstance(value, str)}
    return {key: source for key, source in found.items() if source is not None}


def overridden_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys that a list of overrides names."""
    return {parse_override(text).key_or_group for text in overrides}


def format_override(key: str, value: object) -> str:
    """Write ``key=value`` so that Hydra reads the same value back.

    Args:
        key: Dotted key, with Hydra's prefix (``+``, ``++``) where one is needed.
        value: None, bool, number, string, or a list or mapping of these.

    Raises:
        BadInputError: A value that Hydra's grammar cannot express.
    """
    text = f"{key}={_format(value, key)}"
    try:
        parse_override(text)
    except BadInputError as error:
        raise BadInputError(
            f"{key} cannot take the value {value!r}: Hydra's grammar cannot express it."
        ) from error
    return text


def parse_override(text: str) -> Override:
    """Read one Hydra override.

    Raises:
        BadInputError: Not in Hydra's syntax.
    """
    try:
        override = OverridesParser.create().parse_override(text)
    except (HydraException, ValueError) as error:
        raise _bad_syntax(text, _reason(error)) from error
    except RecursionError as error:
        raise _bad_syntax(text, "its value is nested too deeply") from error
    if not override.key_or_group:
        raise _bad_syntax(text, "it has no key")
    if override.key_or_group.count(".") > MAX_DEPTH:
        raise _bad_syntax(text, f"its key has more than {MAX_DEPTH} levels")
    return override


def written_value(text: str) -> tuple[str, object]:
    """Return an override's key and plain value; the value's own text where Hydra reads no plain
    value from it."""
    key, _, value_text = text.partition("=")
    try:
        override = parse_override(text)
    except BadInputError:
        return key.strip().lstrip("+~"), value_text
    value = override.value()
    is_plain = value is None or isinstance(value, bool | int | float | str | list | dict)
    return override.key_or_group, value if is_plain else value_text


def compose_folder(folder: Path, config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration of some folder with Hydra, whose errors it raises."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base=None):
            return compose(config_name, overrides=list(overrides))
    finally:
        GlobalHydra.instance().clear()


def _compose(config_name: str, overrides: tuple[str, ...]) -> DictConfig:
    return compose_folder(config_folder(), config_name, overrides)


@functools.lru_cache(maxsize=8)
def _default(config_name: str, groups: tuple[str, ...]) -> dict[str, object]:
    """Return verl's own configuration: the group choices of the job, none of its values."""
    return container(_compose(config_name, groups))


def _check_config_name(config_name: str) -> None:
    allowed = sorted(file.stem for file in config_folder().glob("*.yaml"))
    if config_name not in allowed:
        raise BadInputError(
            f"base.config_name: verl has no configuration '{config_name}'.",
            nearest(config_name, allowed) or f"It has: {', '.join(allowed)}.",
        )


def _bad_syntax(text: str, reason: str) -> BadInputError:
    return BadInputError(
        f"The override '{text[:MAX_SHOWN]}' is not in Hydra's syntax: {reason}.",
        "Write key=value, +key=value to append, ++key=value to append or change, ~key to delete.",
    )


def _reason(error: Exception) -> str:
    lines = [
        line
        for line in str(error).splitlines()
        if line and not line.startswith(("Error parsing", "See "))
    ]
    return lines[0].rstrip(".") if lines else _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _is_group(override: Override) -> bool:
    """Say whether an override chooses one of verl's YAML files rather than a value."""
    name = override.key_or_group
    return override.package is not None or (config_folder() / name).is_dir()


def _check_known(parsed: Sequence[Override], default: Mapping[str, object]) -> None:
    """Refuse changing or deleting a key that neither verl nor an earlier override has."""
    known = {prefix for key in flatten(default) for prefix in _prefixes(key)}
    for override in parsed:
        key, text = override.key_or_group, override.input_line
        if override.is_add() or override.is_force_add():
            known.update(_prefixes(key))
        elif key not in known and not _is_group(override):
            raise BadInputError(
                f"base.overrides: verl has no key '{key}' (override '{text}').",
                nearest(key, known)
                or f"To append a key that verl reads but does not list, write +{text}.",
            )


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[: index + 1]) for index in range(len(parts))]


def _explain(error: Exception, config_name: str, overrides: Sequence[str]) -> BadInputError:
    """Turn Hydra's error into one that names the override at fault."""
    if isinstance(error, MissingConfigException):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        options = [line for line in lines[2:] if "=" not in line and "Config search" not in line]
        hint = f"Available: {', '.join(options)}." if options else ""
        return BadInputError(f"base.overrides: {lines[0]}.", hint)
    low, high = 0, len(overrides)  # the first `low` compose, the first `high` do not
    failure = error
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _compose(config_name, tuple(overrides[:middle]))
            low = middle
        except (HydraException, OmegaConfBaseException) as found:
            high, failure = middle, found
    reason = _first_line(failure).rstrip(".")
    return BadInputError(f"base.overrides: override '{overrides[high - 1]}' is refused: {reason}.")


def _check_types(
    parsed: Sequence[Override], resolved: Mapping[str, object], default: Mapping[str, object]
) -> None:
    values = flatten(resolved)
    defaults = flatten(default)
    for override in parsed:
        if override.is_delete() or _is_group(override):
            continue
        key = override.key_or_group
        below = [name for name in values if name == key or name.startswith(f"{key}.")]
        for name in below:
            _check_value(name, values[name], defaults, schema.expectation(name, default))


def _check_value(
    key: str, value: object, defaults: Mapping[str, object], expected: schema.Expectation
) -> None:
    if expected.unknown_to is not None:
        raise BadInputError(
            f"base.overrides: verl has no key '{key}': its {expected.unknown_to.name} has no field "
            f"'{expected.unknown_part}'.",
            nearest(expected.unknown_part, expected.unknown_to.fields),
        )
    inside = next((name for name in defaults if name.startswith(f"{key}.")), None)
    is_section = key not in defaults and inside is not None
    if is_section and not isinstance(value, Mapping):
        raise BadInputError(
            f"base.overrides: {key} is {value!r}, but verl has a whole section there.",
            f"Set one of its keys, e.g. {inside}.",
        )
    default = defaults.get(key)
    if value is None or is_section:
        return
    if expected.annotation is not None and expected.accepts(value):
        return
    if default is not None and _same_kind(key, default, value):
        return
    if expected.annotation is None and default is None:
        return
    wanted = expected.describe() or type(default).__name__
    shown = f"; verl's default is {default!r}" if default is not None else ""
    raise BadInputError(
        f"base.overrides: {key} is {value!r} ({type(value).__name__}), but verl expects "
        f"{wanted}{shown}."
    )


def _same_kind(key: str, default: object, value: object) -> bool:
    also = _ALSO_ACCEPTED.get(key)
    if also is not None and isinstance(value, also):
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    return isinstance(value, type(default))


def _source(key: str, value: str) -> str | None:
    match = _SOURCE.match(value)
    if match is None:
        return None
    dots, name = match.groups()
    if not dots:
        return name
    parent = key.split(".")[: -len(dots)]
    return ".".join([*parent, name])


def _format(value: object, key: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f"{_format_name(name)}:{_format(item, key)}" for name, item in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(_format(item, key) for item in value) + "]"
    raise BadInputError(
        f"{key} cannot take {value!r}: a value is null, a bool, a number, a string, a list or a "
        "mapping."
    )


def _format_text(value: str) -> str:
    if _PLAIN_TEXT.fullmatch(value) and value.lower() not in _READ_AS_OTHER_TYPES:
        return value
    literal = re.sub(r"(\\*)\$\{", lambda match: match.group(1) * 2 + r"\${", value)
    return QuotedString(text=literal, quote=Quote.single).with_quotes()


def _format_name(name: object) -> str:
    """Write a mapping's key with special characters escaped: Hydra has no quotes there."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", str(name))
