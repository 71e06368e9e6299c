"""One replica of the controller, in a thread, and what its tests have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from installer.gardener.controller import Setup
from installer.gardener.managed_resource import Renderer
from installer.gardener.service import serve
from installer.gardener.watchdog import Watchdog
from installer.operator.api import LEASE, Limits
from installer.operator.api import SHOOT as SHOOT_LIMITS
from installer.operator.kube import connect_with
from tests.lib.throwaway.gardener import (
    RESOURCE,
    Landscape,
)

CASES = Path(__file__).parents[2] / "cases" / "extension"
SHOOT = "shoot--example--pinned"
CHANGED = {"configs": {"fallback": "policy:\n  Active: none\nlogger:\n  Debug: policy\n"}}
PACE, LEASE_PACE = 0.01, 0.4
INSTALLED, REMOVED = f"{SHOOT}: {RESOURCE}", f"{SHOOT}: {RESOURCE}-removal"


class Replica:
    """The controller in a thread."""

    def __init__(
        self,
        world: Landscape,
        name: str = "replica-1",
        seed: Any = None,
        watchdog: Watchdog | None = None,
        leases: Any = None,
        shoot: Limits = SHOOT_LIMITS,
    ) -> None:
        kubeconfig = world.seed.kubeconfig().encode()
        seed = seed or connect_with(kubeconfig)
        leases = leases or connect_with(kubeconfig, replace(LEASE, seconds=LEASE.seconds * LEASE_PACE))
        renderer = Renderer(CASES / "values.yaml", (CASES / "deployment.yaml",))
        connect = partial(connect_with, limits=shoot)
        setup = Setup(renderer, renderer.check()[0], name, connect, watchdog or Watchdog(), PACE, LEASE_PACE)
        self.lines: list[str] = []
        self._stop = threading.Event()
        self.ended_well: bool | None = None

        def run() -> None:
            self.ended_well = serve(seed, leases, setup, "extension", self._stop, self.lines.append)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self.join()


Start = Callable[..., Replica]


def secrets(world: Landscape) -> list[str]:
    return [each["name"] for each in world.resource(SHOOT)["spec"]["secretRefs"]]
