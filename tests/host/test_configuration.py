"""The configuration in force: what cri-resmgr has taken, refused or kept, and not what we have written."""

import json
from collections.abc import Iterator

import pytest

from tests.host.node import Node
from tests.rules import rule
from tests.throwaway.host import ThrowawayHost

CACHE = "/var/lib/cri-resmgr/cache"
NONE = "policy:\n  Active: none\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost() as host:
        node = Node(host, tmp_path_factory.mktemp("node"))
        node.run("install")
        yield node


@pytest.fixture
def forced(node: Node) -> Iterator[Node]:
    """The node with a force.cfg, and without it afterwards."""
    force = node.command.configs / "force.cfg"
    force.write_text(NONE)
    node.run("install")
    yield node
    node.fault("cri-resmgr", "")
    force.unlink()
    node.run("install", "--retry")


def force(node: Node, text: str) -> None:
    (node.command.configs / "force.cfg").write_text(text)


@rule("R13")
@pytest.mark.parametrize(
    ("fault", "why"),
    [("refuse", "failed to reload forced configuration"), ("silent", "its journal says nothing about it")],
)
def test_a_force_config_that_the_signal_does_not_bring_is_brought_by_a_restart(
    forced: Node, fault: str, why: str
) -> None:
    forced.fault("cri-resmgr", json.dumps({"reload": fault}))
    force(forced, NONE + f"logger:\n  Debug: {fault}\n")
    assert "if it refuses the new force.cfg" in forced.run("plan", code=3).out
    with forced.restarts(kubelet=False, proxy=True):
        said = forced.run("install").out
    assert f"cri-resmgr has not taken the new force.cfg, and is restarted: {why}" in said
    assert forced.run("install").out == "nothing to do\n"
    forced.expect_good()
