"""A shell script split into commands and words, with their places in the text.

Runs in the driver; pure text, executes nothing. Knows the shell's quotes, escapes, line
continuations, comments, redirections, here documents and the forms of ``$``; what the words stand
for is :mod:`autotune.shell_words`'s question. ``shlex`` knows neither places nor ``$``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import BadInputError

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
"""How a word that assigns a variable begins: its name, and ``+`` where it appends."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9])(?:(:?-)(.*))?", re.DOTALL)
_BRACED_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]")
_ENDS_WORD = " \t\n;&|<>()"
_OPENERS = {"if", "for", "while", "until", "case", "select", "{", "function"}
_CLOSERS = {"fi", "done", "esac", "}"}
_BETWEEN = {"then", "else", "elif", "do", "!", "time"}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word."""

    kind: str
    """``text``, ``variable``, ``array``, ``arguments``, ``arithmetic`` or ``unreadable``."""
    text: str
    """The text itself, the name, the expression, or what cannot be read."""
    quoted: bool
    default: "Word | None" = None
    """What stands behind ``:-``."""


@dataclass(slots=True)
class Word:
    """One word of a command with its place in the script."""

    start: int
    end: int = 0
    parts: list[Part] = field(default_factory=list)
    items: "list[Word] | None" = None
    """Elements, where the word assigns an array."""

    @property
    def plain(self) -> str:
        """The word's literal text; of a word with variables, what stands before the first one."""
        text = ""
        for part in self.parts:
            if part.kind != "text":
                break
            text += part.text
        return text


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    is_nested: bool
    """Whether it stands inside a condition, a loop, a function or a subshell."""


