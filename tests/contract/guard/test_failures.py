"""A relay that kubelet does not survive."""

from __future__ import annotations

import pytest

from tests.contract.guard.node import Node, uptime
from tests.lib.rules import rule


def fail_on_relay(node: Node, result: str = "exit-code", lived: float = 5) -> str:
    """Kubelet starts on the relay, and ends so many seconds later."""
    assert "relay: ready" in node.guard("compose").stdout
    node.guard("retire")
    (node.run / "relay-start").write_text(f"{int((uptime() - lived) * 100)}\n")
    done = node.guard("ended", SERVICE_RESULT=result)
    assert done.returncode == 0
    return done.stdout


@rule("R12")
def test_a_relay_that_kubelet_did_not_survive_twice_is_left(node: Node) -> None:
    node.serve()
    assert "1 in a row" in fail_on_relay(node)
    assert "2 in a row" in fail_on_relay(node, "signal")
    for _again in range(2):
        done = node.guard("compose", "--v=2")
        assert "base endpoint: kubelet failed on the relay 2 times in a row" in done.stdout
        assert not node.on_relay
        assert node.guard("ended", SERVICE_RESULT="exit-code").stdout == ""
    (node.run / "relay-failures").unlink()
    (node.run / "containers-unknown").unlink()
    node.guard("compose")
    assert node.on_relay


@rule("R12")
def test_a_kubelet_that_lived_or_was_restarted_by_order_has_not_failed(node: Node) -> None:
    node.serve()
    for _again in range(5):
        assert fail_on_relay(node, "success", lived=0) == ""
        assert fail_on_relay(node, "", lived=0) == ""
    assert "1 in a row" in fail_on_relay(node)
    assert fail_on_relay(node, "success") == ""
    assert fail_on_relay(node, "exit-code", lived=60) == ""
    assert "1 in a row" in fail_on_relay(node), "the count has ended in between"


@rule("R12")
@pytest.mark.parametrize("content", ["", "x\n", "-3\n", "100\n", "9" * 30])
def test_a_count_of_failures_that_is_none_is_not_believed(node: Node, content: str) -> None:
    node.serve()
    node.run.mkdir()
    (node.run / "relay-failures").write_text(content)
    assert "relay: ready" in node.guard("compose").stdout
    (node.run / "relay-start").write_text(content)
    assert node.guard("ended", SERVICE_RESULT="exit-code").returncode == 0
