"""What about this host cannot or should not be served, with what was found and what would help.

Pure: facts in, findings out, all of them at once. `kubelet_strategy` decides how kubelet would be served; its
refusals are reported with the rest. A refusal ends a run with exit 4 before the first write.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from installer.model import paths
from installer.model.host import HostSnapshot, Machine, Probe, UnitState
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, Finding, refusal, warning
from installer.node.facts import Facts
from installer.node.header import digest_within
from installer.node.preflight_files import (
    check_cache_space,
    check_deletions,
    check_exposed,
    check_extra_options,
    check_file_systems,
    check_places,
)
from installer.node.preflight_proxy import (
    check_cache,
    check_empty,
    check_placed,
    check_start,
    check_versions,
)
from installer.node.preflight_units import check_kubelets, check_proxys

if TYPE_CHECKING:
    from installer.inputs.payload import Payload

PENDING = "pending-reload"  # the code of a finding
SUCCESSOR_NOT_READY = "successor-not-ready"  # the code of a finding
# Without the proxy a kubelet with one of these would have no runtime, or not start at all.
_NO_WAY_BACK = ("kubelet-base-is-relay", "kubelet-config-unreadable")
_ALIKE = {"amd64": "x86_64", "arm64": "aarch64", "i386": "i686", "i486": "i686", "i586": "i686"}
_EMBEDDED = {
    "k3s.service": "k3s",
    "k3s-agent.service": "k3s",
    "rke2-server.service": "RKE2",
    "rke2-agent.service": "RKE2",
    "microshift.service": "MicroShift",
}
# Programs that are all of Kubernetes, so that no flag of kubelet is theirs.
_DISTRIBUTIONS = frozenset({"k3s", "rke2", "microshift", "k0s", "kubelite"})
_NEIGHBOURS = (
    (
        "nodeadm",
        "nodeadm configures this node: at each boot it rewrites kubelet's environment file and "
        "configuration; our part picks up its values when kubelet starts",
        "replace nodes rather than editing them, and keep the installer running as a DaemonSet",
    ),
    (
        "machine-config-daemon",
        "OpenShift's machine-config-daemon manages this node: it owns kubelet's unit, and a node whose "
        "files differ from its MachineConfig is reported as degraded",
        "check that no MachineConfig writes to our paths, and try one node of a pool first",
    ),
)
"""Other owners of kubelet's unit: part of their services' names (the finding's code), message, hint."""


def check(facts: Facts) -> tuple[Finding, ...]:
    """Everything that speaks against this run, and what an operator should know."""
    changes, pause = facts.changes, tuple(_check_pause(facts.snapshot))
    if facts.inputs.request.mode is Mode.REMOVE:
        return (*pause, *check_places(changes), *_check_removal(facts)) if changes else pause
    found = (*pause, *check_places(changes), *check_host(facts))
    if facts.snapshot.probe is None or (facts.desired.files and not changes):
        return found
    return (*found, *check_change(facts))


def _check_pause(snapshot: HostSnapshot) -> Iterable[Finding]:
    if snapshot.pause:
        hint = "`install` and `remove` change nothing without --despite-pause"
        yield warning("paused", f"this node is paused: {snapshot.pause}", hint)


def check_host(facts: Facts) -> tuple[Finding, ...]:
    """What the cheap facts show, on every run.

    Why kubelet's unit or endpoint cannot be served is left out if the unit is missing or masked, which is
    reason enough.
    """
    inputs, snapshot = facts.inputs, facts.snapshot
    unit = tuple(_check_kubelet_unit(facts))
    unusable = any(finding.code in ("kubelet-missing", "kubelet-masked") for finding in unit)
    return (
        *unit,
        *(() if unusable else facts.kubelet.refusals),
        *_check_machine(snapshot.machine, inputs.payload),
        *check_exposed(snapshot),
        *check_extra_options(snapshot, facts.desired, facts.changes),
        *inputs.configs.warnings,
        *check_cache(facts),
        *check_placed(snapshot),
        *_check_successor(facts, warning),
        *_check_neighbours(facts),
    )


def check_change(facts: Facts) -> tuple[Finding, ...]:
    """What matters only if something is to be written, besides `check_host`'s findings."""
    snapshot, probe, payload = facts.snapshot, facts.probe, facts.inputs.payload
    return (
        *_check_running(facts),
        *_check_healthz(facts),
        *check_kubelets(facts),
        *_check_mask(snapshot.proxy.unit),
        *check_proxys(probe),
        *_check_order(facts.unit, probe),
        *_check_runtime(probe, "the proxy needs it, so repair it first"),
        *check_empty(facts),
        *check_cache_space(facts),
        *check_file_systems(probe, facts.changes, payload.binary.size if payload else 0),
        *_check_managers(facts),
        *check_versions(
            probe.kubelet_version,
            payload.version if payload else "",
            probe.newer_status,
            probe.autoscaled,
            restarts=facts.restarts_kubelet,
            moves=facts.moves_kubelet,
        ),
        *check_start(facts),
        *_check_pending(facts),
    )


def _check_removal(facts: Facts) -> Iterable[Finding]:
    """What keeps kubelet from returning to its base endpoint, and our files from going."""
    name = facts.unit.name
    if facts.snapshot.kubelet.process is not None:
        yield from (found for found in facts.kubelet.refusals if found.code in _NO_WAY_BACK)
    yield from check_deletions(facts.probe, facts.changes)
    if not facts.restarts_kubelet:
        return
    if facts.unit.load_state == "masked":
        message = f"{name} is masked, and would have to restart to leave the proxy"
        yield refusal("kubelet-masked", message, f"find out why, then {_unmask(name)}")
        return
    why = "kubelet would not start on it, so the running kubelet is left alone. Repair it first"
    yield from _check_runtime(facts.probe, why)
    yield from _check_successor(facts, refusal)


def _check_successor(facts: Facts, judge: Callable[[str, str, str], Finding]) -> Iterable[Finding]:
    """Whether an NRI plugin could place containers here after a removal. Not checked once kubelet has left
    the relay: a removal that has begun is finished."""
    if facts.settings.removal.successor == "none":
        return
    otherwise = "or remove without a successor (removal.successor: none)"
    if not facts.snapshot.accepts_plugins:
        yield judge(
            SUCCESSOR_NOT_READY,
            "no NRI plugin could follow cri-resmgr: nothing listens at /var/run/nri/nri.sock",
            f"containerd 2.0 and CRI-O 1.30 do by default, containerd 1.7 if so configured; {otherwise}",
        )
    if static := _static_managers(facts):
        yield judge(
            SUCCESSOR_NOT_READY,
            f"an NRI plugin and kubelet's static {static} would both place containers",
            f"set the policy to none in kubelet's configuration, {otherwise}",
        )


def _check_kubelet_unit(facts: Facts) -> Iterable[Finding]:
    unit, name, services = facts.unit, facts.settings.kubelet.unit, facts.snapshot.machine.services
    if unit.load_state == "masked":
        yield refusal(
            "kubelet-masked",
            f"{name} is masked",
            f"find out who masked it and why, then {_unmask(name)}, and start it",
        )
    elif program := _embedding(facts.snapshot):
        yield refusal(
            "kubelet-missing",
            f"{name} runs {program}, which has kubelet inside its own process and a runtime of its own, "
            "so no unit can be moved to a proxy",
            "name the unit that runs kubelet itself, or exclude this node (nodeSelector of the DaemonSet)",
        )
    elif not unit.exists:
        embedded = sorted({_EMBEDDED[service] for service in services if service in _EMBEDDED})
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


def _embedding(snapshot: HostSnapshot) -> str:
    """The program that kubelet's unit runs, if that is a distribution of Kubernetes in one process."""
    names = (posixpath.basename(line.path) for line in snapshot.base.detail.exec_start)
    return next((name for name in names if name in _DISTRIBUTIONS), "")


def _check_healthz(facts: Facts) -> Iterable[Finding]:
    """Whether the success of a change of kubelet could be judged."""
    url = facts.settings.kubelet.healthz_url
    if facts.snapshot.kubelet.foreign_healthz:
        port = url.split("/")[2].rpartition(":")[2]
        yield refusal(
            "healthz-foreign",
            f"a process other than {facts.unit.name} listens at {url}: kubelet's health is unknown",
            f"`ss -ltnp 'sport = :{port}'` names it: end it, and kubelet takes its port back; or set "
            "kubelet.healthzUrl to kubelet's own address",
        )
    seconds = facts.settings.kubelet.start_timeout_seconds
    if facts.moves_kubelet and facts.snapshot.kubelet.ails(seconds):
        yield refusal(
            "kubelet-unhealthy",
            f"{facts.unit.name} runs, but {url} is not ok, though it was started more than {seconds} s ago: "
            "our own failure could not be told from that",
            f"repair kubelet first; `journalctl -u {facts.unit.name} -n 50` says why. If its healthz is "
            'elsewhere, or off, set kubelet.healthzUrl ("": do not ask it)',
        )


def _check_machine(machine: Machine, payload: Payload | None) -> Iterable[Finding]:
    if "bottlerocket" in machine.services:
        yield refusal(
            "read-only-root",
            "this host is Bottlerocket: its root file system is read-only and its units are generated "
            "from its API, so an installation would not last",
            "exclude this node (nodeSelector of the DaemonSet)",
        )
    architecture = machine.architecture
    host = _ALIKE.get(architecture, architecture)
    if payload and payload.machine and host and payload.machine != host:
        yield refusal(
            "wrong-machine",
            f"{payload.source} is a program for {payload.machine}, but this host is {architecture}",
            f"use the payload for {architecture} (in the image: the one built for this architecture)",
        )


def _check_neighbours(facts: Facts) -> Iterable[Finding]:
    """Other programs that also own kubelet's unit, and what that means."""
    services, kubelet = " ".join(facts.snapshot.machine.services), facts.settings.kubelet
    if "gardener-node-agent" in services and kubelet.drop_in_directory == paths.USUAL_UNITS:
        yield warning(
            "gardener-node-agent",
            "gardener-node-agent runs here: when it changes kubelet's unit it may delete all of "
            f"{paths.USUAL_UNITS}/{kubelet.unit}.d, our drop-in included; kubelet then runs without the "
            "proxy until the repair",
            f"leave kubelet.dropInDirectory out, or set it to {paths.CONTROL_UNITS}",
        )
    for code, message, hint in _NEIGHBOURS:
        if code in services:
            yield warning(code, message, hint)


def _check_running(facts: Facts) -> Iterable[Finding]:
    unit, snapshot = facts.unit, facts.snapshot
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
        if facts.moved or dead_relay:
            return  # our own part keeps it down: only a repair or a rollback helps
        crashes = "keeps crashing" if unit.n_restarts or unit.active_state == "failed" else "has just crashed"
        yield refusal(
            "kubelet-crash-looping",
            f"{unit.name} {crashes} ({unit.active_state}, result {unit.result}): our own failure could not "
            "be told from these crashes",
            f"repair kubelet first; `journalctl -u {unit.name} -n 50` says why",
        )
    elif unit.active_state == "inactive":
        # Activating or deactivating is not refused: it may be a restart by our own run that died (R7).
        yield refusal(
            "kubelet-stopped",
            f"{unit.name} is {unit.active_state} ({unit.sub_state}): no running kubelet to move",
            f"`systemctl start {unit.name}` first; if it was stopped on purpose, run the installer later",
        )


def _check_mask(unit: UnitState) -> Iterable[Finding]:
    if unit.load_state == "masked":
        yield refusal(
            "proxy-masked",
            f"{unit.name} is masked",
            f"find out why, then {_unmask(unit.name)}",
        )


def _unmask(unit: str) -> str:
    return f"`systemctl unmask {unit}` (with --runtime if it is masked until the next boot only)"


def _check_order(kubelet: UnitState, probe: Probe) -> Iterable[Finding]:
    """Whether our units would close an ordering cycle. If they already do, a change makes it no worse."""
    if probe.cycle:
        waits = " after ".join((kubelet.name, paths.PROXY_UNIT, *probe.cycle))
        judge = warning if kubelet.loaded_digest else refusal
        yield judge(
            "ordering-cycle",
            f"{waits} after {kubelet.name}: with the proxy this is an ordering cycle, and at each boot "
            "systemd would leave out one of these units",
            f"`systemctl cat {probe.cycle[-1]}` shows why it starts after kubelet: remove that, or exclude "
            "this node (nodeSelector of the DaemonSet)",
        )


def _check_runtime(probe: Probe, why: str) -> Iterable[Finding]:
    if probe.runtime_error:
        yield refusal(
            "runtime-not-ready",
            f"the container runtime is not ready: {probe.runtime_error}",
            f"{why} (containerd: 1.6 or later, with its CRI plugin enabled); `crictl info` shows the same",
        )


def _check_managers(facts: Facts) -> Iterable[Finding]:
    if not (static := _static_managers(facts)):
        return
    verb = "are" if static.endswith("s") else "is"
    message = (
        f"kubelet's {static} {verb} set to the policy static, which silently has no effect behind the proxy: "
        "cri-resmgr accepts kubelet's updates and drops them"
    )
    if facts.settings.kubelet.accept_static_managers:
        yield warning("static-managers", message, "")
    else:
        yield refusal(
            "static-managers",
            message,
            "set the policy to none in kubelet's configuration, or kubelet.acceptStaticManagers: true if "
            "cri-resmgr is to do that work",
        )


def _static_managers(facts: Facts) -> str:
    """`CPU manager`, `CPU and memory managers`; empty if none is static."""
    policies = zip(("CPU", "memory"), facts.kubelet.policies, strict=True)
    static = [name for name, policy in policies if policy.lower() == "static"]
    return " and ".join(static) + (" managers" if len(static) > 1 else " manager") if static else ""


def _check_pending(facts: Facts) -> Iterable[Finding]:
    unit, changes, request = facts.unit, facts.changes, facts.inputs.request
    if unit.load_state == "masked" or not unit.need_daemon_reload:
        return  # for a masked unit with drop-ins, systemd always says that a reload is needed
    reloads = any(change.daemon_reload or change.disable for change in changes.units)
    ours = facts.rewrote or _pending_is_ours(unit, facts.desired, changes)
    if ours or not (reloads or facts.restarts_kubelet):
        return
    message = (
        f"{unit.name} was edited, and a daemon-reload is pending: our reload and restart would make "
        "that edit live"
    )
    if request.consent.accept_pending or (facts.moved and request.consent.take_over):
        yield warning(PENDING, message, "")
    else:
        yield refusal(
            PENDING,
            message,
            "finish that edit (`systemctl daemon-reload`, then restart kubelet), or run "
            "again with --accept-pending",
        )


def _pending_is_ours(unit: UnitState, desired: Desired, changes: Changes) -> bool:
    """Whether our own drop-in explains the pending daemon-reload, because the file's text is not the one that
    systemd has loaded: our own run died between the write and the reload, or the drop-in was deleted,
    replaced or edited. All of these are ours to repair (R7). Where an edit that systemd had loaded kept our
    digest, or a takeover has repaired kubelet's own unit, only the record knows (RELOAD_OWED)."""
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
