"""Whether a start of the proxy that is under way comes to its end: a slow one is not a failure."""

from __future__ import annotations

from collections.abc import Callable

from installer.at_work import AtWork, Patience
from installer.errors import StepFailedError
from installer.host.ports import Host
from installer.model import paths
from installer.model.limits import ANSWER_SECONDS, answer_seconds
from installer.model.resource import UnitState

_POLL = 0.05  # seconds
TOO_LONG = "it took too long"


def why_not_started(host: Host, age: float, longest: float, furthest: float = 0.0) -> str:
    """Waits until the relay answers, and returns why it does not; empty if it does. A process may get as old
    as `age` until then, and the wait takes at most `longest`; one that gets on is waited for until it is as
    old as `furthest`. All in seconds."""
    unit, began = host.systemd.unit(paths.PROXY_UNIT), host.clock.monotonic()
    process = host.processes.get(unit.main_pid)
    end = began + (min(longest, age - process.age) if process else 0.0)
    far = began + furthest - (process.age if process else furthest)
    patience = Patience(AtWork(unit, host.journal.cursor(), host), end, far, host)
    while not host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(end - host.clock.monotonic())):
        now = host.systemd.unit(unit.name)
        if not now.main_pid or now.main_pid != unit.main_pid:
            return "it ended"
        if not patience.left:
            return TOO_LONG
        host.clock.sleep(_POLL)
    return ""


def why_not_ready(host: Host, endpoint: str, patience: Patience, check: Callable[[UnitState], None]) -> str:
    """Waits until CRI Version and Status say that it is ready, and returns why not; empty if it is. `check`
    is given the proxy's unit each time, and raises where nothing is to be waited for any more."""
    reason = "it did not answer"
    while (left := patience.left) > 0:
        try:
            status = host.cri.status(endpoint, min(ANSWER_SECONDS, left / 2))  # two calls
        except StepFailedError as error:
            reason = error.message
        else:
            if status.ready:
                return ""
            reason = status.reason
        check(host.systemd.unit(paths.PROXY_UNIT))
        host.clock.sleep(_POLL)
    return reason
