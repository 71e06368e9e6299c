"""What a child of the resident does when the proxy is dead: under the host's lock, with no plan made.

Away from the relay comes first: the hold is written before kubelet is restarted, so that whoever
restarts it, the guard takes it to its base endpoint. A crash in between leaves the hold, and the
resident tries again.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from installer.apply import Progress, apply_plan
from installer.diagnostics import capture_units, diagnose
from installer.errors import InstallerError, RollbackFailedError, SystemdError
from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.change import Changes
from installer.model.event import Emit, Event
from installer.model.plan import Plan, Step, StepKind
from installer.model.resource import Part
from installer.model.state import Desired, Mode
from installer.reconcile import build_limits
from installer.record.store import RecordStore

_SETTLE = 2.0  # seconds


def hold_kubelet(settings: Settings, host: Host, emit: Emit, reason: str, *, restart: bool) -> None:
    """Holds kubelet on its base endpoint from its next start on, and with `restart`, if it runs on the
    relay, from now on. Raises BusyHostError; RollbackFailedError where kubelet does not get well."""
    with host.lock():
        identity = host.identity()
        RecordStore(host.files, identity["machine_id"], identity["hostname"]).hold(reason)
        emit(Event("hold.set", f"kubelet is held on its base endpoint: {reason}", {"reason": reason}))
        scene = capture_units(host, settings.kubelet.unit)
        unit = host.systemd.unit(settings.kubelet.unit)
        process = host.processes.get(unit.main_pid) if unit.main_pid else None
        if not restart or (process is not None and not process.uses_relay):
            return
        kinds = (StepKind.RESTART, StepKind.AWAIT_KUBELET)
        steps = tuple(Step(kind, unit.name, Part.KUBELET) for kind in kinds)
        plan = Plan(Mode.INSTALL, Desired(), Changes(), unit.name, steps)
        limits = build_limits(settings, hanging=True)
        try:
            apply_plan(plan, host, replace(limits, settle=min(limits.settle, _SETTLE)), emit, Progress())
            emit(diagnose(reason, scene, host, unit.name))
        except InstallerError as error:
            emit(diagnose(error.message, scene, host, unit.name))
            raise RollbackFailedError(error.message, f"`journalctl -u {unit.name} -n 50`") from error


def restart_proxy(settings: Settings, host: Host, emit: Emit) -> None:
    """Restarts a proxy that runs and is silent; whether that helped is for others to see.

    Raises BusyHostError.
    """
    with host.lock():
        with contextlib.suppress(SystemdError):  # it takes too long: the rescue comes next
            host.systemd.reset_failed(paths.PROXY_UNIT)
            host.systemd.restart(paths.PROXY_UNIT, settings.proxy.dead_seconds / 2)
        emit(Event("proxy.restarted", f"{paths.PROXY_UNIT} was restarted: its relay was silent"))
