"""The configuration in force: what cri-resmgr has taken, refused or kept, and not what we have written."""

import json
from collections.abc import Iterator

import pytest

from installer.model import paths
from tests.host.agent import CACHE, push, restart_with
from tests.host.node import PROXY, Node
from tests.host.workload import POLICIES
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import wait_healthy
from tests.lib.throwaway.proxy import push_config, serves

NONE = "policy:\n  Active: none\n"


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    booted.run("install")
    return booted


@pytest.fixture
def forced(node: Node) -> Iterator[Node]:
    """The node with a force.cfg, and without it afterwards."""
    force = node.command.configs / "force.cfg"
    force.write_text(NONE)
    node.run("install")
    yield node
    node.fault("cri-resmgr", "")
    force.unlink()
    node.run("install", "--retry")


def force(node: Node, text: str) -> None:
    (node.command.configs / "force.cfg").write_text(text)


@rule("R13")
@pytest.mark.parametrize(
    ("fault", "why"),
    [("refuse", "failed to reload forced configuration"), ("silent", "its journal does not mention it")],
)
def test_a_force_config_that_the_signal_does_not_bring_is_brought_by_a_restart(
    forced: Node, fault: str, why: str
) -> None:
    forced.fault("cri-resmgr", json.dumps({"reload": fault}))
    force(forced, NONE + f"logger:\n  Debug: {fault}\n")
    assert "if it refuses the new force.cfg" in forced.run("plan", code=3).out
    with forced.restarts(kubelet=False, proxy=True):
        said = forced.run("install").out
    assert f"cri-resmgr did not take up the new force.cfg; restarting it: {why}" in said
    assert forced.run("install").out == "nothing to do\n"
    forced.expect_good()


def static(cpus: int) -> str:
    return f"policy:\n  Active: static\n  ReservedResources:\n    CPU: {cpus}\n"


@rule("R8")
@pytest.mark.parametrize(
    ("bad", "code", "why", "good"),
    [
        (
            "policy:\n  Active: static-pools\n  static-pools:\n    ConfDirPath: /none\n",
            5,
            "no pools configured",
            POLICIES["static-pools"],
        ),
        (static(999), 4, "static cannot reserve 999 of the CPUs", static(1)),
    ],
    ids=["fails-at-the-start", "asks-for-more-cpus-than-there-are"],
)
def test_a_force_config_that_was_corrected_needs_no_retry(
    forced: Node, bad: str, code: int, why: str, good: str
) -> None:
    """Also with the same policy. Only what has failed is not retried."""
    force(forced, bad)
    kubelet = forced.invocations()[0]
    assert why in forced.run("install", code=code).err
    again = forced.run("install", code=code).err
    assert ("is not retried" in again) == (code == 5)
    force(forced, good)
    forced.run("install")
    forced.expect_good()
    assert forced.invocations()[0] == kubelet


@rule("R8", "R12")
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "cut-short"])
def test_a_torn_cache_is_set_aside_and_no_generation_is_blamed(node: Node, zeros: bool) -> None:
    whole = node.path(CACHE).read_bytes()
    torn = bytes(len(whole)) if zeros else whole[:-5]
    restart_with(node, torn)
    assert "failed to unmarshal snapshot data" in node.host.journal(PROXY)
    assert "is torn" in node.run("status", code=3).out
    said = node.run("install").out
    assert f"the cache is kept as {CACHE}.torn" in said
    assert node.path(f"{CACHE}.torn").read_bytes() == torn
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"


@rule("R8", "R12")
@pytest.mark.parametrize("damage", ["zeros", "cut-short", "null-container"])
def test_a_torn_cache_is_mended_though_a_failure_is_remembered(node: Node, damage: str) -> None:
    whole = node.path(CACHE).read_bytes()
    null = json.dumps(json.loads(whole) | {"Containers": {"c": None}}).encode()
    torn = {"zeros": bytes(len(whole)), "cut-short": whole[:-5], "null-container": null}[damage]
    node.upgrade(fault={"exitAfterSeconds": 0.5})
    node.run("install", code=5)
    restart_with(node, torn)
    assert f"move the torn {CACHE} aside" in node.run("plan", code=5).out
    kept = node.run("install", code=5)
    assert "is not retried" in kept.err
    assert node.path(f"{CACHE}.torn").read_bytes() == torn
    wait_healthy(node.host)
    assert serves(node.host)
    assert node.on_relay()
    restart_with(node, torn)
    assert "the last good generation is in place again" in node.run("install", "--retry", code=5).err
    assert serves(node.host)
    node.upgrade(version="v0.9.2")
    node.run("install")
    node.expect_good()


@rule("R13")
def test_what_the_agent_sends_is_in_force_until_there_is_a_force_cfg(node: Node) -> None:
    push(node, "balloons")
    said = node.run("plan").out
    assert "holds a configuration from its agent (policy balloons)" in said
    assert "use force.cfg, which takes precedence over it" in said
    force(node, NONE)
    converged = node.run("install", "--output", "json").events[-1]["data"]
    assert (converged["policy"], converged["policySource"]) == ("none", "force.cfg")
    assert "holds a configuration from its agent" not in node.run("plan").out
    (node.command.configs / "force.cfg").unlink()
    converged = node.run("install", "--output", "json").events[-1]["data"]
    assert (converged["policy"], converged["policySource"]) == ("balloons", "cri-resmgr-agent")
    node.expect_good()


@rule("R3", "R6")
def test_the_agents_sockets_move_away_from_the_relay_and_what_it_sent_stays(node: Node) -> None:
    push(node, "balloons")
    node.command.set(proxy={"agentSockets": "own"})
    with node.restarts(kubelet=False, proxy=True):
        converged = node.run("install", "--output", "json").events[-1]["data"]
    assert (converged["policy"], converged["policySource"]) == ("balloons", "cri-resmgr-agent")
    node.expect_good()
    with pytest.raises(ConnectionRefusedError):  # it is what the stop has left there
        push_config(node.host, {"policy": "Active: podpools"})
    assert push_config(node.host, {"policy": "Active: podpools"}, socket=paths.CONFIG_SOCKET) == ""
    assert "podpools" in node.path(CACHE).read_text()
    assert [file.name for file in node.path("/run/cri-resmgr/agent").iterdir()] == ["cri-resmgr-config.sock"]
    node.run("remove")
    node.expect_untraced()
    node.command.set()
    node.run("install")
