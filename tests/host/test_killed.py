"""R7, R10, R11: killed after any step, or told to end, the next run converges and leaves nothing behind."""

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from installer.model.state import Mode
from tests.host.command import PROGRAM
from tests.host.mortal import DieAfterStep, converge
from tests.host.node import Node
from tests.throwaway.host import ThrowawayHost

_MORE_THAN_ANY_PLAN_HAS = 40


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost() as host:
        yield Node(host, tmp_path_factory.mktemp("node"))


def test_r7_killed_after_any_step_the_next_run_goes_on(node: Node) -> None:
    """Install, upgrade and removal, each killed after its first, second ... last step."""
    for step in range(1, _MORE_THAN_ANY_PLAN_HAS):
        node.upgrade(version="v0.9.2")
        outcomes = [converge(node, Mode.INSTALL, listen=DieAfterStep(step))]
        assert converge(node, Mode.INSTALL) in ("changed", "nothing")
        assert converge(node, Mode.INSTALL) == "nothing"
        node.upgrade(version=f"v0.9.{step + 2}")
        outcomes.append(converge(node, Mode.INSTALL, listen=DieAfterStep(step)))
        assert converge(node, Mode.INSTALL) in ("changed", "nothing")
        assert converge(node, Mode.INSTALL) == "nothing"
        assert node.on_relay()
        outcomes.append(converge(node, Mode.REMOVE, listen=DieAfterStep(step)))
        assert converge(node, Mode.REMOVE) in ("changed", "nothing")
        assert converge(node, Mode.REMOVE) == "nothing"
        node.expect_untraced()
        assert set(outcomes) <= {"killed", "changed"}, outcomes
        if "killed" not in outcomes:
            return
    pytest.fail("a plan has more steps than this test expected")


def test_r8_a_first_install_that_was_cut_off_is_good_all_the_same_and_can_come_back(node: Node) -> None:
    """Killed between the last step and the record: the next run has nothing to do but to keep it."""
    events = node.run("install", "--output", "json").events
    steps = sum(event["kind"] == "step.done" for event in events)
    node.run("remove")
    assert converge(node, Mode.INSTALL, listen=DieAfterStep(steps)) == "killed"
    assert node.run("install").out == "nothing to do\n"
    node.upgrade(fault={"exitAfterSeconds": 0.5}, version="v0.9.9")
    node.run("install", code=5)
    assert node.on_relay()
    node.upgrade(version="v0.9.2")
    node.run("install")
    node.run("remove")
    node.expect_untraced()


def start(node: Node, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROGRAM), *node.command.globals(), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_r10_one_run_at_a_time_and_r11_sigterm_ends_it_between_two_steps(node: Node) -> None:
    node.command.set(kubelet={"settleSeconds": 30})
    with start(node, "install") as first:
        try:
            assert first.stdout is not None
            for line in first.stdout:
                if "restart kubelet.service" in line:
                    break
            second = node.run("install", code=75)
            assert str(first.pid) in second.err
            node.run("plan")
            first.send_signal(signal.SIGTERM)
            started = time.monotonic()
            assert first.wait(10) == 128 + signal.SIGTERM
            assert time.monotonic() - started < 5
        finally:
            first.kill()
    node.command.set()
    assert node.on_relay()
    node.run("install")
    node.expect_good()
    node.run("remove")
    node.expect_untraced()
