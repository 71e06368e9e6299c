"""Whether cri-resmgr has taken a force.cfg that it was signalled to read again.

It says so in its journal only. It may refuse what a fresh start accepts, and then all that comes later, too,
until it is restarted.
"""

from __future__ import annotations

from installer.host.ports import Host
from installer.model.resource import UnitState

_SECONDS = 10.0  # it takes up to 40 ms for each container
_POLL = 0.1
# What cri-resmgr v0.8 - v0.9.2 says at the end (pkg/cri/resource-manager).
_TAKEN, _REFUSED = "successfully switched", "failed to reload"


def why_not_taken(unit: UnitState, cursor: str, host: Host) -> str:
    """Waits for its answer to a signal; empty if it has taken the file. `unit` is the proxy's unit as it was
    before the signal, `cursor` where the journal ended then."""
    deadline = host.clock.monotonic() + _SECONDS
    while host.clock.monotonic() < deadline:
        said = host.journal.since(unit.name, cursor)
        for line in said:
            if _TAKEN in line:
                return ""
            if _REFUSED in line:
                return line[line.index(_REFUSED) :]
        if host.systemd.unit(unit.name).main_pid != unit.main_pid:
            return "it has ended instead"
        host.clock.sleep(_POLL)
    return f"its journal says nothing about it within {_SECONDS:.0f} s"
