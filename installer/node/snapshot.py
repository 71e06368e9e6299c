"""Read the host into one `HostSnapshot`. Read-only; what disappears while it is being read is absent.

Each unit is read once per snapshot, and nothing reads it again to decide.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from installer.errors import InstallerError, UnservableHostError
from installer.host.kubelet_files import configuration_files, matching
from installer.host.ports import Files, Host, Unwritable
from installer.host.unit_files import find_drop_ins
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.hold import CLUSTER_MEMORY, PAUSE_FILE, read_hold, why_paused
from installer.model.host import (
    Health,
    HostSnapshot,
    Kind,
    KubeletBase,
    KubeletSnapshot,
    Machine,
    Probe,
    ProxySnapshot,
    UnitDetail,
    UnitText,
    last_flag,
)
from installer.model.limits import HURRIED_SECONDS
from installer.model.plan import FileChange, Plan
from installer.model.proxy import BELIEVED, patience
from installer.node.controls import find_returns
from installer.node.kept import object_path
from installer.node.known_pods import look_for_unknown
from installer.node.kubelet_command import (
    base_launch,
    find_launch,
    is_shell_script,
    kubelet_program,
    next_command_line,
    parse_base,
)
from installer.node.kubelet_endpoint import is_behind_shell
from installer.node.kubelet_link import read_kubelet
from installer.node.links import find_links
from installer.node.ordering import find_cycle
from installer.node.pinning import read_cache, read_managers, running_containers
from installer.node.record import Goes, Record, objects_of
from installer.node.sandbox import needed_paths

_SERVICES_THAT_MATTER = (
    "gardener-node-agent.service",
    "nodeadm-config.service",
    "nodeadm-run.service",
    "machine-config-daemon-pull.service",
    "machine-config-daemon-firstboot.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "microshift.service",
)
_BOTTLEROCKET = re.compile(r"^ID=[\"']?bottlerocket", re.MULTILINE)
_TEXT_LIMIT = 4 << 20  # bytes of a unit file or a kubelet configuration worth reading
_SMALL, _MEMORY = 4096, 1 << 16  # bytes
_NRI_LISTENS = re.compile(rb"^\w+: \w+ \w+ 00010000 .* (/var)?/run/nri/nri\.sock$", re.MULTILINE)
"""A line of /proc/net/unix with the flag __SO_ACCEPTCON."""
_RUNTIME_SECONDS = 10.0  # on a starved node a working runtime has needed more than 2 s
_RELAY_SECONDS = 1.0  # systemd may be restarting the proxy, which is away for 0.1 - 0.3 s
_FIRST_SECONDS = 3.0  # for an answer; no more, because kubelet must leave a dead relay in time (R4)
_RELAY_PAUSE = 0.3  # seconds


def read_machine(host: Host) -> Machine:
    """Which machine the host is. Raises OSError if the disk returns errors."""
    return replace(host.identity(), services=_services(host))


def take_snapshot(host: Host, machine: Machine, settings: Settings, record: Record) -> HostSnapshot:
    """Everything but the probe. Raises OSError, and UnservableHostError if the host has no system bus."""
    now = _read(host, settings, record, _FIRST_SECONDS)
    nri = settings.removal.successor == "nri" and _accepts_plugins(host.files)
    return replace(
        now,
        machine=machine,
        base=_read_base(host, now.kubelet),
        exposed=_exposed(host, settings),
        accepts_plugins=nri,
        unknown_pods=look_for_unknown(host, now.proxy),
    )


def refresh(
    snapshot: HostSnapshot, host: Host, settings: Settings, record: Record, seconds: float = HURRIED_SECONDS
) -> HostSnapshot:
    """The same host now: units, processes, files. What a run does not change (the machine, kubelet's base,
    the probe) stays as it was read; a meanwhile edited base is for the next run. The relay and kubelet's
    healthz get `seconds` to answer, since a rollback may have no time for slow answers (R8)."""
    now = _read(host, settings, record, seconds)
    return replace(now, machine=snapshot.machine, base=snapshot.base, probe=snapshot.probe)


def kubelet_root(snapshot: HostSnapshot) -> str:
    """Where kubelet keeps its state: only a flag says so, of the running process or of the next one."""
    process, base = snapshot.kubelet.process, snapshot.base
    argv = process.argv if process else next_command_line(parse_base(base), base)
    given = last_flag(argv, "--root-dir") or ""
    return given.rstrip("/") if given.startswith("/") else paths.KUBELET_ROOT


def read_units(host: Host, settings: Settings) -> HostSnapshot:
    """Only both units, their processes and the hold: what a rescue has time for."""
    proxy = host.systemd.unit(paths.PROXY_UNIT)
    kubelet = host.systemd.unit(settings.kubelet.unit)
    return HostSnapshot(
        proxy=ProxySnapshot(proxy, host.processes.get(proxy.main_pid) if proxy.main_pid else None),
        kubelet=read_kubelet(host, kubelet),
        hold=find_hold(host.files),
    )


def _read(host: Host, settings: Settings, record: Record, seconds: float) -> HostSnapshot:
    units = read_units(host, settings)
    proxy, kubelet, cache = units.proxy, units.kubelet, read_cache(host.files)
    served = _has_served(host, proxy)  # before the call: a proxy that begins to serve meanwhile was starting
    health = _health(host, kubelet, settings.kubelet.healthz_url, seconds)
    healthy = health is Health.OK
    # Do not keep an unhealthy kubelet waiting: it may be failing because of that relay.
    silence = seconds if served and healthy else HURRIED_SECONDS
    answers = proxy.unit.running and _relay_answers(host, silence)
    limit = patience(settings.proxy.start_timeout_seconds, len(cache.containers))
    state = (*paths.PROXY_STATE, *record.going(Goes.WHOLE))
    return replace(
        units,
        proxy=replace(
            proxy,
            links=frozenset(find_links(host.files)),
            relay_answers=answers,
            starting=not answers and _is_starting(proxy, limit, served=served),
            last_start=_last_start(host, proxy),
        ),
        kubelet=replace(kubelet, healthy=healthy, foreign_healthz=health is Health.FOREIGN),
        pause=_read_pause(host.files),
        files={path: host.files.state(path, record.known_digest) for path in _paths(settings, record)},
        composed=any(_exists(host.files, path) for path in (paths.KUBELET_COMPOSED, paths.KUBELET_USED)),
        leftovers=tuple(path for path in dict.fromkeys(state) if _exists(host.files, path)),
        cache=cache,
        may_be_unknown=_exists(host.files, paths.CONTAINERS_UNKNOWN),
    )


_NEEDED = (paths.RUN, paths.PROXY_STATE[0])


def with_probe(
    snapshot: HostSnapshot, host: Host, plan: Plan, endpoint: str, *, starts: bool
) -> HostSnapshot:
    """The snapshot with the facts that are needed only if something is to be changed as in `plan`.
    `endpoint`: where to ask the runtime; empty: do not ask it. `starts`: units may be started."""
    wanted = [file.path for file in plan.desired.files]
    deleted = [change.path for change in plan.changes.files]
    directories = sorted({posixpath.dirname(path) for path in (*wanted, *deleted)} | {paths.OUR_STATE})
    unwritable = {directory: reason for directory in directories if (reason := _unwritable(host, directory))}
    usable = [directory for directory in directories if directory not in unwritable]
    unwritable |= {change.path: Unwritable.IMMUTABLE for change in plan.changes.files if _fixed(host, change)}
    probe = _probe_runtime(host, endpoint)
    returns = find_returns(host.files, plan.controls, snapshot.cache, probe.containers)
    of_others = _texts(host.files, find_drop_ins(host.files, (paths.PROXY_UNIT,)))
    served = bool(wanted) and starts
    cycle = find_cycle(host.systemd, plan.kubelet_unit, of_others, find_links(host.files)) if served else ()
    probe = replace(
        probe,
        cycle=cycle,
        returns=tuple(each.planned for each in returns),
        managers=read_managers(host),
        free_bytes={directory: host.files.free_bytes(directory) for directory in (*usable, *_NEEDED)},
        unwritable=unwritable,
        obstacles={path: reason for path in wanted if (reason := _obstacle(host, path))} | _split_run(host),
        proxy_drop_ins=of_others,
        missing=frozenset(
            path
            for path, _line in needed_paths((*of_others, *snapshot.base.texts))
            if not _exists(host.files, path, follow=True)
        ),
        kubelet_version=_kubelet_version(host, snapshot) if served else "",
    )
    return replace(snapshot, probe=probe)


# -- units and files ------------------------------------------------------------------


def _health(host: Host, kubelet: KubeletSnapshot, url: str, seconds: float) -> Health:
    """If kubelet is a child of its unit's shell, its pid is unknown."""
    pid = 0 if is_behind_shell(kubelet.process) else kubelet.unit.main_pid
    return host.healthz.ask(url, pid, seconds) if kubelet.unit.running else Health.UNWELL


