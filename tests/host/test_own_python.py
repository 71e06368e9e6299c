"""The program as it is on a node: on the host's own Python and PyGObject, whatever this machine has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.host.node import Node
from tests.program import KIT, PROGRAM, lay_program
from tests.rules import rule
from tests.throwaway.host import ThrowawayHost
from tests.throwaway.snapshot import snapshot
from tests.tree import tree

GIVEN = (
    *("--payload", f"{KIT}/payload"),
    *("--configs", f"{KIT}/configs"),
    *("--config", f"{KIT}/settings.yaml"),
)


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    """Its kit has the program, and what the program is given."""
    node, kit = Node(host, tmp_path), host.root / KIT[1:]
    lay_program(tmp_path / "program", tree())
    node.fallback("policy:\n  Active: none\n")
    for name in ("program", "payload", "configs"):
        shutil.copytree(tmp_path / name, kit / name, symlinks=True)
    shutil.copy(node.command.config, kit)
    node.before = snapshot(host)
    return node


@rule("R2", "R6")
def test_it_installs_does_nothing_twice_and_leaves_no_trace(node: Node) -> None:
    assert node.host.run(PROGRAM, *GIVEN, "install").stdout.endswith("done\n")
    node.expect_good()
    assert node.host.run(PROGRAM, *GIVEN, "install").stdout == "nothing to do\n"
    assert node.host.run(PROGRAM, *GIVEN, "status").stdout.endswith("converged and healthy\n")
    node.host.run(PROGRAM, *GIVEN, "remove")
    node.expect_untraced()
