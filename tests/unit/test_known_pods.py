"""Pods that were made beside the proxy: how they are found, and that kubelet never stays with a proxy that
does not know them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

import pytest

from installer.errors import StepFailedError
from installer.model import paths
from installer.model.containers import ReadyPod
from installer.model.event import Event
from installer.model.host import Part, ProcessState, ProxySnapshot, UnitState
from installer.model.limits import Limits
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, Plan, Step, StepKind
from installer.node.apply import apply_plan
from installer.node.known_pods import find_unknown, look_for_unknown
from installer.node.run import Progress
from installer.report.planned import summarise_plan
from tests.lib.fakes import CONTAINERD, FakeClock, FakeHost
from tests.lib.rules import rule
from tests.lib.snapshots import BASE, ON_LINK

RUNTIME = "unix:///run/containerd/containerd.sock"
LIMITS = Limits(proxy_start=20, kubelet_start=9, settle=1, guard=1, healthz_url="")
NOW = datetime.fromisoformat(FakeClock.wall).timestamp()
SAVING = f"{paths.PROXY_CACHE}.saving"  # a write that failed
CHECK = Step(StepKind.CHECK_PODS, RUNTIME, Part.PROXY)


class Node:
    """A runtime with pods, and a proxy that lists them when it starts, as the real one does."""

    def __init__(self, root: Path, pods: Collection[str], known: Collection[str] = ()) -> None:
        self.fake = FakeHost(root)
        self.fake.cri.sockets = {RUNTIME: CONTAINERD, paths.RELAY_ENDPOINT: CONTAINERD}
        self.fake.cri.ready_pods = {pod: ReadyPod(f"default/{pod}", NOW) for pod in pods}
        self.fake.systemd.units[paths.PROXY_UNIT] = UnitState(
            paths.PROXY_UNIT, "loaded", "active", "running", main_pid=7
        )
        self.fake.systemd.on_job[paths.PROXY_UNIT] = self._start
        self.said: list[Event] = []
        self.starts = 0
        self.after_start: Callable[[], None] = lambda: None
        self.knows(known)
        self.mark.parent.mkdir(parents=True)
        self.mark.touch()

    @property
    def mark(self) -> Path:
        return self.fake.root / paths.CONTAINERS_UNKNOWN[1:]

    def knows(self, pods: Collection[str]) -> None:
        cache = self.fake.root / paths.PROXY_CACHE[1:]
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"Version": "1", "Pods": {pod: {"ID": pod} for pod in pods}}))

    def at(self, path: str, ago: float) -> None:
        """This file is from so many seconds ago."""
        place = self.fake.root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        os.utime(place, (NOW - ago, NOW - ago))

    def _start(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        self.starts += method == "restart"
        self.knows(self.fake.cri.ready_pods)
        self.after_start()
        return "done", self.fake.systemd.started(unit)

    def check(self, *, harms: bool = False) -> list[str]:
        """Compare the pods, and return the warnings."""
        steps = (CHECK,)
        plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", steps, harms=harms)
        apply_plan(plan, self.fake.host, LIMITS, self.said.append, Progress())
        return [event.message for event in self.said if event.kind == "warning"]


@rule("R14")
@pytest.mark.parametrize("target", [BASE, paths.RELAY_SOCKET])
def test_the_mark_stays_if_kubelet_has_left_meanwhile(tmp_path: Path, target: str) -> None:
    """The guard lets it leave, at any time."""
    node = Node(tmp_path, ["pod"], known=["pod"])
    kubelet = UnitState("kubelet.service", "loaded", "active", "running", main_pid=8)
    node.fake.systemd.units[kubelet.name] = kubelet
    node.fake.processes.processes[8] = ProcessState(8, ON_LINK, {"CRI_RESMGR_GUARD_BASE": BASE})
    link = paths.endpoint_link(BASE)
    node.fake.files.make_directory(str(Path(link).parent))
    node.fake.files.link(link, target)
    assert node.check() == []
    assert node.mark.exists() == (target == BASE)


@rule("R14")
def test_r14_the_proxy_starts_again_if_it_does_not_know_a_pod(tmp_path: Path) -> None:
    node = Node(tmp_path, ["a", "b"], known=["a"])
    assert node.check() == []
    assert node.starts == 1
    assert not node.mark.exists()
    assert [event.message for event in node.said if event.kind == "pods.unknown"] == [
        f"{paths.PROXY_UNIT}: it does not know a pod (default/b), in which no container can be created: "
        "restarting it"
    ]


@rule("R2")
@pytest.mark.parametrize("pods", [[], ["a", "b"]])
def test_r2_it_does_not_if_it_knows_each(tmp_path: Path, pods: list[str]) -> None:
    """What else it knows are pods that have ended."""
    node = Node(tmp_path, pods, known=["a", "b", "ended"])
    assert node.check() == []
    assert node.starts == 0
    assert not node.mark.exists()


@rule("R2")
def test_r2_a_pod_that_the_relay_is_making_is_known_a_moment_later(tmp_path: Path) -> None:
    """The runtime lists it before the proxy has its answer, and others follow it."""
    node = Node(tmp_path, ["a"], known=[])

    def on_sleep(time: float) -> None:
        if time > 1:
            node.fake.cri.ready_pods["b"] = ReadyPod("default/b", NOW)
            node.knows(["a"])

    node.fake.clock.on_sleep = on_sleep
    assert find_unknown(node.fake.host, RUNTIME) == ()


@rule("R2", "R14")
def test_it_starts_again_a_few_times_at_most(tmp_path: Path) -> None:
    """Somebody keeps making pods beside the proxy. The next run finds the mark."""
    node = Node(tmp_path, ["a"], known=[])
    node.after_start = lambda: node.fake.cri.ready_pods.update(
        {f"{node.starts}": ReadyPod(f"default/{node.starts}", NOW)}
    )
    (warning,) = node.check()
    assert "does not know a pod (default/2)" in warning
    assert node.starts == 2
    assert node.mark.exists()


@rule("R2", "R14")
def test_a_proxy_that_cannot_save_its_cache_is_not_started_again(tmp_path: Path) -> None:
    """It would exit. What the relay has made, it knows."""
    node = Node(tmp_path, ["beside", "through"])
    node.at(SAVING, 0)
    node.at(paths.RELAY_SOCKET, 400)
    node.at(paths.RELAY_START, 200)
    node.fake.cri.ready_pods = {
        "beside": ReadyPod("default/beside", NOW - 300),
        "through": ReadyPod("default/through", NOW - 100),
    }
    (warning,) = node.check()
    assert "does not know a pod (default/beside)" in warning
    assert node.starts == 0
    assert node.mark.exists()
    del node.fake.cri.ready_pods["beside"]
    node.said.clear()
    assert node.check() == []
    assert node.starts == 0
    assert not node.mark.exists()


@rule("R14")
@pytest.mark.parametrize(
    ("created", "moved", "unknown"),
    [
        (300, None, True),  # beside the proxy, which started 400 s ago
        (300, 200, True),  # before kubelet came to the relay
        (100, 200, False),  # through the relay
        (197, 200, True),  # ordered by the kubelet before that one
        (300, 450, False),  # kubelet has been on the relay since before the start
        (420, None, False),  # listed by that start
        (403, None, True),  # perhaps not ready then
    ],
)
def test_r14_times_tell_what_a_cache_does_not_that_the_proxy_cannot_save(
    tmp_path: Path, created: float, moved: float | None, unknown: bool
) -> None:
    node = Node(tmp_path, ["a"], known=["b"])
    node.fake.cri.ready_pods["a"] = ReadyPod("default/a", NOW - created)
    node.at(paths.RELAY_SOCKET, 400)
    if moved is not None:
        node.at(paths.RELAY_START, moved)
    assert find_unknown(node.fake.host, RUNTIME), "a cache that is saved is right"
    node.at(SAVING, 0)
    assert bool(find_unknown(node.fake.host, RUNTIME)) is unknown


@rule("R14")
def test_r14_a_clock_that_was_set_back_tells_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, ["a"], known=["b"])
    node.fake.cri.ready_pods["a"] = ReadyPod("default/a", NOW)
    node.at(SAVING, 0)
    node.at(paths.RELAY_SOCKET, -3600)
    node.at(paths.RELAY_START, 200)
    assert find_unknown(node.fake.host, RUNTIME)


@rule("R14")
def test_r14_no_start_harms_what_may_not_be_adopted(tmp_path: Path) -> None:
    node = Node(tmp_path, ["a"], known=[])
    (warning,) = node.check(harms=True)
    assert "does not know a pod (default/a)" in warning
    assert node.starts == 0
    assert node.mark.exists()
    node.knows(["a"])
    node.check(harms=True)
    assert node.mark.exists(), "a container may be unknown"


@rule("R13")
@pytest.mark.parametrize("fault", ["no runtime", "no cache", "torn cache"])
def test_r13_where_the_pods_cannot_be_compared_it_says_so_and_undoes_nothing(
    tmp_path: Path, fault: str
) -> None:
    node = Node(tmp_path, ["a"], known=["a"])
    cache = tmp_path / paths.PROXY_CACHE[1:]
    if fault == "no runtime":
        node.fake.cri.sockets[RUNTIME] = "no socket"
    elif fault == "no cache":
        cache.unlink()
    else:
        cache.write_text('{"Version": "1", "Po')
    with pytest.raises(StepFailedError):
        find_unknown(node.fake.host, RUNTIME)
    (warning,) = node.check()
    assert "could not be compared" in warning
    assert node.starts == 0
    assert node.mark.exists()


def test_a_look_asks_the_runtime_of_the_proxy_that_runs(tmp_path: Path) -> None:
    node = Node(tmp_path, ["a", "b"], known=["a"])
    unit = node.fake.systemd.units[paths.PROXY_UNIT]
    process = ProcessState(7, ("cri-resmgr", f"--runtime-socket={RUNTIME}"), {})
    proxy = ProxySnapshot(unit, process, relay_answers=True)
    assert look_for_unknown(node.fake.host, proxy) == ("default/b",)
    assert look_for_unknown(node.fake.host, ProxySnapshot(unit, process, relay_answers=False)) is None
    assert look_for_unknown(node.fake.host, ProxySnapshot(unit, None, relay_answers=True)) is None
    node.fake.cri.sockets[RUNTIME] = "no socket"
    assert look_for_unknown(node.fake.host, proxy) is None


def test_a_plan_that_only_compares_says_so() -> None:
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", (CHECK,))
    assert "pods are compared" in summarise_plan(plan)
