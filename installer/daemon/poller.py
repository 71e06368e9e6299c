"""What the daemon sees of the host at one instant: what matters within a second. It only looks.

It is cheap on purpose: a few D-Bus properties, one CRI `Version` call to the relay. What differs from what
should be, the picture says (`assessor.py`), which takes longer.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from installer.daemon.agent_watch import AgentWatch
from installer.daemon.configuration import Configuration
from installer.daemon.runtime_state import MODE_FILE
from installer.daemon.watch import WatchSpec
from installer.errors import InstallerError, UnservableHostError, is_shortage
from installer.host.chase import components
from installer.host.kubelet_place import find_place
from installer.host.ports import Connections, Files, Systemd
from installer.model import paths
from installer.model.fleet import FREE, Permission
from installer.model.hold import PAUSE_FILE, read_hold
from installer.model.host import ProcessState, UnitState
from installer.model.limits import ANSWER_SECONDS

if TYPE_CHECKING:
    from installer.node.picture import Picture

_OURS = (*paths.OUR_FILES, paths.PROXY_WANTED)
_SHORT_SILENCE = 2.0  # seconds: the proxy restarts, which is not worth reporting yet
_SLOW = 0.5  # seconds; slower answers may soon come too late. A relay at rest needs 5 ms
_RUNTIME_FLAG = re.compile(rb"--runtime-socket=([^\s\0\"']+)")
_NO_PROXY, _NO_KUBELET = UnitState(paths.PROXY_UNIT), UnitState("kubelet.service")


@dataclass(frozen=True, slots=True)
class PollSnapshot:
    picture: Picture | None = None  # the last one; None: there was none yet
    agent: str = ""  # another value means: its configuration, or the active policy, has changed
    relay: bool = True  # it answers
    answered_in: float = 0.0  # seconds that the relay took for its last answer; 0: none yet
    late: bool = False  # the relay has used up the time for an answer
    runtime: bool = True  # it answers; probed only while the relay is silent
    proxy: UnitState = _NO_PROXY
    kubelet: UnitState = _NO_KUBELET
    on_relay: bool = False  # kubelet is
    moves: bool = False  # it can leave the relay, and return, without a restart
    hold: str = ""  # why kubelet is held
    paused: bool = False
    superseded: bool = False  # a newer daemon has come, or another installation's acts on the host
    foreign: str = ""  # that other installation, NAMESPACE/NAME
    foreign_lives: bool = False  # a daemon of it does
    permission: Permission = FREE
    blind: str = ""  # why the units could not be looked at
    unservable: bool = False  # because this is not a host that we can serve

    @property
    def is_ours(self) -> bool:
        """Whether the proxy is ours, or at least what has brought kubelet to the relay."""
        return bool(self.proxy.loaded_digest or (self.on_relay and self.kubelet.loaded_digest))

    @property
    def proxy_is_coming(self) -> bool:
        """Whether systemd tries again by itself, or a rescue will: a pass now would blame the good
        generation."""
        trying = self.proxy.active_state in ("activating", "deactivating")
        return trying or (self.proxy.running and not self.relay)

    def complaint(self, silent: float) -> str:
        """Return what is not healthy, empty if all is. `silent`: seconds since the relay last answered."""
        for unit in (self.proxy, self.kubelet):
            if not unit.running and not (unit is self.proxy and silent < _SHORT_SILENCE):
                # One that keeps crashing is one thing to report, and not two for each crash.
                between = unit.active_state in ("activating", "deactivating")
                return f"{unit.name} is {'not active' if between else unit.active_state}"
        if silent >= _SHORT_SILENCE:
            said = "the relay does not answer"
            if self.late and self.answered_in >= _SLOW:
                said = f"the relay does not answer in time (its last answer took {self.answered_in:.1f} s)"
            return said + ("" if self.runtime else ", nor does the runtime")
        return "" if self.on_relay else "kubelet runs on its base endpoint"


class Poller:
    """Looks at one host. `inputs` are paths of our own file system: configs, settings, payload. `answers`
    says whether a socket answers a CRI `Version` call within so many seconds."""

    def __init__(
        self,
        files: Files,
        systemd: Systemd,
        connections: Connections,
        configuration: Configuration,
        inputs: Iterable[Path],
        answers: Callable[[Path, float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_answered, self._clock = answers, clock
        self._files = files
        self._systemd, self._connections = systemd, connections
        self._inputs = tuple(inputs)
        self.configuration = configuration
        self._agent = AgentWatch(files)
        self._seen = PollSnapshot()

    def heartbeat(self, seconds: float = ANSWER_SECONDS) -> PollSnapshot:
        """Return the last snapshot with a new relay probe, which has `seconds` for its answer, and a new look
        at the agent's configuration."""
        began = self._clock()
        relay = self._answers(paths.RELAY_SOCKET, seconds)
        took = self._clock() - began
        runtime = relay or self._runtime_answers()
        answered_in, late = (took, False) if relay else (self._seen.answered_in, took >= seconds)
        answer = replace(self._seen, relay=relay, answered_in=answered_in, late=late, runtime=runtime)
        self._seen = replace(answer, agent=self._agent.look())
        return self._seen

    def look(self, seconds: float = ANSWER_SECONDS) -> PollSnapshot:
        """Return a complete snapshot; the relay has `seconds` for its answer."""
        blind, unservable, proxy, kubelet = "", False, self._seen.proxy, self._seen.kubelet
        try:
            proxy = self._systemd.unit(paths.PROXY_UNIT)
            kubelet = self._systemd.unit(self.configuration.kubelet_unit)
        except InstallerError as error:
            blind, unservable = error.message, isinstance(error, UnservableHostError)
        place = find_place(kubelet, self._process(kubelet), self._files, self._connections)
        self._seen = PollSnapshot(
            proxy=proxy,
            kubelet=kubelet,
            answered_in=self._seen.answered_in,
            on_relay=place.on_relay,
            moves=place.moves,
            # Anything there holds, as for the guard, to which a broken disk shows none either.
            hold=read_hold(lambda path: self._read(path) if self._is_there(path, follow=True) else None),
            paused=self._is_there(PAUSE_FILE, follow=False),
            blind=blind,
            unservable=unservable,
        )
        return self.heartbeat(seconds)

    def watch_specs(self, places: Iterable[str]) -> tuple[WatchSpec, ...]:
        """Return where a change is worth a look: each directory on the way to a path of the host, except the
        root, because a path may appear and a directory may be moved away; and everything among the inputs and
        kubelet's drop-ins. `places`: what a picture rests on, besides our own files."""
        names: dict[str, set[str]] = {}
        unit, setting = self.configuration.kubelet_unit, self.configuration.drop_in_directory
        roots = dict.fromkeys((*paths.drop_in_directories(setting), *paths.CHANGING_UNIT_DIRECTORIES))
        drop_ins = tuple(f"{root}/{unit}.d" for root in roots)
        for path in (*_OURS, *places, *drop_ins, PAUSE_FILE, *paths.HOLDS, *paths.ENDPOINT_LINKS, MODE_FILE):
            way = components(path)
            for depth in range(1, len(way)):
                names.setdefault(f"/{'/'.join(way[:depth])}", set()).add(way[depth])
        root, ours = self._files.root, Path("/")
        watch_specs = [WatchSpec(root, directory, frozenset(found)) for directory, found in names.items()]
        directories = (path.rstrip("/") for path in places if path.endswith("/"))
        watch_specs += [WatchSpec(root, each) for each in (*drop_ins, *directories)]
        for given in self._inputs:  # a ConfigMap is swapped by the link `..data`
            beside = frozenset((given.name, "..data"))
            watch_specs += [WatchSpec(ours, str(given)), WatchSpec(ours, str(given.parent), beside)]
        return tuple(watch_specs)

    def _process(self, unit: UnitState) -> ProcessState:
        raw = self._read(f"/proc/{unit.main_pid}/cmdline") if unit.main_pid else b""
        argv = tuple(word.decode("utf-8", "replace") for word in raw.split(b"\0")[:-1])
        return ProcessState(unit.main_pid, argv, {})

    def _read(self, path: str) -> bytes:
        try:
            return self._files.read(path) or b""
        except (InstallerError, OSError):  # gone by now, or a link that leads out of the root
            return b""

    def _is_there(self, path: str, *, follow: bool) -> bool:
        try:
            return self._files.status(path, follow=follow) is not None
        except (InstallerError, OSError) as error:
            if is_shortage(error):
                raise
            return False

    def _runtime_answers(self) -> bool:
        """Whether the runtime behind the relay answers. Its endpoint is unknown if the proxy's environment is
        lost: that counts as yes, because kubelet must not stay on a dead relay."""
        match = _RUNTIME_FLAG.search(self._read(paths.PROXY_ENVIRONMENT))
        return not match or self._answers(paths.normalise_endpoint(os.fsdecode(match[1])), ANSWER_SECONDS)

    def _answers(self, path: str, seconds: float) -> bool:
        """Raises OSError for lack of descriptors or memory: that is not silence."""
        try:
            with self._files.opened(path) as place:
                return self._is_answered(place, seconds)
        except (InstallerError, OSError) as error:
            if is_shortage(error):
                raise
            return False
