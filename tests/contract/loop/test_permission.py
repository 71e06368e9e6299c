"""The daemon's real loop while the fleet has the say: a pass asks first, waits, begins, and tells its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gi.repository import Gio, GLib

from installer.model.daemon import Cluster, DaemonState, Loop
from installer.model.fleet import FleetRules, Permission, PlannedWork, WorkResult
from installer.model.hold import PAUSE_FILE
from tests.lib.own_process import Scene
from tests.lib.rules import rule

WORK = PlannedWork("one", begins=True)
ASKED = "assert order['ask_first'] == ''"


class Fleet(Cluster):
    """It permits what a test says, and keeps what it was told."""

    def __init__(self) -> None:
        self.now = Permission(True, None, "the permit is taken")
        self.wanted: PlannedWork | None = None
        self.results: list[WorkResult] = []
        self._changed: Callable[[], None] = lambda: None

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        self._changed = changed

    def permission(self) -> Permission:
        return self.now

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        self.wanted = work

    def report_result(self, result: WorkResult) -> None:
        self.now = Permission(True, None, "the permit is taken")
        self.results.append(result)


ROLLED_BACK = "moves(rolled_back=True)"


@pytest.mark.parametrize(
    ("then", "ok"),
    [
        ("converges(True)", True),
        (f"{ROLLED_BACK}; ends(5, 'it is broken', remembered=True, rolled_back=True)", False),
        (f"{ROLLED_BACK}; sys.exit(5)", None),  # it was the node's environment
        ("sys.exit(4)", None),
    ],
)
def test_planned_work_waits_begins_and_is_told(scene: Scene, then: str, ok: bool | None) -> None:
    fleet = Fleet()
    scene.does("install", f"{ASKED}\n{then}")
    scene.seen = {"work": WORK}

    def body() -> None:
        scene.reaches("waiting")
        assert scene.of("state")[-1].message == "waiting: the permit is taken"
        scene.looks()
        assert not scene.begun()
        assert fleet.wanted == WORK
        assert not fleet.results
        fleet.now = Permission(True, WORK)
        scene.looks()
        scene.until(lambda: bool(fleet.results))

    scene.play(body, fleet)
    assert (fleet.results[0].work, fleet.results[0].ok) == (WORK, ok)


@rule("R13")
def test_what_a_picture_says_during_a_pause_is_told_after_it(scene: Scene) -> None:
    """Somebody has put the node right meanwhile, and the other nodes wait for it."""
    fleet = Fleet()
    scene.does("install", "sys.exit(4)")
    pause = scene.path(PAUSE_FILE)

    def body() -> None:
        scene.until(lambda: bool(scene.begun()))
        pause.parent.mkdir(parents=True, exist_ok=True)
        pause.touch()
        scene.reaches("paused")
        (scene.work / "good").write_bytes(b"")
        scene.looks()
        scene.until(scene.command.ready_file.exists)
        assert not fleet.results
        pause.unlink()
        scene.until(lambda: bool(fleet.results), 10)

    scene.play(body, fleet)
    assert (fleet.results[0].work.generation, fleet.results[0].ok) == ("one", True)


def test_a_host_outside_of_a_fleet_asks_nobody(scene: Scene) -> None:
    scene.does("install", f"{ASKED}\nconverges(True)")
    scene.seen = {"work": WORK}
    scene.play(lambda: scene.reaches("converged"))


class LatePause(Cluster):
    """A person has paused the node, which nobody knows who has not asked."""

    def __init__(self) -> None:
        self.known = self.set = False

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        self._loop, self._changed = loop, changed

    def permission(self) -> Permission:
        return Permission(paused=self.known and self.set, fresh=self.known or not self.set)

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        if read_node:
            self._loop.after(0.01, self._answer)

    def _answer(self) -> None:
        self.known = True
        self._changed()


def test_a_pause_is_asked_for_before_anything_is_changed(scene: Scene) -> None:
    cluster = LatePause()

    def body() -> None:
        scene.reaches("converged")
        begun = scene.begun().count("install")
        cluster.set = True
        scene.drift()
        scene.reaches("paused")
        assert scene.begun().count("install") == begun

    scene.play(body, cluster)


def test_a_pause_file_is_seen_where_the_kernel_has_no_watch_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the kernel's limit makes GIO fail so (test_watch.py has both of its ways)."""

    def full(*_: object) -> None:
        raise GLib.Error("Too many open files")

    monkeypatch.setattr(Gio.File, "monitor_directory", full)

    def body() -> None:
        scene.reaches("converged")
        scene.until(lambda: any("inotify" in event.message for event in scene.of("warning")))
        pause = scene.path(PAUSE_FILE)
        pause.parent.mkdir(parents=True, exist_ok=True)
        pause.touch()
        scene.reaches("paused")
        pause.unlink()
        scene.reaches("converged")
        assert len([event for event in scene.of("warning") if "inotify" in event.message]) == 1

    scene.play(body)
