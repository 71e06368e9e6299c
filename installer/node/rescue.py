"""What a child of the daemon does if the proxy is dead: first of all, move kubelet off the relay.

The hold is written before kubelet is restarted, so the guard takes kubelet to its base endpoint whoever
restarts it. A crash in between leaves the hold, and the daemon tries again.
"""

from __future__ import annotations

from installer.errors import InstallerError, InterruptedRunError, RollbackFailedError, SystemdError
from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.proxy import WHILE_HANGING
from installer.model.result import Tally
from installer.node.adoption import set_aside_cache
from installer.node.converge import build_limits, converge
from installer.node.failure_report import capture_units, diagnose
from installer.node.history import describe_end, entry_of_hold, write_entry
from installer.node.ownership import RecordStore
from installer.node.pinning import read_cache
from installer.node.plan import build_hold_plan
from installer.node.rollback import rescue_limits
from installer.node.run import Progress, Run
from installer.node.snapshot import read_units

_RESTART = 7.0  # seconds that a restart of the proxy may take: kubelet may be hanging on it


def hold_kubelet(
    settings: Settings, host: Host, emit: Emit, reason: str, tally: Tally | None = None, *, restart: bool
) -> None:
    """Hold kubelet on its base endpoint from its next start on, and from now on if it can be moved or, with
    `restart`, if it uses the relay. Does not read the record, which may be on a broken disk. Raises
    BusyHostError, InterruptedRunError, and RollbackFailedError if kubelet does not become healthy."""
    with host.lock():
        units = read_units(host, settings)
        kubelet = units.kubelet
        moves = (kubelet.moves and kubelet.on_relay) or (
            restart and (kubelet.process is None or kubelet.on_relay)
        )
        plan = build_hold_plan(units, reason, leaves=moves)
        found = capture_units(host, plan.kubelet_unit)
        limits = rescue_limits(build_limits(settings, WHILE_HANGING))
        try:
            run = Run(host, RecordStore(host.files), settings, emit, tally or Tally())
            converge(plan, units, run, limits, Progress())
        except InterruptedRunError as error:  # kubelet may be on its way
            write_entry(host.journal, entry_of_hold(reason, describe_end(error), moved=moves))
            raise
        except InstallerError as error:
            emit(diagnose(error.message, found, host, plan.kubelet_unit))
            hint = error.hint or f"`journalctl -u {plan.kubelet_unit} -n 50`"
            write_entry(host.journal, entry_of_hold(reason, describe_end(error), moved=moves))
            raise RollbackFailedError(error.message, hint) from error
        write_entry(host.journal, entry_of_hold(reason, "done", moved=moves))
        if moves:
            emit(diagnose(reason, found, host, plan.kubelet_unit))


def restart_proxy(settings: Settings, host: Host, emit: Emit) -> None:
    """Restart a proxy that is silent: it hangs, or crashes. A torn cache, with which each start fails, is set
    aside. Reports a restart that fails or takes too long instead of raising: the rescue comes next. Raises
    BusyHostError."""
    with host.lock():
        failed = "the torn cache could not be set aside"
        try:
            if read_cache(host.files).torn:
                emit(set_aside_cache(host.files))
            failed = "systemd could not be asked"
            host.systemd.reset_failed(paths.PROXY_UNIT)
            result = host.systemd.restart(paths.PROXY_UNIT, _RESTART)
        except SystemdError as error:
            result = error.message
        except OSError as error:
            result = f"{failed}: {error}"
        if result == "done":
            emit(Event("proxy.restarted", f"restarted {paths.PROXY_UNIT}: its relay was silent"))
        else:
            message = f"{paths.PROXY_UNIT} was silent, and restarting it failed: {result}"
            emit(Event("proxy.restart.failed", message, {"result": result}))