def _is_starting(proxy: ProxySnapshot, limit: float, *, served: bool) -> bool:
    """Whether its start is in progress, for at most `limit` seconds. It writes its pid file when it serves,
    and the guard removes that file before each start."""
    if proxy.process is None or proxy.process.age > limit:
        return False
    return proxy.unit.active_state == "activating" or not served


def _has_served(host: Host, proxy: ProxySnapshot) -> bool:
    pid = _read_small(host.files, paths.PROXY_PID_FILE).strip()
    return proxy.unit.main_pid > 0 and pid == str(proxy.unit.main_pid).encode()


def _last_start(host: Host, proxy: ProxySnapshot) -> float:
    """From the files that a start itself creates: the relay's socket before it reads containers, the pid file
    when it serves. So a clock that was set since does not matter. systemd's own times would not do: to
    systemd the unit has started before a slow relay answers."""
    if proxy.process is None or not _has_served(host, proxy):
        return 0.0
    try:
        socket = host.files.status(paths.RELAY_SOCKET, follow=True)
        pid_file = host.files.status(paths.PROXY_PID_FILE, follow=True)
    except UnservableHostError:
        return 0.0
    if socket is None or pid_file is None:
        return 0.0
    seconds = pid_file.st_mtime - socket.st_mtime
    return seconds if 0 <= seconds <= min(proxy.process.age, BELIEVED) else 0.0


