"""Unit files and EnvironmentFiles, read and written as systemd does.

Follows config_parse(), extract_first_word(), replace_env_argv() and parse_env_file() of systemd 252 (man
systemd.syntax, systemd.service, systemd.exec). Does not know what any setting means, and expands no specifier
but `%%`: no decision depends on another one. References to other variables in an EnvironmentFile are not
expanded, as in systemd.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from installer.model.host import UnitText

# Unit files: lines, continuations, resets, drop-ins, Exec words.

_WHITESPACE = " \t\n\r"
_LINE_END = re.compile("(?:\n\r?|\r\n?)\0?|\0")
_COMMANDS = re.compile("Exec(Condition|StartPre|Start|StartPost|Reload|Stop|StopPost)")
_HEADER = re.compile(r"\[[^\x00-\x1f\x7f\"'\\]*\]")
_UNSAFE = re.compile("[\x00-\x1f\x7f\"'\\\\]")
_UNDECODABLE = re.compile("[\ud800-\udfff]")  # a byte that is not UTF-8, as "surrogateescape" has it
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "s": " ",
}  # fmt: skip
_NUMERIC_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})")
_BRACED = re.compile(r"\$\$|\$\{([^}:]*)\}")  # `${X:-y}` stays as it is
_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile("[^ \t\n\r\"'\\\\]+")  # literal, quoted or not


class Assignment(NamedTuple):
    """One `Key=value` line with its continuations joined. `value` is otherwise raw."""

    path: str
    section: str
    key: str
    value: str


class ExecCommand(NamedTuple):
    """One Exec line."""

    path: str
    raw: str  # the whole value as written
    prefixes: str  # systemd's (`-@:+!`)
    words: tuple[str, ...]
    several: bool = False  # more commands follow after a `;`; they are not in `words`

    @property
    def raw_before_more(self) -> str:
        """`raw`, ready for more words to be appended: a backslash at its very end would escape the blank."""
        backslashes = len(self.raw) - len(self.raw.rstrip("\\"))
        return self.raw + "\\" * (backslashes % 2)


@lru_cache(maxsize=64)  # a run reads the same unit many times
def parse_unit(text: UnitText) -> tuple[Assignment, ...]:
    """Every assignment of one unit file, in order. Ignores the lines that systemd ignores, and everything
    after a line that it cannot read."""
    found = []
    section = ""
    for line in _logical_lines(text.text):
        line = line.strip(_WHITESPACE)
        if _UNDECODABLE.search(line) or (line.startswith("[") and not _HEADER.fullmatch(line)):
            break
        if line.startswith("["):
            section = line[1:-1]
        elif "=" in line and section:
            key, _, value = line.partition("=")
            found.append(Assignment(text.path, section, key.strip(_WHITESPACE), value.strip(_WHITESPACE)))
            if section == "Service" and _COMMANDS.fullmatch(found[-1].key) and _ends_reading(found[-1]):
                break
    return tuple(found)


def _ends_reading(line: Assignment) -> bool:
    """Whether systemd stops reading at this Exec line. It merely ignores one that begins with `-`, or whose
    first word cannot be read."""
    try:
        parse_exec(line)
    except ValueError:
        try:
            first, _ = next(_split(line.value, c_escapes=True), ("", ""))
        except ValueError:
            return False
        return bool(first) and "-" not in _prefixes(first)[0]
    return False


def _logical_lines(text: str) -> Iterable[str]:
    """Lines with continuations joined by a space. Comment lines are left out, also within a continuation."""
    held: str | None = None
    mark = "\ufeff"
    for line in _LINE_END.split(text):
        if line.lstrip(_WHITESPACE)[:1] in ("#", ";"):
            continue
        if mark and line.startswith(mark):
            line, mark = line.removeprefix(mark), ""
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
    """A list setting, after all resets by an empty assignment."""
    kept: list[Assignment] = []
    for assignment in assignments:
        if (assignment.section, assignment.key) == (section, key):
            kept = [*kept, assignment] if assignment.value else []
    return tuple(kept)


@lru_cache(maxsize=64)
def parse_exec(assignment: Assignment) -> ExecCommand:
    """Raises ValueError for a line that systemd refuses or ignores (an open quote, no command)."""
    words: list[str] = []
    several = False
    for word, written in _split(assignment.value, c_escapes=True):
        if word == ";" and not words:
            continue  # systemd skips it, quoted or not
        if written == ";":
            several = True
            break
        words.append(";" if written == "\\;" and words else word)
    prefixes, program = _prefixes(words[0] if words else "")
    if not program:
        raise ValueError("it has no command")
    # Up to systemd 257 a leading `|` is part of the program's name; from 258 on it is a prefix.
    if not re.match(r"/|[^/|]+\Z", program) or program.endswith("/") or _UNSAFE.search(program):
        raise ValueError(f"{program[:80]!r} is not a program")
    if "@" in prefixes and len(words) == 1:
        raise ValueError("it has no argv[0] behind its program, which @ asks for")
    words[0] = program
    return ExecCommand(assignment.path, assignment.value, prefixes, tuple(words), several)


def _prefixes(word: str) -> tuple[str, str]:
    """The prefixes of the first word, each at most once, and the rest of the word."""
    found = ""
    for char in word:
        privileges = found.replace("-", "").replace("@", "").replace(":", "")
        once = char in "-@:" and char not in found
        if (
            not once
            and not (char == "+" and not privileges)
            and not (char == "!" and privileges in ("", "!"))
        ):
            break
        found += char
    return found, word[len(found) :]


def split_words(text: str, *, c_escapes: bool = False, relaxed: bool = False) -> tuple[str, ...]:
    """The words as systemd splits them. Quotes group, anywhere in a word, and are removed.

    `c_escapes`: backslash sequences as in C (unit files), unknown ones are kept; otherwise a backslash keeps
    the next character (values of `$VAR`). `relaxed`: an unclosed quote ends with the text; otherwise it
    raises ValueError.
    """
    return tuple(word for word, _ in _split(text, c_escapes=c_escapes, relaxed=relaxed))


def split_assignments(text: str) -> Iterator[tuple[str, str]]:
    """The names and values of an Environment= line. As in systemd, an unclosed quote or an unknown escape
    ends it, and words that are not assignments are left out."""
    words = _split(text, c_escapes=True, strict=True)
    with contextlib.suppress(ValueError):
        for word, _ in words:
            name, equals, value = word.replace("%%", "%").partition("=")
            if equals and _NAME.fullmatch(name) and not _UNDECODABLE.search(value):
                yield name, value


def _split(
    text: str, *, c_escapes: bool, relaxed: bool = False, strict: bool = False
) -> Iterator[tuple[str, str]]:
    """Each word, and how it is written. `strict`: an unknown escape also raises ValueError."""
    word: list[str] | None = None
    quote = ""
    at = begun = 0
    while at < len(text):
        char = text[at]
        at += 1
        if not quote and char in _WHITESPACE:
            if word is not None:
                yield _bytes_joined(word), text[begun : at - 1]
            word = None
            continue
        if word is None:
            word, begun = [], at - 1
        if char == "\\":
            unescaped, at = _unescape(text, at, strict) if c_escapes else (text[at : at + 1], at + 1)
            word.append(unescaped)
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif plain := _PLAIN.match(text, at - 1):
            word.append(plain.group())
            at = plain.end()
        else:
            word.append(char)
    if quote and not relaxed:
        raise ValueError(f"unclosed quote {quote}")
    if word is not None:
        yield _bytes_joined(word), text[begun:]


def _bytes_joined(parts: list[str]) -> str:
    """The word. Several escaped bytes may form one character."""
    word = "".join(parts)
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _unescape(text: str, at: int, strict: bool) -> tuple[str, int]:
    """The character that the escape at `at` (after the backslash) stands for, and the position after it.

    Unknown escapes, and that of a NUL, are kept with their backslash.
    """
    numeric = _NUMERIC_ESCAPE.match(text, at)
    if numeric:
        two, four, eight, octal = numeric.groups()
        code = int(octal, 8) if octal else int(two or four or eight, 16)
        if code and (two or octal):
            return bytes([code]).decode("utf-8", "surrogateescape"), numeric.end()
        if 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            return chr(code), numeric.end()
    char = text[at : at + 1]
    if strict and char not in _SIMPLE_ESCAPES:
        raise ValueError("unknown escape sequence")
    return _SIMPLE_ESCAPES.get(char, "\\" + char), at + 1


def bare_variable(word: str) -> str:
    """The variable in a word that is exactly `$VARIABLE`; else an empty string.

    systemd splits only such a word when it expands it. `${VARIABLE}` stays one word.
    """
    match = _BARE.fullmatch(word)
    return match.group(1) if match else ""


def expand(command: ExecCommand, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The command line that systemd builds from an Exec line with these variables."""
    argv: list[str] = []
    for word in command.words:
        word = word.replace("%%", "%")
        if ":" in command.prefixes:
            argv.append(word)
        elif word.startswith("$") and word[1:2] not in ("{", "$"):
            # An invalid name is a variable that is not set.
            argv.extend(split_words(environment.get(word[1:], ""), relaxed=True))
        else:
            argv.append(_BRACED.sub(lambda found: _braced(found, environment), word))
    return tuple(argv)


