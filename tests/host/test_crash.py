"""R7, R11: whatever instant a run dies at, the next one converges, and a removal leaves nothing behind."""

from collections.abc import Iterator

import pytest

from installer.model.state import Mode
from tests.host.mortal import Instant, PowerCut, converge
from tests.host.node import Node
from tests.host.product import lent, offer_broken, offer_good
from tests.throwaway.host import ThrowawayHost
from tests.throwaway.kubelet import wait_healthy
from tests.throwaway.snapshot import difference, files

_MORE_THAN_ANY_PLAN_HAS = 200
CRASHES: dict[str, object] = {"exitAfterSeconds": 0.3}


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost() as host:
        yield Node(host, tmp_path_factory.mktemp("node"))


@pytest.fixture
def node(booted: Node) -> Iterator[Node]:
    with lent(booted):
        yield booted


def expect_bare(node: Node, allowed: str = "") -> None:
    """Nothing of ours is left among the files, and kubelet is healthy; systemd is asked at the end only."""
    wait_healthy(node.host)
    assert not node.on_relay()
    before = {path: entry for path, entry in node.before.items() if not path.startswith("unit:")}
    left = [line for line in difference(before, files(node.host)) if not allowed or allowed not in line]
    assert not left, "\n".join(left)


def test_r7_an_install_killed_before_any_of_its_effects_is_removed_without_a_trace(node: Node) -> None:
    for effect in range(1, _MORE_THAN_ANY_PLAN_HAS):
        outcome = converge(node, Mode.INSTALL, Instant(effect))
        assert outcome in ("killed", "changed")
        assert converge(node, Mode.REMOVE) in ("changed", "nothing"), effect
        expect_bare(node)
        if outcome == "changed":
            return
    pytest.fail("an install has more effects than this test expected")


def test_r7_a_removal_killed_before_its_effects_ends_as_the_next_run_wants(node: Node) -> None:
    """Before every other one: that each step may be the last is in test_killed.py."""
    for effect in range(1, _MORE_THAN_ANY_PLAN_HAS, 2):
        assert converge(node, Mode.INSTALL) in ("changed", "nothing")
        assert node.on_relay()
        outcome = converge(node, Mode.REMOVE, Instant(effect))
        assert outcome in ("killed", "changed")
        if effect % 4 == 1 and outcome == "killed":
            continue  # the next run is an install
        assert converge(node, Mode.REMOVE) in ("changed", "nothing"), effect
        expect_bare(node)
        if outcome == "changed":
            return
    pytest.fail("a removal has more effects than this test expected")


def test_r7_an_upgrade_killed_before_any_of_its_effects_goes_on_and_never_moves_kubelet(node: Node) -> None:
    assert converge(node, Mode.INSTALL) == "changed"
    kubelet = node.invocations()[0]
    for effect in range(1, _MORE_THAN_ANY_PLAN_HAS):
        node.upgrade(version=f"v0.9.{effect + 2}")
        node.fallback(f"policy:\n  Active: none\nlogger:\n  Debug: test-{effect}\n")
        outcome = converge(node, Mode.INSTALL, Instant(effect))
        assert outcome in ("killed", "changed")
        assert converge(node, Mode.INSTALL) in ("changed", "nothing")
        assert f"version v0.9.{effect + 2}," in node.host.journal("cri-resource-manager")
        assert converge(node, Mode.INSTALL) == "nothing"
        assert node.invocations()[0] == kubelet
        if outcome == "changed":
            return
    pytest.fail("an upgrade has more effects than this test expected")


def test_r8_a_way_back_killed_before_any_of_its_effects_is_gone_again(node: Node) -> None:
    assert converge(node, Mode.INSTALL) == "changed"
    kubelet = node.invocations()[0]
    for effect in range(1, _MORE_THAN_ANY_PLAN_HAS):
        offer_broken(node, CRASHES)
        outcome = converge(node, Mode.INSTALL, Instant(effect, since="rollback.started"))
        offer_good(node)
        assert converge(node, Mode.INSTALL) in ("changed", "nothing"), effect
        assert node.on_relay()
        assert node.invocations()[0] == kubelet
        if outcome != "killed":
            assert outcome.startswith("RolledBackError"), outcome
            return
    pytest.fail("a way back has more effects than this test expected")


def test_r8_a_first_install_whose_way_back_was_killed_is_removed_without_a_trace(node: Node) -> None:
    """Kubelet was moved already: it has to leave the relay too."""
    node.fault("kubelet", '{"onRelay": {"startup": "exit"}}')
    try:
        for effect in range(1, _MORE_THAN_ANY_PLAN_HAS, 9):
            outcome = converge(node, Mode.INSTALL, Instant(effect, since="rollback.started"))
            assert converge(node, Mode.REMOVE) in ("changed", "nothing"), effect
            expect_bare(node, "/etc/standin-kubelet.json")
            if outcome != "killed":
                assert outcome.startswith("RolledBackError"), outcome
                return
    finally:
        node.fault("kubelet", "")
    pytest.fail("a way back has more effects than this test expected")


@pytest.mark.parametrize("mode", [Mode.INSTALL, Mode.REMOVE])
def test_r12_the_power_fails_while_kubelet_is_being_moved_and_the_node_comes_up_by_itself(
    node: Node, mode: Mode
) -> None:
    """After any of kubelet's steps, with no installer to go on."""
    node.command.set(kubelet={"guardSeconds": 4})
    for step in range(1, _MORE_THAN_ANY_PLAN_HAS):
        if mode is Mode.REMOVE:
            assert converge(node, Mode.INSTALL) in ("changed", "nothing")
        outcome = converge(node, mode, listen=PowerCut(step))
        if outcome != "killed":
            return
        node.host.kill()
        node.host.boot(wait=False)
        wait_healthy(node.host, timeout=4 + 10)
        assert node.host.show("kubelet", "NRestarts") == "0"
        if mode is Mode.INSTALL:
            assert converge(node, Mode.REMOVE) == "changed"
            expect_bare(node)
    pytest.fail("a move has more steps than this test expected")
