"""How a plan is shown: as text, as JSON, in colour."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from installer.errors import InvalidInputError, RolledBackError
from installer.model import paths
from installer.model.event import Event
from installer.model.host import ABSENT, DesiredFile, FileState, Kind, Part, UnitState
from installer.model.plan import (
    Assessment,
    Changes,
    Desired,
    FileChange,
    Finding,
    Plan,
    Severity,
    Step,
    StepKind,
    UnitAction,
    UnitChange,
    Verb,
)
from installer.report.events import build_reporter
from installer.report.planned import plan_json, print_plan, render_plan, summarise
from installer.report.terminal import cut, escape, one_line, wants_color
from installer.report.waiting import WaitingLine
from tests.lib.reported import FALLBACK, HARMFUL, file, plan, there, unit
from tests.lib.snapshots import snapshot


def diffs(plan: Plan) -> str:
    return render_plan(plan, diffs=True)


def test_a_changed_file_is_shown_as_a_unified_diff() -> None:
    text = diffs(plan(file(there(b"a\nb\nc\n"), DesiredFile.of(FALLBACK, b"a\nB\nc\n"))))
    lines = [line.strip() for line in text.splitlines()]
    assert f"change {FALLBACK} (its content differs)" in lines
    assert f"--- {FALLBACK}" in lines
    assert f"+++ {FALLBACK}" in lines
    assert lines[lines.index("-b") + 1] == "+B"


def test_a_new_file_is_shown_whole_with_its_mode() -> None:
    text = diffs(plan(file(ABSENT, DesiredFile.of(FALLBACK, b"a\nb", 0o600), Verb.CREATE)))
    assert f"create {FALLBACK}" in text
    assert "--- /dev/null" in text
    assert "mode 0600, owner 0:0" in text
    assert "+a\n" in text
    assert "+b (no newline at the end)\n" in text


def test_a_binary_is_shown_by_size_and_digest() -> None:
    payload = DesiredFile(paths.BINARY, 0o755, Part.PROXY, "f" * 64, 40_000_000, content=Path("/payload/x"))
    text = diffs(plan(file(there(b"\x7fELF\0"), payload, path=paths.BINARY)))
    old = sha256(b"\x7fELF\0").hexdigest()[:16]
    assert f"5 bytes, sha256 {old} -> 40000000 bytes, sha256 {'f' * 16}" in text


def test_a_deletion_says_what_goes() -> None:
    text = diffs(plan(file(there(b"abc"), None, Verb.DELETE)))
    assert f"delete {FALLBACK}" in text
    assert f"3 bytes, sha256 {sha256(b'abc').hexdigest()[:16]} -> nothing" in text


def test_an_original_that_comes_back_is_shown_with_all_it_had() -> None:
    text = diffs(plan(file(there(b"ours\n"), there(b"theirs\n", 0o640, 12), Verb.RESTORE)))
    assert f"restore {FALLBACK}" in text
    assert "mode 0644 -> 0640" in text
    assert "owner 0:0 -> 12:12" in text
    assert "-ours" in text
    assert "+theirs" in text
    link = FileState(Kind.SYMLINK, target="../elsewhere")
    assert "becomes a symlink to ../elsewhere" in diffs(plan(file(there(b""), link, Verb.RESTORE)))


def test_only_the_mode_or_owner_differs() -> None:
    text = diffs(plan(file(there(b"same", 0o600, 5), DesiredFile.of(FALLBACK, b"same"))))
    assert "mode 0600 -> 0644" in text
    assert "owner 5:5 -> 0:0" in text
    assert "snapshot" not in text
    assert "sha256" not in text


def test_a_link_in_our_place_is_named() -> None:
    text = diffs(plan(file(FileState(Kind.SYMLINK, target="/x"), DesiredFile.of(FALLBACK, b"a\n"))))
    assert "was a symlink to /x; its original is kept" in text


def test_a_huge_diff_is_cut_with_a_count() -> None:
    text = diffs(plan(file(ABSENT, DesiredFile.of(FALLBACK, b"line\n" * 1000), Verb.CREATE)))
    assert "... 803 more lines" in text
    assert len(text.splitlines()) < 230
    long = diffs(plan(file(ABSENT, DesiredFile.of(FALLBACK, b"x" * 100_000), Verb.CREATE)))
    assert "more characters)" in long
    assert len(long) < 2_000


def test_control_characters_never_reach_the_terminal() -> None:
    nasty = b"\x1b[2J\x07a\rb\x9b1m\xff\xe2\x80\xae\x7f\n"
    text = diffs(plan(file(there(nasty), DesiredFile.of(FALLBACK, b"\x1b]0;x\n"), path="/etc/\x1b[1mx")))
    assert "\\x1b[2J\\x07a\\rb\\x9b1m\\xff\\u202e\\x7f" in text
    assert not HARMFUL.search(text)


def test_the_text_of_files_is_shown_only_when_asked_for() -> None:
    sample = plan(file(there(b"a\n"), DesiredFile.of(FALLBACK, b"b\n")))
    assert "+b" not in render_plan(sample)
    assert f"change {FALLBACK} (its content differs)" in render_plan(sample)


def test_the_guard_is_one_line() -> None:
    """A script that ships with this program: its text says nothing about this node."""
    text = diffs(plan(file(there(b"old\n"), DesiredFile.of(paths.GUARD, b"new\n", 0o755), path=paths.GUARD)))
    assert "+new" not in text
    assert "4 bytes, sha256" in text


@given(st.text(st.characters(codec=None)))
def test_escaping_leaves_nothing_harmful_and_nothing_unseen(text: str) -> None:
    assert not HARMFUL.search(escape(text))
    assert "\n" not in one_line(text)
    assert len(escape(text)) >= len(text)


def test_every_character_of_unicode_is_seen_or_escaped() -> None:
    """By its category: control, format, surrogate, private, unassigned, ends of lines and paragraphs."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        odd = category(character)[0] == "C" or category(character) in ("Zl", "Zp")
        if odd and character not in "\t\n":
            assert escape(character).isascii(), f"U+{code:04X}"
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm")
    assert escape(f"a{hidden}b") == "a\\U000e0072\\U000e006db"
    assert escape("\ufe0f\u3164\U000e0100") == "\\ufe0f\\u3164\\U000e0100"
    assert escape("\U00016fe4\U0001d159") == "\\U00016fe4\\U0001d159"
    plain = "f\u00fcr \u4e2d\u6587, 20\xa0%, e\u0301 \U0001f600\tend\n"
    assert escape(plain) == plain


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_escaping_leaves_plain_text_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_cutting_says_how_much_is_missing() -> None:
    assert cut("x" * 500) == "x" * 500
    assert cut("x" * 501) == "x" * 500 + "... (1 more characters)"


