"""Both sides of each port: the fake, which runs anywhere, and the real adapter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.throwaway.host import ThrowawayHost, missing_needs


@pytest.fixture(scope="session")
def throwaway() -> Iterator[ThrowawayHost]:
    """One booted host for all contract tests; each uses units of its own on it."""
    if missing := missing_needs():
        pytest.skip(f"no throwaway host: {', '.join(missing)}")
    with ThrowawayHost() as booted:
        yield booted
