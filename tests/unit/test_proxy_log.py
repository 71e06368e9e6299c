"""Which lines of the proxy's journal get into the pod's log, and how many."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.daemon.proxy_log import EVERY, MOST, ProxyLog
from installer.model.daemon import Job
from installer.model.event import Event


class Journal:
    """A main loop whose only process is journalctl, which prints what is here. The time is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, dict[str, object]]] = []
        self.told, self.code, self.started = 1000.0, 0, 0
        self.killed = False
        self.hangs = False
        self.is_gone = True
        self.said: list[Event] = []
        self.log = ProxyLog(self, Path("/host"), self.said.append, lambda: self.told)

    def say(self, text: object, priority: int | str = 6, age: float = 0.0) -> None:
        self.entries.append((self.told - age, {"PRIORITY": str(priority), "MESSAGE": text}))

    def look(self, later: float = EVERY) -> list[str]:
        self.said.clear()
        self.told += later
        self.log.look()
        return [event.message for event in self.said]

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        raise AssertionError

    def cancel(self, timer: int) -> None:
        raise AssertionError

    def start(self, job: Job) -> Journal:
        self.started += 1
        assert job.argv[:3] == ("chroot", "/host", "journalctl")
        self.is_gone = not self.hangs
        if self.hangs:
            return self
        (since,) = (word for word in job.argv if word.startswith("--since="))
        count, seconds = int(job.argv[job.argv.index("-n") + 1]), float(since[len("--since=-") : -1])
        assert "-r" in job.argv
        for at, entry in self.entries[: -count - 1 : -1]:
            if self.code == 0 and at >= self.told - seconds:
                job.on_line(json.dumps(entry))
        # As the real loop does: it ends when the caller has its child.
        self.end = job.on_end
        return self

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def journal() -> Journal:
    found = Journal()
    look = found.log.look

    def look_and_end() -> None:
        before = found.started
        look()
        if found.started > before and not found.hangs:
            found.end(found.code)

    found.log.look = look_and_end  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    ("text", "priority", "severity"),
    [
        ("W: [      cache     ] existing cache directory has less strict permissions", 6, "warning"),
        ("E: [    policy      ] failed to allocate", 6, "error"),
        ("F: [   cri-resmgr   ] failed to load", 6, "fatal"),
        ("??? F1127 10:20:33.483365    7739 main.go:181] no", 6, "fatal"),
        ("E1127 10:20:33.483365    7739 server.go:18] no", 6, "error"),
        ("panic: runtime error: index out of range", 6, "fatal"),
        ("fatal error: concurrent map writes", 6, "fatal"),
        ("cri-resource-manager.service: Failed with result 'exit-code'.", 4, "warning"),
        ("cri-resource-manager.service: Failed to load environment files", 3, "error"),
        ("I: [     policy     ] registering policy 'none'...", 6, ""),
        ("D: [      dump      ] request {env: SECRET}", 6, ""),
        ("Warning: not one of its lines", 6, ""),
        ("Started cri-resource-manager.service.", 5, ""),
        *(("no priority", priority, "") for priority in ("²", "9" * 5000, "-1", "")),
        (None, 6, ""),
        ([69, 58, 32, 255], 3, ""),
    ],
)
def test_warnings_and_errors_are_told_and_nothing_else(
    journal: Journal, text: object, priority: int | str, severity: str
) -> None:
    journal.say(text, priority)
    assert journal.look() == ([text] if severity else [])
    assert [event.data["severity"] for event in journal.said] == ([severity] if severity else [])


def test_each_entry_is_read_once_and_the_same_text_is_told_once_an_hour(journal: Journal) -> None:
    journal.say("E: old", age=EVERY + 10)
    journal.say("E: connection 1 lost")
    assert journal.look() == ["E: connection 1 lost"]
    assert journal.look() == []
    for number in range(5):
        journal.say(f"E: connection {number} lost")
        journal.say(f"W: slow by {number} ms")
    assert journal.look() == ["W: slow by 4 ms"]
    assert journal.said[0].data["times"] == 5
    journal.say("E: connection 9 lost")
    assert journal.look(later=3600) == ["E: connection 9 lost"]


def test_a_flood_is_bounded_and_says_so(journal: Journal) -> None:
    journal.say("I: begin")
    journal.look()
    letters = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    for letter in letters:
        journal.say(f"E: {letter} " + "x" * 5000)
    told = journal.look()
    assert len(told) == MOST + 1
    assert told[-1].startswith("some lines of cri-resource-manager.service are left out here")
    assert "journalctl -u cri-resource-manager.service" in told[-1]
    assert max(map(len, told)) <= 500
    for number in range(2000):
        journal.say(f"I: {number}")
    assert journal.look() == []
    for number in range(2000):
        journal.say(f"I: {number}")
    assert len(journal.look(later=3600)) == 1


def test_it_is_read_now_and_then_and_never_twice_at_a_time(journal: Journal) -> None:
    journal.look()
    journal.look(later=5.0)
    assert journal.started == 1
    journal.hangs = True
    journal.look()
    journal.look()
    assert journal.started == 2
    journal.log.close()
    assert journal.killed


def test_what_one_look_could_not_read_the_next_one_does(journal: Journal) -> None:
    journal.look()
    journal.code = 1
    for word in ("first", "second"):
        journal.say(f"E: {word}")
        assert journal.look() == []
    journal.code = 0
    assert journal.look() == ["E: first", "E: second"]


def test_a_node_without_journald_is_left_in_peace(journal: Journal) -> None:
    journal.code = 127
    journal.say("E: what chroot prints")
    assert journal.look() == []
