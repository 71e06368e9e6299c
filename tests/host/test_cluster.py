"""`run` as a pod of a cluster: what it tells the API server, and what it does for its word alone.

The API server is the stand-in, the host is real.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import parse_time
from installer.model.names import READY_CONDITION, STATUS
from tests.host.command import PROGRAM, REAL_POLICY
from tests.host.daemon import SOON, Daemon, within
from tests.host.node import BINARY, GUARD, Node
from tests.lib.rules import rule
from tests.lib.throwaway.podserver import ApiServer
from tests.lib.throwaway.snapshot import difference, files


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    return booted


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as serving:
        yield serving


@contextmanager
def pod(
    node: Node, server: ApiServer, tmp_path: Path, config: Path | None = None, /, **environment: str
) -> Iterator[Daemon]:
    """A daemon with the environment of a pod, and maybe settings of its own."""
    options = [*node.command.globals(), *(("--config", str(config)) if config else ())]
    argv = [str(PROGRAM), *options, "--output", "json", "run"]
    running = Daemon(node, tmp_path / "ready", server.environment() | environment, argv)
    try:
        yield running
    except BaseException as error:
        error.add_note(running.said())
        raise
    finally:
        running.kill()


def removal_pod(
    node: Node, server: ApiServer, tmp_path: Path, **environment: str
) -> AbstractContextManager[Daemon]:
    """A pod of the removal's DaemonSet, with settings of its own."""
    tmp_path.mkdir()
    settings = tmp_path / "settings.yaml"
    settings.write_text(json.dumps({**json.loads(node.command.config.read_text()), "mode": "remove"}))
    return pod(
        node,
        server,
        tmp_path,
        settings,
        POD_NAME="removing",
        CRI_RESMGR_INSTALLER_POD_UID="removing",
        **environment,
    )


def shown(server: ApiServer) -> str:
    """The state that the node's annotation says."""
    return str(json.loads(server.annotations.get(STATUS, "{}")).get("state", ""))


def reasons(server: ApiServer) -> list[str]:
    return [str(event["reason"]) for event in server.events]


@pytest.fixture
def removed(node: Node) -> None:
    """A node where nothing of ours is. Another test's pause may still be known there."""
    node.command.set()
    node.run("remove", "--despite-pause")


@pytest.fixture
def installed(node: Node) -> None:
    """A node that is removed from only on evidence."""
    node.command.set(removal={"onTermination": "auto"})
    node.run("install", "--despite-pause")


@pytest.mark.usefixtures("removed")
def test_it_tells_what_it_does(node: Node, server: ApiServer, tmp_path: Path) -> None:
    with pod(node, server, tmp_path, CRI_RESMGR_INSTALLER_ANNOTATE_NODE="true") as running:
        running.reach("converged")
        within(SOON, lambda: shown(server) == "converged")
        assert not reasons(server)  # the Node says it
        said = json.loads(server.annotations[STATUS])
        assert running.rss() < 49_000
        assert set(said) == {
            "version",
            "state",
            "reason",
            "ready",
            "generation",
            "wanted",
            "policy",
            "policySource",
            "hold",
            "changed",
            "pod",
        }
        assert parse_time(said["changed"]) > 0
        assert running.end() == 0
    node.expect_good()


