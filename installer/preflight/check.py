"""What about this host cannot or should not be served, each with what was found and what would help.

Pure: facts in, findings out, all of them at once. How kubelet would be served is
decided in `installer.kubelet`; its refusals come in as findings and go out with the rest.
A refusal ends a run with exit 4 before the first write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from installer.model import paths
from installer.model.change import Changes, UnitAction
from installer.model.facts import Facts, Probe, RunningContainer
from installer.model.finding import Finding, Severity
from installer.model.jsontext import parse_json
from installer.model.resource import Part, UnitState
from installer.model.state import Desired
from installer.preflight.file_system import check_room
from installer.systemd_syntax.unit_file import parse_unit

if TYPE_CHECKING:
    from installer.inputs.configs import Configs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings

_ALIKE = {"amd64": "x86_64", "arm64": "aarch64", "i386": "i686", "i486": "i686", "i586": "i686"}
_EMBEDDED = {
    "k3s.service": "k3s",
    "k3s-agent.service": "k3s",
    "rke2-server.service": "RKE2",
    "rke2-agent.service": "RKE2",
    "microshift.service": "MicroShift",
}
_BOTTLEROCKET = "bottlerocket"
_PROXY_ALONE = frozenset({"ExecStart", "Type", "User", "RootDirectory", "PrivateNetwork"})
_PROXY_NEEDS = frozenset({"Environment", "EnvironmentFile", "ExecStartPre", "ExecStartPost"})
_CONTAINERS_NAMED = 10


def check_host(
    settings: Settings,
    facts: Facts,
    configs: Configs,
    payload: Payload,
    refusals: tuple[Finding, ...] = (),
) -> tuple[Finding, ...]:
    """What the cheap facts say; asked on every run.

    `refusals` is why kubelet's unit or endpoint cannot be served, if so. It is left
    out where kubelet's unit is missing or masked: that already is the reason.
    """
    kubelet = tuple(_check_kubelet_unit(settings, facts))
    unusable = any(finding.code in ("kubelet-missing", "kubelet-masked") for finding in kubelet)
    return (
        *kubelet,
        *_check_platform(facts),
        *(() if unusable else refusals),
        *_check_machine(facts, payload),
        *configs.warnings,
        *_check_cache(settings, facts, configs),
        *_check_neighbours(settings, facts),
    )


def check_change(
    settings: Settings,
    facts: Facts,
    probe: Probe,
    configs: Configs,
    payload: Payload,
    policies: tuple[str, str],
    desired: Desired,
    changes: Changes,
    proxy_unit: UnitState,
    *,
    accept_pending: bool = False,
    moved: bool = False,
) -> tuple[Finding, ...]:
    """What matters only when something is to be written; `check_host`'s findings come besides.

    `policies` are those of kubelet's CPU and memory manager. `moved`: a run that had begun to move kubelet
    was cut off.
    """
    proxy = changes.unit(Part.PROXY)
    starts_proxy = proxy is not None and proxy.action is UnitAction.RESTART
    return (
        *_check_running(facts, moved),
        *_check_mask(proxy_unit),
        *_check_proxy_drop_ins(probe),
        *_check_runtime(probe),
        *check_room(probe, changes, payload.binary.size),
        *_check_managers(settings, policies),
        *(_check_repinning(settings, configs, probe) if starts_proxy else ()),
        *_check_pending(facts.kubelet.unit, desired, changes, accept_pending),
    )


def check_removal(facts: Facts, changes: Changes) -> tuple[Finding, ...]:
    """What keeps kubelet from going back to its own endpoint."""
    kubelet, name = changes.unit(Part.KUBELET), facts.kubelet.unit.name
    restarts = kubelet is not None and kubelet.action is UnitAction.RESTART
    if not restarts or facts.kubelet.unit.load_state != "masked":
        return ()
    message = f"{name} is masked, and would have to restart to leave the proxy"
    return (_refuse("kubelet-masked", message, f"find out why, then `systemctl unmask {name}`"),)


def cached_configuration(facts: Facts) -> bool:
    """Whether cri-resmgr's cache holds a configuration of its agent, which beats fallback.cfg.

    The cache is the JSON of a snapshot with `Cfg`, null or {NodeName, Data}
    (pkg/cri/resource-manager/cache of cri-resmgr v0.9).
    """
    if not facts.cache.strip():
        return False
    try:
        cache = parse_json(facts.cache)
    except ValueError:
        return False
    config = cache.get("Cfg") if isinstance(cache, dict) else None
    return isinstance(config, dict) and bool(config.get("Data"))


def _refuse(code: str, message: str, hint: str) -> Finding:
    return Finding(Severity.REFUSE, code, message, hint)


def _warn(code: str, message: str, hint: str) -> Finding:
    return Finding(Severity.WARN, code, message, hint)


def _check_kubelet_unit(settings: Settings, facts: Facts) -> Iterable[Finding]:
    unit, name = facts.kubelet.unit, settings.kubelet.unit
    if unit.load_state == "masked":
        yield _refuse(
            "kubelet-masked",
            f"{name} is masked: somebody has decided that it must not run",
            f"find out why, then `systemctl unmask {name}` and start it",
        )
    elif not unit.exists:
        embedded = sorted({_EMBEDDED[service] for service in facts.services if service in _EMBEDDED})
        if embedded:
            yield _refuse(
                "kubelet-missing",
                f"there is no {name}: {' and '.join(embedded)} runs kubelet inside its own process, "
                "with a runtime of its own, so there is no unit to put a proxy in front of",
                "leave this node out (a nodeSelector on the DaemonSet)",
            )
        else:
            yield _refuse(
                "kubelet-missing",
                f"there is no {name} on this host",
                "name kubelet's unit in kubelet.unit, or check that --host-root is the node's / (it is "
                "/host in the DaemonSet)",
            )
    elif unit.load_state not in ("loaded", "error", "bad-setting"):
        yield _refuse(
            "kubelet-not-loaded",
            f"{name} is not loaded: systemd says {unit.load_state}",
            f"`systemctl status {name}` says more",
        )


def _check_platform(facts: Facts) -> Iterable[Finding]:
    if _BOTTLEROCKET in facts.services:
        yield _refuse(
            "read-only-root",
            "this host is Bottlerocket: its root file system is read-only and its units are generated "
            "from its API, so nothing of ours would last",
            "leave this node out (a nodeSelector on the DaemonSet)",
        )


def _check_machine(facts: Facts, payload: Payload) -> Iterable[Finding]:
    host = _ALIKE.get(facts.machine, facts.machine)
    if payload.machine and host and payload.machine != host:
        yield _refuse(
            "wrong-machine",
            f"{payload.binary.source} is a program for {payload.machine}, and this host is {facts.machine}",
            f"use the payload for {facts.machine} (in the image: the one built for this architecture)",
        )


def _check_cache(settings: Settings, facts: Facts, configs: Configs) -> Iterable[Finding]:
    hidden = configs.force is None and cached_configuration(facts)
    if hidden and not settings.configs.reset_cached:
        yield _warn(
            "cached-configuration",
            f"cri-resmgr's cache ({paths.PROXY_CACHE}) holds a configuration that its agent gave it, and "
            "that one wins: fallback.cfg has no effect on this node",
            "set configs.resetCached: true to clear it, or use force.cfg",
        )


def _check_neighbours(settings: Settings, facts: Facts) -> Iterable[Finding]:
    """Other programs that think kubelet's unit is theirs, and what that means."""
    services = " ".join(facts.services)
    if "gardener-node-agent" in services:
        directory = f"/etc/systemd/system/{settings.kubelet.unit}.d"
        if settings.kubelet.drop_in_directory == "/etc/systemd/system":
            yield _warn(
                "gardener-node-agent",
                "gardener-node-agent runs here: when its kubelet unit changes it may remove all of "
                f"{directory}, our drop-in included; kubelet then runs without the proxy until the next run",
                "set kubelet.dropInDirectory: /usr/local/lib/systemd/system if /usr is writable, or keep "
                "the installer running as a DaemonSet",
            )
    if "nodeadm" in services:
        yield _warn(
            "nodeadm",
            "nodeadm configures this node: at each boot it writes kubelet's environment file and "
            "configuration anew, and our part follows its values when kubelet starts",
            "replace nodes rather than editing them, and keep the installer running as a DaemonSet",
        )
    if "machine-config-daemon" in services:
        yield _warn(
            "machine-config-daemon",
            "OpenShift's machine-config-daemon manages this node: it owns kubelet's unit, and a node whose "
            "files differ from its MachineConfig is reported as degraded",
            "check that no MachineConfig writes to our paths, and try one node of a pool first",
        )


