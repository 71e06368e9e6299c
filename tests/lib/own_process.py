"""The daemon's real loop with real children, whose work is a few lines of Python, on a host in memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gi.repository import GLib
from pytest_mock import MockerFixture

from installer.daemon.assessor import Assessed, Engine, failed
from installer.daemon.configuration import Command, Configuration
from installer.daemon.loop import Daemon
from installer.errors import InstallerError, InvalidInputError
from installer.model import paths
from installer.model.daemon import Cluster, Installed
from installer.model.event import Event
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.picture import Picture
from tests.lib.fakes import FakeSystemd

SOON = 60.0


KUBELET = "kubelet.service"

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

OURS = (f"{paths.UNIT_VARIABLE}=digest",)


# A child: what it does for each verb, or each action of a pass, is a file of that name.
CHILD = """
import json, os, pathlib, signal, sys, time
def say(kind, message="", **data):
    print(json.dumps({"kind": kind, "message": message, "data": data}), flush=True)
def outcome(code, **fields):
    say("pass.outcome", outcome=json.dumps({"code": code, **fields}))
def ends(code, reason="", **fields):
    root = pathlib.Path(sys.argv[1], "../root/etc/cri-resmgr/fallback.cfg")
    if code == 0:
        pathlib.Path(sys.argv[1], "good").write_bytes(root.read_bytes() if root.exists() else b"")
    outcome(code, reason=reason, **fields)
    sys.exit(code)
def converges(changed):
    say("converged", changed=changed)
    ends(0, changed=changed)
def moves(**fields):
    outcome(-1, ended=False, **fields)
verb, *rest = [word for word in sys.argv[2:] if not word.startswith("--")]
order = json.loads(rest[0]) if verb == "pass" else {}
verb = order.get("action", verb)
with open(sys.argv[1] + "/begun", "a") as begun:
    begun.write(verb + "\\n")
exec(pathlib.Path(sys.argv[1], verb).read_text())
"""


@dataclass
class Listened(FakeSystemd):
    changed: Callable[[], None] = lambda: None
    is_listening: bool = True
    on_look: Callable[[], None] = lambda: None

    def unit(self, name: str) -> UnitState:
        if name == KUBELET:
            self.on_look()
        return super().unit(name)

    def listen(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        """Tests call it from their own thread."""

        def tell() -> bool:
            changed()
            return False

        self.changed = lambda: GLib.idle_add(tell, priority=GLib.PRIORITY_DEFAULT)


class SceneEngine(Engine):
    """The host differs if fallback.cfg is not as the last child left it that has converged."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def configure(self) -> Configuration:
        if self._scene.faults:
            raise InvalidInputError(self._scene.faults)
        return self._scene.configuration

    def assess(self, mode: Mode | None) -> Assessed:
        scene = self._scene
        scene.taken += 1
        scene.under_way += 1
        time.sleep(scene.hangs)
        scene.under_way -= 1
        if scene.faults:
            return failed(InvalidInputError(scene.faults))
        error = scene.systemd.errors.get(("unit", paths.PROXY_UNIT))
        if isinstance(error, InstallerError):
            return replace(failed(error), configuration=scene.configuration)
        there, good = scene.path(paths.FALLBACK_CONFIG), scene.work / "good"
        content = there.read_bytes() if there.exists() else b""
        differs = not good.exists() or good.read_bytes() != content
        seen = Picture(
            wanted="one",
            inputs=scene.config.read_text(),
            differs="fallback.cfg differs" if differs else "",
            due=differs,
            in_files=True,
            installed=Installed("one" if good.exists() else ""),
        )
        return Assessed(replace(seen, **scene.seen), scene.configuration)


