"""Unit files as systemd reads them: lines, continuations, resets, drop-ins, Exec words.

Follows config_parse(), extract_first_word() and replace_env_argv() of systemd 252
(man systemd.syntax, systemd.service). Does not know what any setting means, and
does not expand specifiers except `%%`: nothing we decide depends on another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from installer.model.facts import UnitText

_WHITESPACE = " \t\n\r"
_EXEC_PREFIXES = "-@:+!|"
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "s": " ",
}  # fmt: skip
_NUMERIC_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})")
_BRACED = re.compile(r"\$\$|\$\{([^}]*)\}")
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `Key=value` line, continuations joined; `value` is raw otherwise."""

    path: str
    section: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """One Exec line: `prefixes` are systemd's (`-@:+!`), `raw` the whole value as written."""

    path: str
    raw: str
    prefixes: str
    words: tuple[str, ...]


def parse_unit(text: UnitText) -> tuple[Assignment, ...]:
    """Every assignment of one unit file, in order. Lines that systemd ignores are ignored."""
    found = []
    section = ""
    for line in _logical_lines(text.text):
        line = line.strip(_WHITESPACE)
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line and section:
            key, _, value = line.partition("=")
            found.append(Assignment(text.path, section, key.strip(_WHITESPACE), value.strip(_WHITESPACE)))
    return tuple(found)


def _logical_lines(text: str) -> Iterable[str]:
    """Lines with continuations joined by a space; comment lines vanish, inside one as well."""
    held: str | None = None
    for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"):
        if line.lstrip(_WHITESPACE)[:1] in ("#", ";"):
            continue
        joined = line if held is None else held + line
        backslashes = len(joined) - len(joined.rstrip("\\"))
        if backslashes % 2:
            held = joined[:-1] + " "
            continue
        held = None
        yield joined
    if held is not None:
        yield held


def merged(assignments: Iterable[Assignment], section: str, key: str) -> tuple[Assignment, ...]:
    """What is left of a list setting after every reset by an empty assignment."""
    kept: list[Assignment] = []
    for assignment in assignments:
        if (assignment.section, assignment.key) == (section, key):
            kept = [*kept, assignment] if assignment.value else []
    return tuple(kept)


def parse_exec(assignment: Assignment) -> ExecCommand:
    """Raises ValueError where systemd would ignore the line (an open quote, nothing to run)."""
    body = assignment.value.lstrip(_EXEC_PREFIXES)
    prefixes = assignment.value[: len(assignment.value) - len(body)]
    words = split_words(body, c_escapes=True)
    if not words:
        raise ValueError("there is no command in it")
    return ExecCommand(assignment.path, assignment.value, prefixes, words)


def split_words(text: str, *, c_escapes: bool = False, relaxed: bool = False) -> tuple[str, ...]:
    """Words as systemd splits them: quotes group, anywhere in a word, and are removed.

    `c_escapes`: backslash sequences as in C (unit files); else a backslash keeps
    the next character (values of `$VAR`). `relaxed`: an open quote ends with the
    text; else it raises ValueError.
    """
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if not quote and char in _WHITESPACE:
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        if char == "\\":
            unescaped, at = _unescape(text, at) if c_escapes else (text[at : at + 1], at + 1)
            word.append(unescaped)
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            word.append(char)
    if quote and not relaxed:
        raise ValueError(f"the quote {quote} is not closed")
    if word is not None:
        words.append("".join(word))
    return tuple(words)


def _unescape(text: str, at: int) -> tuple[str, int]:
    """The character that the escape at `at` (behind the backslash) means, and where to go on.

    An unknown escape is kept with its backslash, as systemd does (with a warning).
    """
    numeric = _NUMERIC_ESCAPE.match(text, at)
    if numeric:
        two, four, eight, octal = numeric.groups()
        code = int(octal, 8) if octal else int(two or four or eight, 16)
        return chr(code) if code <= 0x10FFFF else numeric.group(), numeric.end()
    char = text[at : at + 1]
    return _SIMPLE_ESCAPES.get(char, "\\" + char), at + 1


def bare_variable(word: str) -> str:
    """The variable of a word that is exactly `$VARIABLE`, or an empty string.

    Only such a word is split when it is expanded; `${VARIABLE}` stays one word.
    """
    match = _BARE.fullmatch(word)
    return match.group(1) if match else ""


def expand(command: ExecCommand, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The command line that systemd makes of an Exec line with these variables set."""
    argv: list[str] = []
    for word in command.words:
        word = ";" if word == "\\;" else word.replace("%%", "%")
        if ":" in command.prefixes:
            argv.append(word)
        elif variable := bare_variable(word):
            argv.extend(split_words(environment.get(variable, ""), relaxed=True))
        else:
            argv.append(_BRACED.sub(lambda found: _braced(found, environment), word))
    return tuple(argv)


def _braced(found: re.Match[str], environment: Mapping[str, str]) -> str:
    return "$" if found.group() == "$$" else environment.get(found.group(1), "")
