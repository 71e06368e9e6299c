"""Policies of the daemon to try."""

from __future__ import annotations

from typing import Any

import pytest

from installer.daemon.configuration import Configuration
from installer.daemon.policy import Policy
from tests.lib.policy_bench import Bench, Make


@pytest.fixture
def make() -> Make:
    def build(restarts: tuple[float, ...] = (), **configuration: Any) -> Bench:
        return Bench(Policy(Configuration(**configuration), lambda: 0.5, 1000.0, restarts))

    return build


@pytest.fixture
def settled(make: Make) -> Bench:
    bench = make()
    bench.settle()
    return bench
