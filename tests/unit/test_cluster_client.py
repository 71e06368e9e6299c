"""When the daemon talks with the API server, what it believes, and what it says of failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from installer.host.command import Finished
from installer.host.files import RootedFiles
from installer.model.daemon import DaemonState, Installed, Phase
from installer.model.event import Event
from installer.model.hold import CLUSTER_MEMORY
from installer.model.jsontext import to_json
from installer.model.names import Mode
from tests.lib.cluster_scene import ALL_OK, Scene, answer, says, state
from tests.lib.rules import rule


@pytest.fixture
def files(tmp_path: Path) -> RootedFiles:
    root = tmp_path / "root"
    root.mkdir()
    return RootedFiles(root)


@pytest.fixture
def scene(files: RootedFiles) -> Scene:
    return Scene(files)


def test_a_pause_is_known_before_the_first_pass(scene: Scene) -> None:
    scene.begin(answer(paused=True))
    assert scene.paused()
    assert scene.changes == 0
    ((verb, request),) = scene.asked
    assert (verb, request.is_first) == ("sync", True)


def test_an_api_server_that_is_away_at_the_start_holds_nobody_up(scene: Scene) -> None:
    scene.begin("", None)
    assert not scene.paused()
    assert scene.kinds() == ["cluster.unreachable"]


def test_a_pause_that_was_there_at_the_start_is_looked_at_until_it_ends(scene: Scene) -> None:
    scene.begin(answer(paused=True))
    for _ in range(3):
        assert 54 <= scene.loop.fire() <= 66
        scene.children[-1].end(answer(paused=True))
    scene.loop.fire()
    scene.children[-1].end(answer(paused=False))
    assert (scene.paused(), scene.loop.due) == (False, {})


def test_a_pause_that_comes_and_goes_is_told_at_once(scene: Scene) -> None:
    scene.begin()
    scene.heartbeat(answer(paused=True))
    assert (scene.paused(), scene.changes) == (True, 1)
    scene.heartbeat(answer(paused=True))
    assert scene.changes == 1
    scene.heartbeat(answer(paused=False))
    assert (scene.paused(), scene.changes) == (False, 2)


@pytest.mark.parametrize(
    ("output", "code"), [("", 1), ("nonsense", 0), ("[]", 0), ("{}", 0), (answer(paused=None), 0), ("", 137)]
)
def test_while_the_api_server_is_away_a_pause_stays(scene: Scene, output: str, code: int) -> None:
    scene.begin(answer(paused=True))
    scene.heartbeat(output, code)
    assert scene.paused()
    assert scene.changes == 0


def test_a_node_that_is_seen_again_is_told_at_once(scene: Scene) -> None:
    """Permitted work waits for that, and a removal looks by itself each ten minutes only."""
    scene.begin()
    scene.heartbeat("", 1)
    assert scene.changes == 0
    scene.heartbeat(answer(paused=False))
    assert scene.changes == 1
    scene.heartbeat(answer(paused=False))
    assert scene.changes == 1


EVIDENCE = '{"parts": {}, "evidence": {"certain": true, "why": "gone"}}'


def test_a_removal_rests_on_what_the_api_server_says(scene: Scene) -> None:
    scene.begin()
    scene.answers.append(Finished((), 0, EVIDENCE))
    assert scene.cluster.removal_evidence() == (True, "gone")
    assert scene.asked[-1][1].evidence


@pytest.mark.parametrize(
    "done",
    [
        Finished((), None, EVIDENCE),
        Finished((), 1, EVIDENCE),
        Finished((), 0, ""),
        Finished((), 0, "[]"),
        Finished((), 0, '{"parts": {}, "evidence": {"certain": true}}'),
        Finished((), 0, EVIDENCE.replace("true", '"true"')),
    ],
)
def test_a_broken_child_is_no_evidence(scene: Scene, done: Finished) -> None:
    scene.begin()
    scene.answers.append(done)
    certain, why = scene.cluster.removal_evidence()
    assert not certain
    assert why


def test_at_rest_nothing_is_asked_before_a_pass_wants_to_begin(scene: Scene) -> None:
    scene.begin()
    scene.heartbeat(answer())
    assert not scene.loop.due


def test_before_a_pass_the_node_is_looked_at(scene: Scene) -> None:
    """`ask` is answered at once."""
    scene.begin()
    scene.heartbeat(answer())
    assert scene.is_fresh()
    scene.loop.now += 60
    assert not scene.is_fresh()
    for _ in range(3):
        scene.ask()
    assert scene.loop.fire() == 0
    request = scene.children[-1].request
    assert request.read_node
    scene.children[-1].end(answer(paused=True))
    assert scene.is_fresh()
    assert scene.paused()
    assert scene.changes == 1  # the answer, which tells of the pause, too
    assert 54 <= scene.loop.fire() <= 66  # a pause that may end


def test_a_pass_waits_for_no_api_server_that_is_away(scene: Scene) -> None:
    scene.begin()
    scene.heartbeat(answer())
    scene.loop.now += 60
    scene.ask()
    scene.loop.fire()
    scene.children[-1].end("", 1)
    assert (scene.is_fresh(), scene.changes) == (True, 1)


def test_what_fails_is_tried_again_ever_more_seldom(scene: Scene) -> None:
    scene.begin()
    denied = answer(parts={**ALL_OK, "node": ("failed", "503: ServiceUnavailable")})
    waits = []
    for _ in range(8):
        scene.heartbeat(denied)
        waits.append(min(at for at, _ in scene.loop.due.values()) - scene.loop.now)
    assert 9 <= waits[0] <= 11
    assert waits[:5] == sorted(waits[:5])
    assert 270 <= waits[-1] <= 330


def test_a_server_that_wants_to_be_left_alone_is(scene: Scene) -> None:
    scene.begin()
    scene.heartbeat(answer(parts={**ALL_OK, "node": ("failed", "429: TooManyRequests")}, wait=77))
    scene.report(state(Phase.CONVERGED))
    assert scene.is_fresh()  # as far as it may
    assert scene.loop.fire() == 77


@rule("R13")
def test_a_transition_is_told_at_once_and_once(scene: Scene) -> None:
    scene.begin()
    scene.heartbeat(answer())
    scene.report(state(Phase.PAUSED, installed=Installed("ab12")))
    scene.report(state(Phase.PAUSED, passes=2))
    assert scene.loop.fire() <= 1
    request = scene.children[-1].request
    assert [event["reason"] for event in request.events] == ["Paused"]
    scene.children[-1].end(answer(sent=1))
    assert scene.heartbeat(answer()).events == ()


def test_the_reasons_of_events(scene: Scene) -> None:
    scene.begin()
    told = (
        state(Phase.PAUSED),
        state(Phase.HELD, "kubelet is held", hold="run: silent"),
        state(Phase.FAILED, "disk is full"),
        state(Phase.LIMITED),
        state(Phase.REFUSED, "masked"),
        state(Phase.REMOVED),
    )
    for each in told:
        scene.report(each)
    events = scene.heartbeat(answer(sent=6)).events
    assert [(event["type"], event["reason"]) for event in events] == [
        ("Normal", "Paused"),
        ("Warning", "HoldSet"),
        ("Warning", "RepairFailed"),
        ("Warning", "RestartLimitReached"),
        ("Warning", "Refused"),
        ("Normal", "Removed"),
    ]
    assert events[2]["message"] == "disk is full"


def test_containers_that_are_not_served_are_a_warning_until_all_are(scene: Scene) -> None:
    scene.begin()
    for reason in ("no CPUs for web", "no CPUs for web", "no CPUs for db", ""):
        scene.report(state(Phase.CHECKING, reason))
        scene.report(state(Phase.CONVERGED, reason))
    events = scene.heartbeat(answer(sent=3)).events
    assert [(event["type"], event["reason"]) for event in events] == [
        *[("Warning", "Unplaced")] * 2,
        ("Normal", "Converged"),
    ]
    assert [event["message"].partition(": ")[2] for event in events] == [
        "no CPUs for web",
        "no CPUs for db",
        "",
    ]


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.REFUSED])
def test_a_failure_that_repeats_is_one_event_until_another_comes(scene: Scene, phase: Phase) -> None:
    scene.begin()
    for reason in ("disk is full", "disk is full", "no such unit"):
        scene.report(state(Phase.STARTING))
        scene.report(state(phase, reason))
    assert [event["message"] for event in scene.heartbeat(answer()).events] == [
        "disk is full",
        "no such unit",
    ]


def test_what_comes_of_new_inputs_is_told_again(scene: Scene) -> None:
    scene.begin()
    for phase in (Phase.PAUSED, Phase.CONVERGING, Phase.PAUSED):
        scene.report(state(phase))
    assert len(scene.heartbeat(answer()).events) == 2


def test_a_repair_of_drift_is_no_event(scene: Scene) -> None:
    """A file that others fight over would else fill the API server."""
    scene.begin()
    phases = (
        Phase.FAILED,
        Phase.CONVERGED,
        Phase.REPAIRING,
        Phase.CONVERGED,
        Phase.CHECKING,
        Phase.CONVERGED,
    )
    for phase in phases:
        scene.report(state(phase))
    assert len(scene.heartbeat(answer()).events) == 2


def test_one_child_at_a_time_and_the_newest_state_wins(scene: Scene) -> None:
    scene.begin()
    scene.look()
    scene.loop.fire()
    for phase in (Phase.FAILED, Phase.HELD, Phase.CONVERGED):
        scene.report(state(phase))
    assert (len(scene.children), scene.loop.due) == (1, {})
    scene.children[0].end(answer())
    request = scene.heartbeat(answer(sent=3))
    assert len(scene.children) == 2
    assert [event["reason"] for event in request.events] == ["RepairFailed", "HoldSet", "Converged"]


def test_events_that_were_not_sent_are_sent_later_in_order_and_bounded(scene: Scene) -> None:
    scene.begin()
    scene.report(state(Phase.FAILED, "0"))
    scene.loop.fire()
    for number in range(1, 40):
        scene.report(state(Phase.FAILED, str(number)))
    scene.children[-1].end("", 1)
    assert [event["message"] for event in scene.heartbeat(answer(sent=1)).events] == [
        str(number) for number in range(24, 40)
    ]
    assert scene.heartbeat(answer()).events[0]["message"] == "25"


def test_a_request_fits_into_one_argument(scene: Scene) -> None:
    scene.begin()
    for number in range(40):
        scene.report(state(Phase.FAILED, f"{number}" + "ü" * 5000))
    assert len(to_json(scene.heartbeat(answer()))) < 128 << 10


def test_each_kind_of_failure_is_said_once_and_so_is_its_end(scene: Scene) -> None:
    scene.begin()
    denied = {**ALL_OK, "node": ("denied", "403: Forbidden"), "events": ("denied", "403: Forbidden")}
    scene.heartbeat(answer(parts=denied))
    scene.heartbeat(answer(parts=denied))
    assert scene.kinds() == ["cluster.denied"]
    assert "node, events: 403: Forbidden" in scene.said[0].message
    scene.heartbeat(answer(parts=dict.fromkeys(ALL_OK, ("failed", "no answer in time"))))
    scene.heartbeat(answer(parts=dict.fromkeys(ALL_OK, ("failed", "Connection refused"))))
    assert scene.kinds() == ["cluster.denied", "cluster.unreachable"]
    scene.heartbeat(answer(parts=ALL_OK))
    scene.heartbeat(answer(parts=ALL_OK))
    assert scene.kinds() == ["cluster.denied", "cluster.unreachable", "cluster.restored"]


@rule("R15")
def test_a_child_that_hangs_is_killed_and_the_heartbeats_go_on(scene: Scene) -> None:
    scene.begin()
    scene.look()
    scene.loop.fire()
    assert 10 < scene.children[-1].seconds < 15
    scene.children[-1].end("", 137)
    assert scene.kinds() == ["cluster.unreachable"]
    assert "killed by signal 9 (out of memory?)" in scene.said[-1].message
    scene.heartbeat(answer())
    assert scene.kinds() == ["cluster.unreachable", "cluster.restored"]


@rule("R15")
def test_children_that_not_even_sigkill_ends_do_not_pile_up(scene: Scene) -> None:
    """Python reads its files from a disk that may hang. Such a child counts as ended after a while."""
    scene.begin()
    scene.look()
    scene.loop.fire()
    hung = scene.children[-1]
    hung.is_gone = False
    hung.end("", 137)
    for _ in range(5):
        scene.loop.fire()
        assert scene.children == [hung]
    hung.is_gone = True
    scene.heartbeat(answer())
    assert scene.kinds()[-1] == "cluster.restored"


@rule("R15")
def test_a_log_that_fails_does_not_end_the_heartbeats(files: RootedFiles) -> None:
    def full(_event: Event) -> None:
        raise OSError(28, "No space left on device")

    scene = Scene(files)
    scene.begin()
    scene.cluster._emit = full
    scene.look()
    scene.loop.fire()
    with pytest.raises(OSError, match="No space"):  # the loop's guard takes it
        scene.children[-1].end("", 1)
    assert len(scene.loop.due) == 1


@rule("R15")
def test_a_process_that_cannot_be_started_does_not_end_the_heartbeats(scene: Scene) -> None:
    scene.begin()
    scene.loop.refuse = OSError(11, "Resource temporarily unavailable")
    scene.report(state(Phase.FAILED))
    scene.loop.fire()
    assert scene.kinds() == ["cluster.unreachable"]
    scene.loop.refuse = None
    assert len(scene.heartbeat(answer(sent=1)).events) == 1


def test_at_the_end_what_was_not_told_is_told_and_no_child_is_left(scene: Scene) -> None:
    scene.begin()
    scene.look()
    scene.loop.fire()
    scene.report(state(Phase.FAILED))
    scene.cluster.end()
    assert scene.children[-1].killed
    assert [event["reason"] for event in scene.asked[-1][1].events] == ["RepairFailed"]
    assert scene.loop.due == {}
    scene.children[-1].end("", 137)
    assert scene.loop.due == {}


ANNOTATED = {**ALL_OK, "annotation": ("ok", "")}


def annotating(files: RootedFiles) -> Scene:
    scene = Scene(files, annotate=True)
    scene.begin()
    return scene


def test_at_the_end_the_annotation_says_what_was_last(files: RootedFiles) -> None:
    """Also where the Event has been told before, or may not be."""
    scene = annotating(files)
    scene.report(state(Phase.CONVERGED))
    scene.heartbeat(answer(sent=1, parts={**ANNOTATED, "events": ("denied", "403: Forbidden")}))
    scene.report(state(Phase.REMOVED))
    scene.cluster.end()
    request = scene.asked[-1][1]
    assert (says(request).status["state"], request.events) == ("removed", ())


@rule("R13")
def test_a_removal_whose_pod_ends_in_the_middle_does_not_leave_the_node_served(files: RootedFiles) -> None:
    """Nobody may be there to say it afterwards."""
    scene = annotating(files)
    scene.report(DaemonState(Mode.REMOVE, Phase.CONVERGING, ready=False))
    scene.cluster.end()
    said = says(scene.asked[-1][1])
    assert (said.status["state"], said.status["ready"], said.serves) == ("converging", "false", False)


@rule("R13")
@pytest.mark.parametrize(
    ("phase", "ready", "generation", "serves"),
    [
        (Phase.STARTING, False, "", None),  # no pass has told yet what is installed
        (Phase.STARTING, False, "ab12", True),
        (Phase.CONVERGED, True, "ab12", True),
        (Phase.PAUSED, True, "ab12", True),
        (Phase.WAITING, False, "ab12", True),  # the earlier generation serves it
        (Phase.UNWELL, False, "ab12", False),
        (Phase.REFUSED, True, "", False),  # rollout.refused: ready is about the pod
    ],
)
def test_whether_a_node_is_served(
    files: RootedFiles, phase: Phase, ready: bool, generation: str, serves: bool | None
) -> None:
    scene = annotating(files)
    scene.report(
        DaemonState(Mode.INSTALL, phase, ready, installed=Installed(generation), serves=bool(serves))
    )
    assert says(scene.heartbeat(answer(parts=ANNOTATED))).serves is serves


def test_the_last_failure_has_the_time_when_it_began(files: RootedFiles) -> None:
    scene = annotating(files)
    times = []
    for phase in (Phase.FAILED, Phase.REPAIRING, Phase.FAILED, Phase.CONVERGED, Phase.FAILED):
        scene.now += 100
        scene.report(state(phase, "no space" if phase is Phase.FAILED else ""))
        times.append(says(scene.heartbeat(answer(parts=ANNOTATED))).failure["time"])
    assert times == ["1970-01-01T00:01:40Z"] * 4 + ["1970-01-01T00:08:20Z"]


def test_a_change_has_the_time_when_it_was_done(files: RootedFiles) -> None:
    scene, times = annotating(files), []
    for changes, policy in ((0, "a"), (1, "a"), (1, "b"), (2, "b")):
        scene.now += 100
        scene.report(replace(state(Phase.CONVERGED), changes=changes, installed=Installed(policy=policy)))
        times.append(says(scene.heartbeat(answer(parts=ANNOTATED))).status["changed"])
    assert times == ["", "1970-01-01T00:03:20Z", "1970-01-01T00:03:20Z", "1970-01-01T00:06:40Z"]


def test_at_the_end_nothing_is_told_twice(files: RootedFiles) -> None:
    scene = annotating(files)
    scene.report(state(Phase.CONVERGED))
    scene.heartbeat(answer(sent=1, parts={**ANNOTATED, "events": ("ok", "")}))
    assert scene.loop.due == {}
    asked = len(scene.asked)
    scene.cluster.end()
    assert len(scene.asked) == asked


@pytest.mark.parametrize(
    ("phase", "reason"), [(Phase.YIELDED, "HandedOver"), (Phase.REFUSED, "Refused")], ids=str
)
def test_a_daemon_that_was_replaced_says_so_and_nothing_of_the_node(
    files: RootedFiles, phase: Phase, reason: str
) -> None:
    """The one that acts writes the annotation: a newer daemon, or that of another installation."""
    scene = annotating(files)
    scene.report(state(Phase.CONVERGED))
    scene.heartbeat(answer(sent=1, parts=ANNOTATED))
    scene.report(replace(state(phase), replaced=True))
    request = scene.heartbeat(answer(sent=1))
    assert [event["reason"] for event in request.events] == [reason]
    assert request.status is None
    asked = len(scene.asked)
    scene.cluster.end()
    assert len(scene.asked) == asked


@rule("R13")
def test_an_annotation_that_caught_a_repair_is_corrected_at_once(files: RootedFiles) -> None:
    scene = annotating(files)
    scene.report(state(Phase.CONVERGED))
    scene.heartbeat(answer(sent=1, parts=ANNOTATED))
    scene.report(state(Phase.REPAIRING))
    assert says(scene.heartbeat(answer(parts=ANNOTATED))).status["state"] == "repairing"
    scene.report(state(Phase.CONVERGED))
    assert min(at for at, _ in scene.loop.due.values()) < scene.loop.now + 2.0
    request = scene.heartbeat(answer(parts=ANNOTATED))
    assert (says(request).status["state"], request.events) == ("converged", ())


@rule("R13")
def test_what_is_no_transition_is_told_within_a_minute(files: RootedFiles) -> None:
    scene = annotating(files)
    scene.report(state(Phase.CONVERGED))
    scene.heartbeat(answer(sent=1, parts=ANNOTATED))
    for generation in ("one", "two"):
        scene.report(state(Phase.CONVERGED, installed=Installed(generation)))
    assert 30 <= scene.loop.fire() <= 60
    assert says(scene.children[-1].request).status["generation"] == "two"


def test_at_the_end_a_dead_api_server_is_not_waited_for(scene: Scene) -> None:
    scene.begin("", None)
    scene.report(state(Phase.REMOVED))
    scene.cluster.end()
    assert len(scene.asked) == 1


def test_a_pause_outlasts_a_restart_while_the_api_server_is_away(files: RootedFiles) -> None:
    Scene(files).begin(answer(paused=True))
    again = Scene(files)
    again.begin("", 1)
    assert again.paused()
    once_more = Scene(files)
    once_more.begin(answer(paused=False))
    assert not once_more.paused()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"paused": "yes"}'])
def test_an_unreadable_memory_is_none(files: RootedFiles, text: str) -> None:
    place = files.root / CLUSTER_MEMORY[1:]
    place.parent.mkdir(parents=True)
    place.write_text(text)
    scene = Scene(files)
    scene.begin("", 1)
    assert not scene.paused()


def test_what_does_not_change_is_not_written_again(scene: Scene, files: RootedFiles) -> None:
    scene.begin()
    files.remove_tree("/run/cri-resmgr-installer")
    scene.heartbeat(answer())
    assert not files.list("/run")


@rule("R15")
def test_a_host_that_takes_no_files_does_not_end_the_heartbeats(scene: Scene, files: RootedFiles) -> None:
    (files.root / "run").write_text("no directory")
    scene.begin(answer(paused=True))
    assert scene.paused()
