"""The daemon of a random life: waited for until all is right and it is at rest, and ended somehow."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.host.daemon import Daemon
from tests.host.node import Node

REST_SECONDS = 60.0  # for all that it may have to do after one deed, on a busy machine
_POLL = 0.1
_TOLD = 3000  # characters of its last words


class Watcher(Daemon):
    """A daemon that trusts a relay soon."""

    def __init__(self, node: Node) -> None:
        environment = {
            "CRI_RESMGR_INSTALLER_GOOD_SECONDS": "1",
            "CRI_RESMGR_INSTALLER_POD_UID": "lives",
        }
        super().__init__(node, node.scratch / "ready", environment)

    def wait(self, right: Callable[[], bool]) -> None:
        """Waits until all is right and it is at rest. Raises AssertionError, with its last words, if not."""
        deadline = time.monotonic() + REST_SECONDS
        while not (right() and self.is_at_rest()):
            assert self.process.poll() is None, f"the daemon has ended:\n{self.said()[-_TOLD:]}"
            late = time.monotonic() > deadline
            assert not late, f"the daemon does not get there:\n{self.said()[-_TOLD:]}"
            time.sleep(_POLL)

    def end_well(self) -> None:
        """It ends on request, and says so."""
        code = self.end()
        # Before it listens to signals it has done nothing.
        unborn = code == -signal.SIGTERM and not self.events
        assert code == 0 or unborn, f"exit code {code}:\n{self.said()[-_TOLD:]}"
