"""`run`, from outside, on a real host: what it repairs, and what it leaves alone."""

import json
import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from installer.host.priority import NICE
from installer.model.paths import PROXY_CACHE as CACHE
from tests.host.daemon import SOON, within
from tests.host.node import BINARY, DROP_IN, FALLBACK, GUARD, KUBELET_ENVIRONMENT, PROXY, Node
from tests.host.watched import (
    HOLD,
    daemon,
    off_relay,
    on_relay,
    settings,
    start,
)
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.snapshot import difference, files


def test_it_installs_is_small_and_leaves_all_in_place_when_it_ends(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path) as running:
        running.settle()
        assert running.restarts() == 1
        assert running.rss() < 48_000
        assert os.getpriority(os.PRIO_PROCESS, running.process.pid) == NICE
        within(60, lambda: running.switches_per_second() < 3)  # as soon as systemd's signals have ebbed away
        before, state = node.invocations(), files(node.host)
        assert running.end() == 0
        assert not running.ready_file.exists()
    assert node.invocations() == before
    assert not difference(state, files(node.host))
    node.expect_good()
    with daemon(node, tmp_path) as running:
        running.settle()
        assert not running.of("pass.started")
    assert node.invocations() == before


@rule("R3")
@pytest.mark.parametrize("path", [DROP_IN, FALLBACK, GUARD, KUBELET_ENVIRONMENT])
def test_drift_is_repaired_without_a_restart(node: Node, tmp_path: Path, path: str) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        right = node.path(path).read_bytes()
        node.path(path).unlink()
        within(SOON, lambda: node.path(path).exists() and node.path(path).read_bytes() == right)
        running.settle()


