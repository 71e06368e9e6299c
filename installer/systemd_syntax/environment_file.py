"""EnvironmentFiles as systemd reads them and as we write them (man systemd.exec, EnvironmentFile=).

Follows parse_env_file() of systemd 252. As there, references to other variables are not expanded.
"""

from __future__ import annotations

import re

_WHITESPACE = " \t\n\r"  # any other white space is part of a name or value
_LINE = re.compile(r"[^\r\n]*")
_KEY = re.compile(r"[^=\r\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile("[^ \t\n\r\"'\\\\]+")  # what stands for itself, quoted or not
_NEEDS_ESCAPE = re.compile(r'(["\\$`])')
_UNDECODABLE = re.compile("[\udc80-\udcff]")
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
    """The variables that the file sets; the last assignment wins. Ignores what systemd ignores.

    systemd ignores a whole file with a NUL anywhere, or with a byte in a name or value that is not UTF-8 (as
    "surrogateescape" has decoded it).
    """
    found: dict[str, str] = {}
    if "\0" in text:
        return found
    at = 0
    while at < len(text):
        if text[at] in _WHITESPACE:
            at += 1
            continue
        # Up to systemd 253 a backslash at the end of a comment continues it: not followed here.
        end = _end(_LINE if text[at] in "#;" else _KEY, text, at + 1)
        if text[at] in "#;" or text[end : end + 1] != "=":
            at = end
            continue
        name = text[at:end].rstrip(_WHITESPACE)
        value, at = _parse_value(text, end + 1)
        if _UNDECODABLE.search(name + value):
            return {}
        if _NAME.fullmatch(name):
            found[name] = value
    return found


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _parse_value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at `at`, without quotes and escapes, and where the next line begins.

    Behind an unquoted character of the value, a quote is a plain character.
    """
    value: list[str] = []
    kept = 0  # unquoted blanks after this are dropped
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