@rule("R13")
@pytest.mark.usefixtures("removed")
def test_containers_that_the_policy_has_no_cpus_for_are_named_on_the_node(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    """It serves the others, and those until they are created again."""
    node.fallback(REAL_POLICY)
    node.run("install")
    cache = node.path("/var/lib/cri-resmgr/cache")
    found = json.loads(cache.read_text())
    for name, given in (("web", {"cpuset_cpus": "0"}), ("db", {}), ("batch", {})):
        entry = {"ID": name, "CacheID": name, "Name": name, "Resources": {}, "LinuxReq": given}
        found.setdefault("Containers", {})[name] = entry
    cache.write_text(json.dumps(found))
    named = "the policy topology-aware had no CPUs for 2 containers (batch, db)"
    with pod(node, server, tmp_path, CRI_RESMGR_INSTALLER_ANNOTATE_NODE="true") as running:
        running.reach("converged")
        within(SOON, lambda: reasons(server) == ["Unplaced"])
        (event,) = server.events
        assert (event["type"], named in event["message"]) == ("Warning", True)
        (ours,) = (each for each in server.node["status"]["conditions"] if each["type"] == READY_CONDITION)
        assert (ours["status"], ours["reason"]) == ("True", "Converged")
        assert f": {named}, which use all CPUs" in ours["message"]
        assert running.ready_file.exists()
        assert running.end() == 0
    node.fallback("policy:\n  Active: none\n")


@pytest.mark.usefixtures("removed")
def test_without_an_api_server_or_permission_it_installs_all_the_same(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    server.fail(code=403)
    with pod(node, server, tmp_path) as running:
        running.reach("converged")
        assert running.end() == 0
        assert running.messages("cluster.denied")
    node.run("remove")
    server.go_away()
    with pod(node, server, tmp_path) as running:
        running.reach("converged")
        assert running.end() == 0
        assert running.messages("cluster.unreachable")


@pytest.mark.usefixtures("removed")
def test_a_paused_node_is_not_even_installed(node: Node, server: ApiServer, tmp_path: Path) -> None:
    server.annotations[PAUSE_ANNOTATION] = "a person is at work"
    with pod(node, server, tmp_path) as running:
        running.reach("paused")
        within(SOON, lambda: "Paused" in reasons(server))
        assert running.excused_file.exists()  # liveness is content
        assert not node.path(BINARY).exists()
        assert f"it has the annotation {PAUSE_ANNOTATION}" in node.run("install", code=4).err
        assert not node.path(BINARY).exists()
        assert running.end() == 0
        assert not running.excused_file.exists()
        assert not node.path(BINARY).exists()


@pytest.mark.usefixtures("installed")
def test_a_restart_while_paused_changes_nothing(node: Node, server: ApiServer, tmp_path: Path) -> None:
    server.annotations[PAUSE_ANNOTATION] = "true"
    node.path(GUARD).unlink()
    with pod(node, server, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.reach("paused")
        server.delete_daemonset()
        assert running.end() == 0
        assert not node.path(GUARD).exists()
        assert node.path(BINARY).exists()


@pytest.mark.usefixtures("installed")
def test_a_restart_while_the_api_server_is_away_keeps_the_pause(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    server.annotations[PAUSE_ANNOTATION] = "true"
    with pod(node, server, tmp_path) as running:
        running.reach("paused")
        running.kill()
    server.go_away()
    node.path(GUARD).unlink()
    with pod(node, server, tmp_path) as running:
        running.reach("paused")
        assert not node.path(GUARD).exists()
        server.come_back()
        within(SOON, lambda: "Paused" in reasons(server))
        assert running.end() == 0
    assert not node.path(GUARD).exists()


def stay(_server: ApiServer) -> None:
    """As in a rollout: the DaemonSet is there and wants this node."""


def forbid(server: ApiServer) -> None:
    server.fail(part="/daemonsets", code=403)


def go_away(server: ApiServer) -> None:
    server.go_away()


def show_a_page(server: ApiServer) -> None:
    server.fail(code=404, page=True)


@rule("R11")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("change", [stay, forbid, go_away, show_a_page])
def test_the_end_of_a_pod_is_no_reason_to_remove(
    node: Node, server: ApiServer, tmp_path: Path, change: Callable[[ApiServer], None]
) -> None:
    with pod(node, server, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.reach("converged")
        change(server)
        before = files(node.host)
        assert running.end() == 0
        assert not difference(before, files(node.host))
        (why,) = running.messages("removal.evidence")
        assert why.startswith("keeping: ")


def delete(server: ApiServer) -> None:
    server.delete_daemonset()


def select_others(server: ApiServer) -> None:
    server.daemonset["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "another"}


def relabel(server: ApiServer) -> None:
    server.node["metadata"]["labels"] = {"kubernetes.io/os": "plan9"}


@rule("R6")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("change", [delete, select_others, relabel])
def test_evidence_removes_without_a_trace(
    node: Node, server: ApiServer, tmp_path: Path, change: Callable[[ApiServer], None]
) -> None:
    with pod(node, server, tmp_path, CRI_RESMGR_INSTALLER_ANNOTATE_NODE="true") as running:
        running.reach("converged")
        within(SOON, lambda: shown(server) == "converged")
        change(server)
        assert running.end() == 0
        (why,) = running.messages("removal.evidence")
        assert why.startswith("removing: ")
    assert shown(server) == "removed"
    node.expect_untraced()


@rule("R13")
@pytest.mark.usefixtures("removed")
def test_the_removal_of_a_fleet_says_removed_and_leaves_nothing(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    """As the documentation has it: a second DaemonSet removes beside the first; then both are deleted."""
    annotate = {"CRI_RESMGR_INSTALLER_ANNOTATE_NODE": "true"}
    with pod(node, server, tmp_path / "installing", **annotate) as installing:
        installing.reach("converged")
        within(SOON, lambda: shown(server) == "converged")
        with removal_pod(node, server, tmp_path / "removing", **annotate) as removing:
            removing.reach("removed")
            installing.reach("yielded")
            within(SOON, lambda: "HandedOver" in reasons(server))
            within(SOON, lambda: shown(server) == "removed")
            assert removing.ready_file.exists()
            assert not installing.ready_file.exists()
            assert removing.end() == installing.end() == 0
    assert shown(server) == "removed"
    node.expect_untraced()


@pytest.mark.usefixtures("installed")
def test_a_container_that_starts_after_the_daemonset_went_still_knows_that_it_was_there(
    node: Node, server: ApiServer, tmp_path: Path
) -> None:
    with pod(node, server, tmp_path) as running:
        running.reach("converged")
        running.kill()
    server.delete_daemonset()
    with pod(node, server, tmp_path) as running:
        running.reach("converged")
        assert running.end() == 0
    node.expect_untraced()
