"""The work queue: each key once, by one at a time, when it is time. And what fills it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from installer.gardener.mirror import Mirror
from installer.gardener.watchdog import Watchdog
from installer.gardener.work_queue import WorkQueue
from installer.operator.api import NODES, ApiError, KubeApi, Page, Resource
from installer.operator.kube_objects import Object


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_key_is_taken_once_however_often_it_was_named() -> None:
    queue = WorkQueue[str](Clock())
    for _ in range(3):
        queue.add("a")
    assert queue.take(wait=False) == "a"
    assert queue.take(wait=False) is None


def test_what_changes_meanwhile_is_looked_at_again_and_by_nobody_else_before() -> None:
    queue = WorkQueue[str](Clock())
    queue.add("a")
    queue.take(wait=False)
    queue.add("a")
    assert queue.take(wait=False) is None
    queue.done("a")
    assert queue.take(wait=False) == "a"


def test_the_earlier_time_counts() -> None:
    clock = Clock()
    queue = WorkQueue[str](clock)
    queue.add("a", 60)
    queue.add("a", 5)
    queue.add("a", 60)
    clock.time += 4
    assert queue.take(wait=False) is None
    clock.time += 1
    assert queue.take(wait=False) == "a"


def test_failures_come_back_later_each_time_and_a_success_ends_that() -> None:
    clock = Clock()
    queue = WorkQueue[str](clock)

    def fail() -> float:
        """How long it stays away then."""
        queue.done("a", failed=True)
        begun = clock.time
        while queue.take(wait=False) is None:
            clock.time += 0.01
        return clock.time - begun

    queue.add("a")
    assert queue.take(wait=False) == "a"
    waits = [fail() for _ in range(12)]
    assert waits[0] < 0.1
    assert 20 < waits[-1] < 40
    assert sorted(waits[:8]) == waits[:8]
    queue.done("a")
    queue.add("a")
    assert queue.take(wait=False) == "a"
    assert fail() < 0.1


def test_a_closed_queue_gives_nothing() -> None:
    queue = WorkQueue[str](Clock())
    queue.add("a")
    queue.close()
    assert queue.take() is None


def test_who_is_not_heard_of_in_time_hangs(tmp_path: Path) -> None:
    clock, alive = Clock(), tmp_path / "alive"
    watchdog = Watchdog(alive, clock)
    watchdog.expect("clusters", 300)
    watchdog.expect("a Shoot", 900)
    clock.time += 301
    assert watchdog.check() == ["clusters"]
    assert not alive.exists()
    watchdog.expect("clusters", 300)
    watchdog.rest("a Shoot")
    clock.time += 299
    assert watchdog.check() == []
    assert alive.exists()


class Forgetful(KubeApi):
    """An API server that does not know the version of a list any more as soon as somebody watches."""

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
    ) -> Iterator[Page]:
        yield Page((), "7")

    def watch(self, resource: Resource, version: str, selector: str = "") -> Iterator[tuple[str, Object]]:
        raise ApiError(410, "too old resource version")


class Patient(threading.Event):
    """Is set when it was waited for three times."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == 3:
            self.set()
        return self.is_set()


def test_a_server_that_forgets_each_list_at_once_is_not_asked_without_a_pause() -> None:
    stop, log = Patient(), list[str]()
    mirror = Mirror(Forgetful(), NODES, lambda given: given, lambda _: None, log.append, Watchdog())
    thread = threading.Thread(target=mirror.run, args=(stop,), daemon=True)
    thread.start()
    thread.join(10)
    assert stop.is_set()
    assert all(stop.waited)
    assert not log
