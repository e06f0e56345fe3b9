"""What the words of a shell script stand for: the text that a program would get.

Runs in the driver; executes nothing. Covers variables and arrays that the script itself assigns,
``${NAME:-default}`` and integer ``$((...))``. Whatever would need a shell (command substitution,
the environment, a value chosen by a condition) is an error only where its value is asked for.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInputError
from autotune.shell_scanner import ASSIGNMENT, Command, Part, Scanner, Word

_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_IN_ARITHMETIC = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$?([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Field:
    """A word as the program gets it; one word of the script may give none, one or several."""

    text: str
    word: Word
    is_whole: bool
    """Whether this field is all that its word gives."""


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A variable whose value only a shell would know."""

    reason: str


class Script:
    """The commands of a script, and its variables as they are after the commands seen so far.

    Args:
        text: The script.
        name: What messages call it.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.exported: list[str] = []
        """Names that the script gives to the programs it starts."""
        # What every shell has: the script runs where this command runs.
        self._values: dict[str, str | list[Word] | _Unknown] = {
            "HOME": str(Path.home()),
            "PWD": str(Path.cwd()),
        }
        self._scanner = Scanner(text, name)

    def commands(self) -> Iterator[Command]:
        """Iterate over the commands in order; assignments take effect as they are passed."""
        for command in self._scanner.commands():
            yield command
            self._assign(command)

    def fields(self, word: Word) -> list[Field]:
        """Return what a word gives to a program.

        Raises:
            BadInputError: Only a shell would know.
        """
        if len(word.parts) == 1 and word.parts[0].kind == "array":
            items = self._array(word.parts[0].text, word)
            return [found for item in items for found in self.fields(item)]
        texts = self._expand(word)
        return [Field(text, word, len(texts) == 1) for text in texts]

    def line(self, position: int) -> int:
        """Return the number of the line at a position."""
        return self.text.count("\n", 0, position) + 1

    def _assign(self, command: Command) -> None:
        words = list(command.words)
        is_export = bool(words) and words[0].plain in ("export", "declare", "readonly", "local")
        if words and words[0].plain == "unset":
            for word in words[1:]:
                self._values.pop(word.plain, None)
            return
        assignments = words[1:] if is_export else words
        if not is_export and not all(ASSIGNMENT.match(word.plain) for word in assignments):
            # `NAME=value program` gives the variable to that program alone.
            return
        for word in assignments:
            match = ASSIGNMENT.match(word.plain)
            if is_export and words[0].plain == "export":
                self.exported.append(match.group(1) if match else word.plain)
            if match is not None:
                self._set(match, word, is_nested=command.is_nested)

    def _set(self, match: re.Match[str], word: Word, *, is_nested: bool) -> None:
        name, adds = match.groups()
        old = self._values.get(name)
        if is_nested or isinstance(old, _Unknown) and adds:
            line = self.line(word.start)
            self._values[name] = _Unknown(f"it is set inside a condition or a loop, line {line}")
        elif word.items is not None:
            before = old if adds and isinstance(old, list) else []
            self._values[name] = [*before, *word.items]
        else:
            try:
                text = "".join(self._texts(word))[match.end() :]
            except BadInputError as error:
                reason = error.message.removeprefix(f"{self.name}, ").rstrip(".")
                self._values[name] = _Unknown(reason)
                return
            self._values[name] = old + text if adds and isinstance(old, str) else text

    def _expand(self, word: Word) -> list[str]:
        """Return a word's fields: an unquoted variable is split at its blanks."""
        literal = "".join(part.text if part.kind == "text" and not part.quoted else " "
                          for part in word.parts)  # fmt: skip
        if _BRACES.search(literal):
            raise self._error(word, f"{literal.strip()!r} is a brace expansion", "Quote the word.")
        pieces = self._texts(word)
        fields: list[str] = []
        begun = False
        for part, text in zip(word.parts, pieces, strict=True):
            if part.quoted or part.kind == "text":
                fields = [*fields[:-1], fields[-1] + text] if begun else [*fields, text]
                begun = True
                continue
            first, *others = re.split(r"[ \t\n]+", text)
            for split in (first, *others) if text else ():
                if begun and split is first:
                    fields[-1] += split
                elif split:
                    fields.append(split)
                begun = bool(split)
        return fields

    def _texts(self, word: Word) -> list[str]:
        return [self._text(part, word) for part in word.parts]

    def _text(self, part: Part, word: Word) -> str:
        if part.kind == "text":
            return part.text
        if part.kind == "arguments":
            return ""
        if part.kind == "arithmetic":
            return str(self._arithmetic(part.text, word))
        if part.kind == "variable":
            return self._variable(part, word)
        what = f"${{{part.text}[@]}}" if part.kind == "array" else part.text
        raise self._error(word, f"{what} needs a shell", "Write the value itself.")

    def _variable(self, part: Part, word: Word) -> str:
        value = self._values.get(part.text)
        is_unset = value is None or value == "" and part.default is not None
        if is_unset and part.default is not None:
            return "".join(self._texts(part.default))
        if isinstance(value, str):
            return value
        if isinstance(value, _Unknown):
            raise self._error(
                word, f"the value of ${part.text} is unknown ({value.reason})",
                "Write the value itself.",
            )  # fmt: skip
        if isinstance(value, list):
            raise self._error(word, f"${part.text} is an array", f"Write ${{{part.text}[@]}}.")
        raise self._error(
            word,
            f"${part.text} is not set in the script",
            f"Set it there ({part.text}=...), or write the value itself: the environment is not "
            "read.",
        )

    def _array(self, name: str, word: Word) -> list[Word]:
        value = self._values.get(name)
        if isinstance(value, list):
            return value
        raise self._error(
            word, f"${{{name}[@]}} is not an array that the script sets", f"Write {name}=(...)."
        )

    def _arithmetic(self, expression: str, word: Word) -> int:
        def value(match: re.Match[str]) -> str:
            name = match.group(1) or match.group(2)
            return f"({self._variable(Part('variable', name, True), word)})"

        try:
            return _calculate(_IN_ARITHMETIC.sub(value, expression))
        except (ValueError, SyntaxError, ZeroDivisionError) as error:
            raise self._error(
                word, f"$(({expression})) cannot be calculated", "Write the number itself."
            ) from error

    def _error(self, word: Word, what: str, hint: str) -> BadInputError:
        return BadInputError(f"{self.name}, line {self.line(word.start)}: {what}.", hint)


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    # The shell cuts towards 0.
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
}


def _calculate(expression: str) -> int:
    """Return the value of integers joined by ``+ - * / %`` and parentheses."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(expression)

    return value(ast.parse(expression.strip(), mode="eval"))
