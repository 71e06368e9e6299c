"""How `run` ends, and hands over to another daemon."""

import json
from pathlib import Path

import pytest

from tests.host.daemon import SOON, within
from tests.host.node import BINARY, OURS, Node
from tests.host.watched import (
    MODE_FILE,
    daemon,
    settings,
)
from tests.lib.rules import rule


@rule("R10")
def test_removal_and_installation_that_overlap_do_not_fight(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path, "installation") as installation:
        installation.settle()
        settings(node, mode="remove")
        remove = tmp_path / "remove.yaml"
        remove.write_text(node.command.config.read_text())
        settings(node)
        installation.settle()
        node.command.config, kept = remove, node.command.config
        with daemon(node, tmp_path, "removal") as removal:
            node.command.config = kept
            removal.reach("removed")
            assert removal.ready_file.exists()
            within(SOON, lambda: installation.phase() == "yielded")
            installation.rests()
            assert not any(node.path(path).exists() for path in OURS)
            assert not node.on_relay()
            assert json.loads(node.path(MODE_FILE).read_text())["mode"] == "remove"
            installation.end()
            # The container of the old pod is started again: still replaced.
            with daemon(node, tmp_path, "installation") as again:
                within(SOON, lambda: again.phase() == "yielded")
            node.path("/etc/default/cri-resource-manager").write_text("somebody else's\n")
            removal.rests()
            assert removal.ready_file.exists()
            node.path("/etc/default/cri-resource-manager").unlink()
            # A removal goes before an installation, also one that came later: after a boot that is chance.
            with daemon(node, tmp_path, "newer") as newer:
                newer.reach("yielded")
                removal.reach("removed")
                assert not node.path(BINARY).exists()
                assert removal.end() == 0
                within(SOON, lambda: newer.process.poll() == 0)  # its container starts again
            with daemon(node, tmp_path, "newer") as newer:
                newer.settle()
                assert node.path(BINARY).exists()


@rule("R11")
def test_a_signal_in_the_middle_of_a_pass_ends_it_between_two_steps(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.upgrade(version="v0.9.3")
        within(SOON, lambda: any(data["step"] == "restart" for data in running.of("step.done")))
        assert running.end() == 0
    with daemon(node, tmp_path) as running:
        running.settle()
    node.expect_good()


@pytest.mark.parametrize("evidence", ["there", "gone"])
def test_a_signal_removes_only_on_evidence(node: Node, tmp_path: Path, evidence: str) -> None:
    settings(node, removal={"onTermination": "auto"})
    node.run("install")
    with daemon(node, tmp_path, cluster=evidence) as running:
        running.settle()
        assert running.end() == 0
        assert running.of("removal.evidence") == [{"certain": evidence == "gone"}]
    if evidence == "gone":
        node.expect_untraced(allowed="/var/lib/cri-resmgr-installer")
    else:
        node.expect_good()
