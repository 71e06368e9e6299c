"""Another configuration of the agent is seen in the cache, and nothing else that is written there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from installer.daemon.agent_watch import AgentWatch
from installer.host.files import RootedFiles
from installer.model import paths


class Cache:
    """As cri-resmgr writes it: aside, then renamed. `padding` is how much its containers take."""

    def __init__(self, root: Path) -> None:
        self.path = root / paths.PROXY_CACHE[1:]
        self.path.parent.mkdir(parents=True)
        self.watch = AgentWatch(RootedFiles(root), beside=lambda read: read())
        self.padding = 0
        self.number = 0

    def text(self, agent: str, policy: str = "none") -> bytes:
        self.number += 1
        data: dict[str, Any] = {
            "Version": "1",
            "Pods": {},
            "Containers": {"0": {"ID": f"c{self.number}", "Env": ['"Cfg": {}', "x" * self.padding]}},
            "NextID": self.number,
            "Cfg": {"NodeName": "n", "Data": {"policy": agent}} if agent else None,
            "PolicyName": policy,
            "PolicyJSON": {"allocations": f'{{"Cfg":{self.number}}}'},
        }
        return json.dumps(data, separators=(",", ":")).encode()

    def write(self, content: bytes) -> None:
        aside = self.path.with_name("aside")
        aside.write_bytes(content)
        aside.rename(self.path)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_without_a_cache_nothing_is_seen(cache: Cache) -> None:
    assert cache.watch.look() == cache.watch.look() == ""


def test_only_the_agent_and_the_active_policy_count(cache: Cache) -> None:
    cache.write(cache.text(""))
    seen = [cache.watch.look()]
    for agent, policy in (("Active: balloons", "none"), ("Active: balloons", "balloons"), ("", "balloons")):
        cache.write(cache.text(agent, policy))
        seen.append(cache.watch.look())
        cache.write(cache.text(agent, policy))  # a container has come
        assert cache.watch.look() == seen[-1]
    assert len(set(seen)) == 4
    assert all(seen)


@pytest.mark.parametrize("padding", [*range((1 << 16) - 140, 1 << 16, 7), 3_000_000])
def test_wherever_it_stands_in_the_file(cache: Cache, padding: int) -> None:
    cache.padding = padding
    tokens = []
    for agent in ("a", "b", "a"):
        cache.write(cache.text(agent))
        tokens.append(cache.watch.look())
    assert tokens[0] == tokens[2] != tokens[1]


@pytest.mark.parametrize(
    "torn", [b"", bytes(100), b'{"Version":"1","Cfg":{"NodeName":', b'{"PolicyName":"x"}']
)
def test_what_is_torn_or_being_written_changes_nothing(cache: Cache, torn: bytes) -> None:
    cache.write(cache.text("a"))
    before = cache.watch.look()
    cache.path.write_bytes(torn)
    assert cache.watch.look() == before
    cache.path.unlink()
    os.mkfifo(cache.path)
    assert cache.watch.look() == before


class HungFiles(RootedFiles):
    """Each look waits, as on a mount whose server is away, until `is_back`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_back = threading.Event()
        self.waits = threading.Semaphore(0)

    def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        self.waits.release()
        self.is_back.wait()
        return super().status(path, follow=follow)


def test_a_mount_that_hangs_keeps_one_thread_and_nobody_else(tmp_path: Path) -> None:
    files = HungFiles(tmp_path)
    watch = AgentWatch(files)
    try:
        assert [watch.look() for _ in range(3)] == [""] * 3
        assert files.waits.acquire(timeout=60)
        assert not files.waits.acquire(blocking=False)
    finally:
        files.is_back.set()


def test_where_no_thread_can_be_started_the_next_look_tries_again(cache: Cache) -> None:
    def refused(_read: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    reads: list[Callable[[Callable[[], None]], None]] = [refused, lambda read: read()]
    watch = AgentWatch(RootedFiles(cache.path.parents[3]), beside=lambda read: reads.pop(0)(read))
    cache.write(cache.text("a"))
    assert watch.look() == ""
    assert watch.look()
