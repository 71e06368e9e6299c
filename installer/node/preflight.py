"""What about this host cannot or should not be served, each with what was found and what would help.

Pure: facts in, findings out, all of them at once. How kubelet would be served is
decided in `kubelet_strategy`; its refusals come in as findings and go out with the rest.
A refusal ends a run with exit 4 before the first write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from installer.inputs.policy import policy_of
from installer.inputs.systemd_syntax import parse_unit
from installer.model import paths
from installer.model.host import HostSnapshot, Machine, Part, Probe, UnitState
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, Finding, UnitAction, refusal, warning
from installer.model.proxy import Repinning
from installer.node.header import digest_within
from installer.node.preflight_files import check_file_systems, check_places
from installer.node.preflight_proxy import (
    check_cache,
    check_capacity,
    check_cpus,
    check_empty,
    check_placed,
    check_repinning,
    check_versions,
)

if TYPE_CHECKING:
    from installer.inputs.load import Inputs
    from installer.inputs.payload import Payload
    from installer.inputs.settings import Settings
    from installer.node.kubelet_strategy import KubeletAnalysis

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


def check(
    inputs: Inputs,
    snapshot: HostSnapshot,
    kubelet: KubeletAnalysis,
    desired: Desired,
    changes: Changes,
    *,
    moved: bool,
) -> tuple[Finding, ...]:
    """Everything that speaks against this run, and what an operator should know.

    `moved`: a run was cut off that had begun to move kubelet.
    """
    found = (*_check_pause(snapshot), *check_places(changes))
    if inputs.request.mode is Mode.REMOVE:
        return (*found, *check_removal(snapshot, changes)) if changes else tuple(_check_pause(snapshot))
    found += check_host(inputs, snapshot, kubelet.refusals)
    if snapshot.probe is None or (desired.files and not changes):
        return found
    if not kubelet.cgroups_per_qos:
        found += tuple(_check_cgroups(desired, snapshot, changes))
    return found + check_change(inputs, snapshot, kubelet.policies, desired, changes, moved=moved)


def _check_pause(snapshot: HostSnapshot) -> Iterable[Finding]:
    if snapshot.pause:
        hint = "`install` and `remove` change nothing without --despite-pause"
        yield warning("paused", f"this node is paused: {snapshot.pause}", hint)


def check_host(
    inputs: Inputs, snapshot: HostSnapshot, refusals: tuple[Finding, ...] = ()
) -> tuple[Finding, ...]:
    """What the cheap facts say; asked on every run.

    `refusals` is why kubelet's unit or endpoint cannot be served. It is left out if kubelet's unit is missing
    or masked: that already is the reason.
    """
    settings, machine = inputs.request.settings, snapshot.machine
    kubelet = tuple(_check_kubelet_unit(settings, snapshot))
    unusable = any(finding.code in ("kubelet-missing", "kubelet-masked") for finding in kubelet)
    return (
        *kubelet,
        *_check_platform(machine),
        *(() if unusable else refusals),
        *_check_machine(machine, inputs.payload),
        *inputs.configs.warnings,
        *check_cache(inputs, snapshot.cache),
        *check_placed(snapshot),
        *_check_neighbours(settings, machine),
    )


def check_change(
    inputs: Inputs,
    snapshot: HostSnapshot,
    policies: tuple[str, str],
    desired: Desired,
    changes: Changes,
    *,
    moved: bool = False,
) -> tuple[Finding, ...]:
    """What matters only when something is to be written; `check_host`'s findings come besides.

    `policies` are those of kubelet's CPU and memory manager. `moved`: as in `check`.
    """
    request, probe, payload = inputs.request, snapshot.probe or Probe(), inputs.payload
    proxy = changes.unit(Part.PROXY)
    # A proxy that refuses what it is signalled to read again is restarted.
    starts_proxy = proxy is not None and proxy.action in (UnitAction.RELOAD, UnitAction.RESTART)
    kubelet = changes.unit(Part.KUBELET)
    restarts_kubelet = kubelet is not None and kubelet.action is UnitAction.RESTART
    moves = restarts_kubelet and not snapshot.kubelet.on_relay
    repinning = check_repinning(inputs, desired, snapshot)
    return (
        *_check_running(snapshot, moved),
        *_check_healthz(snapshot, request.settings.kubelet.healthz_url),
        *_check_mask(snapshot.proxy.unit),
        *_check_proxy_drop_ins(probe),
        *_check_runtime(probe, "the proxy needs it, so repair it first"),
        *check_empty(inputs, changes),
        *check_file_systems(probe, changes, payload.binary.size if payload else 0),
        *_check_managers(request.settings, policies),
        *check_versions(
            probe.kubelet_version,
            payload.version if payload else "",
            probe.newer_status,
            restarts=restarts_kubelet,
            moves=moves,
        ),
        *(repinning if starts_proxy else ()),
        *(check_capacity(inputs, snapshot) if starts_proxy else ()),
        *(check_cpus(inputs.configs, snapshot.machine.cpus) if starts_proxy else ()),
        *_check_pending(
            snapshot.kubelet.unit, desired, changes, request.accept_pending or (moved and request.take_over)
        ),
    )


def check_removal(snapshot: HostSnapshot, changes: Changes) -> tuple[Finding, ...]:
    """What keeps kubelet from going back to its base endpoint."""
    kubelet, unit = changes.unit(Part.KUBELET), snapshot.kubelet.unit
    if kubelet is None or kubelet.action is not UnitAction.RESTART:
        return ()
    if unit.load_state == "masked":
        message = f"{unit.name} is masked, and would have to restart to leave the proxy"
        return (refusal("kubelet-masked", message, f"find out why, then `systemctl unmask {unit.name}`"),)
    why = "kubelet would not come up on it: a kubelet that runs is left alone. Repair it first"
    return tuple(_check_runtime(snapshot.probe or Probe(), why))


def _check_kubelet_unit(settings: Settings, snapshot: HostSnapshot) -> Iterable[Finding]:
    unit, name = snapshot.kubelet.unit, settings.kubelet.unit
    if unit.load_state == "masked":
        yield refusal(
            "kubelet-masked",
            f"{name} is masked",
            f"find out who masked it and why, then `systemctl unmask {name}` and start it",
        )
    elif not unit.exists:
        embedded = sorted(
            {_EMBEDDED[service] for service in snapshot.machine.services if service in _EMBEDDED}
        )
        if embedded:
            yield refusal(
                "kubelet-missing",
                f"{name} does not exist: {' and '.join(embedded)} runs kubelet inside its own process, "
                "with a runtime of its own, so no unit can be moved to a proxy",
                "exclude this node (nodeSelector of the DaemonSet)",
            )
        else:
            yield refusal(
                "kubelet-missing",
                f"{name} does not exist on this host",
                "name kubelet's unit in kubelet.unit, or check that --host-root is the node's / (it is "
                "/host in the DaemonSet)",
            )
    elif unit.load_state not in ("loaded", "error", "bad-setting"):
        yield refusal(
            "kubelet-not-loaded",
            f"{name} is not loaded: systemd says {unit.load_state}",
            f"`systemctl status {name}` says more",
        )


def _check_healthz(snapshot: HostSnapshot, url: str) -> Iterable[Finding]:
    """Whether a change of kubelet could be judged afterwards."""
    if snapshot.kubelet.foreign_healthz:
        port = url.split("/")[2].rpartition(":")[2]
        yield refusal(
            "healthz-foreign",
            f"another process than {snapshot.kubelet.unit.name} listens at {url}: "
            "kubelet's health is not known",
            f"`ss -ltnp 'sport = :{port}'` names it: end it, and kubelet takes its port back; or set "
            "kubelet.healthzUrl to kubelet's own address",
        )


def _check_platform(machine: Machine) -> Iterable[Finding]:
    if _BOTTLEROCKET in machine.services:
        yield refusal(
            "read-only-root",
            "this host is Bottlerocket: its root file system is read-only and its units are generated "
            "from its API, so an installation would not last",
            "exclude this node (nodeSelector of the DaemonSet)",
        )


def _check_machine(machine: Machine, payload: Payload | None) -> Iterable[Finding]:
    architecture = machine.architecture
    host = _ALIKE.get(architecture, architecture)
    if payload and payload.machine and host and payload.machine != host:
        yield refusal(
            "wrong-machine",
            f"{payload.source} is a program for {payload.machine}, but this host is {architecture}",
            f"use the payload for {architecture} (in the image: the one built for this architecture)",
        )


def _check_neighbours(settings: Settings, machine: Machine) -> Iterable[Finding]:
    """Other programs that own kubelet's unit as well, and what that means."""
    services = " ".join(machine.services)
    if "gardener-node-agent" in services:
        directory = f"{paths.USUAL_UNITS}/{settings.kubelet.unit}.d"
        if settings.kubelet.drop_in_directory == paths.USUAL_UNITS:
            yield warning(
                "gardener-node-agent",
                "gardener-node-agent runs here: when it changes kubelet's unit it may delete all of "
                f"{directory}, our drop-in included; kubelet then runs without the proxy until the repair",
                f"leave kubelet.dropInDirectory out, or set it to {paths.CONTROL_UNITS}",
            )
    if "nodeadm" in services:
        yield warning(
            "nodeadm",
            "nodeadm configures this node: at each boot it rewrites kubelet's environment file and "
            "configuration, and our part follows its values when kubelet starts",
            "replace nodes rather than editing them, and keep the installer running as a DaemonSet",
        )
    if "machine-config-daemon" in services:
        yield warning(
            "machine-config-daemon",
            "OpenShift's machine-config-daemon manages this node: it owns kubelet's unit, and a node whose "
            "files differ from its MachineConfig is reported as degraded",
            "check that no MachineConfig writes to our paths, and try one node of a pool first",
        )