class Scene:
    """A daemon, its children's work, and what it says. `seen` is what the picture of the host shows
    besides."""

    def __init__(self, directory: Path) -> None:
        self.root, self.work = directory / "root", directory / "work"
        for made in (self.root / "run/dbus", self.root / "etc/cri-resmgr", self.work):
            made.mkdir(parents=True)
        for path in (paths.SYSTEM_BUS, paths.RELAY_SOCKET, paths.PROXY_ENVIRONMENT, "/run/runtime.sock"):
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.path(path).touch()
        self.path(paths.PROXY_ENVIRONMENT).write_text("X=--runtime-socket=/run/runtime.sock")
        command_line = self.path("/proc/7/cmdline")
        command_line.parent.mkdir(parents=True)
        command_line.write_bytes(
            b"kubelet\0--container-runtime-endpoint=%b\0" % paths.RELAY_ENDPOINT.encode()
        )
        self.config = directory / "settings.yaml"
        self.config.touch()
        self.events: list[Event] = []
        self.log: Callable[[Event], None] = self.events.append
        self.relay, self.slow = True, 0.0  # seconds until the relay answers
        self.late_answers = 0
        self.systemd = Listened()
        for name, pid in ((paths.PROXY_UNIT, 6), (KUBELET, 7)):
            self.systemd.units[name] = UnitState(
                name, "loaded", "active", "running", main_pid=pid, environment=OURS
            )
        self.command = Command(
            self.root,
            directory / "payload",
            None,
            self.config,
            directory / "probes/ready",
            "one",
            program=(sys.executable, "-S", "-c", CHILD, str(self.work)),
        )
        self.faults: list[str] = []
        self.hangs = 0.0  # seconds that an assessment takes
        self.taken = 0  # assessments
        self.under_way = 0  # of them
        self.seen: dict[str, Any] = {}
        self.configuration = Configuration()
        self.settings()
        self.does("install", "converges(False)")
        self.does("rescue", "")

    def path(self, path: str) -> Path:
        return self.root / path[1:]

    def settings(self, **configuration: Any) -> None:
        self.configuration = replace(Configuration(), **({"dead_seconds": 4.0} | configuration))
        self.faults = []

    def does(self, verb: str, code: str) -> None:
        (self.work / verb).write_text(code)

    def begun(self) -> list[str]:
        begun = self.work / "begun"
        return begun.read_text().split() if begun.exists() else []

    def answers(self, path: Path, seconds: float) -> bool:
        if path.readlink().name == "runtime.sock":
            return True
        time.sleep(min(self.slow, seconds))
        answered = self.relay and self.slow <= seconds
        self.late_answers += answered and self.slow > 0
        return answered

    def emit(self, event: Event) -> None:
        self.log(event)

    def of(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event.kind == kind]

    def phase(self) -> str:
        states = self.of("state")
        return str(states[-1].data["phase"]) if states else ""

    def reaches(self, phase: str, seconds: float = SOON) -> None:
        self.until(lambda: self.phase() == phase, seconds)

    def until(self, reached: Callable[[], bool], seconds: float = SOON) -> float:
        """How long it took."""
        started = time.monotonic()
        while not reached():
            assert time.monotonic() - started < seconds, [event.message for event in self.events]
            time.sleep(0.01)
        return time.monotonic() - started

    def looks(self) -> Event:
        """Makes the daemon look now; what it says came of it."""
        before = len(self.of("looked"))
        os.kill(os.getpid(), signal.SIGHUP)
        self.until(lambda: len(self.of("looked")) > before)
        return self.of("looked")[before]

    def drift(self) -> None:
        self.path(paths.FALLBACK_CONFIG).write_text(str(time.monotonic()))

    def play(self, body: Callable[[], None], cluster: Cluster | None = None) -> None:
        """Runs the daemon until `body`, beside it, has ended."""
        engine = SceneEngine(self)
        daemon = Daemon(self.command, self.emit, cluster or Cluster(), self.systemd, self.answers, engine)

        def play() -> None:
            try:
                self.until(lambda: bool(self.of("daemon.started")))
                body()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        with tidied(), ThreadPoolExecutor(1) as pool:
            played = pool.submit(play)
            code = daemon.run()
            daemon._loop.watch({}, lambda: None)  # the next one's in this process counts the kernel's watches
            played.result()
        assert code == 0


def sources() -> set[int]:
    """The numbers of the default context's sources, up to the newest."""
    newest = GLib.timeout_add(60_000, lambda: False)
    GLib.source_remove(newest)
    context = GLib.MainContext.default()
    return {number for number in range(1, newest) if context.find_source_by_id(number) is not None}


def remove_sources(numbers: Iterable[int]) -> None:
    for number in numbers:
        source = GLib.MainContext.default().find_source_by_id(number)
        if source is not None:
            source.destroy()


@contextmanager
def tidied() -> Iterator[None]:
    """A daemon's process ends with it; here its timers, children and signals would go off in
    the next one's loop."""
    before = sources()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        remove_sources(sources() - before)


def refuse(mocker: MockerFixture, *verbs: str) -> list[str]:
    """From now on children for these verbs cannot be started, as where the pids cgroup is full."""
    real, refused = subprocess.Popen, list(verbs)

    def start(argv: tuple[str, ...], **options: Any) -> Any:
        if any(f'"action": "{verb}"' in word or verb == word for verb in refused for word in argv):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(argv, **options)

    mocker.patch("subprocess.Popen", side_effect=start)
    return refused
