"""Shows what changed on this host, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from installer.model.history import History, HistoryEntry
from installer.model.jsontext import to_camel
from installer.model.plan import describe_generation
from installer.report.terminal import BOLD, YELLOW, one_line, paint, wants_color, write_json

_SCHEMA = 1
_WHY_SHOWN = 3


def print_history(history: History, output: str, stream: TextIO) -> None:
    """Write the entries to `stream`, the newest last; `output` is text or json (one document)."""
    if output == "json":
        document = {"schema": _SCHEMA, "entries": to_camel(history.entries), "atWork": history.at_work}
        write_json(document, stream)
        return
    color = wants_color(stream)
    lines = [line for entry in history.entries for line in _lines(entry, color)]
    lines = lines or ["the journal of this host records no change"]
    if history.at_work:
        lines.append(paint(f"at work now: {one_line(history.at_work)}", YELLOW, color))
    stream.write("\n".join(lines) + "\n")


def _lines(entry: HistoryEntry, color: bool) -> Iterator[str]:
    head = one_line(f"{entry.time} {entry.describe}")
    yield paint(head, BOLD if entry.outcome == "done" else YELLOW, color)
    for why in entry.why[:_WHY_SHOWN]:
        yield f"    because {one_line(why)}"
    if len(entry.why) > _WHY_SHOWN:
        yield f"    and {len(entry.why) - _WHY_SHOWN} more reasons (--output json)"
    if entry.generation:
        yield f"    {one_line(describe_generation(entry.generation, entry.payload_version))}"