def _check_running(facts: Facts, moved: bool) -> Iterable[Finding]:
    unit = facts.kubelet.unit
    if not unit.exists or unit.load_state == "masked":
        return
    if unit.load_state in ("error", "bad-setting"):
        yield _refuse(
            "kubelet-not-loaded",
            f"systemd cannot use {unit.name} as it is written ({unit.load_state})",
            f"`systemd-analyze verify {unit.name}` and `systemctl status {unit.name}` say where it is wrong",
        )
    elif unit.flapping:
        if moved:
            return  # it may be us who keep it down, and then only the way forward, or back, helps
        yield _refuse(
            "kubelet-crash-looping",
            f"{unit.name} does not stay up ({unit.active_state}/{unit.sub_state}, result {unit.result}, "
            f"{unit.n_restarts} restarts): a failure of ours could not be told from this one",
            f"repair kubelet first; `journalctl -u {unit.name} -n 50` says why",
        )
    elif unit.active_state == "inactive":
        # Activating or deactivating is no refusal: it may be the restart of a run of ours that died (R7).
        yield _refuse(
            "kubelet-stopped",
            f"{unit.name} is {unit.active_state} ({unit.sub_state}), so there is no running kubelet to move",
            f"`systemctl start {unit.name}` first; if it is stopped on purpose, run the installer afterwards",
        )


def _check_mask(unit: UnitState) -> Iterable[Finding]:
    if unit.load_state == "masked":
        yield _refuse(
            "proxy-masked",
            f"{unit.name} is masked: somebody has decided that it must not run",
            f"find out why, then `systemctl unmask {unit.name}` (with --runtime, if it is masked until the "
            "next boot only)",
        )


