"""The proxy's journal on a disk that hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from installer.daemon.proxy_log import EVERY, ProxyLog
from tests.lib.event_loop import Scene
from tests.lib.hung_mount import hung_mount
from tests.lib.rules import rule


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@rule("R15")
def test_readers_that_even_a_kill_does_not_end_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one counts as ended after a while, so that nothing waits for it."""
    for name in ("proxy_log._DEADLINE", "proxy_log._GRACE", "watch._REAP_SECONDS"):
        monkeypatch.setattr(f"installer.daemon.{name}", 0.1)
    scene, looks, before = Scene(), 0, set(children())
    log = ProxyLog(scene.loop, tmp_path, print, lambda: looks * EVERY)
    try:
        with hung_mount(tmp_path / "usr/bin", for_ever=True):
            for looks in range(1, 5):  # noqa: B007  it is the time
                log.look()
                scene.rest(1.0)
            (reader,) = set(children()) - before
        assert scene.until(lambda: reader not in children())
    except OSError as error:
        pytest.skip(f"this machine mounts nothing: {error}")
    looks += 1
    log.look()
    assert len(set(children()) - before) == 1
    log.close()
    assert scene.until(lambda: set(children()) == before)
    assert scene.failures == []
