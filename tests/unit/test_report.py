"""What a person reads and what a machine parses: plans, status, events, errors."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from installer.errors import InvalidInputError, RolledBackError
from installer.model import paths
from installer.model.assessment import Assessment
from installer.model.change import Changes, FileChange, UnitAction, UnitChange, Verb
from installer.model.event import Event
from installer.model.finding import Finding, Severity
from installer.model.history import History, HistoryEntry, Past
from installer.model.plan import Plan, Step, StepKind
from installer.model.policy import PolicyInForce, PolicySource
from installer.model.resource import (
    ABSENT,
    DesiredFile,
    FileState,
    Kind,
    Part,
    PayloadFile,
    ProcessState,
    UnitState,
)
from installer.model.snapshot import HostSnapshot
from installer.model.state import Desired, DesiredUnit, Mode
from installer.report.events import JsonReporter, build_reporter, report_error
from installer.report.history import print_history
from installer.report.planned import plan_json, print_plan, render_plan, summarise
from installer.report.status import print_status
from installer.report.terminal import cut, escape, one_line, wants_color
from installer.report.waiting import WaitingLine
from tests.snapshots import but, snapshot

FALLBACK = paths.FALLBACK_CONFIG
STEP = Step(StepKind.WRITE, FALLBACK, Part.PROXY)
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def desired(path: str, content: bytes | PayloadFile, mode: int = 0o644) -> DesiredFile:
    digest = content.digest if isinstance(content, PayloadFile) else sha256(content).hexdigest()
    return DesiredFile(path, content, mode, Part.PROXY, digest)


def there(content: bytes | None, mode: int = 0o644, uid: int = 0) -> FileState:
    raw = content or b""
    return FileState(Kind.FILE, mode, uid, uid, len(raw), sha256(raw).hexdigest(), content=content)


def file(
    before: FileState, after: DesiredFile | FileState | None, verb: Verb = Verb.CHANGE, path: str = FALLBACK
) -> FileChange:
    return FileChange(path, Part.PROXY, verb, before, after, "its content differs")


def unit(action: UnitAction, part: Part = Part.PROXY, why: str = "changed") -> UnitChange:
    name = paths.PROXY_UNIT if part is Part.PROXY else "kubelet.service"
    return UnitChange(name, part, action, (why,))


def plan(*files: FileChange, units: tuple[UnitChange, ...] = (), findings: tuple[Finding, ...] = ()) -> Plan:
    changes = Changes(files, units)
    steps = (STEP,) if changes else ()
    return Plan(
        Mode.INSTALL, Desired(), changes, "kubelet.service", steps, "environment", "it wins", findings
    )


def diffs(plan: Plan) -> str:
    return render_plan(plan, diffs=True)


def test_a_changed_file_is_shown_as_a_unified_diff() -> None:
    text = diffs(plan(file(there(b"a\nb\nc\n"), desired(FALLBACK, b"a\nB\nc\n"))))
    lines = [line.strip() for line in text.splitlines()]
    assert f"change {FALLBACK} (its content differs)" in lines
    assert f"--- {FALLBACK}" in lines
    assert f"+++ {FALLBACK}" in lines
    assert lines[lines.index("-b") + 1] == "+B"


def test_a_new_file_is_shown_whole_with_its_mode() -> None:
    text = diffs(plan(file(ABSENT, desired(FALLBACK, b"a\nb", 0o600), Verb.CREATE)))
    assert f"create {FALLBACK}" in text
    assert "--- /dev/null" in text
    assert "mode 0600, owner 0:0" in text
    assert "+a\n" in text
    assert "+b (no newline at the end)\n" in text


def test_a_binary_is_shown_by_size_and_digest() -> None:
    payload = PayloadFile(Path("/payload/x"), "f" * 64, 40_000_000)
    text = diffs(plan(file(there(b"\x7fELF\0"), desired(paths.BINARY, payload), path=paths.BINARY)))
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
    text = diffs(plan(file(there(b"same", 0o600, 5), desired(FALLBACK, b"same"))))
    assert "mode 0600 -> 0644" in text
    assert "owner 5:5 -> 0:0" in text
    assert "snapshot" not in text
    assert "sha256" not in text


def test_a_link_in_our_place_is_named() -> None:
    text = diffs(plan(file(FileState(Kind.SYMLINK, target="/x"), desired(FALLBACK, b"a\n"))))
    assert "was a symlink to /x; its original is kept" in text


def test_a_huge_diff_is_cut_with_a_count() -> None:
    text = diffs(plan(file(ABSENT, desired(FALLBACK, b"line\n" * 1000), Verb.CREATE)))
    assert "... 803 more lines" in text
    assert len(text.splitlines()) < 230
    long = diffs(plan(file(ABSENT, desired(FALLBACK, b"x" * 100_000), Verb.CREATE)))
    assert "more characters)" in long
    assert len(long) < 2_000


def test_control_characters_never_reach_the_terminal() -> None:
    nasty = b"\x1b[2J\x07a\rb\x9b1m\xff\xe2\x80\xae\x7f\n"
    text = diffs(plan(file(there(nasty), desired(FALLBACK, b"\x1b]0;x\n"), path="/etc/\x1b[1mx")))
    assert "\\x1b[2J\\x07a\\rb\\x9b1m\\xff\\u202e\\x7f" in text
    assert not HARMFUL.search(text)


def test_the_text_of_files_is_shown_only_when_asked_for() -> None:
    sample = plan(file(there(b"a\n"), desired(FALLBACK, b"b\n")))
    assert "+b" not in render_plan(sample)
    assert f"change {FALLBACK} (its content differs)" in render_plan(sample)


def test_the_guard_is_one_line() -> None:
    """A script that ships with this program: its text says nothing about this node."""
    text = diffs(plan(file(there(b"old\n"), desired(paths.GUARD, b"new\n", 0o755), path=paths.GUARD)))
    assert "+new" not in text
    assert "4 bytes, sha256" in text


@given(st.text(st.characters(codec=None)))
def test_escaping_leaves_nothing_harmful_and_nothing_unseen(text: str) -> None:
    assert not HARMFUL.search(escape(text))
    assert "\n" not in one_line(text)
    assert len(escape(text)) >= len(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_escaping_leaves_plain_text_as_it_is(text: str) -> None:
    assert one_line(text) == text


def test_cutting_says_how_much_is_missing() -> None:
    assert cut("x" * 500) == "x" * 500
    assert cut("x" * 501) == "x" * 500 + "... (1 more characters)"


def created(path: str) -> FileChange:
    return FileChange(path, Part.PROXY, Verb.CREATE, ABSENT, desired(path, b""), "missing")


@pytest.mark.parametrize(
    ("changes", "summary"),
    [
        (Changes(), "nothing to do"),
        (
            Changes(
                (*map(created, "abcd"), file(there(b"x"), desired("e", b"y"))),
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
            Changes((file(there(b"x"), desired("e", b"y")),), (unit(UnitAction.RELOAD),)),
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
        "kubelet.service", Part.KUBELET, UnitAction.RESTART, ("one", "two"), daemon_reload=True, enable=True
    )
    kinds = ((StepKind.DAEMON_RELOAD, ""), (StepKind.RESTART, "kubelet.service"))
    steps = tuple(Step(kind, target, Part.KUBELET) for kind, target in kinds)
    lines = render_plan(replace(plan(units=(change,), findings=(warning,)), steps=steps)).splitlines()
    assert lines == [
        "no file differs; kubelet restarts, cri-resource-manager does not",
        "warning: a warning",
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
    assert lines[1:3] == ["refused: cannot be", "    hint: do this"]


def test_a_plan_that_install_would_not_carry_out_says_so() -> None:
    sample = plan(units=(unit(UnitAction.RESTART),))
    again = RolledBackError("failed before", "do this", remembered=True)
    assert render_plan(sample, error=again).startswith("failed here before, not tried again; ")
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
    sample = plan(file(there(b"a\n"), desired(FALLBACK, b"b\n")), units=(unit(UnitAction.RESTART),))
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


def test_a_plan_as_json_is_one_document_with_stable_keys() -> None:
    stream = io.StringIO()
    payload = PayloadFile(Path("/payload/x"), "f" * 64, 9)
    sample = plan(
        file(there(b"a\xff\n"), desired(FALLBACK, b"b\n")),
        file(ABSENT, desired(paths.BINARY, payload, 0o755), Verb.CREATE, paths.BINARY),
        file(there(b""), None, Verb.DELETE),
        units=(unit(UnitAction.RESTART),),
        findings=(Finding(Severity.WARN, "w", "m", "h"),),
    )
    print_plan(sample, "json", stream)
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
        )
    }
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


PROXY = UnitState(paths.PROXY_UNIT, "loaded", "active", "running", "enabled", main_pid=5)
KUBELET = UnitState("kubelet.service", "loaded", "active", "running", "enabled", main_pid=7)
WELL = snapshot(
    {FALLBACK: there(b"")},
    PROXY,
    KUBELET,
    ProcessState(5, (), {paths.GENERATION_VARIABLE: "g1"}),
    relay_answers=True,
    on_relay=True,
    kubelet_healthy=True,
)
WANTED = Desired((desired(FALLBACK, b""),), proxy=DesiredUnit(paths.PROXY_UNIT, "", "", "g1"))


def status(seen: HostSnapshot, shown: Plan, output: str = "text") -> tuple[int, str]:
    stream = io.StringIO()
    code = print_status(Assessment(replace(shown, desired=WANTED), seen), output, stream)
    return code, stream.getvalue()


CHANGE = HistoryEntry("2026-11-22T03:00:00Z", "alice", "install", "done", "1 to change", (), "g1", "v0.9.2")
PAST = Past(CHANGE, "2026-11-22T03:00:01Z", "relay: ready, waited 0.10 s")


def test_status_tells_the_policy_the_runtime_the_payload_and_how_it_came_to_be() -> None:
    running = ProcessState(
        5, ("cri-resmgr", "--runtime-socket=/run/x.sock"), {paths.GENERATION_VARIABLE: "g1"}
    )
    seen = Assessment(
        replace(plan(), desired=WANTED),
        but(WELL, proxy_process=running),
        policy=PolicyInForce("balloons", PolicySource.AGENT),
        as_installed=True,
    )
    stream = io.StringIO()
    assert print_status(seen, "text", stream, PAST) == 0
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    for line in (
        "policy: balloons, from cri-resmgr-agent",
        "runtime endpoint: /run/x.sock",
        "payload: v0.9.2",
        "guard: relay: ready, waited 0.10 s  (2026-11-22T03:00:01Z)",
        "last change: 2026-11-22T03:00:00Z install by alice: done: 1 to change",
        "compared with what was installed last, not with a payload and configs: they were not given",
    ):
        assert line in lines
    stream = io.StringIO()
    print_status(seen, "json", stream, PAST)
    document = json.loads(stream.getvalue())
    assert document["policy"] == {"name": "balloons", "source": "cri-resmgr-agent", "pending": ""}
    assert (document["runtimeEndpoint"], document["payloadVersion"]) == ("/run/x.sock", "v0.9.2")
    assert document["guard"] == {"time": PAST.guard_time, "decision": PAST.guard, "thisStart": True}
    assert (document["lastChange"]["who"], document["asInstalled"]) == ("alice", True)


def test_a_decision_of_the_guard_for_another_start_is_called_so() -> None:
    """After a removal kubelet starts without the guard, whose last word is in the journal all the same."""
    stream = io.StringIO()
    print_status(Assessment(plan(), WELL), "text", stream, PAST._replace(guard_invocation="another"))
    assert (
        "    guard: relay: ready, waited 0.10 s  (2026-11-22T03:00:01Z, for an earlier start)"
        in stream.getvalue()
    )


def test_a_version_that_was_not_installed_last_is_not_shown() -> None:
    stream = io.StringIO()
    other = PAST._replace(last_change=replace(CHANGE, generation="g0"))
    print_status(Assessment(replace(plan(), desired=WANTED), WELL), "text", stream, other)
    assert "payload" not in stream.getvalue()


def test_a_host_without_us_is_not_installed() -> None:
    bare = but(WELL, proxy=UnitState(paths.PROXY_UNIT), proxy_process=None, on_relay=False)
    stream = io.StringIO()
    assert print_status(Assessment(plan(), bare, as_installed=True), "text", stream) == 3
    assert stream.getvalue().splitlines()[-1] == "not installed"


def test_what_was_compared_with_nothing_is_not_converged() -> None:
    """A first installation that was cut off before its end, looked at without a payload."""
    stream = io.StringIO()
    assert print_status(Assessment(plan(), WELL, as_installed=True), "text", stream) == 3
    assert stream.getvalue().splitlines()[-1].startswith("no installation was completed here")
    stream = io.StringIO()
    print_status(Assessment(plan(), WELL, as_installed=True), "json", stream)
    assert json.loads(stream.getvalue())["converged"] is False


def test_what_journals_say_cannot_act_on_the_terminal() -> None:
    nasty = "\x1b[2J\nforged: line"
    past = Past(replace(CHANGE, who=nasty, summary=nasty), nasty, nasty)
    stream = io.StringIO()
    print_status(Assessment(replace(plan(), desired=WANTED), WELL), "text", stream, past)
    print_history(History((replace(CHANGE, who=nasty, why=(nasty,)),)), "text", stream)
    assert not HARMFUL.search(stream.getvalue())
    assert "\nforged" not in stream.getvalue()


def test_a_converged_and_healthy_host() -> None:
    code, text = status(WELL, plan())
    assert code == 0
    assert text.splitlines()[-1] == "converged and healthy"
    assert "cri-resource-manager.service: active (running), pid 5, enabled" in text
    assert "endpoint: relay" in text
    assert "files: 1 correct, 0 differ" in text


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (but(WELL, relay_answers=False), "not healthy: the relay does not answer"),
        (but(WELL, kubelet_healthy=False), "not healthy: kubelet.service is not healthy"),
        (but(WELL, on_relay=False), "not healthy: kubelet runs on its base endpoint, not on the relay"),
        (
            but(WELL, proxy=UnitState(paths.PROXY_UNIT)),
            "not healthy: cri-resource-manager.service is not running",
        ),
    ],
)
def test_an_unhealthy_host_is_exit_3_though_no_file_differs(seen: HostSnapshot, said: str) -> None:
    code, text = status(seen, plan())
    assert code == 3
    assert said in text.splitlines()[-1]


def test_a_difference_is_exit_3_and_named() -> None:
    different = plan(file(there(b"a"), desired(FALLBACK, b"b")), units=(unit(UnitAction.RESTART),))
    process = ProcessState(5, (), {paths.GENERATION_VARIABLE: "g0"})
    code, text = status(but(WELL, proxy_process=process), different)
    assert code == 3
    assert f"    {FALLBACK}: its content differs" in text
    assert "generation: g0 (expected g1)" in text
    assert "not converged: 1 to change; cri-resource-manager restarts" in text


def test_a_refusal_is_not_well() -> None:
    refused = plan(findings=(Finding(Severity.REFUSE, "kubelet-masked", "m", "h"),))
    code, text = status(WELL, refused)
    assert code == 3
    assert text.splitlines()[-1] == "refused: kubelet-masked"


def test_a_unit_that_somebody_else_started_says_so() -> None:
    _code, text = status(but(WELL, proxy_process=None), plan())
    assert "generation: not started by this installer (expected g1)" in text
    stream = io.StringIO()
    print_status(Assessment(plan(), WELL), "text", stream)
    assert "generation: g1 (expected none)" in stream.getvalue()


def test_a_removed_host_is_well_without_a_proxy() -> None:
    gone = but(
        WELL, proxy=UnitState(paths.PROXY_UNIT), proxy_process=None, relay_answers=False, on_relay=False
    )
    look = Assessment(replace(plan(), mode=Mode.REMOVE), gone)
    stream = io.StringIO()
    assert print_status(look, "text", stream) == 0
    assert "cri-resource-manager.service: not found" in stream.getvalue()


def test_status_as_json_is_one_document() -> None:
    code, text = status(but(WELL, relay_answers=False), plan(), "json")
    document = json.loads(text)
    assert code == 3
    assert (document["converged"], document["healthy"]) == (True, False)
    assert document["complaints"] == ["the relay does not answer"]
    proxy, kubelet = document["units"]
    assert (proxy["generation"], proxy["wantedGeneration"], proxy["mainPid"]) == ("g1", "g1", 5)
    assert kubelet["name"] == "kubelet.service"


def test_events_are_a_line_each() -> None:
    stream = io.StringIO()
    emit = build_reporter("text", stream)
    emit(Event("step.done", "write /etc/x", {"seconds": 0.004}))
    emit(Event("step.done", "restart kubelet.service", {"seconds": 1.26}))
    emit(Event("warning", "mind\nthis", {"code": "c", "hint": "do that"}))
    emit(Event("converged", "done\x1b[2J", {}))
    assert stream.getvalue().splitlines() == [
        "  write /etc/x",
        "  restart kubelet.service (1.3 s)",
        "warning: mind\\nthis (do that)",
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
    assert stream.getvalue() == "error: a: wrong\nerror: b: wrong\\x1b\nhint: correct it\n"


def test_a_long_error_keeps_its_lines() -> None:
    stream = io.StringIO()
    report_error(RolledBackError("it failed\njournal:\n  line"), "text", stream)
    assert stream.getvalue() == "error: it failed\n  journal:\n    line\n"


def test_an_error_as_json_is_an_event() -> None:
    stream = io.StringIO()
    report_error(InvalidInputError(["a: wrong"], "h"), "json", stream, lambda: "now")
    assert json.loads(stream.getvalue()) == {
        "time": "now",
        "kind": "error",
        "message": "a: wrong",
        "data": {"error": "InvalidInputError", "exitCode": 2, "hint": "h", "faults": ["a: wrong"]},
    }


def test_status_tells_of_a_hold_and_of_a_remembered_failure() -> None:
    stream = io.StringIO()
    look = Assessment(
        plan(),
        replace(WELL, hold="the proxy \x1b[2J died"),
        remembered_failure="2024-01-01T00:00:00Z: it exits",
    )
    print_status(look, "text", stream)
    assert "held on its base endpoint" in stream.getvalue()
    assert "the proxy \\x1b[2J died" in stream.getvalue()
    assert "not tried again: 2024-01-01T00:00:00Z: it exits" in stream.getvalue()
