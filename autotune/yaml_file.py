"""Typed YAML files: reading one as plain data, and checking its shape against dataclasses.

Runs in the driver. A file is data only: tags (which could build Python objects) and interpolations
(which could copy a token from the environment into a record) are refused, and nothing is executed
or resolved. OmegaConf does the parsing and the conversion of single values; this module adds the
full key and the nearest name to its errors.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from autotune.errors import BadInputError, nearest


def read_yaml(path: Path) -> DictConfig:
    """Read a YAML file that holds one mapping.

    Raises:
        BadInputError: No such file, not text, not YAML, not a mapping, or a YAML tag in it.
    """
    text = _read_text(path)
    try:
        _refuse_tags(path, text)
        _check_root(path, text)
        content = OmegaConf.create(text)
    except yaml.YAMLError as error:
        raise BadInputError(f"{path} is not valid YAML: {_where(error)}.") from error
    except OmegaConfBaseException as error:
        raise BadInputError(f"{path} cannot be read: {_first_line(error)}.") from error
    assert isinstance(content, DictConfig)
    return content


def apply_override(config: DictConfig, override: str) -> None:
    """Set one ``key=value`` of the command line in a configuration, in place.

    Raises:
        BadInputError: Not ``key=value``, or a value that is not plain YAML.
    """
    key, equals, _ = override.partition("=")
    if not equals or not key.strip():
        raise BadInputError(
            f"The override '{override}' is not of the form key=value.",
            "E.g. trial.measured_steps=2.",
        )
    try:
        config.merge_with_dotlist([override])
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, IndexError) as error:
        raise BadInputError(
            f"The override '{override}' cannot be applied: {_first_line(error)}."
        ) from error


def refuse_interpolations(node: object, key: str = "") -> None:
    """Refuse ``${...}`` anywhere in plain data.

    Raises:
        BadInputError: With the full key of the first one.
    """
    if isinstance(node, str) and "${" in node:
        raise BadInputError(
            f"{key} contains an interpolation: {node}",
            "A sweep file is plain data; write the value itself.",
        )
    if isinstance(node, Mapping):
        for name, value in node.items():
            refuse_interpolations(str(name), f"the name {name} in {key or 'the file'}")
            refuse_interpolations(value, f"{key}.{name}" if key else str(name))
    if isinstance(node, list):
        for index, value in enumerate(node):
            refuse_interpolations(value, f"{key}[{index}]")


def check_shape(schema: type, content: object, key: str = "") -> None:
    """Check names, nesting and types of plain data against a dataclass; keys may be missing.

    Args:
        schema: The dataclass.
        content: What the file says at ``key``.
        key: Full key of ``content``; empty for the whole file.

    Raises:
        BadInputError: With the full key.
    """
    if not isinstance(content, Mapping):
        raise BadInputError(
            f"{key} is {content!r}, not a section.", f"It holds {', '.join(_names(schema))}."
        )
    hints = typing.get_type_hints(schema)
    plain: dict[str, object] = {}
    for name, value in content.items():
        full = f"{key}.{name}" if key else str(name)
        if name not in hints:
            hint = nearest(str(name), hints) or f"Here are: {', '.join(_names(schema))}."
            raise BadInputError(f"There is no key '{full}'.", hint)
        if not _check_sections(hints[name], value, full):
            plain[str(name)] = value
    for name, value in plain.items():
        _check_value(schema, name, value, f"{key}.{name}" if key else name)


def _check_sections(hint: object, value: object, key: str) -> bool:
    """Check a value that consists of dataclasses; say whether it does."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        check_shape(hint, value, key)
        return True
    item = arguments[-1] if arguments else None
    if not (isinstance(item, type) and dataclasses.is_dataclass(item)):
        return False
    if origin is dict:
        if not isinstance(value, Mapping):
            raise BadInputError(f"{key} is {value!r}, not a mapping from names to sections.")
        for name, section in value.items():
            check_shape(item, section, f"{key}.{name}")
    if origin is list:
        if not isinstance(value, list):
            raise BadInputError(f"{key} is {value!r}, not a list.", "Start each entry with '- '.")
        for index, section in enumerate(value):
            check_shape(item, section, f"{key}[{index}]")
    return True


def _check_value(schema: type, name: str, value: object, key: str) -> None:
    hint = typing.get_type_hints(schema)[name]
    if hint == list[str] and isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise BadInputError(f"{key}[{index}] is {item!r}, not text.", "Quote the entry.")
    try:
        OmegaConf.merge(OmegaConf.structured(schema), {name: value})
    except OmegaConfBaseException as error:
        raise BadInputError(f"{key} is {value!r}, but must be {_describe(hint)}.") from error


def _describe(hint: object) -> str:
    words = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    if isinstance(hint, types.UnionType):
        return " or ".join(_describe(member) for member in typing.get_args(hint))
    if isinstance(hint, type) and hint in words:
        return words[hint]
    origin = typing.get_origin(hint)
    return "a list" if origin is list else "a mapping" if origin is dict else "a value"


def _names(schema: type) -> list[str]:
    return [entry.name for entry in dataclasses.fields(schema)]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInputError(f"There is no file {path}.") from error
    except IsADirectoryError as error:
        raise BadInputError(f"{path} is a folder, not a file.") from error
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path} is not a text file.", "A sweep file is YAML in UTF-8."
        ) from error
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}.") from error


def _refuse_tags(path: Path, text: str) -> None:
    for token in yaml.scan(text):
        if isinstance(token, yaml.TagToken):
            tag = "".join(part or "" for part in token.value)
            line = token.start_mark.line + 1
            raise BadInputError(
                f"{path}, line {line}: YAML tag '{tag}'.",
                "A sweep file is plain data; remove the tag.",
            )


def _check_root(path: Path, text: str) -> None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        return
    is_list = isinstance(root, yaml.SequenceNode)
    kind = "empty" if root is None else "a list" if is_list else "a single value"
    hint = "Write 'key: value' lines."
    raise BadInputError(f"{path} does not hold a mapping: it is {kind}.", hint)


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = (
        getattr(error, "problem", None) or getattr(error, "reason", None) or _first_line(error)
    )
    return f"{problem}, line {mark.line + 1}" if mark is not None else str(problem)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
