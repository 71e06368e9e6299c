"""Whether cri-resmgr has taken a force.cfg that it was signalled to read again.

It says so in its journal only. It may refuse what a fresh start accepts, and then all that comes later, too,
until it is restarted.
"""

from __future__ import annotations

from installer.host.ports import Host
from installer.model import paths
from installer.model.limits import HURRIED_SECONDS
from installer.model.resource import UnitState

_STILL = 10.0  # seconds without a sign of work, after which nothing more is expected
_WORKS = 0.1  # seconds of CPU time in these, which answering kubelet alone does not take
_POLL = 0.1
# What cri-resmgr v0.8 - v0.9.2 says at the end (pkg/cri/resource-manager).
_TAKEN, _REFUSED = "successfully switched", "failed to reload"


def why_not_taken(unit: UnitState, cursor: str, host: Host, longest: float) -> str:
    """Waits for its answer to a signal; empty if it has taken the file. `unit` is the proxy's unit as it was
    before the signal, `cursor` where the journal ended then.

    It places each container anew (up to 40 ms for each): the wait goes on while its journal grows or it uses
    the CPU, and its relay answers, for kubelet must not hang; at most `longest` seconds."""
    began = moved = host.clock.monotonic()
    lines, used = 0, _used(unit, host)
    while True:
        said = host.journal.since(unit.name, cursor)
        for line in said:
            if _TAKEN in line:
                return ""
            if _REFUSED in line:
                return line[line.index(_REFUSED) :]
        if host.systemd.unit(unit.name).main_pid != unit.main_pid:
            return "it has ended instead"
        now = host.clock.monotonic()
        if now - moved >= _STILL:
            works = len(said) > lines or _used(unit, host) - used >= _WORKS
            if not works or now - began >= longest:
                break
            if not host.cri.answers(paths.RELAY_ENDPOINT, HURRIED_SECONDS):
                return f"its relay does not answer, {now - began:.0f} s after the signal"
            moved, lines, used = now, len(said), _used(unit, host)
        host.clock.sleep(_POLL)
    return f"its journal says nothing about it within {now - began:.0f} s"


def _used(unit: UnitState, host: Host) -> float:
    process = host.processes.get(unit.main_pid)
    return process.cpu if process else 0.0
