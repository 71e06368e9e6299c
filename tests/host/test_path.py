"""R1, R2, R3: what is planned is done, nothing is done twice, and only what changed restarts."""

from pathlib import Path

import pytest

from tests.host.command import untouched
from tests.host.node import BINARY, DROP_IN, FALLBACK, OURS, PROXY, PROXY_ENVIRONMENT, Node
from tests.lib.rules import rule
from tests.lib.throwaway import real


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    return booted


def stamps(node: Node) -> dict[str, tuple[int, int, int]]:
    """What any write would change of our files and of the record."""
    paths = [node.path(path) for path in OURS]
    paths += sorted(node.path("/var/lib/cri-resmgr-installer").rglob("*"))
    found = {}
    for path in paths:
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return found


@rule("R1")
def test_r1_a_plan_names_every_file_and_unit_and_writes_nothing(node: Node) -> None:
    with untouched(node.host):
        said = node.run("plan", code=3).out
        document = node.run("plan", "--output", "json", code=3).document
    for path in OURS:
        assert f"create {path} (missing)" in said
    assert said.splitlines()[0] == "7 to create; cri-resource-manager starts, kubelet restarts"
    assert {change["path"] for change in document["files"]} == set(OURS)


def test_a_first_install_starts_the_proxy_and_restarts_kubelet_once(node: Node) -> None:
    with node.restarts(kubelet=True, proxy=True):
        events = node.run("install", "--output", "json").events
    assert events[-1]["kind"] == "converged"
    restarted = [event["message"] for event in events if event.get("data", {}).get("step") == "restart"]
    assert restarted == [f"restart {PROXY}", "restart kubelet.service"]
    assert node.host.show("kubelet.service", "NRestarts") == "0"
    node.expect_good()


@rule("R5")
def test_r5_files_have_the_owner_and_mode_that_was_planned(node: Node) -> None:
    for path in OURS:
        status = node.path(path).stat()
        wanted = 0o755 if path.startswith("/opt") else 0o644
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (wanted, 0, 0), path
    assert not [path for path in node.path("/etc/cri-resmgr").iterdir() if path.name.startswith(".")]


@rule("R2")
def test_r2_a_second_install_writes_nothing_and_touches_no_unit(node: Node) -> None:
    before = stamps(node)
    with node.restarts(kubelet=False, proxy=False), untouched(node.host):
        assert node.run("install").out == "nothing to do\n"
        node.run("plan")
        node.run("status")
    assert stamps(node) == before


@rule("R3")
def test_r3_a_new_fallback_restarts_only_the_proxy(node: Node) -> None:
    node.fallback("policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n")
    said = node.run("plan", "--diff", code=3).out
    assert said.splitlines()[0] == "2 to change; cri-resource-manager restarts, kubelet does not"
    assert "+  Active: topology-aware" in said
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    node.expect_good()
    assert "policy: topology-aware, from fallback.cfg" in node.run("status").out


@rule("R3")
def test_r3_a_new_binary_restarts_only_the_proxy(node: Node) -> None:
    node.upgrade()
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    if not real.named("cri-resmgr"):  # which says its own version
        assert "version v0.9.3" in node.host.journal(PROXY)
    node.expect_good()


@rule("R3")
def test_r3_a_force_config_restarts_the_proxy_and_its_new_content_is_only_signalled(node: Node) -> None:
    force = node.command.configs / "force.cfg"
    force.write_text("policy:\n  Active: none\n")
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert "--force-config" in node.path(PROXY_ENVIRONMENT).read_text()
    force.write_text("policy:\n  Active: none\nlogger:\n  Debug: cache\n")
    logged = node.host.journal(PROXY)
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
        assert node.run("install").out == "nothing to do\n"
    assert len(node.host.journal(PROXY)) > len(logged)
    force.unlink()
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert not node.path("/etc/cri-resmgr/force.cfg").exists()
    node.expect_good()


@rule("R6")
@pytest.mark.parametrize(
    ("path", "proxy"),
    [(path, path in (BINARY, FALLBACK)) for path in OURS if path not in (DROP_IN, OURS[2])],
)
def test_an_edited_file_is_mended_and_the_edit_kept(node: Node, path: str, proxy: bool) -> None:
    right = node.path(path).read_bytes()
    node.replace(path, right + b"# somebody was here\n")
    with node.restarts(kubelet=False, proxy=proxy):
        said = node.run("install").out
    assert node.path(path).read_bytes() == right
    assert "the edited file was kept" in said
    kept = said.split(f"{path} -> ")[1].splitlines()[0]
    assert node.path(kept).read_bytes() == right + b"# somebody was here\n"
    node.expect_good()


@rule("R3")
@pytest.mark.parametrize("path", OURS)
def test_a_deleted_file_comes_back_without_a_restart(node: Node, path: str) -> None:
    node.path(path).unlink()
    assert node.run("status", code=3).out.count("missing") == 1
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    node.expect_good()


def test_a_wiped_drop_in_directory_and_a_restart_by_somebody_else_cost_one_restart_more(node: Node) -> None:
    node.host.run("rm", "-r", str(Path(DROP_IN).parent))
    node.host.systemctl("daemon-reload")
    node.host.systemctl("restart", "kubelet.service")
    assert not node.on_relay()
    with node.restarts(kubelet=True, proxy=False):
        node.run("install")
    node.expect_good()


def test_a_stopped_and_disabled_proxy_runs_again(node: Node) -> None:
    node.host.systemctl("disable", "--now", PROXY)
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    node.expect_good()


@rule("R6")
def test_r6_a_removal_restarts_kubelet_once_and_leaves_only_what_somebody_had_written(node: Node) -> None:
    with untouched(node.host):
        said = node.run("plan", "--mode", "remove", code=3).out
    assert "delete cri-resmgr's own state: /var/lib/cri-resmgr" in said
    before = node.invocations()[0]
    node.run("remove")
    assert node.invocations()[0] != before
    node.expect_untraced(allowed="/var/lib/cri-resmgr-installer")
    assert {path.name for path in node.path("/var/lib/cri-resmgr-installer").iterdir()} == {"edited"}
    assert node.run("remove").out == "nothing to do\n"