def created(path: str) -> FileChange:
    return FileChange(path, Part.PROXY, Verb.CREATE, ABSENT, DesiredFile.of(path, b""), "missing")


@pytest.mark.parametrize(
    ("changes", "summary"),
    [
        (Changes(), "nothing to do"),
        (
            Changes(
                (*map(created, "abcd"), file(there(b"x"), DesiredFile.of("e", b"y"))),
                (unit(UnitAction.RESTART),),
            ),
            "4 to create, 1 to change; cri-resource-manager restarts, kubelet does not",
        ),
        (
            Changes(
                (created(paths.PROXY_UNIT_FILE),),
                (unit(UnitAction.RESTART), unit(UnitAction.RESTART, Part.KUBELET)),
            ),
            "1 to create; cri-resource-manager starts, kubelet restarts",
        ),
        (
            Changes(
                (file(there(b""), None, Verb.DELETE), file(there(b""), there(b"x"), Verb.RESTORE)),
                (unit(UnitAction.STOP), unit(UnitAction.RESTART, Part.KUBELET)),
            ),
            "1 to delete, 1 to restore; cri-resource-manager stops, kubelet restarts",
        ),
        (
            Changes((file(there(b"x"), DesiredFile.of("e", b"y")),), (unit(UnitAction.RELOAD),)),
            "1 to change; cri-resource-manager reloads, kubelet does not restart",
        ),
        (
            Changes(units=(unit(UnitAction.RESTART, Part.KUBELET),)),
            "no file differs; kubelet restarts, cri-resource-manager does not",
        ),
        (Changes((created("a"),)), "1 to create; nothing restarts"),
    ],
)
def test_the_summary_is_one_line_for_people(changes: Changes, summary: str) -> None:
    assert summarise(changes) == summary


