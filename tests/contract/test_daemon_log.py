"""What becomes of the daemon if nobody reads its log."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from installer.model import paths
from tests.lib.rules import rule

SOON = 60.0
PROGRAM = Path(sys.executable).with_name("cri-resmgr-installer")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run the daemon")


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@rule("R15")
def test_a_log_that_is_full_does_not_stop_the_watch(tmp_path: Path) -> None:
    """The runtime, which takes what pods write, may be away for long, or its disk may hang."""
    bus, alive = tmp_path / "root" / paths.SYSTEM_BUS[1:], tmp_path / "probes/alive"
    bus.parent.mkdir(parents=True)
    bus.touch()
    options = (f"--host-root={tmp_path}/root", f"--payload={tmp_path}", "--default-configs", "--output=json")
    environment = os.environ | {"CRI_RESMGR_INSTALLER_READY_FILE": str(alive.with_name("ready"))}
    reader, writer = os.pipe()
    process = Popen([PROGRAM, *options, "run"], stdout=writer, stderr=writer, env=environment)
    try:
        until(alive.exists)
        while select.select((), (writer,), (), 0)[1]:
            os.write(writer, b"\n" * 4096)
        seen = set[int]()

        def looks(times: int) -> bool:
            process.send_signal(signal.SIGHUP)
            seen.add(alive.stat().st_mtime_ns)
            return len(seen) > times

        until(lambda: looks(10))
        os.set_blocking(reader, False)
        said = ""

        def is_heard() -> bool:
            nonlocal said
            process.send_signal(signal.SIGHUP)
            try:
                said += os.read(reader, 1 << 16).decode()
            except BlockingIOError:
                return False
            return any(json.loads(line)["kind"] == "looked" for line in said.split("\n")[:-1] if line)

        until(is_heard)
        process.terminate()
        assert process.wait(SOON) == 0
    finally:
        process.kill()
        process.wait()
        for each in (reader, writer):
            os.close(each)
