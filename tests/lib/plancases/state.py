"""The node that a case begins with: a named state, brought about by the product's own plans on a host of
values, and then what differs from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from installer.model import paths
from installer.model.containers import CgroupState, CpuResources
from installer.model.host import FileState, Kind, KubeletBase, Probe, RunningContainer, UnitText
from installer.model.names import Mode
from installer.model.proxy import CachedContainer, ProxyCache
from installer.node.record import Failure, RecordStatus, dump_record, load_record
from tests.lib.kubelet_trees import FLAVOURS, UNIT_DIRECTORIES, load_base
from tests.lib.plancases.case import ASKED, Case, CaseError, inputs_of
from tests.lib.plancases.files import file_state
from tests.lib.plancases.host import KUBELET, MemoryHost
from tests.lib.plancases.node import Node
from tests.lib.throwaway import payload as release

_STARTS = ("bare", "installed", "installing", "changing", "removing")
_UNIT = {"state", "generation", "pending", "loads", "invocation"}
_MACHINE = {"architecture", "services"}
_BUT = {
    "cache",
    "host",
    "files",
    "hold",
    "then",
    "proxy",
    "kubelet",
    "leftovers",
    "probe",
    "record",
    "accepts-plugins",
    "unknown-pods",
    "may-be-unknown",
    *_MACHINE,
}
_PROBE = {
    "runtime-error",
    "containers",
    "many",
    "newer",
    "free-mib",
    "unwritable",
    "obstacles",
    "proxy-drop-ins",
    "returns",
}
_FREE = CgroupState("0-1", "0", "0-1", "0", shares=524)
_CGROUPS = {"pinned": replace(_FREE, cpus="0", shares=2), "lowest": replace(_FREE, shares=2)}
_RECORD = {"status", "owed", "signalled", "failed", "failed-generation", "good"}
_DOWN = {"active_state": "activating", "sub_state": "auto-restart", "result": "exit-code", "main_pid": 0}
_STATES: dict[str, dict[str, Any]] = {
    "running": {},
    "stopped": {"active_state": "inactive", "sub_state": "dead", "main_pid": 0},
    "failed": {**_DOWN, "active_state": "failed", "sub_state": "failed"},
    "crash-looping": {**_DOWN, "n_restarts": 12},
    "starting": {**_DOWN, "sub_state": "start-pre", "result": "success"},
    "masked": {"load_state": "masked", "environment": (), "drop_in_paths": (), "need_daemon_reload": True},
    "bad-setting": {"load_state": "bad-setting"},
}


def make_node(case: Case, scratch: Path) -> Node:
    """The node as the case has it, with what is asked of it. `scratch` takes the files it needs meanwhile."""
    data = case.data
    asked = {key: data.get(key) for key in ASKED}
    former = {**asked, **case.part(data, "installed", ASKED)}
    start, until = data.get("from", "bare"), data.get("until", "")
    if start not in _STARTS or (until != "") is (start in ("bare", "installed")):
        raise CaseError(f"{case.path}: from: {start}, until: {until!r}; known are {', '.join(_STARTS)}")
    try:
        host = (
            _installed(case, former, scratch) if start not in ("bare", "installing") else _bare(case, scratch)
        )
        if start == "installing":
            Node(host, inputs_of(case, former, Mode.INSTALL, scratch / "former")).run(until)
        _put_files(host, case.part(data, "meanwhile", {"files"}).get("files"))
        node = Node(host, inputs_of(case, asked, case.mode, scratch / "asked"))
        if start in ("removing", "changing"):
            node.run(until)
        if "then-asked" in data:  # by another run than the one that was cut off
            then = case.part(data, "then-asked", {*ASKED, "mode"})
            mode = Mode(then.get("mode", case.mode))
            node = Node(host, inputs_of(case, {**asked, **then}, mode, scratch / "then"))
        _change(case, node, case.part(data, "but", _BUT), scratch)
    except CaseError as error:
        raise error if str(case.path) in str(error) else CaseError(f"{case.path}: {error}") from error
    return node


# -- the host -------------------------------------------------------------------------


#: What upstream's release archive brings.
UPSTREAM = {
    paths.PROXY_UNIT_FILE: release.UNIT,
    paths.PROXY_ENVIRONMENT: release.ENVIRONMENT,
    paths.FALLBACK_CONFIG: release.SAMPLE,
    f"{paths.FALLBACK_CONFIG}.sample": release.SAMPLE,
}
_installed_before: dict[str, MemoryHost] = {}


def _installed(case: Case, former: Mapping[str, Any], scratch: Path) -> MemoryHost:
    """A complete installation; many cases begin with the same."""
    begun = [former, *(case.data.get(key) for key in ("kubelet", "host", "had", "had-leftovers", "earlier"))]
    key = json.dumps(begun, sort_keys=True)
    if key not in _installed_before:
        host = _bare(case, scratch)
        Node(host, inputs_of(case, former, Mode.INSTALL, scratch / "former")).run()
        _installed_before[key] = host
    return _installed_before[key].copy()


def _bare(case: Case, scratch: Path) -> MemoryHost:
    data = case.data
    host = MemoryHost(_base(case, data.get("host") or {}, scratch))
    host.put_base()
    if host.base.texts:
        host.start_kubelet()
    else:
        host.kubelet = replace(host.kubelet, load_state="not-found", unit_file_state="")
    _put_files(host, data.get("had"))
    host.leftovers = tuple(data.get("had-leftovers") or ())
    for line in data.get("earlier") or ():
        _by_others(case, host, line)
    return host


def _base(case: Case, edits: Mapping[str, str | None], scratch: Path) -> KubeletBase:
    """Kubelet's base as its flavour has it, with some files as `edits` has them; null takes one away."""
    flavour = case.data.get("kubelet", "kubeadm")
    if not flavour or not edits:
        return _flavour(flavour)
    tree = scratch / "host"
    shutil.copytree(FLAVOURS / flavour, tree, dirs_exist_ok=True)
    _lay(tree, edits)
    return _read(tree)


