"""`run` on a real host when the proxy dies, hangs or is silent."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from installer.model import paths
from tests.host.daemon import BUSY, SOON, within
from tests.host.node import GUARD, PROXY, Node
from tests.host.watched import (
    HOLD,
    daemon,
    off_relay,
    on_relay,
    settings,
)
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

#: The default deadSeconds, where the proxy has to be back before kubelet leaves it: on a busy machine a
#: program takes seconds to start.
UNHURRIED: dict[str, Any] = {"proxy": {}}


def test_a_killed_proxy_is_systemds_to_restart(node: Node, tmp_path: Path) -> None:
    settings(node, **UNHURRIED)
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=True):
        running.settle()
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: node.host.show(PROXY, "NRestarts") == "1")
        running.settle()
        # On a machine that is busy it takes longer than kubelet waits: then there is a return.
        is_slow = any("on its base endpoint" in message for message in running.messages("state"))
        assert [start["verb"] for start in running.of("pass.started")] == ["install"] * is_slow
        assert not node.path(HOLD).exists()


@rule("R3", "R4")
@pytest.mark.matrix("frozen proxy")
def test_kubelet_leaves_a_silent_proxy_and_returns_when_it_was_restarted(node: Node, tmp_path: Path) -> None:
    settings(node, **UNHURRIED)
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=True):
        running.settle()
        node.host.systemctl("kill", "--signal=STOP", PROXY)
        within(SOON, lambda: off_relay(node))
        within(SOON, lambda: "restart-proxy" in [data["verb"] for data in running.ended()])
        within(SOON, lambda: on_relay(node))
        running.ready()
    assert not node.path(HOLD).exists()


@rule("R12")
@pytest.mark.parametrize("held_already", [False, True])
def test_r12_a_torn_cache_on_a_running_node_is_set_aside(
    node: Node, tmp_path: Path, held_already: bool
) -> None:
    """Each start fails, also those of systemd. A daemon that comes when kubelet is held mends it as well."""
    settings(node, **({} if held_already else UNHURRIED))
    node.run("install")
    cache = node.path(paths.PROXY_CACHE)

    def tear() -> None:
        node.host.systemctl("stop", PROXY)
        cache.write_bytes(cache.read_bytes()[:-5])
        node.host.systemctl("start", PROXY, check=False)

    if held_already:
        node.path(HOLD).write_text("run: the relay is silent\n")
        node.host.systemctl("restart", UNIT)
        tear()
    with daemon(node, tmp_path) as running:
        if not held_already:
            running.settle()
            tear()
        within(SOON, node.path(paths.TORN_CACHE).exists)
        within(SOON, lambda: on_relay(node))
        running.settle()
        rescued = "rescue" in [data["verb"] for data in running.ended()]
        assert not rescued
    node.path(paths.TORN_CACHE).unlink()


@rule("R4")
def test_kubelet_leaves_a_relay_whose_unit_is_gone_and_cannot_be_repaired(node: Node, tmp_path: Path) -> None:
    """Somebody has put a directory where the proxy's unit was, for which every run is refused."""
    settings(node, **UNHURRIED)
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        unit = node.path(paths.PROXY_UNIT_FILE)
        unit.unlink()
        unit.mkdir()
        (unit / "theirs").touch()
        try:
            running.reach("refused")
            node.host.systemctl("daemon-reload")
            node.host.systemctl("stop", PROXY)
            within(30.0 + BUSY, lambda: off_relay(node))
            wait_healthy(node.host)
        finally:
            shutil.rmtree(unit)


@rule("R4", "R13")
def test_a_proxy_that_does_not_find_its_runtime_again_is_restarted(node: Node, tmp_path: Path) -> None:
    """While the runtime is away nothing would be better, and nobody says that all is well."""
    settings(node, **UNHURRIED)
    node.run("install")
    node.fault("cri-resmgr", '{"backoffSeconds": 60}')
    node.host.systemctl("restart", PROXY)
    with daemon(node, tmp_path) as running:
        running.settle()
        with node.restarts(kubelet=False, proxy=False):
            node.host.systemctl("stop", "containerd")
            running.reach("unwell")
            within(SOON, lambda: "nor does the runtime" in running.messages("state")[-1])
            within(SOON, lambda: not running.ready_file.exists())
            status = node.run("status", code=3).out
            assert "relay: does not answer" in status
            running.rests()  # for as long as a silence may mean anything
        with node.restarts(kubelet=False, proxy=True):
            node.host.systemctl("start", "containerd")
            within(SOON, lambda: "restart-proxy" in [data["verb"] for data in running.ended()])
            running.ready()
        assert not node.path(HOLD).exists()


@rule("R4")
def test_kubelet_leaves_a_dead_proxy_and_comes_back_when_it_is_good(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=True):
        running.settle()
        node.fault("cri-resmgr", '{"startup": "exit"}')
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: off_relay(node))
        wait_healthy(node.host)
        within(SOON, lambda: not running.ready_file.exists())
        node.fault("cri-resmgr", "")
        within(SOON, lambda: on_relay(node))
        running.settle()
        assert running.restarts() == 0
        assert not node.path(HOLD).exists()


@rule("R4", "R12")
@pytest.mark.parametrize("whole", [False, True], ids=["hangs", "frozen as a whole"])
def test_with_the_default_times_kubelet_is_served_10_s_after_the_last_answer(
    node: Node, tmp_path: Path, whole: bool
) -> None:
    """A proxy that hangs at each start; and one that is frozen with the guard's own part, so that systemd
    takes its start for going on."""
    settings(node, proxy={})
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fault("cri-resmgr", '{"startup": "listen-only"}')
        over = threading.Event()

        def freeze() -> None:
            while whole and not over.wait(0.05):
                if node.host.show(PROXY, "SubState") == "start-post":
                    node.host.systemctl("kill", "--signal=STOP", "--kill-whom=all", PROXY, check=False)

        freezer = threading.Thread(target=freeze)
        freezer.start()
        node.host.systemctl("kill", "--signal=STOP", PROXY)
        last_answer = time.monotonic()
        try:
            within(SOON, lambda: off_relay(node))
            assert time.monotonic() - last_answer < 10 + BUSY
            wait_healthy(node.host)
        finally:
            over.set()
            freezer.join()
        node.fault("cri-resmgr", "")
    node.host.systemctl("kill", "--signal=KILL", PROXY, check=False)
    node.run("install")


def test_a_repair_that_hangs_does_not_keep_kubelet_on_a_dead_relay(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.path(GUARD).unlink()
        child = running.child("install")
        os.kill(child, signal.SIGSTOP)
        node.fault("cri-resmgr", '{"startup": "exit"}')
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: off_relay(node))
        within(SOON, lambda: bool(running.messages("pass.stopped")))
        wait_healthy(node.host)
        node.fault("cri-resmgr", "")
        within(SOON, lambda: on_relay(node))
        running.settle()
