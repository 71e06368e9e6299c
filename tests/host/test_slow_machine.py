"""R8: on a machine where the proxy takes longer for a few containers than kubelet may hang on the relay."""

import json
from typing import Any

import pytest

from tests.host.command import REAL_POLICY, Ended
from tests.host.node import PROXY, STATE, Node
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT

HOLD = f"{STATE}/hold"
CACHE = "/var/lib/cri-resmgr/cache"
FEW = 20
SECONDS = 14.0  # of a start with so few containers: longer than kubelet may hang on the relay
NONE = "policy:\n  Active: none\n"
LEAVES = "kubelet leaves the relay"


def place_slowly(node: Node) -> None:
    """From now on the proxy takes its time, with a policy that places containers or any other."""
    node.fault("cri-resmgr", json.dumps({"containers": FEW, "secondsPerContainer": SECONDS / FEW}))


def install_with_few(node: Node, policy: str, guard: int = 3) -> None:
    """The proxy runs with this policy, and has a few containers."""
    node.command.set(kubelet={"guardSeconds": guard})
    node.fault("cri-resmgr", "")
    node.fallback(policy)
    node.run("install")
    path = node.path(CACHE)
    cache = json.loads(path.read_text())
    entries = {f"cache:{n}": {"ID": f"gone-{n}", "PodID": "gone"} for n in range(FEW)}
    path.write_text(json.dumps(cache | {"Containers": entries}))
    node.host.systemctl("restart", PROXY)
    node.put_back()
    node.expect_good()
    # However busy this machine is, that start was quick.
    node.host.run(
        "touch", "--no-dereference", "--reference=/run/cri-resmgr/cri-resmgr.sock", "/run/cri-resmgr.pid"
    )


def goes_and_returns(ended: Ended) -> bool:
    """Whether kubelet has left the relay while the proxy started, and is back, without a restart."""
    steps = [_step(event) for event in ended.events if event["kind"] == "step.done"]
    moves = [step for step in steps if step in ("move", "await-relay")]
    return moves[:1] + moves[-2:] == ["move", "await-relay", "move"] and f"restart {UNIT}" not in steps


def _step(event: dict[str, Any]) -> str:
    step = str(event["data"]["step"])
    return str(event["message"]) if step == "restart" else step


@rule("R8")
def test_what_the_last_start_took_is_granted_to_the_next(node: Node) -> None:
    """Whatever the policy: kubelet may have to leave for it."""
    install_with_few(node, REAL_POLICY)
    place_slowly(node)
    node.host.systemctl("restart", PROXY)
    node.host.run("sh", "-c", "until test -s /run/cri-resmgr.pid; do sleep 0.2; done")
    node.run("install")
    node.fallback(NONE)
    assert "if the proxy starts slowly" in node.run("plan", code=3).out
    ended = node.run("--output", "json", "install")
    assert goes_and_returns(ended)
    assert LEAVES in ended.out
    node.expect_good()


@rule("R8")
@pytest.mark.parametrize("guard", [3, 60], ids=["the-unit-counts-as-started", "the-start-job-lasts"])
def test_a_start_that_turns_out_slow_goes_on_without_kubelet(node: Node, guard: int) -> None:
    install_with_few(node, NONE, guard)
    place_slowly(node)
    node.fallback(REAL_POLICY)
    ended = node.run("--output", "json", "install")
    assert goes_and_returns(ended)
    (said,) = (event for event in ended.events if LEAVES in event["message"])
    assert said["data"]["code"] == "slow-start"
    restarts = [event["message"] for event in ended.events if event["kind"] == "step.done"]
    assert restarts.count(f"restart {PROXY}") == 1
    assert not node.path(HOLD).exists()
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"


@rule("R8")
def test_a_good_proxy_that_starts_slowly_gets_its_time_and_nothing_is_blamed(node: Node) -> None:
    install_with_few(node, NONE)  # which places nobody: a start with it is expected to be quick
    place_slowly(node)
    node.fallback(f"{NONE}logger:\n  Debug: cri\n")
    ended = node.run("--output", "json", "install")
    assert goes_and_returns(ended)
    assert LEAVES in ended.out
    assert not node.path(HOLD).exists()
    node.expect_good()


@rule("R9")
@pytest.mark.parametrize(
    ("fault", "code"),
    [({"containers": FEW, "secondsPerContainer": 11.0 / FEW}, 0), ({"serveDelaySeconds": 11.0}, 5)],
    ids=["gets-on", "silent"],
)
def test_a_start_that_nobody_hangs_on_lasts_as_long_as_it_gets_on(
    node: Node, fault: dict[str, float], code: int
) -> None:
    """A first installation, on a node that starts the proxy more slowly than it should."""
    node.command.set(proxy={"startTimeoutSeconds": 6}, kubelet={"guardSeconds": 3})
    node.fault("cri-resmgr", json.dumps(fault))
    node.fallback(REAL_POLICY)
    ended = node.run("install", code=code)
    assert ("the relay is not ready" in ended.err) is (code == 5)
    assert node.on_relay() is (code == 0)