def _check_running(snapshot: HostSnapshot, moved: bool) -> Iterable[Finding]:
    unit = snapshot.kubelet.unit
    if not unit.exists or unit.load_state == "masked":
        return
    if unit.load_state in ("error", "bad-setting"):
        yield refusal(
            "kubelet-not-loaded",
            f"systemd cannot use {unit.name} as it is written ({unit.load_state})",
            f"`systemd-analyze verify {unit.name}` and `systemctl status {unit.name}` say what is wrong",
        )
    elif unit.flapping:
        dead_relay = snapshot.composed and bool(unit.loaded_digest) and not snapshot.proxy.relay_answers
        if moved or dead_relay:
            return  # our own part keeps it down: then only repairing that, or rolling back, helps
        yield refusal(
            "kubelet-crash-looping",
            f"{unit.name} keeps crashing ({unit.active_state}/{unit.sub_state}, result {unit.result}, "
            f"{unit.n_restarts} restarts): our own failure could not be told from these crashes",
            f"repair kubelet first; `journalctl -u {unit.name} -n 50` says why",
        )
    elif unit.active_state == "inactive":
        # Activating or deactivating is not refused: it may be a restart by a run of ours that died (R7).
        yield refusal(
            "kubelet-stopped",
            f"{unit.name} is {unit.active_state} ({unit.sub_state}), so no kubelet runs that could be moved",
            f"`systemctl start {unit.name}` first; if it was stopped on purpose, run the installer later",
        )


