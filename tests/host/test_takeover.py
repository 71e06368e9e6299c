"""Nodes of other installers: refused without --take-over, taken over with it, then removed, no trace left."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from installer.model.names import Mode
from tests.host.command import REAL_POLICY, untouched
from tests.host.mortal import Instant, run_apart
from tests.host.node import BINARY, FALLBACK, PROXY, STATE, Node
from tests.host.product import OF_A_START
from tests.host.taken import REPAIRED, Taken
from tests.host.workload import UNSEEN, but_cpus, free_of_pins, start
from tests.lib.rules import rule
from tests.lib.throwaway.earlier import await_relay, unpack_release
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import running_endpoint, wait_healthy
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import Entry, difference, files, snapshot

pytestmark = pytest.mark.long

#: What a run that failed keeps, and what each start of the proxy and of kubelet writes.
KEPT = (STATE, *OF_A_START, "/run/cri-resmgr-installer", "/run/cri-resmgr-installer.lock")


@rule("R3", "R6")
@pytest.mark.parametrize("kind", sorted(REPAIRED))
def test_taken_over_with_one_restart_each_and_removed_without_a_trace(
    host: ThrowawayHost, tmp_path: Path, kind: str
) -> None:
    node = Taken(host, tmp_path, kind)
    with untouched(host):
        refused = node.run("install", code=4).err
        planned = node.run("plan", "--take-over", "--diff", code=3).out
    assert "--take-over" in refused
    assert f"restore {REPAIRED[kind]} (an earlier installation has edited it)" in planned
    assert "containerd.sock" in planned

    with node.restarts(kubelet=True, proxy=True):
        node.run("install", "--take-over")
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"

    node.run("remove")
    node.expect_neither()


@rule("R14")
@pytest.mark.skipif(bool(UNSEEN), reason=UNSEEN)
def test_a_takeover_gives_weight_back_that_the_earlier_installation_has_taken(
    host: ThrowawayHost, tmp_path: Path
) -> None:
    """It has restarted its proxy with a real policy, as such installers do, while containers ran."""
    node = Taken(host, tmp_path, "config")
    workload = start(node, pods=2, each=5)
    before, processes = workload.usage, workload.pids
    node.path(FALLBACK).write_text(REAL_POLICY)
    host.systemctl("stop", PROXY)
    node.path("/run/cri-resmgr.pid").unlink()  # it stays behind
    host.systemctl("start", PROXY)
    await_relay(host)
    assert {one["cpu.shares"] for one in workload.usage.values()} == {"2"}
    assert not free_of_pins(workload.usage)
    node.fallback(REAL_POLICY)
    assert node.run("plan", "--take-over", code=3).out.count("adopt default/pod-") == len(before)
    with node.restarts(kubelet=True, proxy=True):
        node.run("install", "--take-over")
    node.expect_good()
    assert node.run("install").out.endswith("nothing to do\n")
    assert len(free_of_pins(workload.usage)) < len(before), "the policy is not in force"
    assert but_cpus(workload.usage) == but_cpus(before)
    node.run("remove")
    assert workload.usage == before
    assert workload.pids == processes
    node.expect_neither()


def untimed(found: Mapping[str, Entry]) -> dict[str, Entry]:
    """A file that was written and came back is as it was, but not as old."""
    return {path: replace(entry, modified=0) for path, entry in found.items()}


@rule("R8")
def test_r8_a_takeover_that_fails_leaves_the_earlier_installation_at_work(
    host: ThrowawayHost, tmp_path: Path
) -> None:
    """Once with the proxy, before kubelet was moved, and once with kubelet itself."""
    node = Taken(host, tmp_path, "config")
    before = files(host)
    node.command.payload = build_payload(tmp_path / "broken", fault={"exitAfterSeconds": 0.2})
    with node.restarts(kubelet=False, proxy=True):
        failed = node.run("install", "--take-over", code=5).err
    assert "the earlier installation is in place again" in failed
    node.command.payload = build_payload(tmp_path / "later", version="v0.9.5", fault={"exitAfterSeconds": 8})
    node.command.set(kubelet={"settleSeconds": 30})
    node.run("install", "--take-over", code=5)
    wait_healthy(host)
    assert "cri-resmgr.sock" in running_endpoint(host)
    left = difference(untimed(before), untimed(files(host)))
    left = [line for line in left if not line.split()[1].startswith(KEPT)]
    assert not left, "\n".join(left)
    node.command.payload = build_payload(tmp_path / "good")
    node.command.set()
    node.run("install", "--take-over")
    node.expect_good()


@rule("R6")
def test_a_package_on_a_read_only_file_system_is_refused(host: ThrowawayHost, tmp_path: Path) -> None:
    """Its unit could not be deleted, half-way through the takeover."""
    node = Taken(host, tmp_path, "packaged")
    host.run("mount", "--bind", "/usr", "/usr")
    host.run("mount", "-o", "remount,ro,bind", "/usr")
    with untouched(host):
        refused = node.run("install", "--take-over", code=4).err
    assert "is not writable: its file system is mounted read-only" in refused


@rule("R8", "R12")
@pytest.mark.parametrize("kind", ["drop-in", "packaged"])
def test_r8_a_proxy_that_never_answers_takes_no_kubelet_with_it(
    host: ThrowawayHost, tmp_path: Path, kind: str
) -> None:
    """Also where kubelet's unit requires the proxy's, or a package enables it: all is as before."""
    node = Taken(host, tmp_path, kind)
    before = files(host)
    node.command.payload = build_payload(tmp_path / "broken", fault={"startup": "listen-only"})
    with node.restarts(kubelet=False, proxy=True):
        failed = node.run("install", "--take-over", code=5).err
    assert "the earlier installation is in place again" in failed
    assert "cri-resmgr.sock" in running_endpoint(host)
    left = difference(untimed(before), untimed(files(host)))
    left = [line for line in left if not line.split()[1].startswith(KEPT)]
    assert not left, "\n".join(left)


def enabled(host: ThrowawayHost) -> dict[str, str]:
    """The links that enable the proxy's unit."""
    wants = (host.root / "etc/systemd/system").glob("*.wants")
    return {units.name: os.readlink(units / PROXY) for units in wants if os.path.lexists(units / PROXY)}


@rule("R6")
def test_a_release_by_hand_that_kubelet_does_not_use_comes_back_unless_it_is_taken_over(
    host: ThrowawayHost, tmp_path: Path
) -> None:
    node = Node(host, tmp_path)
    pristine = node.before
    node.fallback("policy:\n  Active: none\n")
    unpack_release(host, build_payload(tmp_path / "release", version="v0.9.0"))
    host.systemctl("add-wants", "kubelet.service", PROXY)
    release, links = node.path(BINARY).read_bytes(), enabled(host)
    assert "earlier-installation" in node.run("plan", "--output", "json", code=3).out
    node.run("install")
    node.run("remove")
    assert node.path(BINARY).read_bytes() == release
    assert enabled(host) == links
    assert len(links) == 2

    host.systemctl("start", PROXY)
    node.run("install", "--take-over")
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"
    node.run("remove")
    wait_healthy(host)
    assert not difference(pristine, snapshot(host))


@rule("R7")
@pytest.mark.parametrize("effect", [9, 40])
def test_r7_a_removal_after_a_takeover_that_was_killed_leaves_neither(
    host: ThrowawayHost, tmp_path: Path, effect: int
) -> None:
    node = Taken(host, tmp_path, "config")
    node.command.set(take_over=True)
    assert str(run_apart(node, Mode.INSTALL, Instant(effect, since="step.done"))) == "killed"
    node.run("remove")
    node.expect_neither()