@cache
def _flavour(name: str) -> KubeletBase:
    return _read(FLAVOURS / name) if name else KubeletBase()


def _lay(tree: Path, files: Mapping[str, str | None]) -> None:
    """Texts of the host that are not ours; null takes a file away."""
    for path, text in files.items():
        target = tree / path[1:]
        if text is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def _read(tree: Path) -> KubeletBase:
    directories = (tree / directory / KUBELET for directory in UNIT_DIRECTORIES)
    return load_base(tree) if any(unit.exists() for unit in directories) else KubeletBase()


def _put_files(host: MemoryHost, given: Mapping[str, str] | None) -> None:
    for path, what in (given or {}).items():
        before = host.files.state(path)
        word, _, value = str(what).partition(" ")
        if word == "absent":
            host.files.remove(path)
        elif word == "edited":
            host.files.at[path] = file_state((before.content or b"") + b"# edited\n", before.mode or 0o644)
        elif word == "theirs":
            host.files.at[path] = file_state(b"# theirs\n", 0o640)
        elif word == "upstreams":
            host.files.at[path] = file_state(UPSTREAM.get(path, "as upstream has it\n").encode())
        elif word == "mode":
            host.files.at[path] = replace(before, mode=int(value, 8))
        elif word == "owner":
            uid, gid = map(int, value.split(":"))
            host.files.at[path] = replace(before, uid=uid, gid=gid)
        elif word in ("directory", "symlink", "other"):
            host.files.at[path] = FileState(Kind(word), 0o755)
        else:
            raise CaseError(f"{path}: {what!r} is not one of the words, nor a kind")


def _change(case: Case, node: Node, but: Mapping[str, Any], scratch: Path) -> None:
    """What differs from the state that the case starts from, in this order."""
    host = node.host
    if but.get("host"):
        host.base = _base(case, {**(case.data.get("host") or {}), **but["host"]}, scratch)
        host.put_base()
        host.edited_base = any("/systemd/" in path for path in but["host"])
    _put_files(host, but.get("files"))
    host.hold = but.get("hold", host.hold)
    host.accepts_plugins = but.get("accepts-plugins", True)
    host.unknown_pods = tuple(but.get("unknown-pods", ()))
    host.may_be_unknown = but.get("may-be-unknown", False)
    for line in but.get("then") or ():
        _by_others(case, host, line)
    for part in ("proxy", "kubelet"):
        _change_unit(case, host, part, but)
    host.leftovers = tuple(but.get("leftovers", host.leftovers))
    machine = {key: but[key] for key in _MACHINE & but.keys()}
    if "services" in machine:
        machine["services"] = tuple(machine["services"])
    host.machine = replace(host.machine, **machine)
    host.probe = _probe(case, host.probe, case.part(but, "probe", _PROBE))
    seen = [name for name, how in (but.get("probe", {}).get("containers") or {}).items() if how == "seen"]
    host.cache = _cache(case, but.get("cache", {}), host.probe, seen)
    _change_record(node, case.part(but, "record", _RECORD))


def _cache(case: Case, given: dict[str, Any], probe: Probe, seen: list[str]) -> ProxyCache:
    """What the proxy remembers: the containers created through it, those that a start has seen, and what the
    case has."""
    case.check(given, "cache", {"torn", "policy", "agent", "version"})
    through_proxy = (container.id for container in probe.containers if container.through_proxy)
    known = () if given.get("torn") else through_proxy
    containers = {one: CachedContainer() for one in seen}
    # What the proxy has given them is not all that there is: they are its work, under any policy.
    containers |= {one: CachedContainer(512, cpus="0") for one in known}
    return replace(ProxyCache(**given), containers=containers)


