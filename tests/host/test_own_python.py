"""The program as it is on a node: on the host's own Python and PyGObject, whatever this machine has.

The tests are one story, in this order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.host.node import Node
from tests.lib.program import KIT, PROGRAM, lay_program
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.snapshot import snapshot
from tests.lib.tree import tree

GIVEN = (*("--configs", f"{KIT}/configs"), *("--config", f"{KIT}/settings.yaml"), "--payload")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A kit on its disk has the program, and what the program is given."""
    scratch = tmp_path_factory.mktemp("node")
    with ThrowawayHost() as host:
        node, kit = Node(host, scratch), host.root / KIT[1:]
        lay_program(scratch / "program", tree())
        node.fallback("policy:\n  Active: none\n")
        for name in ("program", "payload", "configs"):
            shutil.copytree(scratch / name, kit / name, symlinks=True)
        node.upgrade()
        shutil.copytree(scratch / "payload", kit / "newer")
        shutil.copy(node.command.config, kit)
        node.before = snapshot(host)
        yield node


def said(node: Node, verb: str, payload: str = "payload") -> str:
    """What the program says that works on the node itself. Raises HostError where it fails."""
    return node.host.run(PROGRAM, *GIVEN, f"{KIT}/{payload}", verb).stdout.splitlines()[-1]


@pytest.mark.matrix("install", "own Python")
def test_it_installs(node: Node) -> None:
    assert said(node, "install") == "done"
    assert said(node, "status") == "converged and healthy"
    assert node.on_relay()


@rule("R2")
@pytest.mark.matrix("no-op")
def test_nothing_is_done_twice(node: Node) -> None:
    with node.restarts(kubelet=False, proxy=False):
        assert said(node, "install") == "nothing to do"


@rule("R3")
@pytest.mark.matrix("upgrade")
def test_an_upgrade_restarts_the_proxy_only(node: Node) -> None:
    with node.restarts(kubelet=False, proxy=True):
        assert said(node, "install", "newer") == "done"
    assert said(node, "status", "newer") == "converged and healthy"


@rule("R6")
@pytest.mark.matrix("remove")
def test_a_removal_leaves_no_trace(node: Node) -> None:
    assert said(node, "remove", "newer") == "done"
    node.expect_untraced()
    assert not node.complaints()
