"""Which type verl expects for a key of its configuration, read from its source, not imported.

Runs in the driver. verl's YAML files name a dataclass (``_target_``) for most of their sections;
its annotations say what a key may hold where the YAML only says ``null``, and which further keys
may be appended. Importing verl takes ten seconds and loads torch, so the classes are found by
module path and parsed with :mod:`ast`. What cannot be found or understood is accepted: this module
refuses only what is certainly wrong.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInputError

_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
_DICTS = frozenset({"dict", "Dict", "Mapping", "DictConfig"})
_LISTS = frozenset({"list", "List", "Sequence", "tuple", "Tuple"})


@dataclass(frozen=True, slots=True)
class VerlClass:
    """A dataclass of verl: where it stands, and its fields' annotations, inherited ones too."""

    module: str
    name: str
    fields: Mapping[str, ast.expr]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What verl's source says about one key; ``annotation`` is None where it says nothing."""

    annotation: ast.expr | None = None
    module: str = ""
    unknown_to: VerlClass | None = None
    """The dataclass that has no such field, when the key cannot exist."""
    unknown_part: str = ""
    """The part of the key that this dataclass does not have."""

    def accepts(self, value: object) -> bool:
        """Say whether the annotation allows ``value``; true where there is none."""
        return self.annotation is None or _accepts(self.annotation, value, self.module)

    def describe(self) -> str:
        """Return the annotation as verl writes it."""
        return "" if self.annotation is None else ast.unparse(self.annotation)


def package_folder() -> Path:
    """Return the folder of the installed verl package, found without importing it.

    Raises:
        BadInputError: verl is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise BadInputError(
            "The package verl is not installed.", "Install it with: pip install verl"
        )
    return Path(spec.submodule_search_locations[0])


def expectation(key: str, config: Mapping[str, object]) -> Expectation:
    """Return what verl's dataclasses say about ``key``.

    Args:
        key: Dotted key, present in ``config`` or about to be appended.
        config: verl's composed default configuration as nested plain containers, ``_target_``
            entries included.
    """
    node: object = config
    section: VerlClass | None = None
    found = Expectation()
    for part in key.split("."):
        if isinstance(node, Mapping) and isinstance(node.get("_target_"), str):
            section = find_class(str(node["_target_"]))
        child = node.get(part) if isinstance(node, Mapping) else None
        known = isinstance(node, Mapping) and part in node
        found = Expectation()
        if section is not None:
            if part in section.fields:
                found = Expectation(section.fields[part], section.module)
            elif not known and not part.startswith("_"):
                return Expectation(unknown_to=section, unknown_part=part)
        section = _annotated_class(found)
        node = child
    return found


@functools.cache
def find_class(path: str) -> VerlClass | None:
    """Return verl's dataclass of this dotted path, through re-exports; None if it has none."""
    module, _, name = path.rpartition(".")
    located = _locate(module, name, frozenset())
    if located is None:
        return None
    home, definition = located
    fields: dict[str, ast.expr] = {}
    for base in reversed(definition.bases):
        parent = find_class(f"{home}.{base.id}") if isinstance(base, ast.Name) else None
        if parent is not None:
            fields.update(parent.fields)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = node.annotation
    return VerlClass(module=home, name=name, fields=fields)


def _locate(module: str, name: str, seen: frozenset[str]) -> tuple[str, ast.ClassDef] | None:
    tree = parse_module(module) if module not in seen else None
    if tree is None:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
    for source in _import_sources(tree, module, name):
        located = _locate(source, name, seen | {module})
        if located is not None:
            return located
    return None


def _import_sources(tree: ast.Module, module: str, name: str) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        if any(alias.name in (name, "*") and alias.asname in (None, name) for alias in node.names):
            yield _absolute_module(module, node)


def _absolute_module(module: str, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    file = _module_file(module)
    is_package = file is not None and file.name == "__init__.py"
    kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*kept, node.module] if node.module else kept)


def _module_file(module: str) -> Path | None:
    parts = module.split(".")
    if parts[0] != "verl":
        return None
    base = package_folder().joinpath(*parts[1:])
    for file in (base / "__init__.py", base.with_suffix(".py")):
        if file.is_file():
            return file
    return None


@functools.cache
def parse_module(module: str) -> ast.Module | None:
    """Return the syntax tree of one of verl's modules; None if there is no such module."""
    file = _module_file(module)
    return None if file is None else ast.parse(file.read_text(encoding="utf-8"))


def _annotated_class(found: Expectation) -> VerlClass | None:
    """Return the dataclass that an annotation such as ``X`` or ``Optional[X]`` names."""
    annotation = found.annotation
    if isinstance(annotation, ast.Subscript) and _name(annotation.value) == "Optional":
        annotation = annotation.slice
    if not isinstance(annotation, ast.Name) or annotation.id == "BaseConfig":
        return None
    return find_class(f"{found.module}.{annotation.id}")


def _accepts(annotation: ast.expr, value: object, module: str) -> bool:
    if value is None:
        return True
    if isinstance(annotation, ast.BinOp):
        return any(_accepts(side, value, module) for side in (annotation.left, annotation.right))
    if isinstance(annotation, ast.Constant):
        return _accepts_constant(annotation.value, value, module)
    if isinstance(annotation, ast.Subscript):
        return _accepts_subscript(annotation, value, module)
    return _accepts_name(_name(annotation), value, module)


def _accepts_constant(constant: object, value: object, module: str) -> bool:
    if isinstance(constant, str):
        return _accepts(ast.parse(constant, mode="eval").body, value, module)
    return constant is None and value is None


def _accepts_subscript(annotation: ast.Subscript, value: object, module: str) -> bool:
    outer, inner = _name(annotation.value), annotation.slice
    if outer == "Optional":
        return _accepts(inner, value, module)
    if outer == "Union" and isinstance(inner, ast.Tuple):
        return any(_accepts(member, value, module) for member in inner.elts)
    if outer == "Literal":
        members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return value in [member.value for member in members if isinstance(member, ast.Constant)]
    if outer in _LISTS:
        return isinstance(value, list) and (
            isinstance(inner, ast.Tuple) or all(_accepts(inner, item, module) for item in value)
        )
    return isinstance(value, Mapping) if outer in _DICTS else True


def _accepts_name(name: str, value: object, module: str) -> bool:
    if name == "bool":
        return isinstance(value, bool)
    if name in _SCALARS:
        return isinstance(value, _SCALARS[name]) and not isinstance(value, bool)
    if name in _LISTS:
        return isinstance(value, list)
    if name in _DICTS or (name and find_class(f"{module}.{name}") is not None):
        return isinstance(value, Mapping)
    return True


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
