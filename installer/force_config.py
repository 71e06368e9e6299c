"""Whether cri-resmgr has taken a force.cfg that it was signalled to read again.

It says so in its journal only. It may refuse what a fresh start accepts, and then all that comes later, too,
until it is restarted.
"""

from __future__ import annotations

import math

from installer.at_work import STILL, AtWork
from installer.host.ports import Host
from installer.model import paths
from installer.model.limits import HURRIED_SECONDS
from installer.model.resource import UnitState

_ASK_EACH = 1.0  # seconds: whether the relay answers
_POLL = 0.1
# What cri-resmgr v0.8 - v0.9.2 says at the end (pkg/cri/resource-manager).
_TAKEN, _REFUSED = "successfully switched", "failed to reload"


def why_not_taken(
    unit: UnitState, cursor: str, host: Host, longest: float, silence: float = math.inf
) -> tuple[str, float]:
    """Waits for its answer to a signal: why it has not taken the file, empty if it has; and when its relay
    was last seen to answer. `unit` is the proxy's unit as it was before the signal, `cursor` where the
    journal ended then.

    It places each container anew (up to 40 ms for each): the wait goes on while it gets on, at most `longest`
    seconds, and its relay is not silent for more than `silence` seconds, for kubelet may hang on it."""
    began = answered = asked = host.clock.monotonic()
    work = AtWork(unit, cursor, host)
    while True:
        for line in work.said:
            if _TAKEN in line:
                return "", answered
            if _REFUSED in line:
                return line[line.index(_REFUSED) :], answered
        if host.systemd.unit(unit.name).main_pid != unit.main_pid:
            return "it has ended instead", answered
        now = host.clock.monotonic()
        if now - began >= STILL and (not work.gets_on or now - began >= longest):
            return f"its journal says nothing about it within {now - began:.0f} s", answered
        if silence < math.inf and now - asked >= _ASK_EACH:
            answers = host.cri.answers(paths.RELAY_ENDPOINT, HURRIED_SECONDS)
            asked = host.clock.monotonic()
            answered = asked if answers else answered
            if asked - answered >= silence:
                return f"its relay does not answer, {asked - began:.0f} s after the signal", answered
        host.clock.sleep(_POLL)
        work.look()
