"""Reads the host: facts before a decision, the state of resources, and what is worth a probe.

Only reads. Whatever is gone while it is being read counts as absent.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from installer.errors import InstallerError, UnservableHostError
from installer.host.globbing import matching
from installer.host.ports import Files, Host
from installer.model import paths
from installer.model.facts import Facts, KubeletFacts, Probe, RunningContainer, UnitText
from installer.model.resource import (
    FileState,
    Kind,
    ProcessState,
    UnitDetail,
    UnitState,
    last_flag,
)
from installer.model.state import Observation
from installer.record.schema import Record

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
_CONFIG_LIMIT = 4 << 20  # bytes of a kubelet configuration or of cri-resmgr's cache worth reading


def observe_facts(host: Host, kubelet_unit: str) -> Facts:
    """The cheap facts. Raises UnservableHostError where there is no system bus to ask."""
    identity = host.identity()
    return Facts(
        machine=identity["machine"],
        machine_id=identity["machine_id"],
        hostname=identity["hostname"],
        kubelet=_observe_kubelet(host, kubelet_unit),
        services=_services(host),
        cache=_text(host, paths.PROXY_CACHE),
    )


def _observe_kubelet(host: Host, name: str) -> KubeletFacts:
    unit = host.systemd.unit(name)
    detail = host.systemd.detail(name) if unit.exists else UnitDetail()
    process = _main_process(host, unit)
    argv = process.argv if process else ()
    return KubeletFacts(
        unit=unit,
        detail=detail,
        process=process,
        texts=tuple(_unit_texts(host, unit)),
        config=_config_file(host, argv),
        config_dir=tuple(_config_directory(host, argv)),
        environment_files=observe_environment_files(host.files, detail),
    )


def observe_environment_files(files: Files, detail: UnitDetail) -> dict[str, tuple[UnitText, ...]]:
    """Of each EnvironmentFile= but ours: what there is to be read. It may be a pattern."""
    ours = (paths.KUBELET_ENVIRONMENT, paths.KUBELET_COMPOSED)
    named = (path for path, _optional in detail.environment_files if path not in ours)
    return {
        name: tuple(
            UnitText(path, raw.decode("utf-8", "surrogateescape"))
            for path in matching(files, name)
            if (raw := files.read(path, _CONFIG_LIMIT)) is not None
        )
        for name in named
    }


def _unit_texts(host: Host, unit: UnitState) -> Iterable[UnitText]:
    for path in (unit.fragment_path, *unit.drop_in_paths):
        if path and posixpath.basename(path) != paths.DROP_IN_NAME:
            raw = host.files.read(path)
            if raw is not None:
                # A byte that is not UTF-8 must survive being copied into our drop-in.
                yield UnitText(path, raw.decode("utf-8", "surrogateescape"))


def _config_file(host: Host, argv: tuple[str, ...]) -> UnitText | None:
    path = last_flag(argv, "--config")
    raw = host.files.read(path, _CONFIG_LIMIT) if path and path.startswith("/") else None
    return UnitText(path, raw.decode("utf-8", "replace")) if path and raw is not None else None


def _config_directory(host: Host, argv: tuple[str, ...]) -> Iterable[UnitText]:
    directory = last_flag(argv, "--config-dir")
    if directory and directory.startswith("/"):
        for name in host.files.list(directory):
            path = posixpath.join(directory, name)
            raw = host.files.read(path, _CONFIG_LIMIT) if name.endswith(".conf") else None
            if raw is not None:
                yield UnitText(path, raw.decode("utf-8", "replace"))


def _services(host: Host) -> tuple[str, ...]:
    found = [
        service
        for service in _SERVICES_THAT_MATTER
        if any(
            host.files.state(f"{directory}/{service}").kind is not Kind.ABSENT
            for directory in paths.UNIT_DIRECTORIES
        )
    ]
    if _BOTTLEROCKET.search(_text(host, "/etc/os-release")):
        found.append("bottlerocket")
    return tuple(found)


def _text(host: Host, path: str) -> str:
    raw = host.files.read(path, _CONFIG_LIMIT)
    return raw.decode("utf-8", "replace") if raw is not None else ""


def _main_process(host: Host, unit: UnitState) -> ProcessState | None:
    return host.processes.get(unit.main_pid) if unit.main_pid else None


def observe(
    host: Host, record: Record, wanted: Iterable[str], kubelet_unit: str, healthz_url: str
) -> Observation:
    """The state of every path that is wanted or owned, of both units and of their processes."""
    every_path = sorted({*wanted, *record.claims})
    proxy = host.systemd.unit(paths.PROXY_UNIT)
    kubelet = host.systemd.unit(kubelet_unit)
    kubelet_process = _main_process(host, kubelet)
    return Observation(
        files={path: observe_file(host, record, path) for path in every_path},
        proxy=proxy,
        kubelet=kubelet,
        proxy_process=_main_process(host, proxy),
        kubelet_process=kubelet_process,
        relay_answers=proxy.running and _relay_answers(host),
        on_relay=kubelet_process is not None and kubelet_process.uses_relay,
        kubelet_healthy=kubelet.running and host.healthz.ok(healthz_url),
        proxy_wanted=observe_file(host, record, paths.PROXY_WANTED).kind is Kind.SYMLINK,
    )


def _relay_answers(host: Host) -> bool:
    """Whether the relay answers, tried over a second: systemd may just be restarting the proxy,
    which is away for 0.1 - 0.3 s then."""
    for pause in (0.3, 0.7):
        if host.cri.answers(paths.RELAY_ENDPOINT):
            return True
        host.clock.sleep(pause)
    return host.cri.answers(paths.RELAY_ENDPOINT)


def observe_file(host: Host, record: Record, path: str) -> FileState:
    """One path; a large file whose identity is known is not read again.

    A directory link that leads out of the host root makes the path Kind.OTHER: an obstacle.
    """
    try:
        return host.files.state(path, record.known_digest)
    except UnservableHostError:
        return FileState(Kind.OTHER)


def read_hold(host: Host) -> str:
    """Why kubelet is held on its base endpoint; empty if it is not."""
    raw = host.files.read(paths.HOLD)
    if raw is None:
        return ""
    return raw.decode("utf-8", "replace").partition("\n")[0].strip() or "no reason is given"


def probe(host: Host, wanted: Iterable[str], base_endpoint: str) -> Probe:
    """What is worth asking only when something is to be changed."""
    runtime_error, containers = _probe_runtime(host, base_endpoint)
    wanted = tuple(wanted)
    directories = sorted({posixpath.dirname(path) for path in wanted} | {paths.OUR_STATE})
    unwritable = {directory: reason for directory in directories if (reason := _unwritable(host, directory))}
    usable = [directory for directory in directories if directory not in unwritable]
    return Probe(
        runtime_error=runtime_error,
        containers=containers,
        free_bytes={directory: host.files.free_bytes(directory) for directory in (*usable, paths.RUN)},
        unwritable=unwritable,
        obstacles={path: reason for path in wanted if (reason := _obstacle(host, path))},
        proxy_drop_ins=tuple(_proxy_drop_ins(host)),
    )


def _proxy_drop_ins(host: Host) -> Iterable[UnitText]:
    """Of the unit that need not be there yet. Of two with one name the first directory's counts."""
    seen = set()
    for directory in (f"{directory}/{paths.PROXY_UNIT}.d" for directory in paths.UNIT_DIRECTORIES):
        for name in host.files.list(directory):
            raw = host.files.read(f"{directory}/{name}") if name.endswith(".conf") else None
            if raw is not None and name not in seen:
                seen.add(name)
                yield UnitText(f"{directory}/{name}", raw.decode("utf-8", "surrogateescape"))


def _probe_runtime(host: Host, endpoint: str) -> tuple[str, tuple[RunningContainer, ...]]:
    if not endpoint:
        return "", ()
    try:
        status = host.cri.status(endpoint)
        if not status.ready:
            return f"{endpoint}: {status.reason}", ()
        return "", host.cri.containers(endpoint)
    except InstallerError as error:
        return error.message, ()


def _unwritable(host: Host, directory: str) -> str:
    try:
        host.files.missing_directories(directory)
        return host.files.unwritable(directory)
    except UnservableHostError as error:
        return f"{error.message} ({error.hint})"


def _obstacle(host: Host, path: str) -> str:
    """Why nothing of ours may be put at `path`, or an empty string."""
    try:
        state = host.files.state(path, lambda _path, _identity: "unread")
        if state.kind is Kind.SYMLINK:
            host.files.status(path, follow=True)  # may it be followed?
    except UnservableHostError as error:
        return error.message
    if state.kind in (Kind.DIRECTORY, Kind.OTHER):
        return f"a {'directory' if state.kind is Kind.DIRECTORY else 'special file'} is in the way"
    return ""
