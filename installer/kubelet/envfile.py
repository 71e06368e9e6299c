"""EnvironmentFiles as systemd reads and as we write them (man systemd.exec, EnvironmentFile=).

Follows parse_env_file() of systemd 252. References to other variables are not
expanded: systemd does not either.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEEDS_ESCAPE = re.compile(r'(["\\$`])')
_IN_DOUBLE_QUOTES = '"\\`$'


def quote(value: str) -> str:
    """`value` as the right side of an assignment, double-quoted.

    Raises ValueError for what an EnvironmentFile cannot hold: NUL, or a byte that
    is not UTF-8 (systemd would silently drop the whole file).
    """
    if "\0" in value:
        raise ValueError("a NUL cannot be part of an environment")
    value.encode("utf-8")
    return '"' + _NEEDS_ESCAPE.sub(r"\\\1", value) + '"'


def parse_environment_file(text: str) -> dict[str, str]:
    """The variables that the file sets; what systemd ignores is ignored. Last assignment wins."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        line_end = _end_of_line(text, at)
        line = text[at:line_end]
        if line.lstrip()[:1] in ("#", ";", "") or "=" not in line:
            at = line_end + 1
            continue
        equals = text.index("=", at)
        name = text[at:equals].strip()
        value, at = _parse_value(text, equals + 1)
        if _NAME.fullmatch(name):
            found[name] = value
    return found


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _parse_value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, quotes and escapes removed, and where the next line begins.

    A quote opens only before an unquoted character of the value has been seen.
    """
    value: list[str] = []
    kept = 0  # trailing blanks behind this are dropped
    quote_char = ""
    unquoted = False
    while at < len(text):
        char, following = text[at], text[at + 1 : at + 2]
        at += 1
        if not quote_char and char in "\r\n":
            break
        if char == "\\" and quote_char != "'" and following:
            at += 1
            if following != "\n":
                keeps_backslash = quote_char and following not in _IN_DOUBLE_QUOTES
                value.append("\\" + following if keeps_backslash else following)
            unquoted = unquoted or not quote_char
            kept = len(value)
        elif char == quote_char:
            quote_char = ""
        elif not (quote_char or unquoted) and char in "'\"":
            quote_char = char
        elif quote_char or unquoted or not char.isspace():
            value.append(char)
            unquoted = unquoted or not quote_char
            kept = kept if unquoted and char.isspace() else len(value)
    return "".join(value[:kept]), at