def _relay_answers(host: Host, silence: float) -> bool:
    """A relay that accepts the call gets `silence` seconds to answer, and is not called again."""
    deadline = host.clock.monotonic() + _RELAY_SECONDS
    while not host.cri.answers(paths.RELAY_ENDPOINT, silence):
        if host.clock.monotonic() >= deadline:
            return False
        host.clock.sleep(_RELAY_PAUSE)
    return True


def _paths(settings: Settings, record: Record) -> list[str]:
    """Every path that may be desired or is owned, and the kept objects."""
    drop_in = paths.drop_in(settings.kubelet.drop_in_directory, settings.kubelet.unit)
    kept = map(object_path, objects_of(record))
    return sorted({*paths.OUR_FILES, drop_in, *record.going(Goes.BACK), *kept})


def _exposed(host: Host, settings: Settings) -> dict[str, str]:
    """Who may write into a directory on the way to our files, decides what runs as root on this host."""
    drop_in = paths.drop_in(settings.kubelet.drop_in_directory, settings.kubelet.unit)
    files = {posixpath.dirname(path) for path in (*paths.OUR_FILES, drop_in, paths.RELAY_SOCKET)}
    found = {}
    for directory in sorted({*files, paths.OBJECTS, paths.OUR_RUNTIME, paths.PROXY_STATE[0]}):
        found.update(host.files.exposed(directory))
    return found


def _exists(files: Files, path: str, *, follow: bool = False) -> bool:
    try:
        return files.status(path, follow=follow) is not None
    except UnservableHostError:  # a link leads out of the host root, so none of our files can be there
        return False


def find_hold(files: Files) -> str:
    """Why kubelet is held on its base endpoint; empty if it is not."""
    return read_hold(partial(_read_hold, files))


def _read_hold(files: Files, path: str) -> bytes | None:
    """Anything at the path of a hold holds, as for the guard, to which a broken disk shows none either."""
    with suppress(OSError, UnservableHostError):
        return _read_small(files, path) if files.status(path, follow=True) is not None else None
    return None


def _read_pause(files: Files) -> str:
    """Why the node is paused; empty if it is not. Anything at the path of the pause file pauses."""
    file = _read_small(files, PAUSE_FILE) if _exists(files, PAUSE_FILE) else None
    return why_paused(file, _read_small(files, CLUSTER_MEMORY, _MEMORY))


def _read_small(files: Files, path: str, limit: int = _SMALL) -> bytes:
    try:
        return files.read(path, limit) or b""
    except InstallerError:
        return b""


# -- kubelet's base -------------------------------------------------------------------


def _read_base(host: Host, kubelet: KubeletSnapshot) -> KubeletBase:
    files, unit = host.files, kubelet.unit
    detail = host.systemd.detail(unit.name) if unit.exists else UnitDetail()
    units = (unit.fragment_path, *unit.drop_in_paths)
    argv = kubelet.process.argv if kubelet.process else ()
    config, directory = last_flag(argv, "--config") or "", last_flag(argv, "--config-dir") or ""
    of_directory = configuration_files(files, directory) if directory.startswith("/") else None
    base = KubeletBase(
        detail=detail,
        texts=_texts(files, (path for path in units if path and not path.endswith(f"/{paths.DROP_IN_NAME}"))),
        config=next(iter(_texts(files, (config,) if config.startswith("/") else ())), None),
        config_dir=None if of_directory is None else _texts(files, of_directory),
        environment_files=read_environment_files(files, detail),
    )
    # From its own unit files: systemd may have loaded our drop-in, which repeats an older command line.
    launch = base_launch(parse_base(base)) or find_launch(_words(detail))
    return replace(base, scripted=launch.inline is None and is_script(files, launch.program))


