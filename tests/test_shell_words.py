"""What the words of a script stand for: what bash says, and an error where only bash knows."""

import subprocess
from pathlib import Path

import pytest

from autotune.errors import BadInputError
from autotune.shell_words import Script

SCRIPTS = {
    "plain": "run a b=c",
    "quotes": """run 'a b' "c d" e'f g'h x="1 2" '' """,
    "escapes": r"""run a\ b "c\"d" 'e\f' "g\h" \'i""",
    "continuation": "run a \\\n  b\\\nc \\\n  d",
    "comments": "# run x\nrun a # b\n",
    "hash within a word": "run a#b '#c'",
    "variables": 'A=1\nB="$A-${A}2"\nrun $B "${B}" x=$A.y',
    "single quotes keep the dollar": "A=1\nrun '$A' \"'$A'\"",
    "split at blanks": 'A="x=1 y=2"\nrun p$A "$A"',
    "empty variable": 'A=""\nrun $A "$A" b$A',
    "default": 'B=2\nrun ${A:-1} ${B:-1} "${C:-x y}" ${D:-$B} ${E-} f',
    "default in quotes": "run ${A:-\"it's\"}x",
    "arithmetic": "A=6\nB=4\nrun $((A * 2)) $(( (A+B)/3 - 1 )) x=$((${A} % $B)) $((-7 / 2))",
    "arrays": 'A=(a "b c" # d\n  e=f)\nA+=(g)\nrun "${A[@]}" h',
    "home": "run ~ ~/x a~ x=~/y\nD=~/z\n",
    "assigned home": "D=~/z\nrun $D",
    "arguments": 'run a "$@" $@ b',
    "dollar alone": "run a$ $ '$'",
    "redirections": "run a > /dev/null 2>&1 < /dev/null b",
    "export": "export A=1 B=2\nrun $A$B",
    "append to a variable": "A=1\nA+=2\nrun $A",
    "program before": "true && run a; true",
    "for itself alone": "A=1\nA=2 true\nrun $A",
    "here document": "cat <<EOF > /dev/null\nrun $(x) 'y\nEOF\nrun a",
    "list in quotes": """A=/d/x\nF="['$A', '$A.y']"\nrun files="$F" l='["console","wandb"]'""",
}


def words_of(text: str) -> list[str]:
    script = Script(text, "launch.sh")
    for command in script.commands():
        names = [word.plain for word in command.words]
        if "run" in names:
            arguments = command.words[names.index("run") + 1 :]
            return [found.text for word in arguments for found in script.fields(word)]
    raise AssertionError("nothing runs")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_word_is_what_bash_makes_of_it(name: str) -> None:
    """bash itself is the judge."""
    judge = 'run() { for word in "$@"; do printf "%s\\0" "$word" >&3; done; }\n'
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&1\n{judge}{SCRIPTS[name]}"],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(Path.home()), "PATH": "/usr/bin:/bin"},
    )
    assert words_of(SCRIPTS[name]) == done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nrun $(date)", r"launch.sh, line 2: \$\(date\) needs a shell"),
        ("run `date`", "needs a shell"),
        ("run $1", r"\$1 needs a shell"),
        ("run ${A%x}", "needs a shell"),
        ("run $DATA", r"\$DATA is not set in the script.*the environment is not read"),
        ("A=$(date)\nrun $A", r"the value of \$A is unknown \(line 1: \$\(date\) needs a shell\)"),
        ("if x; then\n A=1\nfi\nrun $A", r"\$A is unknown \(it is set inside a condition"),
        ("A=(1 2)\nrun $A", r"\$A is an array"),
        ("A=1\nrun ${A[@]}", r"\$\{A\[@\]\} is not an array"),
        ("run $((2 ** 3))", "cannot be calculated"),
        ("A=x\nrun $((A + 1))", "cannot be calculated"),
        ("run {a,b}=1", "brace expansion"),
        ("run 'a", "line 1: a single quote is not closed"),
        ('run "a', "a double quote is not closed"),
        ("A=(a", "an array is not closed"),
        ("run ${A", "is not closed"),
    ],
)
def test_what_only_a_shell_knows_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        words_of(text)


def test_what_nobody_asks_for_need_not_be_readable() -> None:
    assert words_of("A=$(date)\nmkdir -p $A `x`\nrun b") == ["b"]


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_HOME", "/secret")
    with pytest.raises(BadInputError, match="DATA_HOME is not set"):
        words_of("run $DATA_HOME")


@pytest.mark.parametrize(
    "text",
    [
        "if a; then run b; fi",
        "for x in a; do\n run b\ndone",
        "f() {\n run b\n}",
        "( run b )",
        "while a; do if c; then run b; fi; done",
        "case a in\n a) run b ;;\nesac",
    ],
)
def test_a_command_inside_something_is_known_as_such(text: str) -> None:
    found = [c for c in Script(text, "x").commands() if any(w.plain == "run" for w in c.words)]
    assert [command.is_nested for command in found] == [True]


def test_a_command_after_a_condition_is_not_inside_it() -> None:
    found = list(Script("if a; then b; fi\nrun c", "x").commands())
    assert not found[-1].is_nested


def test_a_word_knows_its_place_in_the_text() -> None:
    text = "run \\\n  a='b c' d"
    command = next(iter(Script(text, "x").commands()))
    assert text[command.words[1].start : command.words[1].end] == "a='b c'"
