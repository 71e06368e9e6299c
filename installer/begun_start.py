"""Whether a start of the proxy that is under way comes to its end: a slow one is not a failure."""

from __future__ import annotations

from installer.host.ports import Host
from installer.model import paths
from installer.model.limits import answer_seconds

_POLL = 0.05  # seconds
TOO_LONG = "it took too long"


def why_not_started(host: Host, age: float, longest: float) -> str:
    """Waits until the relay answers, and returns why it does not; empty if it does. A process may get as old
    as `age` until then, and the wait takes at most `longest`; both in seconds."""
    unit = host.systemd.unit(paths.PROXY_UNIT)
    process = host.processes.get(unit.main_pid)
    end = host.clock.monotonic() + (min(longest, age - process.age) if process else 0.0)
    while not host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(end - host.clock.monotonic())):
        now = host.systemd.unit(unit.name)
        if not now.main_pid or now.main_pid != unit.main_pid:
            return "it ended"
        if host.clock.monotonic() >= end:
            return TOO_LONG
        host.clock.sleep(_POLL)
    return ""
