"""Which files a pattern of glob(7) means, as glob(3) finds them for systemd in the C locale: by bytes.

A name that begins with a dot has to be named with it; a backslash takes the next character as it is.
"""

from __future__ import annotations

import os
import re

from installer.host.chase import components
from installer.host.ports import Files

_MAGIC = re.compile(r"[*?]|\[.*\]", re.DOTALL)
_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r"\t ", "cntrl": r"\0-\x1f\x7f", "digit": "0-9",
    "graph": r"\x21-\x7e", "lower": "a-z", "print": r"\x20-\x7e", "punct": r"\x21-/:-@\x5b-`{-~",
    "space": r"\t-\r ", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


def matching(files: Files, pattern: str) -> tuple[str, ...]:
    """The paths below the host root that the absolute `pattern` means, in the order in which they are read;
    a path without anything special in it, if it is there. Links that lead nowhere are among them."""
    found = [""]
    for part in components(pattern):
        special = _MAGIC.search(part)
        expression = re.compile(_expression(_bytewise(part)), re.DOTALL) if special else None
        found = [
            f"{directory}/{name}"
            for directory in found
            for name in (files.list(directory or "/") if expression else (_plain(part),))
            if expression is None or _matches(expression, name, part)
        ]
    there = (path for path in found if files.status(path) is not None)
    return tuple(sorted(there, key=os.fsencode))


def _bytewise(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _plain(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL)


def _matches(expression: re.Pattern[str], name: str, part: str) -> bool:
    hidden = name.startswith(".") and not part.startswith((".", "\\."))
    return not hidden and expression.fullmatch(_bytewise(name)) is not None


def _expression(part: str) -> str:
    """fnmatch(3) as a regular expression."""
    found = []
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            found.append(".*")
        elif char == "?":
            found.append(".")
        elif char == "[" and (bracket := _bracket(part, at)):
            expression, at = bracket
            found.append(expression)
        else:
            if char == "\\" and at < len(part):
                char = part[at]
                at += 1
            found.append(re.escape(char))
    return "".join(found)


def _bracket(part: str, at: int) -> tuple[str, int] | None:
    """The set of characters that begins behind a `[`, and where it ends; None if it does not end."""
    negated = part[at : at + 1] in ("!", "^")
    at = begin = at + negated
    members: list[str] = []
    while at < len(part) and (part[at] != "]" or at == begin):
        named = re.compile(r"\[:([a-z]+):\]").match(part, at)
        if named:
            members.append(_CLASSES.get(named[1], ""))
            at = named.end()
            continue
        first, at = _member(part, at)
        last = first
        if part[at : at + 1] == "-" and part[at + 1 : at + 2] not in ("", "]"):
            last, at = _member(part, at + 1)
        if first <= last:
            members.append(f"{re.escape(first)}-{re.escape(last)}")
    if at >= len(part):
        return None
    inside = "".join(members)
    if not inside:
        return ("." if negated else "(?!)"), at + 1
    return f"[{'^' if negated else ''}{inside}]", at + 1


def _member(part: str, at: int) -> tuple[str, int]:
    if part[at] == "\\" and at + 1 < len(part):
        at += 1
    return part[at], at + 1
