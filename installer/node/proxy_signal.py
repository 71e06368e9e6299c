"""Signal cri-resmgr to re-read its force.cfg, and find out whether it has taken the file up.

Only its journal tells. It may refuse what a fresh start accepts, and then everything later as well, until it
is restarted.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, field, replace

from installer.host.ports import Host
from installer.model import paths
from installer.model.event import Event
from installer.model.host import UnitState
from installer.model.limits import HURRIED_SECONDS
from installer.model.plan import Step, StepKind
from installer.node.await_proxy import STILL, Activity
from installer.node.proxy_start import ProxyStart

_ASK_EACH = 1.0  # seconds between two calls to the relay
_ASK_JOURNAL_EACH = 0.1
# What cri-resmgr v0.8 - v0.9.2 logs at the end (pkg/cri/resource-manager).
_TAKEN, _REFUSED = "successfully switched", "failed to reload"


def why_not_taken(
    unit: UnitState, cursor: str, host: Host, longest: float, silence: float
) -> tuple[str, float]:
    """Wait for its reaction to a signal. Returns why it has not taken up the file, empty if it has, and when
    its relay was last seen to answer. `unit` is the proxy's unit as it was before the signal, `cursor` the
    journal's end at that time.

    It places each container again (up to 40 ms each), so the wait continues while it makes progress, at most
    `longest` seconds, and at most `silence` seconds without an answer of its relay, since kubelet may hang on
    it.
    """
    began = answered = asked = host.clock.monotonic()
    activity = Activity(unit, cursor, host)
    while True:
        for line in activity.logged:
            if _TAKEN in line:
                return "", answered
            if _REFUSED in line:
                return line[line.index(_REFUSED) :], answered
        if host.systemd.unit(unit.name).main_pid != unit.main_pid:
            return "it exited instead", answered
        now = host.clock.monotonic()
        if now - began >= STILL and (not activity.progresses or now - began >= longest):
            return f"its journal does not mention it within {now - began:.0f} s", answered
        if silence < math.inf and now - asked >= _ASK_EACH:
            answers = host.cri.answers(paths.RELAY_ENDPOINT, HURRIED_SECONDS)
            asked = host.clock.monotonic()
            answered = asked if answers else answered
            if asked - answered >= silence:
                return f"its relay does not answer, {asked - began:.0f} s after the signal", answered
        host.clock.sleep(_ASK_JOURNAL_EACH)
        activity.update()


@dataclass(slots=True)
class ProxySignal:
    """The signal that a plan sends to the proxy."""

    proxy: ProxyStart
    _unit: UnitState = field(default_factory=lambda: UnitState(paths.PROXY_UNIT))  # as before the signal
    _cursor: str = ""  # the journal's end at that time

    def send(self, step: Step) -> None:
        """Raises SystemdError."""
        host = self.proxy.host
        self._unit, self._cursor = host.systemd.unit(step.target), host.journal.cursor()
        host.systemd.kill(step.target, signal.SIGHUP)

    def restart_if_refused(self, step: Step) -> tuple[Step, ...]:
        """Wait until the proxy has taken up the new force.cfg. Return its restart if it has not."""
        host, limits = self.proxy.host, self.proxy.limits
        silence = limits.proxy_start / 2 if limits.hanging else math.inf
        why, answered = why_not_taken(self._unit, self._cursor, host, limits.begun_start, silence)
        if not why:
            return ()
        self.proxy.silent_since(answered)
        message = f"cri-resmgr did not take up the new force.cfg; restarting it: {why}"
        self.proxy.emit(Event("warning", message, {"code": "force-refused", "hint": ""}))
        return (replace(step, kind=StepKind.RESTART),)
