"""The SELinux label that the host's policy gives a new file, if SELinux is on.

A new file inherits its directory's label otherwise, and to the policy a program below /opt would be data.
This module reads the policy's tables itself, as libselinux does (selabel_file(5), file_contexts in libselinux
3.4): a library would be the image's, not the host's. It does not handle originals. They come back with the
label that they had, which is one of their attributes.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

ATTRIBUTE = "security.selinux"
_ENFORCE = "/sys/fs/selinux/enforce"  # exists while SELinux is on, permissive or enforcing
_CONFIG = "/etc/selinux/config"
_TABLES = ("", ".homedirs", ".local")
_SUBSTITUTIONS = (".subs", ".subs_dist")
_LIMIT = 16 << 20  # bytes of a table; Fedora's has half a MiB
_KINDS = {
    "--": stat.S_IFREG,
    "-d": stat.S_IFDIR,
    "-l": stat.S_IFLNK,
    "-b": stat.S_IFBLK,
    "-c": stat.S_IFCHR,
    "-p": stat.S_IFIFO,
    "-s": stat.S_IFSOCK,
}
_NO_LABEL = "<<none>>"
_LITERAL = re.compile(r"(?:[^.^$?*+|\[({\\]|\\[^A-Za-z0-9])*")

Read = Callable[[str, int], bytes | None]
"""(path, limit) -> the content of a file of the host; None if there is none."""


class _Entry(NamedTuple):
    """A line of a table."""

    literal: str  # what every match of the pattern begins with
    plain: bool  # `literal` is all of it
    pattern: str
    kind: int  # a file type of stat(7); 0: any
    label: str


class FilePolicy:
    """The tables of a host's policy, read once, when first needed."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._entries: list[_Entry] | None = None
        self._substitutions: list[list[tuple[str, str]]] = []

    def label(self, path: str, kind: int) -> str:
        """The label of a new file of a kind (S_IFREG, S_IFDIR, S_IFLNK) at `path`, by that name, whatever
        symlinks are on the way. Empty if SELinux is off or the policy has none.

        Raises OSError if the tables cannot be read; the next call reads them again.
        """
        if self._entries is None:
            self._entries = self._load()
        for table in self._substitutions:
            path = _substitute(path, table)
        for entry in self._entries:
            if entry.kind in (0, kind) and path.startswith(entry.literal) and _matches(entry, path):
                return "" if entry.label == _NO_LABEL else entry.label
        return ""

    def _load(self) -> list[_Entry]:
        """The entries by precedence: plain paths, then patterns; within each, the last line first."""
        if self._read(_ENFORCE, 1) is None:
            return []
        found = re.search(r"^\s*SELINUXTYPE\s*=\s*(\S+)", self._text(_CONFIG), re.MULTILINE)
        base = f"/etc/selinux/{found[1] if found else 'targeted'}/contexts/files/file_contexts"
        self._substitutions = [_parse_substitutions(self._text(base + name)) for name in _SUBSTITUTIONS]
        entries = [entry for name in _TABLES for entry in _parse(self._text(base + name))]
        entries.reverse()
        return sorted(entries, key=lambda entry: not entry.plain)

    def _text(self, path: str) -> str:
        return (self._read(path, _LIMIT) or b"").decode("utf-8", "replace")


def _parse(text: str) -> Iterator[_Entry]:
    """The lines `PATTERN [KIND] LABEL` of a table. Other lines, and unknown kinds, are ignored."""
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#") or len(words) not in (2, 3):
            continue
        if len(words) == 2:
            words.insert(1, "")
        if words[1] and words[1] not in _KINDS:
            continue
        literal = _literal(words[0])
        plain = literal == re.sub(r"\\(.)", r"\1", words[0])
        yield _Entry(literal, plain, words[0], _KINDS.get(words[1], 0), words[2])


def _literal(pattern: str) -> str:
    """What every match of a pattern begins with, so that only a few of several thousand patterns are
    tried."""
    match = _LITERAL.match(pattern)
    literal, rest = (match[0], pattern[match.end() :]) if match else ("", pattern)
    if "|" in re.sub(r"\(.*\)", "", rest):
        return ""
    if rest[:1] in ("?", "*", "{"):  # the character before it need not be there
        literal = re.sub(r"\\?.$", "", literal)
    return re.sub(r"\\(.)", r"\1", literal)


def _matches(entry: _Entry, path: str) -> bool:
    if entry.plain:
        return path == entry.literal
    try:
        return re.fullmatch(entry.pattern, path) is not None
    except re.error:  # a pattern that only PCRE understands
        return False


def _parse_substitutions(text: str) -> list[tuple[str, str]]:
    """The lines `PREFIX INSTEAD`, the longest prefix first: a path below one has the label of the same path
    below the other."""
    lines = (line.split() for line in text.splitlines() if not line.lstrip().startswith("#"))
    pairs = ((words[0], words[1]) for words in lines if len(words) == 2)
    return sorted(pairs, key=lambda pair: -len(pair[0]))


def _substitute(path: str, table: list[tuple[str, str]]) -> str:
    for prefix, instead in table:
        if path == prefix or path.startswith(f"{prefix}/"):
            return instead + path[len(prefix) :]
    return path
