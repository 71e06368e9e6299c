"""A landscape for each test, and one where a Shoot has the extension."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.contract.extension.replica import (
    SHOOT,
    Replica,
    Start,
)
from tests.lib.throwaway.gardener import (
    Landscape,
)


@pytest.fixture
def world() -> Iterator[Landscape]:
    with Landscape(n1="ready", n2="ready") as found:
        yield found


@pytest.fixture
def start(world: Landscape) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(name: str = "replica-1") -> Replica:
            replica = Replica(world, name)
            stack.callback(replica.stop)
            return replica

        stack.callback(world.seed.heal)
        yield begin


@pytest.fixture
def enabled(world: Landscape, start: Start) -> Landscape:
    """A Shoot has it, and all is well."""
    start()
    world.serve(SHOOT)
    return world
