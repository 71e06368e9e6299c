"""A fleet of three nodes, and an API server of plain objects."""

from __future__ import annotations

import pytest

from tests.lib.fleet_bench import Store


@pytest.fixture
def store() -> Store:
    store = Store()
    store.size(3)
    return store
