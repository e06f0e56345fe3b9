"""Typed YAML files: what is refused before anything is built from it."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from autotune.errors import BadInputError
from autotune.yaml_file import (
    MAX_DEPTH,
    apply_override,
    check_shape,
    read_yaml,
    refuse_interpolations,
    refuse_unprintable,
)


@dataclass
class Inner:
    size: int
    ratio: float | None = None


@dataclass
class Outer:
    name: str
    inner: Inner
    named: dict[str, Inner] = field(default_factory=dict)
    listed: list[Inner] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    flag: bool = False


def write(tmp_path: Path, content: str | bytes) -> Path:
    file = tmp_path / "file.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "a: 25e6\n"))["a"] == 25_000_000


def bomb(*, width: int, height: int) -> str:
    """Lists of aliases, each of the line before it."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, height + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


def test_an_alias_stands_for_a_value_of_its_own(tmp_path: Path) -> None:
    text = "a: &sizes [1, 2]\nb: *sizes\nc: &d {x: 1, y: 2}\ne: {<<: *d, y: 3}\n"
    content = read_yaml(write(tmp_path, text))
    content["b"].append(3)
    assert (content["a"], content["b"], content["e"]) == ([1, 2], [1, 2, 3], {"x": 1, "y": 3})
    assert "*" not in OmegaConf.to_yaml(content) and "&" not in OmegaConf.to_yaml(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1, 2", "is not valid YAML: .*line 1"),
        ("a: 1\n b: 2\n", "is not valid YAML: .*line 2"),
        ("a: 1\na: 2\n", "is not valid YAML: .*duplicate key a"),
        ("- 1\n- 2\n", "does not hold a mapping: it is a list"),
        ("word\n", "does not hold a mapping: it is a single value"),
        ("3\n", "does not hold a mapping"),
        ("", "does not hold a mapping: it is empty"),
        ("# only a comment\n", "does not hold a mapping: it is empty"),
        (b"\x80\x81\xff", "is not a text file"),
        (b"a\x00b", "is not valid YAML"),
        (f"a: {'9' * 5000}\n", "cannot be read: .*integer string"),
        # A list that holds itself, and one that would have 10**9 entries.
        ("a: &a [*a]\n", "line 1: through a YAML alias, this value holds itself"),
        ("a: &a {b: {c: *a}}\n", "line 1: through a YAML alias, this value holds itself"),
        ("a: [x]\nb: *a\n", "is not valid YAML: found undefined alias 'a', line 2"),
        (bomb(width=10, height=9), "line 5: with its YAML aliases written out"),
        (bomb(width=1, height=MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels deep"),
        (f"a: {'[' * 3000}{']' * 3000}\n", f"line 1: nested more than {MAX_DEPTH} levels"),
        (f"{'{a: ' * 3000}1{'}' * 3000}\n", "line 1: nested more than"),
        ("a:\n" + "".join(" " * n + "- \n" for n in range(200)), "nested more than"),
        ("- " * 3000 + "1\n", "nested more than"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_refused(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        read_yaml(write(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="There is no file .*no.yaml"):
        read_yaml(tmp_path / "no.yaml")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is a folder"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {mark}']",
        "!!python/object/apply:pathlib.Path ['{mark}']",
        "!!python/name:os.system",
        "!own {mark}",
    ],
)
def test_a_tag_is_refused_and_runs_nothing(tmp_path: Path, tag: str) -> None:
    mark = tmp_path / "mark"
    file = write(tmp_path, f"a: 1\nb: {tag.format(mark=mark)}\n")
    with pytest.raises(BadInputError, match="line 2: YAML tag '!"):
        read_yaml(file)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"a": {"b": ["x", "${oc.env:HOME}"]}}, r"a.b\[1\]"),
        ({"a": "${other}"}, "a"),
        ({"a": {"${x}": 1}}, r"the name \$\{x\} in a"),
    ],
)
def test_interpolations_are_refused_with_their_key(content: object, key: str) -> None:
    with pytest.raises(BadInputError, match=f"^{key} contains an interpolation"):
        refuse_interpolations(content)


def test_as_many_levels_as_anybody_writes_are_read(tmp_path: Path) -> None:
    depth = MAX_DEPTH - 1
    read_yaml(write(tmp_path, f"a: {'[' * depth}1{']' * depth}\nb: [[1], [2]]\n"))


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"a": {"b": ["x", "y\0"]}}, r"a.b\[1\]"),
        ({"a": "half \ud800"}, "a"),
        ({"a": {"b\0": 1}}, "the name .* in a"),
    ],
)
def test_text_that_no_file_can_hold_is_refused_with_its_key(content: object, key: str) -> None:
    with pytest.raises(BadInputError, match=f"^{key} is "):
        refuse_unprintable(content)


def test_a_complete_mapping_has_the_right_shape() -> None:
    inner = {"size": 1, "ratio": 0.5}
    check_shape(Outer, {"name": "x", "inner": inner, "named": {"a": inner}, "listed": [inner]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"nam": "x"}, "There is no key 'nam'. Did you mean 'name'"),
        ({"zzz": 1}, "There is no key 'zzz'. Here are: name, inner"),
        ({"inner": {"sise": 1}}, "There is no key 'inner.sise'. Did you mean 'size'"),
        ({"named": {"a": {"sise": 1}}}, "There is no key 'named.a.sise'"),
        ({"listed": [{"size": 1}, {"sise": 1}]}, r"There is no key 'listed\[1\].sise'"),
        ({"inner": {"size": "big"}}, "inner.size is 'big', but must be an integer"),
        ({"inner": {"size": None}}, "inner.size is None, but must be an integer"),
        ({"inner": {"ratio": "x"}}, "inner.ratio is 'x', but must be a number or null"),
        ({"listed": [{"size": 2.5}]}, r"listed\[0\].size is 2.5, but must be an integer"),
        ({"flag": "maybe"}, "flag is 'maybe', but must be true or false"),
        ({"inner": 3}, "inner is 3, not a section"),
        ({"named": [1]}, r"named is \[1\], not a mapping"),
        ({"listed": {"size": 1}}, "listed is .*, not a list"),
        ({"words": "a"}, "words is 'a', but must be a list"),
        ({"words": ["a", {"b": 1}]}, r"words\[1\] is \{'b': 1\}, not text"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_full_key(content: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        check_shape(Outer, content)


def test_an_override_of_the_command_line_reaches_into_lists() -> None:
    config = OmegaConf.create({"a": [{"b": 1}], "c": {"d": 2}})
    apply_override(config, "a[0].b=25e6")
    apply_override(config, "c.d=[1,x]")
    assert config == {"a": [{"b": 25e6}], "c": {"d": [1, "x"]}}


@pytest.mark.parametrize(
    "override",
    [
        *("a", "=1", "a=!!python/object/apply:os.getcwd []", "a=[1", "a[7].b=1"),
        *("a=&x [*x]", f"a={'9' * 5000}", "a=" + "[" * 3000 + "]" * 3000, "a." * 3000 + "b=1"),
    ],
    ids=lambda override: override[:20],
)
def test_a_bad_override_is_refused_as_written(override: str) -> None:
    with pytest.raises(BadInputError) as caught:
        apply_override(OmegaConf.create({"a": [{"b": 1}]}), override)
    assert f"The override '{override[:200]}'" in caught.value.message
    assert len(str(caught.value)) < 500
