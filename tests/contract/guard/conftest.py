"""The guard, run as systemd would run it, by every sh of this machine, below a root of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.contract.guard.node import Node

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}


@pytest.fixture(params=sorted(SHELLS))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    shell = SHELLS[request.param]
    if not shutil.which(shell[0]):
        pytest.skip(f"no {shell[0]} here")
    return Node(tmp_path, shell)


@pytest.fixture
def dash(tmp_path: Path) -> Node:
    """For what waits: one shell is enough for that."""
    shell = next((shell for shell in SHELLS.values() if shutil.which(shell[0])), ["sh"])
    return Node(tmp_path, shell)