def _check_proxy_drop_ins(probe: Probe) -> Iterable[Finding]:
    """Lines of the proxy's unit that somebody takes away: a failure would be blamed on what is installed."""
    for text in probe.proxy_drop_ins:
        lines = [line for line in parse_unit(text) if line.section == "Service"]
        lost = {line.key for line in lines if line.key in _PROXY_ALONE}
        lost |= {line.key for line in lines if line.key in _PROXY_NEEDS and not line.value}
        if lost:
            yield _refuse(
                "proxy-drop-in-resets",
                f"{text.path} takes away what {paths.PROXY_UNIT} needs: {', '.join(sorted(lost))}",
                "take these lines out of that file, or remove it; options of cri-resmgr belong into "
                "EXTRA_OPTIONS.cfg of the configs",
            )


def _check_runtime(probe: Probe) -> Iterable[Finding]:
    if probe.runtime_error:
        yield _refuse(
            "runtime-not-ready",
            f"the container runtime does not answer CRI v1 as it should: {probe.runtime_error}",
            "the proxy stands on it, so it has to work first (containerd: from 1.6, with its CRI plugin "
            "enabled); `crictl info` asks the same",
        )


def _check_managers(settings: Settings, policies: tuple[str, str]) -> Iterable[Finding]:
    static = [
        name for name, policy in zip(("CPU", "memory"), policies, strict=True) if policy.lower() == "static"
    ]
    if not static:
        return
    managers = " and ".join(static) + (" managers are" if len(static) > 1 else " manager is")
    message = (
        f"kubelet's {managers} set to the policy static: behind the proxy that does nothing, and says "
        "nothing, because cri-resmgr answers kubelet's updates and swallows them"
    )
    if settings.kubelet.accept_static_managers:
        yield _warn("static-managers", message, "")
    else:
        yield _refuse(
            "static-managers",
            message,
            "set the policy to none in kubelet's configuration, or kubelet.acceptStaticManagers: true if "
            "cri-resmgr is to take over that work",
        )


def _check_repinning(settings: Settings, configs: Configs, probe: Probe) -> Iterable[Finding]:
    strangers = [container for container in probe.containers if not container.through_proxy]
    if configs.policy == "none" or not strangers:
        return
    message = (
        f"the policy {configs.policy} would at once re-pin {_counted(len(strangers))} that were not created "
        "through the proxy and cut their CPU weight to the minimum, until they are recreated: "
        f"{_named(strangers)}"
    )
    if settings.proxy.accept_repinning:
        yield _warn("repinning", message, "")
    else:
        yield _refuse(
            "repinning",
            message,
            "drain the node first; or install with the policy none and switch once the pods have been "
            "recreated; or set proxy.acceptRepinning: true",
        )


def _counted(number: int) -> str:
    return f"{number} running container" + ("s" if number != 1 else "")


def _named(containers: list[RunningContainer]) -> str:
    names = sorted(one.title for one in containers)
    more = len(names) - _CONTAINERS_NAMED
    return ", ".join(names[:_CONTAINERS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _check_pending(
    unit: UnitState, desired: Desired, changes: Changes, accept_pending: bool
) -> Iterable[Finding]:
    if unit.load_state == "masked":
        return  # systemd says so of every masked unit that has drop-ins
    reloads = any(change.daemon_reload or change.enable or change.disable for change in changes.units)
    kubelet = changes.unit(Part.KUBELET)
    restarts = kubelet is not None and kubelet.action is UnitAction.RESTART
    if not (unit.need_daemon_reload and (reloads or restarts)) or _pending_is_ours(unit, desired, changes):
        return
    message = (
        f"{unit.name} was edited and systemd has not re-read it yet: our reload and restart would make "
        "that edit live"
    )
    if accept_pending:
        yield _warn("pending-reload", message, "")
    else:
        yield _refuse(
            "pending-reload",
            message,
            "finish that edit (`systemctl daemon-reload`, and restart kubelet when it is right), or run "
            "again with --accept-pending",
        )


def _pending_is_ours(unit: UnitState, desired: Desired, changes: Changes) -> bool:
    """Whether our own drop-in explains the pending reload, because systemd has loaded another one than lies
    there: a run of ours died between the write and the reload, or somebody has removed, replaced or edited
    the drop-in. All are for us to repair (R7)."""
    if desired.kubelet is None:
        return False
    ours = desired.kubelet.unit
    change_at = {change.path: change for change in changes.files}

    def lies_at(path: str) -> bytes:
        if path in change_at:
            return change_at[path].before.content or b""
        return ours.unit_digest.encode() if path == ours.unit_file else b""

    of_our_name = [path for path in unit.drop_in_paths if path.endswith(f"/{paths.DROP_IN_NAME}")]
    loaded = of_our_name[0] if of_our_name else ""
    if loaded != ours.unit_file and lies_at(ours.unit_file):
        return True
    return bool(loaded) and not (unit.loaded_digest and unit.loaded_digest.encode() in lies_at(loaded))
