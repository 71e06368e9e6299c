"""Writes to a terminal: printable text, and colour on a terminal only."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TextIO

from installer.model.jsontext import camel, to_camel

RED, GREEN, YELLOW, CYAN, BOLD = "31", "32", "33", "36", "1"
_LINE_LIMIT = 500  # characters of one line

# Whatever may be unsafe; and what is not, though Python does not print it: spaces.
_ODD = re.compile("[^\x20-\x7e\t\n]")
_SPACES = frozenset(
    "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
# Letters, marks and symbols that show nothing (Default_Ignorable_Code_Point of Unicode; the empty Braille
# cell; a filler of Khitan, a note without a head).
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
# Ours, in a message: with the program's name, or with an option.
_HOST_VERBS = "(?:plan|install|remove|status|history)"
OF_HOST = re.compile(
    rf"`(?:cri-resmgr-installer )({_HOST_VERBS}(?: --?[a-z-]+)*)`|`({_HOST_VERBS}(?: --[a-z-]+)+)`"
)
OF_CLUSTER = re.compile(
    r"`cri-resmgr-installer ((?:report|rollout|uninstall)(?: [^`|]*)?)`|`(rollout [a-z]+)`|(?<=`)kubectl(?= )"
)
_WORD = re.compile(r"(?:`[^`\n]*`|[^\s`]|`)+\s*")
_COLOR = re.compile("\x1b\\[[0-9;]*m")
_SHORT = {"\r": "\\r", "\0": "\\0"}


def escape(text: str) -> str:
    """Return the text with everything visible that controls the terminal, turns the direction of writing, is
    invisible, or has no meaning of its own: control, format, private and unassigned characters, lone
    surrogates (`\\x1b`, `\\u202e`, `\\U000e0041`). Keep tabs and newlines."""
    return _ODD.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    if (character.isprintable() or character in _SPACES) and not _INVISIBLE.match(character):
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # the byte that "surrogateescape" could not decode
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def one_line(text: str) -> str:
    """Return the text with visible control characters and newlines."""
    return escape(text).replace("\n", "\\n")


def cut(line: str) -> str:
    """Cut a very long line, and say how much was cut."""
    more = len(line) - _LINE_LIMIT
    return line if more <= 0 else f"{line[:_LINE_LIMIT]}... ({more} more characters)"


def retyped(text: str, pattern: re.Pattern[str], spell: Callable[[str], str]) -> str:
    """Return the text with each command that `pattern` finds as `spell` has it: as a person has to type it
    who has typed the options of now."""

    def with_options(found: re.Match[str]) -> str:
        command = next(filter(None, found.groups()), found[0])
        spelled = spell(command)
        whole = spelled if command == found[0] else f"`cri-resmgr-installer {spelled}`"
        return found[0] if spelled == command else whole

    return pattern.sub(with_options, text)


def read_on(*names: str) -> str:
    """Return the command that prints what the runbooks say about these codes."""
    return f"`cri-resmgr-installer explain {' '.join(dict.fromkeys(names))}`"


def paint(text: str, color: str, enabled: bool) -> str:
    return f"\x1b[{color}m{text}\x1b[0m" if enabled and text else text


def pick(value: object, names: str) -> dict[str, Any]:
    """Return these fields as JSON has them, with their names in camelCase."""
    return {camel(name): to_camel(getattr(value, name)) for name in names.split()}


def write_json(document: Mapping[str, object], stream: TextIO) -> None:
    """Write one document, for machines."""
    stream.write(json.dumps(document, indent=2) + "\n")


def wants_color(stream: TextIO) -> bool:
    """Whether it is a terminal, and NO_COLOR is not set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_screen(stream: TextIO) -> bool:
    """Whether a person watches, on a terminal that can overwrite a line."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", None)


def wrapped(text: str, width: int) -> str:
    """Return the lines, folded between words to this width. What stands in backquotes stays whole: people
    copy it. What follows a fold is two columns further in than its line."""
    return "".join(map(partial(_wrapped, width=width), text.splitlines(keepends=True)))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width or "\r" in line:
        return line
    indent = re.match(" *", line)[0]  # type: ignore[index]
    folded, column = [indent], len(indent)
    for word in _WORD.findall(line[len(indent) :]):
        seen = len(_COLOR.sub("", word.rstrip()))
        if column + seen > width and column > len(indent) + 2:
            folded[-1] = folded[-1].rstrip(" ")
            folded.append(f"\n{indent}  ")
            column = len(indent) + 2
        folded.append(word)
        column += seen + len(word) - len(word.rstrip())
    return "".join(folded)


class SteadyStream:
    """A text stream that never fails: when its reader is gone or its disk is full, it drops the rest; without
    a `stream`, everything (Python has none for a closed descriptor, `>&-`). It escapes what the locale's
    encoding does not have."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for good)
        self.retype: Callable[[str], str] | None = None  # gives commands in its text their options
        self.width = 0  # columns to fold lines to; 0: they stay as they are

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            text = self.retype(text) if self.retype else text
            return self._stream.write(wrapped(text, self.width) if self.width else text)
        except OSError:
            self._drop()
            return len(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Send the rest of the buffer to /dev/null: Python writes it again when it exits."""
        with contextlib.suppress(OSError, ValueError):  # a test's stream has no descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
