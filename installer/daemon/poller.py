"""What the daemon sees of the host at one instant. It only looks, and decides nothing.

It is cheap on purpose: stat instead of reading, a few D-Bus properties, one CRI `Version` call to the relay.
A pass finds out what differs from the desired state; here it only matters whether anything has changed since
a pass last found nothing to do.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from installer.daemon.agent_watch import AgentWatch
from installer.daemon.configuration import Configuration
from installer.daemon.watch import WatchSpec
from installer.errors import InstallerError, UnservableHostError, is_shortage
from installer.host.chase import components
from installer.host.kubelet_files import configuration_files, matching
from installer.host.kubelet_place import find_place
from installer.host.ports import Connections, Files, Systemd
from installer.model import paths
from installer.model.fleet import FREE, Permission
from installer.model.hold import PAUSE_FILE, read_hold
from installer.model.host import ProcessState, UnitDetail, UnitState
from installer.model.limits import ANSWER_SECONDS

Token = tuple[object, ...]
_OURS = (*paths.OUR_FILES, paths.PROXY_WANTED)
# The properties of a unit whose change is worth a pass, and those of a file that any write changes.
_OF_UNIT: Callable[[UnitState], Token] = attrgetter(
    *("load_state", "active_state", "unit_file_state", "need_daemon_reload", "invocation_id"),
    *("loaded_digest", "fragment_path", "drop_in_paths"),
)
_WRITTEN: Callable[[os.stat_result], Token] = attrgetter(
    "st_ino", "st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns"
)
_SHORT_SILENCE = 2.0  # seconds: the proxy restarts, which is not worth reporting yet
_SLOW = 0.5  # seconds; slower answers may soon come too late. A relay at rest needs 5 ms
_RUNTIME_FLAG = re.compile(rb"--runtime-socket=([^\s\0\"']+)")
_NO_PROXY, _NO_KUBELET = UnitState(paths.PROXY_UNIT), UnitState("kubelet.service")


@dataclass(frozen=True, slots=True)
class PollSnapshot:
    # These are only compared: another value means a change.
    settings: Token = ()
    inputs: Token = ()  # with the settings
    files: Token = ()
    units: Token = ()
    agent: str = ""  # its configuration, which changes nothing on the host by itself
    # The rest means what it says.
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
    def obstacles(self) -> Token:
        """What may block a pass. A proxy that keeps crashing changes none of it."""
        return (self.inputs, self.refusable, self.standing, _OF_UNIT(self.kubelet))

    @property
    def refusable(self) -> Token:
        """What a look sees of the causes of a refusal: once it has changed, the pass is tried again."""
        proxy, kubelet = self.proxy, self.kubelet
        return (
            self.files,
            (proxy.load_state, proxy.drop_in_paths),
            (kubelet.load_state, kubelet.active_state == "inactive", kubelet.need_daemon_reload),
        )

    @property
    def standing(self) -> Token:
        """What a repair restores of the units and of kubelet's endpoint, and no mere restart changes."""
        proxy, kubelet = self.proxy, self.kubelet
        stopped = proxy.active_state in ("inactive", "failed")
        loaded = (proxy.loaded_digest, kubelet.loaded_digest)
        return (proxy.load_state, stopped, proxy.unit_file_state, *loaded, self.on_relay)

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
        self._base: tuple[str, ...] = ()
        self._config_directory = ""
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
            detail = self._systemd.detail(kubelet.name) if kubelet.exists else UnitDetail()
            self._base = self._base_files(kubelet, detail)
        except InstallerError as error:
            blind, unservable = error.message, isinstance(error, UnservableHostError)
        place = find_place(kubelet, self._process(kubelet), self._files, self._connections)
        on_relay = place.on_relay
        self._seen = PollSnapshot(
            inputs=tuple(file_token(path) for path in self._inputs),
            files=tuple((path, self._token(path)) for path in self._watched()),
            units=(*_OF_UNIT(proxy), *_OF_UNIT(kubelet), on_relay),
            proxy=proxy,
            kubelet=kubelet,
            answered_in=self._seen.answered_in,
            on_relay=on_relay,
            moves=place.moves,
            hold=self._hold(),
            paused=self._is_there(PAUSE_FILE, follow=False),
            blind=blind,
            unservable=unservable,
        )
        return self.heartbeat(seconds)

    def watch_specs(self) -> tuple[WatchSpec, ...]:
        """Return where a change is worth a look: each directory on the way to a path of the host, because a
        path may appear and a directory may be moved away; and everything among the inputs and kubelet's
        drop-ins."""
        names: dict[str, set[str]] = {}
        mode = f"{paths.OUR_RUNTIME}/mode.json"
        for path in (*self._watched(), PAUSE_FILE, *paths.HOLDS, *paths.ENDPOINT_LINKS, mode):
            for directory, name in _way(path):
                names.setdefault(directory, set()).add(name)
        root, ours = self._files.root, Path("/")
        watch_specs = [WatchSpec(root, directory, frozenset(found)) for directory, found in names.items()]
        directories = (*self._drop_in_directories(), *filter(None, (self._config_directory,)))
        watch_specs += [WatchSpec(root, directory) for directory in directories]
        for given in self._inputs:  # a ConfigMap is swapped by the link `..data`
            beside = frozenset((given.name, "..data"))
            watch_specs += [WatchSpec(ours, str(given)), WatchSpec(ours, str(given.parent), beside)]
        return tuple(watch_specs)

    def _drop_in_directories(self) -> tuple[str, ...]:
        ours = paths.drop_in_directories(self.configuration.drop_in_directory)
        roots = dict.fromkeys((*ours, *paths.CHANGING_UNIT_DIRECTORIES))
        return tuple(f"{root}/{self.configuration.kubelet_unit}.d" for root in roots)

    def _watched(self) -> tuple[str, ...]:
        """Return our files, kubelet's, and what is in its drop-in directories."""
        directories = paths.drop_in_directories(self.configuration.drop_in_directory)
        drop_ins = (paths.drop_in(each, self.configuration.kubelet_unit) for each in directories)
        in_directories = (
            f"{directory}/{name}"
            for directory in self._drop_in_directories()
            for name in self._names(directory)
        )
        return tuple(dict.fromkeys((*_OURS, *drop_ins, *self._base, *in_directories)))

    def _token(self, path: str) -> Token:
        """Return what any write to the file changes. One that cannot be looked at (a loop of links, a broken
        disk) must not hide the rest of the host. Raises OSError for lack of descriptors or memory."""
        try:
            return _status_token(self._files.status(path))
        except InstallerError as error:
            return (error.message,)
        except OSError as error:
            if is_shortage(error):
                raise
            return (str(error),)

    def _names(self, directory: str) -> tuple[str, ...]:
        try:
            return self._files.list(directory)
        except (InstallerError, OSError):
            return ()

    def _base_files(self, kubelet: UnitState, detail: UnitDetail) -> tuple[str, ...]:
        """Return kubelet's unit files, drop-ins, environment files and configuration, without the composed
        file."""
        process = self._process(kubelet)
        directory = process.flag("--config-dir") or ""
        self._config_directory = directory if directory.startswith("/") else ""
        environment = [path for name, _ in detail.environment_files for path in self._matching(name)]
        configured = (process.flag("--config") or "", *self._configured())
        found = (kubelet.fragment_path, *kubelet.drop_in_paths, *environment, *configured)
        return tuple(p for p in found if p.startswith("/") and not p.startswith(paths.OUR_RUNTIME))

    def _configured(self) -> tuple[str, ...]:
        """Return what kubelet reads in its --config-dir."""
        try:
            return tuple(configuration_files(self._files, self._config_directory))
        except (InstallerError, OSError):
            return ()

    def _matching(self, pattern: str) -> tuple[str, ...]:
        """Return the matches and the pattern itself: a path that does not exist may appear."""
        try:
            return (pattern, *matching(self._files, pattern))
        except (InstallerError, OSError):
            return (pattern,)

    def _process(self, unit: UnitState) -> ProcessState:
        raw = self._read(f"/proc/{unit.main_pid}/cmdline") if unit.main_pid else b""
        argv = tuple(word.decode("utf-8", "replace") for word in raw.split(b"\0")[:-1])
        return ProcessState(unit.main_pid, argv, {})

    def _read(self, path: str) -> bytes:
        try:
            return self._files.read(path) or b""
        except (InstallerError, OSError):  # gone by now, or a link that leads out of the root
            return b""

    def _hold(self) -> str:
        """Anything there holds, as for the guard, to which a broken disk shows none either."""
        return read_hold(lambda path: self._read(path) if self._is_there(path, follow=True) else None)

    def _is_there(self, path: str, *, follow: bool) -> bool:
        try:
            return self._files.status(path, follow=follow) is not None
        except (InstallerError, OSError) as error:
            if isinstance(error, OSError) and is_shortage(error):
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
        except InstallerError:
            return False
        except OSError as error:
            if is_shortage(error):
                raise
            return False


def _status_token(status: os.stat_result | None) -> Token:
    """Return what any write changes; of a directory only its identity, because others also write there."""
    if status is None:
        return ()
    if stat.S_ISDIR(status.st_mode):
        return (status.st_dev, status.st_ino, status.st_mode)
    return _WRITTEN(status)


def file_token(path: Path) -> Token:
    """Return what changes with a file, or with the files of a directory. Links are followed, because a
    ConfigMap is swapped by a link. Nothing is opened: a FIFO would wait for its other end."""
    try:
        if not path.is_dir():
            return _followed(path)
        names = sorted(name for name in os.listdir(path) if not name.startswith(".."))
        return tuple((name, _followed(path / name)) for name in names)
    except OSError:
        return ()


def _followed(path: Path) -> Token:
    try:
        return _status_token(path.stat())
    except OSError:
        return ()


def _way(path: str) -> Iterable[tuple[str, str]]:
    """Yield each directory on the way to `path`, except the root, and the name in it that leads on."""
    names = components(path)
    for depth in range(1, len(names)):
        yield f"/{'/'.join(names[:depth])}", names[depth]
