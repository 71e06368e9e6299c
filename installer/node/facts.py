"""The facts by which preflight and the plan judge a run. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from installer.inputs.configs import find_agent_config_faults
from installer.inputs.policy import policy_in_force, policy_of
from installer.model.host import HostSnapshot, Part, Probe, RunningContainer, UnitState
from installer.model.plan import Changes, Desired, UnitAction
from installer.model.proxy import PolicyInForce, PolicySource, Repinning
from installer.node.adoption import divide

if TYPE_CHECKING:
    from installer.inputs.load import Inputs
    from installer.inputs.settings import Settings
    from installer.node.kubelet_strategy import KubeletAnalysis


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run is judged by."""

    inputs: Inputs
    snapshot: HostSnapshot
    kubelet: KubeletAnalysis
    desired: Desired
    changes: Changes
    runtime: str = ""  # where the runtime answers; empty: unknown
    moved: bool = False  # an interrupted run had begun to move kubelet
    rewrote: bool = False  # or had begun to rewrite what is read of its unit, and perhaps not reloaded yet

    @property
    def settings(self) -> Settings:
        return self.inputs.request.settings

    @property
    def unit(self) -> UnitState:
        """Kubelet's unit."""
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
        unit = self.changes.unit(Part.KUBELET)
        acts = unit is not None and unit.action in (UnitAction.MOVE, UnitAction.RESTART)
        return acts and not self.snapshot.kubelet.on_relay

    @property
    def meets_unknown(self) -> bool:
        """Whether kubelet makes, or has made, containers beside a proxy that it then uses."""
        return self.moves_kubelet or (self.snapshot.may_be_unknown and self.snapshot.kubelet.on_relay)

    @property
    def in_force(self) -> PolicyInForce | None:
        return policy_in_force(self.snapshot)

    @property
    def asked(self) -> PolicyInForce:
        """The policy that a start of the proxy would activate."""
        cache = self.snapshot.cache
        return policy_of(self.desired, replace(cache, agent=None) if self.forgets_agent else cache)

    @property
    def forgets_agent(self) -> bool:
        """Whether the proxy's cache has a configuration from an agent that is switched off: it would take
        precedence over fallback.cfg for ever."""
        return self.settings.proxy.agent == "disabled" and self.snapshot.cache.agent is not None

    @property
    def agent_faults(self) -> list[str]:
        """Why the proxy would not start with its agent's configuration, which the next start would use. A
        running proxy accepts more than a start does."""
        asked, before, process = self.asked, self.snapshot.cache.policy, self.snapshot.proxy.process
        if asked.source is not PolicySource.AGENT:
            return []
        stays = any(re.match("--?disable-policy-switch", word) for word in (process.argv if process else ()))
        if stays and before not in ("", asked.name):
            return [f"it asks for the policy {asked.name} after {before}, and --disable-policy-switch is set"]
        return find_agent_config_faults(self.snapshot.cache, self.snapshot.machine.cpus)

    @property
    def unknown(self) -> tuple[list[RunningContainer], list[tuple[RunningContainer, str]]]:
        """See `divide`."""
        return divide(self.probe.containers, self.snapshot.cache)

    def adopts(self, policy: PolicyInForce | None) -> bool:
        """Whether unknown containers are adopted before the proxy starts with `policy`, including those
        created until then. If one of them cannot be adopted, the run is refused."""
        wanted = self.settings.proxy.existing_containers == "adopt" and self.snapshot.probe is not None
        takes = policy is not None and policy.repins is not Repinning.NOTHING
        return wanted and takes and not self.unknown[1]

    @property
    def starts_proxy(self) -> bool:
        """Also if the proxy is only signalled: it is restarted if it refuses what it re-reads."""
        proxy = self.changes.unit(Part.PROXY)
        return proxy is not None and proxy.action in (UnitAction.RELOAD, UnitAction.RESTART)