def _check_mask(unit: UnitState) -> Iterable[Finding]:
    if unit.load_state == "masked":
        yield refusal(
            "proxy-masked",
            f"{unit.name} is masked",
            f"find out why, then `systemctl unmask {unit.name}` (with --runtime if it is masked until the "
            "next boot only)",
        )


def _check_proxy_drop_ins(probe: Probe) -> Iterable[Finding]:
    """Drop-ins that take lines from the proxy's unit: a failure would be blamed on what is installed."""
    for text in probe.proxy_drop_ins:
        lines = [line for line in parse_unit(text) if line.section == "Service"]
        lost = {line.key for line in lines if line.key in _PROXY_ALONE}
        lost |= {line.key for line in lines if line.key in _PROXY_NEEDS and not line.value}
        if lost:
            yield refusal(
                "proxy-drop-in-resets",
                f"{text.path} overrides what {paths.PROXY_UNIT} needs: {', '.join(sorted(lost))}",
                "remove these lines, or the file; options of cri-resmgr belong in "
                "EXTRA_OPTIONS.cfg of the configs",
            )


def _check_runtime(probe: Probe, why: str) -> Iterable[Finding]:
    if probe.runtime_error:
        yield refusal(
            "runtime-not-ready",
            f"the container runtime is not ready: {probe.runtime_error}",
            f"{why} (containerd: 1.6 or later, with its CRI plugin enabled); `crictl info` shows the same",
        )


