"""While the proxy is stopped and is to be started again: what keeps kubelet from being left on a dead relay.

Kubelet hangs on the relay meanwhile, and could start no pod of ours that would repair it. So no signal ends a
run in this gap, and where kubelet does hang, systemd has promised before the stop to start the proxy, should
this run be killed.
"""

from __future__ import annotations

from contextlib import suppress

from installer.errors import SystemdError
from installer.host.ports import Systemd
from installer.model import paths
from installer.model.event import Emit, Event

_SECONDS = 20.0  # from the stop on; the node goes NotReady ~31 s after its relay has gone


class Gap:
    """`is_open` from before the stop until the proxy has started."""

    def __init__(self, systemd: Systemd, emit: Emit) -> None:
        self._systemd, self._emit = systemd, emit
        self.is_open = False

    def open(self, *, kubelet_hangs: bool) -> None:
        self.is_open = True
        try:
            if kubelet_hangs:
                self._systemd.arm_start(paths.PROXY_UNIT, _SECONDS)
        except SystemdError as error:
            data = {"code": "gap", "hint": "should this run be killed now, the next one starts the proxy"}
            self._emit(Event("warning", f"systemd takes no timer for the proxy: {error.message}", data))

    def close(self) -> None:
        """Ends what systemd has promised, to us or to a run that was killed."""
        self.is_open = False
        with suppress(SystemdError):  # at worst it starts what runs: nothing
            self._systemd.disarm_start(paths.PROXY_UNIT)
