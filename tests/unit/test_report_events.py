"""How events and errors are shown."""

from __future__ import annotations

import io
import json
import re

from installer.errors import InvalidInputError, KubeletKeptError, RolledBackError
from installer.model.event import Event
from installer.report.events import JsonReporter, build_reporter, report_error
from tests.lib.rules import rule


def test_events_are_a_line_each() -> None:
    stream = io.StringIO()
    emit = build_reporter("text", stream)
    emit(Event("step.done", "write /etc/x", {"seconds": 0.004}))
    emit(Event("kubelet.restart", "kubelet.service is restarted now"))
    emit(Event("step.done", "restart kubelet.service", {"seconds": 1.26}))
    emit(Event("warning", "mind\nthis", {"code": "c", "hint": "do that"}))
    emit(Event("converged", "done\x1b[2J", {}))
    assert stream.getvalue().splitlines() == [
        "  write /etc/x",
        "  restart kubelet.service (1.3 s)",
        "warning: mind\\nthis [c] (do that)",
        "done\\x1b[2J",
    ]


def test_a_verbose_reporter_adds_kind_and_data() -> None:
    stream = io.StringIO()
    build_reporter("text", stream, True)(Event("step.done", "x", {"seconds": 0.0}))
    assert stream.getvalue() == '  x  [step.done] {"seconds": 0.0}\n'


def test_json_events_are_a_line_each_with_their_time() -> None:
    stream = io.StringIO()
    emit = JsonReporter(stream, lambda: "2026-01-01T00:00:00.000Z")
    emit(Event("step.done", "a\nb", {"seconds": 1}))
    emit(Event("converged", "done"))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first == {
        "time": "2026-01-01T00:00:00.000Z",
        "kind": "step.done",
        "message": "a\nb",
        "data": {"seconds": 1},
    }
    assert second["kind"] == "converged"
    stream = io.StringIO()
    build_reporter("json", stream)(Event("x", "y"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", json.loads(stream.getvalue())["time"])


def test_every_fault_has_its_error_line_and_the_hint_comes_last() -> None:
    stream = io.StringIO()
    report_error(InvalidInputError(["a: wrong", "b: wrong\x1b"], "correct it"), "text", stream)
    assert stream.getvalue() == (
        "error: a: wrong\nerror: b: wrong\\x1b\nhint: correct it\n"
        "more: `cri-resmgr-installer explain exit-2`\n"
    )


def test_a_long_error_keeps_its_lines() -> None:
    stream = io.StringIO()
    report_error(RolledBackError("it failed\njournal:\n  line"), "text", stream)
    assert stream.getvalue() == (
        "error: it failed\n  journal:\n    line\nmore: `cri-resmgr-installer explain exit-5`\n"
    )


def test_an_error_as_json_is_an_event() -> None:
    stream = io.StringIO()
    report_error(InvalidInputError(["a: wrong"], "h"), "json", stream, lambda: "now")
    assert json.loads(stream.getvalue()) == {
        "time": "now",
        "kind": "error",
        "message": "a: wrong",
        "data": {
            "error": "InvalidInputError",
            "exitCode": 2,
            "hint": "h",
            "faults": ["a: wrong"],
            "codes": [],
        },
    }


@rule("R13")
def test_a_run_that_has_to_wait_is_not_called_an_error() -> None:
    error = KubeletKeptError("planned work waits for a permit", "nothing was touched")
    stream = io.StringIO()
    report_error(error, "text", stream)
    assert stream.getvalue().startswith("waiting: planned work waits")
    stream = io.StringIO()
    report_error(error, "json", stream)
    said = json.loads(stream.getvalue())
    assert (said["kind"], said["data"]["exitCode"]) == ("waiting", 3)