def _by_others(case: Case, host: MemoryHost, line: str) -> None:
    done = {
        "daemon-reload": host.reload,
        f"restart {KUBELET}": host.start_kubelet,
        f"restart {paths.PROXY_UNIT}": host.start_proxy,
    }
    if line not in done:
        raise CaseError(f"{case.path}: then: {line!r}; known are {', '.join(done)}")
    done[line]()


def _change_unit(case: Case, host: MemoryHost, part: str, but: Mapping[str, Any]) -> None:
    given = but.get(part) or {}
    given = {"state": given} if isinstance(given, str) else given
    own = (
        {"answers", "starting", "took"}
        if part == "proxy"
        else {"healthy", "composed", "endpoint", "runs", "movable"}
    )
    case.check(given, part, _UNIT | own)
    unit, process = getattr(host, part), getattr(host, f"{part}_process")
    unit = replace(unit, **_STATES[given.get("state", "running")])
    if "pending" in given:
        unit = replace(unit, need_daemon_reload=given["pending"])
    if "loads" in given:
        unit = replace(unit, environment=(f"{paths.UNIT_VARIABLE}={given['loads']}",))
    if "invocation" in given:
        unit = replace(unit, invocation_id=given["invocation"])
    if process and "generation" in given:
        process = replace(
            process, environ={**process.environ, paths.GENERATION_VARIABLE: given["generation"]}
        )
    if "runs" in given and process:  # what a script has made of the unit's command line
        process = replace(process, argv=tuple(given["runs"].split()))
    if given.get("endpoint") == "base" and process:
        process, host.composed = replace(process, argv=process.argv[:-1]), False
    if given.get("endpoint") == "moved":  # by somebody, or something, to its base endpoint
        host.target = "/run/containerd/containerd.sock"
    setattr(host, part, unit)
    setattr(host, f"{part}_process", process if unit.main_pid else None)
    for name in (own & given.keys()) - {"endpoint", "runs"}:
        setattr(host, name, given[name])
    if part == "proxy" and (not unit.main_pid or host.starting):
        host.answers = False


def _probe(case: Case, probe: Probe, given: dict[str, Any]) -> Probe:
    containers = [
        RunningContainer(
            name,
            name,
            "pod",
            "default",
            through_proxy=how.startswith("through-proxy"),
            created=None if how == "unknown" else CpuResources(shares=524),
            creation=None if how == "unknown" else {"cpu_shares": 524},
            cgroup=_CGROUPS.get(how.rpartition(" ")[2], _FREE),
        )
        for name, how in (given.get("containers") or {}).items()
    ]
    containers += [  # created through the proxy
        RunningContainer(f"many-{n}", "many", "pod", "default", through_proxy=True, cgroup=_FREE)
        for n in range(given.get("many", 0))
    ]
    drop_ins = (given.get("proxy-drop-ins") or {}).items()
    free = {path: mib << 20 for path, mib in (given.get("free-mib") or {}).items()}
    return replace(
        probe,
        runtime_error=given.get("runtime-error", ""),
        containers=tuple(containers),
        free_bytes={**probe.free_bytes, **free},
        unwritable=given.get("unwritable") or {},
        obstacles=given.get("obstacles") or {},
        proxy_drop_ins=tuple(UnitText(path, text) for path, text in drop_ins),
        returns=tuple(given.get("returns") or ()),
    )


def _change_record(node: Node, given: dict[str, Any]) -> None:
    host, files = node.host, node.host.files
    if not given:
        return
    known = host.machine
    record = load_record(files, known.machine_id, known.hostname).record
    if "owed" in given:
        record = replace(record, owed={paths.PROXY_UNIT: given["owed"]})
    if given.get("signalled") == "never":
        record = replace(record, signalled=("", ""))
    if given.get("good") == "none":
        record = replace(record, good=None)
    if given.get("failed"):
        failure = Failure(given["failed"], "2026-01-02T03:04:05Z")
        generation = given.get("failed-generation") or node.look().plan.desired.generation
        record = replace(record, failed={generation: failure})
    status = RecordStatus[str(given.get("status", "ok")).upper()]
    if status is RecordStatus.FOREIGN:
        record = replace(record, machine_id="another-machine")
    raw = {RecordStatus.CORRUPT: b"{", RecordStatus.FUTURE: b'{"schema": 99}'}.get(
        status, dump_record(record)
    )
    files.remove(paths.RECORD)
    if status is not RecordStatus.MISSING:
        files.write(paths.RECORD, raw, 0o600)
