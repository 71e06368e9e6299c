"""Says what to do about a node, in one line, and where the docs say more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from installer.model.daemon import Phase
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.overview import NodeHealth

_RUNBOOKS, _FLEET = "docs/runbooks.md#", "docs/fleet.md#"


@dataclass(frozen=True, slots=True)
class Advice:
    """`runbook` is a heading of our docs. Both are empty where there is nothing to do."""

    text: str = ""
    runbook: str = ""


_BY_PHASE = {
    Phase.FAILED: Advice(
        "fix what the reason names, and the node retries by itself; after a rollback it needs another "
        "generation, or `install --retry` on the node",
        f"{_RUNBOOKS}failed-exit-5",
    ),
    Phase.REFUSED: Advice(
        "fix what the reason names, and the node retries by itself; or exclude the node with nodeSelector",
        f"{_RUNBOOKS}refused-exit-4",
    ),
    Phase.HELD: Advice(
        "kubelet runs without the proxy and is safe; on the node, `journalctl -u cri-resource-manager` says "
        "what happened to the proxy",
        f"{_RUNBOOKS}held",
    ),
    Phase.LIMITED: Advice(
        "find out who keeps changing kubelet's unit: `cri-resmgr-installer history` on the node",
        f"{_RUNBOOKS}limited",
    ),
    Phase.UNWELL: Advice(
        "if it lasts longer than a minute, run `cri-resmgr-installer status` on the node",
        f"{_RUNBOOKS}not-ready",
    ),
}
_BY_HEALTH = {
    NodeHealth.TROUBLE: Advice(
        "`kubectl describe` and `kubectl logs` of the node's pod say more", f"{_RUNBOOKS}not-ready"
    ),
    NodeHealth.SILENT: Advice(
        "check the node and the installer's pod on it; what is installed there runs without that pod",
        f"{_FLEET}see-every-node",
    ),
    NodeHealth.DIRTY: Advice(
        "if it is to be served, apply the manifests again, with their ClusterRoleBinding; if not, "
        "`cri-resmgr-installer manifests --mode remove --nodes NODE | kubectl apply -f -`, with your "
        "--values, cleans it; then `cri-resmgr-installer uninstall` removes the rest",
        "docs/operations.md#uninstalling",
    ),
    NodeHealth.WORKING: Advice("wait"),
    NodeHealth.PAUSED: Advice(
        f"when the work on it is done: `kubectl annotate node NODE {PAUSE_ANNOTATION}-`",
        f"{_RUNBOOKS}paused",
    ),
}


def advise(health: NodeHealth, phase: str) -> Advice:
    """Return the advice for a node of this health whose phase may be empty, or that of another version."""
    found = _BY_PHASE.get(Phase(phase)) if health is NodeHealth.TROUBLE and phase in set(Phase) else None
    return found or _BY_HEALTH.get(health, Advice())