def _check_cgroups(desired: Desired, snapshot: HostSnapshot, changes: Changes) -> Iterable[Finding]:
    """cri-resmgr reads a pod's QoS class from its cgroup's name, and gives containers of a pod without one
    the lowest weight, whatever it is told of them (seen with the real v0.9.2)."""
    proxy = changes.unit(Part.PROXY)
    policy = policy_of(desired, snapshot.cache)
    starts = proxy is not None and proxy.action in (UnitAction.RELOAD, UnitAction.RESTART)
    if starts and policy.repins is Repinning.CPUS_AND_WEIGHT:
        yield refusal(
            "cgroups-per-qos",
            "kubelet has cgroupsPerQOS: false, so its pods have no cgroup of their class: the policy "
            f"{policy.name} would cut the CPU weight of every container to the minimum",
            "set cgroupsPerQOS: true in kubelet's configuration (and drain the node), or use a policy that "
            "leaves weights alone: none, balloons, podpools",
        )


def _check_managers(settings: Settings, policies: tuple[str, str]) -> Iterable[Finding]:
    static = [
        name for name, policy in zip(("CPU", "memory"), policies, strict=True) if policy.lower() == "static"
    ]
    if not static:
        return
    managers = " and ".join(static) + (" managers are" if len(static) > 1 else " manager is")
    message = (
        f"kubelet's {managers} set to the policy static: behind the proxy that has no effect, without an "
        "error, because cri-resmgr accepts kubelet's updates and drops them"
    )
    if settings.kubelet.accept_static_managers:
        yield warning("static-managers", message, "")
    else:
        yield refusal(
            "static-managers",
            message,
            "set the policy to none in kubelet's configuration, or kubelet.acceptStaticManagers: true if "
            "cri-resmgr shall do that work",
        )


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
        f"{unit.name} was edited, and a daemon-reload is pending: our reload and restart would make "
        "that edit live"
    )
    if accept_pending:
        yield warning("pending-reload", message, "")
    else:
        yield refusal(
            "pending-reload",
            message,
            "finish that edit (`systemctl daemon-reload`, then restart kubelet), or run "
            "again with --accept-pending",
        )


def _pending_is_ours(unit: UnitState, desired: Desired, changes: Changes) -> bool:
    """Whether our own drop-in explains the pending daemon-reload, because systemd has loaded another text
    than the file has: a run of ours died between the write and the reload, or the drop-in was removed,
    replaced or edited. All of these are ours to repair (R7)."""
    if desired.kubelet is None:
        return False
    ours = desired.kubelet.unit
    change_at = {change.path: change for change in changes.files}

    def lies_at(path: str) -> str:
        """The digest of the text at `path`, empty if none lies there."""
        if path in change_at:
            content = change_at[path].before.content
            return digest_within(content) if content else ""
        return ours.unit_digest if path == ours.unit_file else ""

    of_our_name = [path for path in unit.drop_in_paths if path.endswith(f"/{paths.DROP_IN_NAME}")]
    loaded = of_our_name[0] if of_our_name else ""
    if loaded != ours.unit_file and lies_at(ours.unit_file):
        return True
    return bool(loaded) and not (unit.loaded_digest and unit.loaded_digest == lies_at(loaded))
