"""Both sides of each port: the fake, which runs anywhere, and the real adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.throwaway.host import ThrowawayHost, missing_needs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what boots a host, so that the unit level can leave it out."""
    for item in items:
        if Path(__file__).parent not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        real_world = item.module.__name__.endswith("test_systemd") and "real" in item.name.partition("[")[2]
        if real_world or "throwaway" in item.fixturenames:
            item.add_marker(pytest.mark.host)


@pytest.fixture(scope="session")
def throwaway() -> Iterator[ThrowawayHost]:
    """One booted host for all contract tests; each uses units of its own on it."""
    if missing := missing_needs():
        pytest.skip(f"no throwaway host: {', '.join(missing)}")
    with ThrowawayHost() as booted:
        yield booted
