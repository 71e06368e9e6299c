"""Turns events, plans, status and errors into text for people or JSON for machines.

The only place besides the CLI that writes to a terminal. Decides nothing and does not read the host:
everything shown is in the value that is shown.
"""

from __future__ import annotations

import json
from typing import TextIO

from installer.model.assessment import Assessment
from installer.model.plan import Plan
from installer.report.events import build_reporter, report_error
from installer.report.planned import plan_json, render_plan, summarise
from installer.report.status import is_well, render_status, status_json
from installer.report.terminal import wants_color

__all__ = [
    "build_reporter",
    "plan_json",
    "print_plan",
    "print_status",
    "render_plan",
    "render_status",
    "report_error",
    "status_json",
    "summarise",
]


def print_plan(plan: Plan, output: str, stream: TextIO) -> None:
    """Writes the plan to `stream`; `output` is text or json (one document)."""
    if output == "json":
        _write_document(plan_json(plan), stream)
    else:
        stream.write(render_plan(plan, wants_color(stream)))


def print_status(seen: Assessment, output: str, stream: TextIO) -> int:
    """Writes the status to `stream`; returns the exit code: 0, or 3 where not converged or not healthy."""
    if output == "json":
        _write_document(status_json(seen), stream)
    else:
        stream.write(render_status(seen, wants_color(stream)))
    return 0 if is_well(seen) else 3


def _write_document(document: dict[str, object], stream: TextIO) -> None:
    stream.write(json.dumps(document, indent=2) + "\n")