def test_the_plan_says_the_summary_first_then_warnings_and_every_step_with_its_reason() -> None:
    warning = Finding(Severity.WARN, "w", "a warning", "a hint")
    change = UnitChange(
        "kubelet.service", Part.KUBELET, UnitAction.RESTART, ("one", "two"), daemon_reload=True, disable=True
    )
    kinds = ((StepKind.DAEMON_RELOAD, ""), (StepKind.RESTART, "kubelet.service"))
    steps = tuple(Step(kind, target, Part.KUBELET) for kind, target in kinds)
    shown = replace(plan(units=(change,), findings=(warning,)), steps=steps)
    assert "strategy" not in render_plan(shown)
    lines = render_plan(shown, verbose=True).splitlines()
    assert lines == [
        "no file differs; kubelet restarts, cri-resource-manager does not",
        "warning: a warning [w]",
        "    hint: a hint",
        "   1. daemon-reload",
        "   2. restart kubelet.service",
        "          because one",
        "          because two",
        "kubelet's strategy: environment: it wins",
    ]


def test_a_unit_that_is_only_read_again_says_why() -> None:
    change = UnitChange("kubelet.service", Part.KUBELET, UnitAction.NOTHING, ("stale",), daemon_reload=True)
    steps = (Step(StepKind.DAEMON_RELOAD, "", Part.KUBELET),)
    assert "1. daemon-reload\n          because stale" in render_plan(
        replace(plan(units=(change,)), steps=steps)
    )


def test_every_kind_of_step_is_in_plain_words() -> None:
    for kind in StepKind:
        words = Step(kind, "X", Part.PROXY).describe
        assert "-" not in words or "daemon-reload" in words or "cri-resmgr" in words, words


def test_a_refused_plan_begins_with_that() -> None:
    refusal = Finding(Severity.REFUSE, "r", "cannot be", "do this")
    lines = render_plan(plan(units=(unit(UnitAction.RESTART),), findings=(refusal,))).splitlines()
    assert lines[0].startswith("refused (1 reason); otherwise: no file")
    assert lines[1:3] == ["refused: cannot be [r]", "    hint: do this"]


def test_a_plan_that_install_would_not_carry_out_says_so() -> None:
    sample = plan(units=(unit(UnitAction.RESTART),))
    again = RolledBackError("failed before", "do this", remembered=True)
    assert render_plan(sample, error=again).startswith("failed here before, not retried; ")
    bad = InvalidInputError(["fallback.cfg: cri-resmgr refuses it"], "correct it")
    assert render_plan(sample, error=bad).startswith("not possible now (see the error); otherwise: ")
    assert plan_json(sample, bad)["error"] == {
        "exitCode": 2,
        "message": "fallback.cfg: cri-resmgr refuses it",
        "hint": "correct it",
        "faults": ["fallback.cfg: cri-resmgr refuses it"],
        "remembered": False,
    }


def test_an_empty_plan_is_one_line() -> None:
    assert render_plan(plan()) == "nothing to do\n"


