"""The daemon's loop on a simulated clock, whose children ask the API server that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from installer.cluster.kubeapi import Api
from installer.cluster.sync_child import Sync, parse_request
from installer.host.command import Finished
from installer.model.daemon import Job
from installer.model.jsontext import to_json

if TYPE_CHECKING:
    from tests.faults.fleets.sim import Clock

LATENCY = 0.2  # seconds that a child takes to ask the API server


class Child:
    """It cannot be killed before its answer, which is then not heard."""

    is_gone = True

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True


class SimLoop:
    """The port Loop. `wall` is the node's own clock; nothing is called any more when it `is_over`."""

    def __init__(
        self,
        clock: Clock,
        api: Api,
        wall: Callable[[], float],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock, self._api, self._wall, self._is_over = clock, api, wall, is_over

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        return self._clock.after(seconds, lambda: None if self._is_over() else call())

    def cancel(self, timer: int) -> None:
        self._clock.cancel(timer)

    def start(self, job: Job) -> Child:
        child = Child()

        def end() -> None:
            if not child.killed:
                job.on_line(self.run(job.argv, job.deadline).output)
                job.on_end(0)

        self.after(LATENCY, end)
        return child

    def run(self, argv: Sequence[str], _seconds: float) -> Finished:
        """What a child does, in this process."""
        return Finished(tuple(argv), 0, to_json(Sync(self._api, parse_request(argv[-1]), self._wall).run()))
