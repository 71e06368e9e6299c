"""R4, R8: how far a way back reaches, and how long kubelet may suffer meanwhile.

That it happens at all, is remembered and not retried, is in test_way_back.py.
"""

import time

import pytest

from installer.model.names import Mode
from tests.host.command import REAL_POLICY
from tests.host.daemon import BUSY
from tests.host.mortal import Instant, PowerCut, StopRuntime, converge
from tests.host.node import PROXY, STATE, Node
from tests.host.product import changed_since, offer_broken, offer_good
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import healthz, wait_healthy
from tests.lib.throwaway.snapshot import files

HOLD = f"{STATE}/hold"
BOUND = 30.0  # seconds that an attempt and its way back may take together


@rule("R4", "R8")
def test_r4_a_first_install_whose_proxy_exits_at_once_is_undone_to_the_last_file(node: Node) -> None:
    node.fault("cri-resmgr", '{"startup": "exit"}')
    before = files(node.host)
    with node.restarts(kubelet=False, proxy=False):
        ended = node.run("install", code=5)
    assert "this build is broken" in ended.err.splitlines()[0]  # what Events, pages and annotations show
    assert not changed_since(before, node)
    assert node.host.show(PROXY, "LoadState") == "not-found"
    assert healthz(node.host) == "ok"


@rule("R8")
@pytest.mark.matrix("bad upgrade")
def test_r8_after_an_upgrade_that_fails_every_file_is_as_it_was(node: Node) -> None:
    node.run("install")
    before = files(node.host)
    offer_broken(node, {"exitAfterSeconds": 0.5})
    node.fallback(REAL_POLICY)
    with node.restarts(kubelet=False, proxy=True):
        ended = node.run("install", code=5)
    assert "the last good generation is in place again" in ended.err
    assert not changed_since(before, node)
    offer_good(node)
    (node.command.configs / "fallback.cfg").unlink()
    with node.restarts(kubelet=False, proxy=False):
        assert node.run("install").out == "nothing to do\n"
    node.expect_good()


@rule("R8")
def test_r8_with_the_default_deadlines_kubelet_leaves_two_hanging_proxies_within_30_s(node: Node) -> None:
    node.command.set()
    node.run("install")
    node.fault("cri-resmgr", '{"startup": "listen-only"}')
    offer_broken(node, "")
    began = float(node.path("/proc/uptime").read_text().split()[0])
    ended = node.run("install", code=6)
    assert HOLD in ended.err
    assert healthz(node.host) == "ok"
    assert not node.on_relay()
    started = int(node.host.show("kubelet.service", "ActiveEnterTimestampMonotonic")) / 1e6
    assert started - began < BOUND + BUSY
    node.host.systemctl("restart", "kubelet.service")
    wait_healthy(node.host)
    assert not node.on_relay()
    node.fault("cri-resmgr", "")
    node.run("install")
    assert not node.path(HOLD).exists()
    node.expect_good()


@rule("R8", "R13")
@pytest.mark.parametrize(
    "fault",
    [
        '{"onRelay": {"startup": "exit"}}',
        '{"onRelay": {"startup": "hang"}}',
        '{"onRelay": {"exitAfterSeconds": 0.4}}',
    ],
    ids=["exits", "is-never-healthy", "dies-soon"],
)
def test_r8_a_kubelet_that_did_not_come_up_on_the_relay_is_healthy_when_we_say_so(
    node: Node, fault: str
) -> None:
    """Not ten seconds later, when systemd tries again by itself."""
    before = files(node.host)
    node.fault("kubelet", fault)
    started = time.monotonic()
    ended = node.run("install", code=5)
    assert healthz(node.host) == "ok"
    assert time.monotonic() - started < BOUND + BUSY
    assert ('"command failed" err=' in ended.err.splitlines()[0]) == ("hang" not in fault)
    assert "last lines of the journal of kubelet.service" in ended.err
    assert not changed_since(before, node, "/etc/standin-kubelet.json")
    assert not node.on_relay()
    assert "is not retried" in node.run("install", code=5).err


@rule("R8")
@pytest.mark.parametrize("installed", [False, True], ids=["first-install", "upgrade"])
def test_r8_a_runtime_that_stops_meanwhile_is_blamed_and_not_the_generation(
    node: Node, installed: bool
) -> None:
    if installed:
        node.run("install")
        offer_broken(node, "")
    before = files(node.host)
    try:
        with node.restarts(kubelet=False, proxy=installed):
            outcome = converge(node, Mode.INSTALL, listen=StopRuntime(node.host.leader))
        assert outcome.startswith("RolledBackError"), outcome
        assert not changed_since(before, node)
    finally:
        node.host.systemctl("start", "containerd")
    wait_healthy(node.host)
    node.run("install")
    node.expect_good()


@rule("R4")
@pytest.mark.parametrize("after", [2.6, 3.4])
def test_r4_kubelet_does_not_stay_on_a_relay_that_dies_while_it_settles(node: Node, after: float) -> None:
    """The proxy outlives its own time on probation, but not kubelet's."""
    node.command.set(kubelet={"settleSeconds": 4, "guardSeconds": 6})
    before = files(node.host)
    offer_broken(node, {"exitAfterSeconds": after})
    ended = node.run("install", code=5)
    assert f"journal of {PROXY}" in ended.err
    assert healthz(node.host) == "ok"
    assert not node.on_relay()
    assert not changed_since(before, node)


@rule("R8")
def test_r8_an_install_that_goes_on_after_a_kill_and_then_fails_is_undone_whole(node: Node) -> None:
    """Also what only the run before it had done: nothing of that was ever good."""
    assert converge(node, Mode.INSTALL, listen=PowerCut(1)) == "killed"
    assert node.host.systemctl("is-active", PROXY) == "active"
    node.fault("kubelet", '{"onRelay": {"startup": "exit"}}')
    node.run("install", code=5)
    node.fault("kubelet", "")
    node.expect_untraced(allowed=STATE)


@rule("R7")
def test_r7_a_kubelet_that_a_killed_way_back_left_down_is_brought_back(node: Node) -> None:
    """It does not stay up, and that is no reason to refuse: it is us who keep it down."""
    node.fault("kubelet", '{"onRelay": {"startup": "exit"}}')
    assert converge(node, Mode.INSTALL, Instant(1, since="rollback.started")) == "killed"
    assert healthz(node.host) == ""
    node.run("install", code=5)
    assert healthz(node.host) == "ok"
    assert not node.on_relay()