def test_a_whole_directory_that_goes_comes_back_and_is_watched_again(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        for _again in range(2):
            node.host.run("mv", "/etc/cri-resmgr", "/etc/elsewhere")
            within(SOON, lambda: node.path(FALLBACK).exists() and node.path(KUBELET_ENVIRONMENT).exists())
            node.host.run("rm", "-r", "/etc/elsewhere")
            running.settle()


def test_a_configmap_that_swaps_its_link_is_converged(node: Node, tmp_path: Path) -> None:
    configs = node.command.configs
    for name, text in (("..1", "policy:\n  Active: none\n"), ("..2", "policy:\n  Active: none\n# swapped\n")):
        (configs / name).mkdir()
        (configs / name / "fallback.cfg").write_text(text)
    (configs / "fallback.cfg").unlink(missing_ok=True)
    (configs / "..data").symlink_to("..1")
    (configs / "fallback.cfg").symlink_to("..data/fallback.cfg")
    with daemon(node, tmp_path) as running:
        running.settle()
        with node.restarts(kubelet=False, proxy=True):
            (configs / "..data_tmp").symlink_to("..2")
            (configs / "..data_tmp").rename(configs / "..data")
            within(SOON, lambda: b"swapped" in node.path(FALLBACK).read_bytes())
            running.settle()
        assert running.phase() == "converged"
    (configs / "fallback.cfg").unlink()


def test_a_wiped_drop_in_directory_and_a_restart_cost_one_restart_more(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.host.run(
            "sh", "-c", f"rm -r {Path(DROP_IN).parent}; systemctl daemon-reload; systemctl restart kubelet"
        )
        within(SOON, lambda: node.path(DROP_IN).exists() and on_relay(node))
        running.settle()
        assert running.restarts() <= 1
        node.expect_good()


def test_while_paused_nothing_is_changed(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path) as running:
        running.settle()
        node.path("/etc/cri-resmgr/pause").touch()
        within(SOON, lambda: running.phase() == "paused")
        assert running.excused_file.exists()
        with node.restarts(kubelet=False, proxy=False):
            node.path(GUARD).unlink()
            within(SOON, lambda: "1 to create" in running.messages("state")[-1])
            running.rests()
            assert not node.path(GUARD).exists()
        assert any("1 to create" in str(event["message"]) for event in running.events)
        for verb in ("install", "remove"):
            refused = node.run(verb, code=4)
            assert "this node is paused: /etc/cri-resmgr/pause exists" in refused.err
        assert "this node is paused" in node.run("plan", code=4).said
        assert "this node is paused" in node.run("status", code=3).out
        assert not node.path(GUARD).exists()
        with node.restarts(kubelet=False, proxy=False):
            node.run("install", "--despite-pause")
            assert node.path(GUARD).exists()
            within(SOON, lambda: running.ready_file.exists() and running.phase() == "paused")
            node.path(GUARD).unlink()
        node.path("/etc/cri-resmgr/pause").unlink()
        within(SOON, node.path(GUARD).exists)
        running.settle()
        assert not running.excused_file.exists()


@rule("R13")
def test_a_node_that_is_refused_is_served_as_soon_as_it_can_be(node: Node, tmp_path: Path) -> None:
    node.run("remove")
    node.host.systemctl("mask", PROXY)
    with node.restarts(kubelet=False, proxy=False), daemon(node, tmp_path) as running:
        running.reach("refused")
        within(SOON, running.excused_file.exists)
        assert not running.ready_file.exists()
        assert "systemctl unmask" in running.messages("state")[-1]
        assert not node.path(BINARY).exists()
    settings(node, rollout={"refused": "ready"})
    with daemon(node, tmp_path) as running:
        running.reach("refused")
        running.ready()
        node.host.systemctl("unmask", PROXY)
        running.settle()
        assert not running.excused_file.exists()
    node.expect_good()


def test_kubelet_is_not_restarted_more_often_than_allowed(node: Node, tmp_path: Path) -> None:
    node.run("install")
    settings(node, kubelet={"restartsPerHour": 2})
    with daemon(node, tmp_path) as running:
        running.settle()
        for number in (1, 2, 3):
            node.host.run(
                "sh",
                "-c",
                f"rm -rf {Path(DROP_IN).parent}; systemctl daemon-reload; systemctl restart kubelet",
            )
            if number < 3:
                within(SOON, lambda: on_relay(node))
                running.settle()
        within(SOON, lambda: off_relay(node))
        wait_healthy(node.host)
        running.reach("held")
        running.rests()
        assert running.restarts() == 2
        assert not running.ready_file.exists()
    node.run("install")


def test_a_run_that_may_not_restart_kubelet_repairs_all_else(node: Node) -> None:
    node.run("install")
    node.path(GUARD).unlink()
    node.fallback("policy:\n  Active: none\nlogger:\n  Debug: other\n")
    with node.restarts(kubelet=False, proxy=True):
        node.run("pass", '{"action": "install"}')
    assert node.path(GUARD).exists()
    node.path(DROP_IN).unlink()
    node.host.run("sh", "-c", "systemctl daemon-reload; systemctl restart kubelet")
    before = files(node.host)
    with node.restarts(kubelet=False, proxy=False):
        assert "kubelet would have to restart" in node.run("pass", '{"action": "install"}', code=3).err
    assert not difference(before, files(node.host))
    node.run("install")


@rule("R15")
def test_a_failed_pass_neither_ends_it_nor_spins(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fallback("policy:\n  Active: nonsense\n")
        running.reach("failed")
        good = {path: node.path(path).read_bytes() for path in (GUARD, DROP_IN)}
        with node.restarts(kubelet=False, proxy=False):
            node.host.run("rm", *good)
            within(SOON, lambda: all(node.path(path).exists() for path in good))
            running.rests()
        assert {path: node.path(path).read_bytes() for path in good} == good
        assert running.phase() == "failed"
        assert "Active: none\n" in node.path(FALLBACK).read_text()
        assert not running.ready_file.exists()
        node.fallback("policy:\n  Active: none\n")
        running.settle()
        assert running.phase() == "converged"


@rule("R8")
def test_a_broken_upgrade_is_rolled_back_and_tried_once(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.upgrade(fault="hang")
        within(SOON, lambda: 5 in [data["exitCode"] for data in running.ended()])
        running.rests()
        assert running.restarts() == 0
        node.upgrade(version="v0.9.2")
        running.settle()
        assert running.phase() == "converged"
    node.expect_good()


def test_a_persons_hold_is_ended_by_a_person(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        node.path(HOLD).write_text("broken CPU map\n")
        running.reach("held")
    node.host.systemctl("restart", UNIT)  # which is when a hold takes effect
    node.path(GUARD).unlink()
    with daemon(node, tmp_path, "the next pod", good=0) as running, node.restarts(kubelet=False, proxy=False):
        running.reach("held")
        node.fallback("policy:\n  Active: none\nlogger:\n  Debug: held\n")
        running.rests()
        assert not running.of("pass.started")
        assert node.path(HOLD).read_text() == "broken CPU map\n"
    with daemon(node, tmp_path, "one more") as running:
        running.reach("held")
        node.run("install")
        running.settle()
    node.expect_good()


@rule("R13")
def test_its_pages_tell_how_the_host_is(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        settings(node, status={"listen": listen})
        running = start(node, tmp_path)
        within(SOON, lambda: bool(running.of("warning")))
    try:
        running.settle()
        within(SOON, lambda: bool(running.of("pages.served")))
        assert page(listen, "/healthz")[0] == page(listen, "/readyz")[0] == 200
        node.path(HOLD).write_text("somebody's reason\n")
        within(SOON, lambda: page(listen, "/readyz")[0] == 503)
        assert json.loads(page(listen, "/readyz")[1])["hold"] == "somebody's reason"
        metrics = page(listen, "/metrics")[1]
        assert "cri_resmgr_installer_hold 1\n" in metrics
        assert re.search(r"\ncri_resmgr_installer_relay_answer_seconds (?!0\.0\n)0\.\d+\n", metrics)
        assert page(listen, "/healthz")[0] == 200
    finally:
        node.path(HOLD).unlink(missing_ok=True)
        running.end()


def page(listen: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{listen}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@rule("R13")
def test_what_the_agent_sends_is_told_and_what_containers_do_is_not_looked_at(
    node: Node, tmp_path: Path
) -> None:
    node.run("install")
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    settings(node, status={"listen": listen})
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        cache = json.loads(node.path(CACHE).read_bytes())
        for number in range(50):
            cache["NextID"] = number
            save(node, cache)
        running.rests()
        cache["Cfg"] = {"NodeName": "node", "Data": {"policy": "Active: none"}}
        save(node, cache)
        within(SOON, lambda: 'policy_source="cri-resmgr-agent"' in page(listen, "/metrics")[1])
        running.rests()
        assert not running.of("pass.started")
        assert not [data for data in running.of("state") if data["phase"] in ("repairing", "unwell")]
        cache["Cfg"] = None
        save(node, cache)
        within(SOON, lambda: 'policy_source="fallback.cfg"' in page(listen, "/metrics")[1])


def save(node: Node, cache: dict[str, Any]) -> None:
    """As the proxy does."""
    aside = node.path(f"{CACHE}.saving")
    aside.write_text(json.dumps(cache, separators=(",", ":")))
    aside.rename(node.path(CACHE))