def test_colour_changes_nothing_but_colour() -> None:
    sample = plan(file(there(b"a\n"), DesiredFile.of(FALLBACK, b"b\n")), units=(unit(UnitAction.RESTART),))
    colored = render_plan(sample, color=True)
    assert "\x1b[" in colored
    assert re.sub("\x1b\\[[0-9]*m", "", colored) == render_plan(sample)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "color"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_terminals_whose_owner_wants_it(
    stream: io.StringIO, environment: dict[str, str], color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_color(stream) is color


def test_what_is_waited_for_is_shown_to_whoever_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    now = [0.0]
    screen, out = Terminal(), io.StringIO()
    waiting = WaitingLine(screen, lambda: now[0])
    emit = build_reporter("text", out, waiting=waiting)
    emit(Event("step.started", "wait until kubelet is healthy"))
    for now[0] in (0.1, 3.2, 3.3):
        waiting.tick()
    emit(Event("step.done", "wait until kubelet is healthy", {"seconds": 3.4}))
    waiting.tick()
    clear = "\r\x1b[K"
    line = "  wait until kubelet is healthy ..."
    assert screen.getvalue() == f"{clear}{line}{clear}{line} 3 s{clear}"
    assert out.getvalue() == "  wait until kubelet is healthy (3.4 s)\n"


@pytest.mark.parametrize("output", ["text", "json"])
def test_what_is_waited_for_is_no_noise_in_a_log(output: str) -> None:
    log = io.StringIO()
    waiting = WaitingLine(log)
    emit = build_reporter(output, log, waiting=waiting)
    emit(Event("step.started", "wait"))
    waiting.tick()
    waiting.clear()
    assert log.getvalue() == ""


NODE = snapshot({}, UnitState(paths.PROXY_UNIT), UnitState("kubelet.service"))


@pytest.mark.parametrize(
    ("of_host", "lines"),
    [
        ({}, ["to install: generation 923d0e1ca465788e"]),
        (
            {"installed": "g1", "installed_version": "v0.9.1", "payload_version": "v0.9.2"},
            [
                "installed: cri-resmgr v0.9.1, generation g1",
                "to install: cri-resmgr v0.9.2, generation 923d0e1ca465788e",
            ],
        ),
        (
            {"installed": "923d0e1ca465788e", "as_installed": True},
            [
                "no --payload was given, so this is about the last good generation",
                "installed: generation 923d0e1ca465788e",
            ],
        ),
    ],
)
def test_a_plan_names_what_is_installed_and_what_would_be(of_host: dict[str, Any], lines: list[str]) -> None:
    stream = io.StringIO()
    wanted = Desired((DesiredFile.of(FALLBACK, b""),))
    print_plan(Assessment(replace(plan(), desired=wanted), NODE, **of_host), "text", stream)
    assert stream.getvalue().splitlines() == ["nothing to do", *lines]


@pytest.mark.parametrize(("installed", "explained"), [("", True), ("g1", False)])
def test_a_first_plan_explains_its_words(installed: str, explained: bool) -> None:
    stream = io.StringIO()
    first = plan(file(ABSENT, DesiredFile.of(FALLBACK, b""), Verb.CREATE))
    print_plan(Assessment(first, NODE, installed=installed), "text", stream)
    assert ("base endpoint: the socket that kubelet uses without the proxy" in stream.getvalue()) == explained


def test_a_plan_as_json_is_one_document_with_stable_keys() -> None:
    stream = io.StringIO()
    payload = DesiredFile(paths.BINARY, 0o755, Part.PROXY, "f" * 64, 9, content=Path("/payload/x"))
    sample = plan(
        file(there(b"a\xff\n"), DesiredFile.of(FALLBACK, b"b\n")),
        file(ABSENT, payload, Verb.CREATE, paths.BINARY),
        file(there(b""), None, Verb.DELETE),
        units=(unit(UnitAction.RESTART),),
        findings=(Finding(Severity.WARN, "w", "m", "h"),),
    )
    print_plan(Assessment(sample, NODE, installed="g1", installed_version="v0.9.2"), "json", stream)
    document = json.loads(stream.getvalue())
    assert set(document) == {
        *(
            "schema",
            "mode",
            "converged",
            "summary",
            "kubelet",
            "files",
            "units",
            "steps",
            "resets",
            "findings",
            "error",
            "installed",
            "installedVersion",
            "asInstalled",
            "payloadVersion",
        )
    }
    assert (document["installed"], document["installedVersion"]) == ("g1", "v0.9.2")
    assert document["kubelet"] == {"unit": "kubelet.service", "strategy": "environment", "why": "it wins"}
    changed, binary, deleted = document["files"]
    assert "-a\\xff" in changed["diff"]
    assert changed["before"]["mode"] == "0644"
    assert binary["before"] is None
    assert binary["after"] == {
        "kind": "file",
        "mode": "0755",
        "uid": 0,
        "gid": 0,
        "size": 9,
        "digest": "f" * 64,
        "target": "",
    }
    assert deleted["after"] is None
    assert document["units"][0]["action"] == "restart"
    assert document["steps"] == [{"kind": "write", "target": FALLBACK, "part": "proxy"}]
    assert document["findings"] == [{"severity": "warn", "code": "w", "message": "m", "hint": "h"}]
    assert not document["converged"]
    assert plan_json(plan())["converged"]
