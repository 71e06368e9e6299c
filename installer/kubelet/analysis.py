"""Everything that is to be known of kubelet's base, found once: endpoint, strategy, managers' policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from installer.kubelet.command import base_launch, next_command_line, parse_base
from installer.kubelet.endpoint import base_endpoint, cgroups_per_qos, manager_policies, next_endpoint
from installer.kubelet.launch import Launch
from installer.kubelet.passing import is_behind_shell
from installer.kubelet.strategy import Choice, choose_strategy
from installer.model.finding import Finding, refusal
from installer.model.resource import UnitState
from installer.model.snapshot import HostSnapshot

if TYPE_CHECKING:
    from installer.inputs.settings import Settings


@dataclass(frozen=True, slots=True)
class KubeletAnalysis:
    """`endpoint` is kubelet's base endpoint, empty if it is not known. `choice` is None if kubelet cannot be
    served; `refusals` say why. `policies` are those of its CPU and its memory manager, `cgroups_per_qos` as
    in its configuration. `next_endpoint` is its base endpoint after a restart, empty if that is not known to
    be another one."""

    endpoint: str
    choice: Choice | None
    policies: tuple[str, str]
    refusals: tuple[Finding, ...] = ()
    next_endpoint: str = ""
    cgroups_per_qos: bool = True


def analyse_kubelet(snapshot: HostSnapshot, settings: Settings) -> KubeletAnalysis:
    """Parses kubelet's unit once and asks it everything. A unit that does not exist has no refusal of its
    own: preflight says the one thing."""
    base, unit, process = snapshot.base, snapshot.kubelet.unit, snapshot.kubelet.process
    if is_behind_shell(process):
        process = None  # not kubelet
    if not base.texts:
        refusals = (_unreadable(unit),) if unit.load_state == "loaded" else ()
        return KubeletAnalysis("", None, ("none", "None"), refusals)
    parsed = parse_base(base)
    next_start, launch = next_command_line(parsed, base), base_launch(parsed)
    plain = not base.scripted and launch is not None and launch.is_kubelet
    by_script = launch is not None and (base.scripted or launch.shell)
    hidden = launch if by_script and process is None else None
    endpoint = _unknown(hidden) if hidden else base_endpoint(base, process, next_start)
    choice = choose_strategy(parsed, settings, base, snapshot.kubelet.process)
    found = (endpoint, choice)
    return KubeletAnalysis(
        endpoint=endpoint if isinstance(endpoint, str) else "",
        choice=choice if isinstance(choice, Choice) else None,
        policies=manager_policies(base, process, next_start),
        cgroups_per_qos=cgroups_per_qos(base, process, next_start),
        refusals=tuple(one for one in found if isinstance(one, Finding)),
        # Another program may give kubelet other flags than its unit has.
        next_endpoint=next_endpoint(process, next_start) if plain else "",
    )


def _unknown(launch: Launch) -> Finding:
    return refusal(
        "kubelet-endpoint-unknown",
        f"kubelet does not run, and its endpoint is known by the script {launch.program} alone",
        "start kubelet, and run this again when it is up",
    )


def _unreadable(unit: UnitState) -> Finding:
    return refusal(
        "kubelet-unit-unreadable",
        f"systemd has {unit.name} loaded, but none of its unit files can be read "
        f"({unit.fragment_path or 'no fragment path'})",
        f"`systemctl cat {unit.name}` shows what is missing; put the file back, or make it readable for root",
    )
