"""A node for the tests of one file, lent to one test after the other."""

from collections.abc import Iterator

import pytest

from tests.host.node import PROXY, Node
from tests.host.watched import MODE_FILE, STAMPS, settings


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    return booted


@pytest.fixture(autouse=True)
def lent(node: Node) -> Iterator[None]:
    """Each test begins with settings of its own and no memory of restarts."""
    node.path(STAMPS).unlink(missing_ok=True)
    node.path(MODE_FILE).unlink(missing_ok=True)
    settings(node)
    yield
    node.path("/etc/cri-resmgr/pause").unlink(missing_ok=True)
    node.host.systemctl("unmask", PROXY)
    node.fault("cri-resmgr", "")