def _braced(found: re.Match[str], environment: Mapping[str, str]) -> str:
    return "$" if found.group() == "$$" else environment.get(found.group(1), "")


# EnvironmentFiles (man systemd.exec, EnvironmentFile=).

_LINE = re.compile(r"[^\r\n]*")
_KEY = re.compile(r"[^=\r\n]*")
_NEEDS_ESCAPE = re.compile(r'(["\\$`])')
_UNDECODABLE_BYTE = re.compile("[\udc80-\udcff]")
_IN_DOUBLE_QUOTES = '"\\`$'


def quote(value: str) -> str:
    """`value` in double quotes, as the right side of an assignment.

    Raises ValueError for what an EnvironmentFile cannot hold: a NUL, or a byte that is not UTF-8 (systemd
    would silently drop the whole file).
    """
    if "\0" in value:
        raise ValueError("a NUL cannot be part of an environment")
    value.encode("utf-8")
    return '"' + _NEEDS_ESCAPE.sub(r"\\\1", value) + '"'


def parse_environment_file(text: str) -> dict[str, str]:
    """The variables that the file sets; the last assignment wins. Ignores what systemd ignores.

    systemd ignores a whole file with a NUL anywhere, or with a byte in a name or value that is not UTF-8 (as
    decoded by "surrogateescape").
    """
    found: dict[str, str] = {}
    if "\0" in text:
        return found
    at = 0
    while at < len(text):
        if text[at] in _WHITESPACE:
            at += 1
            continue
        # Up to systemd 253 a backslash at the end of a comment continues it. This is not imitated.
        end = _end(_LINE if text[at] in "#;" else _KEY, text, at + 1)
        if text[at] in "#;" or text[end : end + 1] != "=":
            at = end
            continue
        name = text[at:end].rstrip(_WHITESPACE)
        value, at = _parse_value(text, end + 1)
        if _UNDECODABLE_BYTE.search(name + value):
            return {}
        if _NAME.fullmatch(name):
            found[name] = value
    return found


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _parse_value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, without quotes and escapes, and the position of the next line.

    After an unquoted character of the value, a quote is an ordinary character.
    """
    value: list[str] = []
    kept = 0  # unquoted blanks beyond this index are dropped
    quote_char = ""
    unquoted = False
    while at < len(text):
        char, following = text[at], text[at + 1 : at + 2]
        at += 1
        if not quote_char and char in "\r\n":
            break
        if char == "\\" and quote_char != "'":
            at += 1
            keeps_backslash = quote_char and following and following not in _IN_DOUBLE_QUOTES + "\n"
            eaten = following == "\n" or (following == "\r" and not quote_char)
            value.append("" if eaten else ("\\" if keeps_backslash else "") + following)
            unquoted = unquoted or not quote_char
            kept = len(value)
        elif char == quote_char:
            quote_char = ""
        elif not (quote_char or unquoted) and char in "'\"":
            quote_char = char
        elif plain := _PLAIN.match(text, at - 1):
            value.append(plain.group())
            at = plain.end()
            unquoted = unquoted or not quote_char
            kept = len(value)
        elif quote_char or unquoted:
            value.append(char)
            kept = kept if unquoted and char in _WHITESPACE else len(value)
    return "".join(value[:kept]), at
