"""Shows what changes in a file, for people: its attributes, and a unified diff of its text."""

from __future__ import annotations

from collections.abc import Iterator

from installer.model import paths
from installer.model.host import DesiredFile, FileState, Kind
from installer.model.plan import FileChange, Verb
from installer.report.terminal import BOLD, CYAN, GREEN, RED, YELLOW, cut, one_line, paint

_DIFF_LINES = 200  # shown of one file
_DIFF_INPUT = 256 << 10  # bytes; comparing more line by line takes seconds
_VERB_COLORS = {Verb.CREATE: GREEN, Verb.CHANGE: YELLOW, Verb.DELETE: RED, Verb.RESTORE: CYAN}


def file_line(change: FileChange, color: bool) -> str:
    """Return the change in one line: `create /etc/x (missing)`."""
    verb = paint(change.verb, _VERB_COLORS[change.verb], color)
    return f"{verb} {one_line(change.path)} ({one_line(change.why)})"


def file_diff(change: FileChange, color: bool) -> Iterator[str]:
    """Yield the change in full. For our guard, a script that ships with this program, only sizes and
    digests."""
    yield file_line(change, color)
    for line in _attribute_lines(change):
        yield f"    {line}"
    for line in _digests(change) if change.path == paths.GUARD else diff_lines(change):
        yield "    " + _paint_diff(line, color)


def _paint_diff(line: str, color: bool) -> str:
    if line.startswith(("+++", "---")):
        return paint(line, BOLD, color)
    return paint(line, {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], BOLD), color and line[:1] in "+-@")


def _attribute_lines(change: FileChange) -> Iterator[str]:
    """Yield what differs besides the content."""
    before, after = change.before, change.after
    if before.kind not in (Kind.ABSENT, Kind.FILE):
        target = f" to {one_line(before.target)}" if before.target else ""
        yield f"was a {before.kind}{target}" + (
            "; its original is kept" if change.verb is Verb.CHANGE else ""
        )
    if after is None:
        return
    if isinstance(after, FileState) and after.kind is Kind.SYMLINK:
        yield f"becomes a symlink to {one_line(after.target)}"
        return
    uid, gid = (after.uid, after.gid) if isinstance(after, FileState) else (0, 0)
    if before.kind is not Kind.FILE:
        yield f"mode {after.mode:04o}, owner {uid}:{gid}"
        return
    if before.mode != after.mode:
        yield f"mode {before.mode:04o} -> {after.mode:04o}"
    if (before.uid, before.gid) != (uid, gid):
        yield f"owner {before.uid}:{before.gid} -> {uid}:{gid}"


def diff_lines(change: FileChange) -> list[str]:
    """Return a unified diff of the contents with visible control characters; sizes and digests where the
    content is binary, large or unknown; nothing where it stays the same."""
    before, after = change.before, change.after
    if before.kind is Kind.FILE and after is not None and before.digest == after.digest:
        return []
    old, new = _text(_content_of_state(before)), _text(_content(after))
    if after is None or old is None or new is None:
        return _digests(change)
    return _unified(old, new, change.path, before.kind is Kind.FILE)


def _digests(change: FileChange) -> list[str]:
    before = change.before if change.before.kind is Kind.FILE else None
    return [f"{_describe(before)} -> {_describe(change.after)}"]


def _describe(file: DesiredFile | FileState | None) -> str:
    return f"{file.size} bytes, sha256 {file.digest[:16] or 'unknown'}" if file is not None else "nothing"


def _unified(old: str, new: str, path: str, existed: bool) -> list[str]:
    # Imported late: most runs show no diff.
    from difflib import unified_diff

    # Not splitlines(): only a newline ends a line of a file.
    lines = list(unified_diff(_lines(old), _lines(new), path if existed else "/dev/null", path, lineterm=""))
    shown = [cut(one_line(line)) for line in lines[:_DIFF_LINES]]
    if len(lines) > _DIFF_LINES:
        shown.append(f"... {len(lines) - _DIFF_LINES} more lines")
    return shown


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += " (no newline at the end)"
    else:
        lines.pop()
    return lines


def _content(after: DesiredFile | FileState | None) -> bytes | None:
    if isinstance(after, DesiredFile):
        return after.content if isinstance(after.content, bytes) else None
    return _content_of_state(after) if after is not None else None


def _content_of_state(state: FileState) -> bytes | None:
    return b"" if state.kind is not Kind.FILE else state.content


def _text(content: bytes | None) -> str | None:
    """Return the content as text, or None where a diff of it would be useless."""
    if content is None or len(content) > _DIFF_INPUT or b"\0" in content:
        return None
    return content.decode("utf-8", "surrogateescape")
