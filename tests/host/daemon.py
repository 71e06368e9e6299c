"""A daemon as a process of its own, and all that it says."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.host.command import PROGRAM
from tests.host.node import Node

#: Seconds after which something is not slow but does not happen, also on a machine that runs other
#: tests. How fast it is, hack/bench says.
SOON = 120.0


#: Seconds that such a machine may add to a bound which the rules set for one that is not starved.
BUSY = 20.0


def within(seconds: float, true: Callable[[], bool]) -> float:
    """Waits until it is true and returns how long that took; fails after `seconds`."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - started


class Daemon:
    """`run` on a node, started at once, with this environment beside the tests' own; who starts it ends it.

    `argv` stands for another program of the same kind. `events` grows while it runs.
    """

    def __init__(
        self, node: Node, ready_file: Path, environment: Mapping[str, str], argv: Sequence[str] = ()
    ) -> None:
        self.ready_file = ready_file
        self.excused_file = ready_file.with_name("excused")
        self.events: list[dict[str, Any]] = []
        ours = {key: value for key, value in os.environ.items() if not key.startswith("CRI_RESMGR_")}
        self.process = subprocess.Popen(
            argv or [str(PROGRAM), *node.command.globals(), "--output", "json", "run"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ours | {"CRI_RESMGR_INSTALLER_READY_FILE": str(ready_file)} | dict(environment),
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.events.append({"kind": "not json", "message": line, "data": {}})

    def said(self) -> str:
        return "\n".join(json.dumps(event) for event in self.events)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["kind"] == kind]

    def messages(self, kind: str) -> list[str]:
        return [str(event["message"]) for event in self.events if event["kind"] == kind]

    def ended(self) -> list[dict[str, Any]]:
        return self.of("pass.ended")

    def phase(self) -> str:
        states = self.of("state")
        return str(states[-1]["phase"]) if states else ""

    def reach(self, phase: str, seconds: float = SOON) -> None:
        within(seconds, lambda: self.phase() == phase)

    def ready(self, seconds: float = SOON) -> None:
        within(seconds, self.ready_file.exists)

    def looks(self) -> dict[str, Any]:
        """Makes it look at the host now; what it says came of it."""
        before = len(self.of("looked"))
        self.process.send_signal(signal.SIGHUP)
        within(SOON, lambda: len(self.of("looked")) > before)
        return self.of("looked")[before]

    def rests(self, seconds: float = 60.0) -> None:
        """At each look it decides to begin nothing, and in the end nothing for this long."""
        begun = len(self.of("pass.started"))
        within(SOON, lambda: self.looks()["seconds"] > seconds)
        assert len(self.of("pass.started")) == begun

    def settle(self) -> None:
        """Waits until it is ready, and finds nothing more to do."""
        within(SOON, lambda: self.is_at_rest() and not self.looks()["running"] and self.is_at_rest())

    def is_at_rest(self) -> bool:
        done = len(self.ended()) == len(self.of("pass.started"))
        return done and self.phase() == "converged" and self.ready_file.exists()

    def restarts(self) -> int:
        """Kubelet's, by this daemon."""
        return sum(int(data["kubeletRestarts"]) for data in self.ended())

    def child(self, action: str) -> int:
        """The process of the pass that does this for it, as soon as there is one."""
        found, ordered = list[int](), f'"action": "{action}"'.encode()

        def appears() -> bool:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in children:
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                    found.extend([int(child)] if any(ordered in word for word in words) else [])
            return bool(found)

        within(SOON, appears)
        return found[0]

    def switches_per_second(self, seconds: float = 8.0) -> float:
        """Voluntary context switches of all its threads. One that ends meanwhile does not count."""

        def count() -> dict[str, int]:
            found = {}
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    text = (task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1]
                    found[task.name] = int(text.split()[0])
            return found

        before = count()
        time.sleep(seconds)
        return sum(now - before.get(thread, 0) for thread, now in count().items()) / seconds

    def rss(self) -> int:
        """Resident memory in kilobytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def end(self, number: int = signal.SIGTERM, seconds: float = 120) -> int:
        """As kubelet ends a pod; returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join()
        self.expect_honest()
        return code

    def expect_honest(self) -> None:
        """R13: it never said `converged` while a pass was at work."""
        at_work = False
        for event in list(self.events):
            kind, data = event["kind"], event["data"]
            if kind in ("pass.started", "pass.ended"):
                at_work = kind == "pass.started"
            elif kind == "state" and data["phase"] == "converged":
                assert not at_work, f"converged, while a pass is at work:\n{self.said()}"

    def kill(self) -> None:
        """Whatever it is at; one that has ended already is fine."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