class Scanner:
    """Splits a script into commands and words."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._at = 0
        self._heredocs: list[str] = []

    def commands(self) -> Iterator[Command]:
        """Iterate over the simple commands in order."""
        depth = parentheses = 0
        words: list[Word] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t\r":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif character == "#":
                self._skip_line()
            elif character in "<>":
                self._redirection(words)
            elif character in "\n;&|()":
                if words:
                    yield Command(tuple(words), depth + parentheses > 0)
                words = []
                # A pattern of `case` closes a parenthesis that nobody opened.
                parentheses = max(0, parentheses + {"(": 1, ")": -1}.get(character, 0))
                self._at += 1
                if character == "\n":
                    self._skip_heredocs()
            else:
                word = self._word()
                keyword = word.plain if not words else ""
                if keyword in _OPENERS:
                    depth += 1
                elif keyword in _CLOSERS:
                    depth = max(0, depth - 1)
                elif keyword not in _BETWEEN:
                    words.append(word)
        if words:
            yield Command(tuple(words), depth + parentheses > 0)

    def _word(self) -> Word:
        word = Word(self._at)
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "(" and ASSIGNMENT.fullmatch(word.plain):
                word.items = self._items()
            elif character in _ENDS_WORD:
                break
            elif character == "'":
                word.parts.append(Part("text", self._single_quoted(), True))
            elif character == '"':
                self._double_quoted(word)
            elif character == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                if escaped != "\n":
                    word.parts.append(Part("text", escaped, True))
                self._at += 2
            elif character in "$`":
                word.parts.append(self._expansion(quoted=False))
            else:
                word.parts.append(Part("text", self._home(word, character), False))
                self._at += 1
        word.end = self._at
        return word

    def _home(self, word: Word, character: str) -> str:
        """Return a character; for a tilde that means the home folder, that folder."""
        is_first = not word.parts or ASSIGNMENT.fullmatch(word.plain) is not None
        follows = self._text[self._at + 1 : self._at + 2]
        is_home = character == "~" and is_first and (not follows or follows in "/ \t\n")
        return str(Path.home()) if is_home else character

    def _items(self) -> list[Word]:
        """Read the elements of an array, up to the closing parenthesis."""
        self._at += 1
        items: list[Word] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == ")":
                self._at += 1
                return items
            if character in " \t\r\n":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif character == "#":
                self._skip_line()
            elif character in _ENDS_WORD:
                raise self._error(self._at, f"{character!r} stands in an array")
            else:
                items.append(self._word())
        raise self._error(self._at, "an array is not closed")

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self._error(self._at, "a single quote is not closed")
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        return text

    def _double_quoted(self, word: Word) -> None:
        start = self._at
        self._at += 1
        word.parts.append(Part("text", "", True))
        while self._at < len(self._text):
            character = self._text[self._at]
            following = self._text[self._at + 1 : self._at + 2]
            if character == '"':
                self._at += 1
                if len(word.parts) > 1 and word.parts[-1].kind in ("array", "arguments"):
                    self._unwrap_list(word)
                return
            if character == "\\" and following and following in '$`"\\\n':
                if following != "\n":
                    word.parts.append(Part("text", following, True))
                self._at += 2
            elif character in "$`":
                word.parts.append(self._expansion(quoted=True))
            else:
                word.parts.append(Part("text", character, True))
                self._at += 1
        raise self._error(start, "a double quote is not closed")

    @staticmethod
    def _unwrap_list(word: Word) -> None:
        """Take ``"${NAME[@]}"`` and ``"$@"`` for their elements, not for one text around them."""
        if len(word.parts) == 2 and word.parts[0].text == "":
            part = word.parts[1]
            word.parts = [Part(part.kind, part.text, False)]

    def _expansion(self, *, quoted: bool) -> Part:
        start = self._at
        text = self._text
        if text[start] == "`":
            self._at = self._after(text.find("`", start + 1), "`", start)
            return Part("unreadable", text[start : self._at], quoted)
        if text.startswith("$((", start):
            self._at = self._matching(start + 1)
            return Part("arithmetic", text[start + 3 : self._at - 2], quoted)
        if text.startswith(("$(", "$'"), start):
            if text[start + 1] == "(":
                self._at = self._matching(start + 1)
            else:
                self._at = self._after(text.find("'", start + 2), "'", start)
            if text[start : self._at] == "$(pwd)":
                return Part("variable", "PWD", quoted)
            return Part("unreadable", text[start : self._at], quoted)
        if text.startswith("${", start):
            self._at = self._matching(start + 1)
            return self._braced(text[start + 2 : self._at - 1], start, quoted)
        match = _NAME.match(text, start + 1)
        self._at = match.end() if match else start + 2
        if match:
            return Part("variable", match.group(), quoted)
        following = text[start + 1 : start + 2]
        if following and following in "@*":
            return Part("arguments", "", quoted)
        if following and following in "0123456789#?$!-":
            return Part("unreadable", f"${following}", quoted)
        self._at = start + 1
        return Part("text", "$", quoted)

    def _braced(self, inside: str, start: int, quoted: bool) -> Part:
        array = _BRACED_ARRAY.fullmatch(inside)
        if array:
            return Part("array", array.group(1), quoted)
        if inside in ("@", "*"):
            return Part("arguments", "", quoted)
        match = _BRACED.fullmatch(inside)
        if match is None or match.group(1).isdigit() and match.group(2) is None:
            return Part("unreadable", f"${{{inside}}}", quoted)
        name, sign, default = match.groups()
        if sign is None:
            return Part("variable", name, quoted)
        scanner = Scanner(default, self._name)
        word = Word(start)
        while scanner._at < len(default):
            word.parts += scanner._word().parts
            if scanner._at < len(default):
                word.parts.append(Part("text", default[scanner._at], True))
                scanner._at += 1
        return Part("variable", name, quoted, word)

    def _matching(self, opening: int) -> int:
        """Return the position behind the bracket that closes the one at ``opening``."""
        pair = {"(": ")", "{": "}"}[self._text[opening]]
        depth = 0
        for at in range(opening, len(self._text)):
            depth += {self._text[opening]: 1, pair: -1}.get(self._text[at], 0)
            if depth == 0:
                return at + 1
        raise self._error(opening, f"{self._text[opening]!r} is not closed")

    def _after(self, end: int, what: str, start: int) -> int:
        if end < 0:
            raise self._error(start, f"{what} is not closed")
        return end + 1

    def _redirection(self, words: list[Word]) -> None:
        """Pass over an operator with its target; neither is an argument of the program."""
        is_number = words and words[-1].end == self._at and words[-1].plain.isdigit()
        if is_number:
            words.pop()
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "<>&|-":
            self._at += 1
        sign = self._text[start : self._at]
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        target = self._word()
        if sign.startswith("<<") and not sign.startswith("<<<"):
            self._heredocs.append(target.plain)

    def _skip_heredocs(self) -> None:
        for delimiter in self._heredocs:
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                if line.strip() == delimiter:
                    break
        self._heredocs = []

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _error(self, position: int, what: str) -> BadInputError:
        line = self._text.count("\n", 0, position) + 1
        return BadInputError(f"{self._name}, line {line}: {what}.", "Mend the script.")
