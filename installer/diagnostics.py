"""One block for the log after a failure: what was planned, what of it is still missing, the state of both
units, and their last journal lines.

It only looks, and does not fail itself: what cannot be read says so in its place. Environments are left out:
they may hold secrets of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from installer.diff import diff
from installer.errors import InstallerError
from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.plan import Plan
from installer.model.snapshot import HostSnapshot
from installer.record.schema import Record
from installer.report.planned import plan_json
from installer.snapshot import refresh

_JOURNAL_LINES = 30

Found = Mapping[str, object]
"""JSON values: `units` by name, and what still `differs`, as they were at the instant of the failure."""


def capture_units(host: Host, kubelet_unit: str) -> Found:
    """Both units as they are now."""
    return {"units": {name: _unit(host, name) for name in (paths.PROXY_UNIT, kubelet_unit)}, "differs": []}


def capture(plan: Plan, record: Record, before: HostSnapshot, host: Host, settings: Settings) -> Found:
    """Both units as they are now, and where the host differs from what was planned."""
    found = capture_units(host, plan.kubelet_unit)
    try:
        changes = diff(plan.desired, refresh(before, host, settings, record), record)
    except (InstallerError, OSError) as error:
        return {**found, "differs": [f"[{error}]"]}
    return {**found, "differs": list(changes.describe())}


def diagnose(why: str, found: Found, host: Host, kubelet_unit: str, plan: Plan | None = None) -> Event:
    """The block as one event `diagnostics`, with the last journal lines of both units."""
    units = (paths.PROXY_UNIT, kubelet_unit)
    host.journal.sync()
    journal = {name: list(host.journal.tail(name, _JOURNAL_LINES)) for name in units}
    data: dict[str, object] = {"why": why, **found, "journal": journal}
    if plan is not None:
        data["plan"] = plan_json(plan)
    return Event("diagnostics", f"diagnostics: {why}", data)


def _unit(host: Host, name: str) -> object:
    try:
        state = asdict(host.systemd.unit(name))
        process = host.processes.get(int(state["main_pid"])) if state["main_pid"] else None
    except (InstallerError, OSError) as error:
        return f"[{error}]"
    del state["environment"]
    return {**state, "uses_relay": process.uses_relay if process else None}
