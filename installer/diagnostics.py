"""One block for the log after a failure: what was planned, what of it is still missing, how the units
are, and what they said last.

It only looks, and does not fail itself: what cannot be read says so in its place. Environments are left
out: they hold what is not ours to print.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from installer.errors import InstallerError
from installer.host.ports import Host
from installer.model import paths
from installer.model.event import Event
from installer.model.plan import Plan
from installer.record.schema import Record
from installer.report.planned import plan_json
from installer.verify import differences, look_again

_JOURNAL_LINES = 30


@dataclass(frozen=True, slots=True)
class Scene:
    """The host at the instant of the failure: `units` by name, and what still `differs`."""

    units: dict[str, object]
    differs: tuple[str, ...] = ()


def capture_units(host: Host, kubelet_unit: str) -> Scene:
    """How both units are now."""
    return Scene({name: _unit(host, name) for name in _both(kubelet_unit)})


def capture(plan: Plan, record: Record, host: Host, healthz_url: str) -> Scene:
    """How both units are now, and where the host differs from what was planned."""

    scene = capture_units(host, plan.kubelet_unit)
    try:
        _observation, changes = look_again(host, plan.desired, record, plan.kubelet_unit, healthz_url)
    except (InstallerError, OSError) as error:
        return replace(scene, differs=(f"[{error}]",))
    return replace(scene, differs=differences(changes))


def diagnose(why: str, scene: Scene, host: Host, kubelet_unit: str, plan: Plan | None = None) -> Event:
    """The block as one event `diagnostics`, with the last journal lines of both units."""
    data: dict[str, object] = {
        "why": why,
        "units": scene.units,
        "differs": list(scene.differs),
        "journal": {name: list(host.journal.tail(name, _JOURNAL_LINES)) for name in _both(kubelet_unit)},
    }
    if plan is not None:
        data["plan"] = plan_json(plan)
    return Event("diagnostics", f"diagnostics: {why}", data)


def _both(kubelet_unit: str) -> Iterable[str]:
    return (paths.PROXY_UNIT, kubelet_unit)


def _unit(host: Host, name: str) -> object:
    try:
        state = asdict(host.systemd.unit(name))
        process = host.processes.get(int(state["main_pid"])) if state["main_pid"] else None
    except (InstallerError, OSError) as error:
        return f"[{error}]"
    del state["environment"]
    return {**state, "uses_relay": process.uses_relay if process else None}
