"""One replica of the controller, in a thread, and what its tests have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from installer.extension.controller import Setup
from installer.extension.desired import Renderer
from installer.extension.health import Pulses
from installer.extension.service import serve
from installer.kube.client import connect_with
from tests.throwaway.gardener import (
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
        self, world: Landscape, name: str = "replica-1", seed: Any = None, pulses: Pulses | None = None
    ) -> None:
        seed = seed or connect_with(world.seed.kubeconfig().encode())
        renderer = Renderer(CASES / "values.yaml", (CASES / "deployment.yaml",))
        setup = Setup(renderer, renderer.check()[0], name, connect_with, pulses or Pulses(), PACE, LEASE_PACE)
        self.lines: list[str] = []
        self._stop = threading.Event()
        self.ended_well: bool | None = None

        def run() -> None:
            self.ended_well = serve(seed, seed, setup, "extension", self._stop, self.lines.append)

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
