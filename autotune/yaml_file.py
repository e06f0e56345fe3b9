"""Typed YAML files: reading one as plain data, and checking its shape against dataclasses.

Runs in the driver. A file is data only: refused are tags (which could build Python objects),
interpolations (which could copy a token from the environment into a record), and aliases of which a
few lines would make gigabytes, or an endless value. Nothing is executed or resolved. OmegaConf does
the parsing and the conversion of single values; this module adds the full key and the nearest name
to its errors.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from autotune.errors import BadInputError, nearest

MAX_DEPTH = 50
"""Levels of nesting; what is recursive behind the parser would end in Python's own limit."""
MAX_VALUES = 10_000
"""Values that a file with aliases may hold once they are written out."""
MAX_SHOWN = 200
"""Characters of an override that a message repeats."""

_OPENS = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSES = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)


def read_yaml(path: Path) -> DictConfig:
    """Read a YAML file that holds one mapping.

    Raises:
        BadInputError: No such file, not text, not YAML, not a mapping, or more than plain data.
    """
    text = _read_text(path)
    try:
        _check_plain(str(path), text)
        _check_root(path, text)
        content = OmegaConf.create(text)
    except BadInputError:
        raise  # it is a ValueError too
    except yaml.YAMLError as error:
        raise BadInputError(f"{path} is not valid YAML: {_where(error)}.") from error
    except (OmegaConfBaseException, ValueError) as error:
        raise BadInputError(f"{path} cannot be read: {_first_line(error)}.") from error
    assert isinstance(content, DictConfig)
    return content


def apply_override(config: DictConfig, override: str) -> None:
    """Set one ``key=value`` of the command line in a configuration, in place.

    Raises:
        BadInputError: Not ``key=value``, or a value that is not plain YAML.
    """
    key, equals, value = override.partition("=")
    shown = f"The override '{override[:MAX_SHOWN]}'"
    if not equals or not key.strip() or key.count(".") > MAX_DEPTH:
        raise BadInputError(
            f"{shown} is not of the form key=value.", "E.g. trial.measured_steps=2."
        )
    try:
        _check_plain(shown, value)
        config.merge_with_dotlist([override])
    except BadInputError:
        raise  # it is a ValueError too
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, IndexError) as error:
        raise BadInputError(f"{shown} cannot be applied: {_first_line(error)}.") from error


def refuse_interpolations(node: object, key: str = "") -> None:
    """Refuse ``${...}`` anywhere in plain data.

    Raises:
        BadInputError: With the full key of the first one.
    """
    for where, text in _texts(node, key):
        if "${" in text:
            raise BadInputError(
                f"{where} contains an interpolation: {text}",
                "A sweep file is plain data; write the value itself.",
            )


def refuse_unprintable(node: object, key: str = "") -> None:
    """Refuse text that can be neither a path nor written to a file.

    Raises:
        BadInputError: With the full key of the first one.
    """
    for where, text in _texts(node, key):
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise BadInputError(
                f"{where} is {text!r}.", "A text holds neither NUL nor half a character."
            )


def _texts(node: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of plain data with their full keys, names of mappings included."""
    if isinstance(node, str):
        yield key, node
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield f"the name {name!s} in {key or 'the file'}", str(name)
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from _texts(value, f"{key}[{index}]")


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


def _check_plain(where: str, text: str) -> None:
    """Refuse what YAML has besides plain data, and endless nesting, before anything is built."""
    depth, has_aliases = 0, False
    for token in yaml.scan(text):
        line = f"{where}, line {token.start_mark.line + 1}"
        if isinstance(token, yaml.TagToken):
            tag = "".join(part or "" for part in token.value)
            raise BadInputError(
                f"{line}: YAML tag '{tag}'.", "A sweep file is plain data; remove the tag."
            )
        has_aliases = has_aliases or isinstance(token, yaml.AliasToken)
        depth += isinstance(token, _OPENS)
        depth -= isinstance(token, _CLOSES)
        if depth > MAX_DEPTH:
            raise BadInputError(f"{line}: nested more than {MAX_DEPTH} levels deep.")
    if has_aliases:
        _Expansion(where).measure(yaml.compose(text, Loader=yaml.SafeLoader))


class _Expansion:
    """How large the values of a file are once its aliases are written out; nothing is built.

    Args:
        where: The file, or the override, as messages call it.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._sizes: dict[int, tuple[int, int]] = {}
        """Node -> values in it, levels below it."""
        self._open: set[int] = set()

    def measure(self, node: yaml.Node | None) -> tuple[int, int]:
        """Return how many values a node holds and how deep they are nested.

        An alias is the node that it stands for, which came before it: what is measured already is
        not entered again.

        Raises:
            BadInputError: It holds itself, or is too large.
        """
        if not isinstance(node, yaml.CollectionNode):
            return 1, 0
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        line = f"{self._where}, line {node.start_mark.line + 1}"
        if id(node) in self._open:
            raise BadInputError(f"{line}: through a YAML alias, this value holds itself.")
        self._open.add(id(node))
        inner = [self.measure(child) for child in _children(node)]
        size = 1 + sum(values for values, _ in inner)
        depth = 1 + max((levels for _, levels in inner), default=0)
        if size > MAX_VALUES:
            raise BadInputError(
                f"{line}: with its YAML aliases written out, it holds more than {MAX_VALUES} "
                "values.",
                "A few lines of aliases can make gigabytes: write the values themselves.",
            )
        if depth > MAX_DEPTH:
            raise BadInputError(f"{line}: nested more than {MAX_DEPTH} levels deep.")
        self._sizes[id(node)] = size, depth
        return size, depth


def _children(node: yaml.CollectionNode) -> Iterator[yaml.Node]:
    for entry in node.value:
        yield from entry if isinstance(entry, tuple) else (entry,)


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