def is_script(files: Files, path: str) -> bool:
    """Whether a shell interprets the program at that path."""
    return path.startswith("/") and is_shell_script(_read_small(files, path).decode("utf-8", "replace"))


def _words(detail: UnitDetail) -> tuple[str, ...]:
    """The command line, with the whole path of its program, if there is exactly one."""
    lines = detail.exec_start
    return (lines[0].path, *lines[0].argv[1:]) if len(lines) == 1 else ()


def read_environment_files(files: Files, detail: UnitDetail) -> dict[str, tuple[UnitText, ...]]:
    """For each EnvironmentFile= except ours, the files that it names: several for a pattern."""
    ours = (paths.KUBELET_ENVIRONMENT, paths.KUBELET_COMPOSED)
    named = (path for path, _optional in detail.environment_files if path not in ours)
    return {name: _texts(files, matching(files, name)) for name in named}


def _texts(files: Files, places: Iterable[str]) -> tuple[UnitText, ...]:
    """The existing files among them. A byte that is not UTF-8 must survive the copy into our file."""
    return tuple(
        UnitText(path, raw.decode("utf-8", "surrogateescape"))
        for path in places
        if (raw := files.read(path, _TEXT_LIMIT)) is not None
    )


# -- the machine ----------------------------------------------------------------------


def _services(host: Host) -> tuple[str, ...]:
    found = [
        service
        for service in _SERVICES_THAT_MATTER
        if any(_exists(host.files, f"{directory}/{service}") for directory in paths.UNIT_DIRECTORIES)
    ]
    if any(_BOTTLEROCKET.search(text.text) for text in _texts(host.files, ("/etc/os-release",))):
        found.append("bottlerocket")
    return tuple(found)


# -- the probe ------------------------------------------------------------------------


def _probe_runtime(host: Host, endpoint: str) -> Probe:
    """What the runtime says, if it is asked."""
    if not endpoint:
        return Probe()
    try:
        status = host.cri.status(endpoint, _RUNTIME_SECONDS)
        if not status.ready:
            return Probe(f"{endpoint}: {status.reason}")
        running, unstarted = running_containers(host, endpoint), host.cri.unstarted(endpoint)
        autoscaled = tuple(sorted(pod.title for pod in host.cri.pods(endpoint).values() if pod.autoscaled))
    except InstallerError as error:
        return Probe(error.message)
    return Probe(containers=running, unstarted=unstarted, newer_status=status.extras, autoscaled=autoscaled)


def _accepts_plugins(files: Files) -> bool:
    """Whether a socket listens at the default place of containerd's and CRI-O's NRI (proc_net(5), unix).
    Connecting is no alternative: the runtime would complain about a plugin that never registers."""
    return _NRI_LISTENS.search(files.read("/proc/1/net/unix", _TEXT_LIMIT) or b"") is not None


def _kubelet_version(host: Host, snapshot: HostSnapshot) -> str:
    process = snapshot.kubelet.process
    program = kubelet_program(_words(snapshot.base.detail), process.exe if process else "")
    return host.kubelet_version(program) if program else ""


def _unwritable(host: Host, directory: str) -> str | None:
    try:
        host.files.missing_directories(directory)
        return host.files.unwritable(directory, programs=directory == posixpath.dirname(paths.BINARY))
    except UnservableHostError as error:
        return f"{error.message} ({error.hint})"


def _fixed(host: Host, change: FileChange) -> bool:
    """Whether the file to replace or delete is immutable."""
    is_file = change.before.kind is Kind.FILE
    return is_file and host.files.unwritable(change.path) is Unwritable.IMMUTABLE


def _split_run(host: Host) -> dict[str, str]:
    """Why cri-resmgr and kubelet would not meet: cri-resmgr's paths are below /var/run, ours below /run."""
    one, other = (host.files.status(path, follow=True) for path in ("/var/run", paths.RUN))
    if one is None or other is None or (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return {}
    why = "/var/run is a directory of its own, not a link to /run, as systemd needs it (file-hierarchy(7))"
    return {paths.RELAY_SOCKET: why}


def _obstacle(host: Host, path: str) -> str:
    """Why we may not write at `path`; empty if we may."""
    state = host.files.state(path, lambda _path, _identity: "unread")
    if state.kind is Kind.SYMLINK:
        try:
            host.files.status(path, follow=True)  # raises if it must not be followed
        except UnservableHostError as error:
            return error.message
    return state.obstacle
