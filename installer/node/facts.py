"""What a run is judged by, for preflight and for the plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from installer.inputs.policy import policy_in_force, policy_of
from installer.model.host import HostSnapshot, Part, Probe, RunningContainer, UnitState
from installer.model.plan import Changes, Desired, UnitAction
from installer.model.proxy import PolicyInForce, Repinning
from installer.node.adoption import divide

if TYPE_CHECKING:
    from installer.inputs.load import Inputs
    from installer.inputs.settings import Settings
    from installer.node.kubelet_strategy import KubeletAnalysis


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run is judged by. `runtime` is where it answers, empty if that is not known. `moved`: a run was
    cut off that had begun to move kubelet."""

    inputs: Inputs
    snapshot: HostSnapshot
    kubelet: KubeletAnalysis
    desired: Desired
    changes: Changes
    runtime: str = ""
    moved: bool = False

    @property
    def settings(self) -> Settings:
        return self.inputs.request.settings

    @property
    def unit(self) -> UnitState:
        """Kubelet's."""
        return self.snapshot.kubelet.unit

    @property
    def probe(self) -> Probe:
        return self.snapshot.probe or Probe()

    @property
    def restarts_kubelet(self) -> bool:
        return self.changes.restarts(Part.KUBELET)

    @property
    def moves_kubelet(self) -> bool:
        """Onto the relay."""
        return self.restarts_kubelet and not self.snapshot.kubelet.on_relay

    @property
    def in_force(self) -> PolicyInForce | None:
        return policy_in_force(self.snapshot)

    @property
    def asked(self) -> PolicyInForce:
        """What a start of the proxy would activate."""
        return policy_of(self.desired, self.snapshot.cache)

    @property
    def strangers(self) -> tuple[list[RunningContainer], list[tuple[RunningContainer, str]]]:
        """See `divide`."""
        return divide(self.probe.containers, self.snapshot.cache)

    def adopts(self, policy: PolicyInForce | None) -> bool:
        """Whether strangers are made known to the proxy before it starts with `policy`, also those that come
        until then. Where one of them cannot be, that is refused."""
        wanted = self.settings.proxy.existing_containers == "adopt" and self.snapshot.probe is not None
        takes = policy is not None and policy.repins is not Repinning.NOTHING
        return wanted and takes and not self.strangers[1]

    @property
    def starts_proxy(self) -> bool:
        """A proxy that refuses what it is signalled to read again is restarted."""
        proxy = self.changes.unit(Part.PROXY)
        return proxy is not None and proxy.action in (UnitAction.RELOAD, UnitAction.RESTART)
