"""What cannot or should not be served: said all at once, with what would help, and nothing is touched."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.host.command import REAL_POLICY, RELAY_FLAG, Command, Ended, untouched
from tests.host.daemon import SOON, within
from tests.lib.rules import rule
from tests.lib.throwaway import real
from tests.lib.throwaway.containers import create_container
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, install_kubelet, running_arguments, wait_healthy
from tests.lib.throwaway.payload import build_payload

RUNTIME = "containerd.service"
KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
DROP_INS = "/etc/systemd/system/kubelet.service.d"


@dataclass(frozen=True, slots=True)
class Node:
    """A booted host and the program for it."""

    host: ThrowawayHost
    command: Command

    def write(self, path: str, content: str) -> None:
        file = self.host.root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def configure_kubelet(self, line: str) -> None:
        """One more line in kubelet's configuration, and kubelet started with it."""
        config = (self.host.root / KUBELET_CONFIG[1:]).read_text()
        self.write(KUBELET_CONFIG, config + line + "\n")
        self.host.systemctl("restart", UNIT)
        wait_healthy(self.host)

    def remember(self, container: str) -> None:
        """The proxy's cache knows this container."""
        entry = {"ID": container, "CacheID": f"cache:{container}", "Resources": {"requests": {"cpu": "1"}}}
        cache = {"Version": "1", "Containers": {entry["CacheID"]: entry}}
        self.write("/var/lib/cri-resmgr/cache", json.dumps(cache))

    def real_policy(self) -> None:
        (self.command.configs / "fallback.cfg").write_text(REAL_POLICY)

    def findings(self) -> dict[str, str]:
        """The codes and severities of a plan's findings, without those of each real kubelet."""
        planned = self.command("plan", "--output", "json")
        found: list[dict[str, str]] = planned.document["findings"]
        refused = any(one["severity"] == "refuse" for one in found)
        assert planned.code == (4 if refused else 3), planned.said
        assert all(one["message"] for one in found)
        newer = ("in-place-resize", "newer-cri") if real.named("kubelet") else ()
        return {one["code"]: one["severity"] for one in found if one["code"] not in newer}

    def refused(self, *codes: str) -> str:
        """Sees `install` refuse for exactly these reasons, and returns what it says."""
        with untouched(self.host):
            ended = self.command("install")
            assert ended.code == 4, ended.said
            assert ended.out == ""
            assert "nothing was touched" in ended.err
            found = self.findings()
        assert {code for code, severity in found.items() if severity == "refuse"} == set(codes)
        return ended.err

    def installed(self, *argv: str) -> Ended:
        """Sees `install` succeed, and kubelet on the relay."""
        ended = self.command("install", *argv)
        assert ended.code == 0, ended.said
        assert running_arguments(self.host)[-1] == RELAY_FLAG
        return ended


@pytest.fixture
def bare(host: ThrowawayHost, tmp_path: Path) -> Node:
    """A host with a runtime and no kubelet."""
    return Node(host, Command(host, tmp_path))


@pytest.fixture
def node(bare: Node) -> Node:
    """A healthy kubeadm node."""
    install_kubelet(bare.host, "kubeadm")
    return bare


def test_kubelet_missing(bare: Node) -> None:
    said = bare.refused("kubelet-missing")
    assert "kubelet.service does not exist on this host" in said
    assert "kubelet.unit" in said
    assert "--host-root" in said


@pytest.mark.parametrize(
    ("service", "name"), [("k3s-agent", "k3s"), ("rke2-server", "RKE2"), ("microshift", "MicroShift")]
)
def test_kubelet_inside_another_process(bare: Node, service: str, name: str) -> None:
    bare.write(f"/etc/systemd/system/{service}.service", "[Service]\nExecStart=/bin/true\n")
    said = bare.refused("kubelet-missing")
    assert f"{name} runs kubelet inside its own process" in said
    assert "nodeSelector" in said


def test_read_only_distribution(node: Node) -> None:
    (node.host.root / "etc/os-release").unlink()
    node.write("/etc/os-release", 'NAME=Bottlerocket\nID="bottlerocket"\n')
    assert "Bottlerocket" in node.refused("read-only-root")


def test_kubelet_masked(node: Node) -> None:
    node.host.systemctl("mask", "--now", UNIT)
    said = node.refused("kubelet-masked")
    assert "kubelet.service is masked" in said
    assert "systemctl unmask" in said


def test_kubelet_stopped(node: Node) -> None:
    node.host.systemctl("stop", UNIT)
    said = node.refused("kubelet-stopped")
    assert "kubelet.service is inactive" in said
    assert "systemctl start" in said


def test_kubelet_crash_looping(node: Node) -> None:
    real.require_stand_in("kubelet", "it exits at its start")
    node.write("/etc/standin-kubelet.json", json.dumps({"startup": "exit"}))
    node.host.systemctl("restart", UNIT, check=False)
    within(SOON, lambda: node.host.show(UNIT, "SubState") == "auto-restart")
    said = node.refused("kubelet-crash-looping")
    assert any(words in said for words in ("has just crashed", "keeps crashing"))
    assert "exit-code" in said
    assert "journalctl -u kubelet.service" in said


def test_kubelet_unhealthy(node: Node) -> None:
    """Or its healthz is elsewhere: each attempt would restart it three times and fail."""
    node.command.set(kubelet={"healthzUrl": "http://127.0.0.1:20248/healthz", "startTimeoutSeconds": 1})
    within(SOON, lambda: "kubelet-unhealthy" in node.findings())
    said = node.refused("kubelet-unhealthy")
    assert "http://127.0.0.1:20248/healthz is not ok" in said
    assert "kubelet.healthzUrl" in said


def test_kubelet_unit_that_systemd_cannot_use(node: Node) -> None:
    node.write(f"{DROP_INS}/20-more.conf", "[Service]\nExecStart=/usr/bin/kubelet --v=4\n")
    node.host.systemctl("daemon-reload")
    said = node.refused("kubelet-not-loaded", "kubelet-no-exec-start")
    assert "bad-setting" in said
    assert "2 ExecStart= lines" in said
    assert f"{DROP_INS}/20-more.conf" in said


def test_runtime_down(node: Node) -> None:
    node.host.systemctl("stop", RUNTIME)
    said = node.refused("runtime-not-ready")
    assert "/run/containerd/containerd.sock" in said
    assert "crictl info" in said


def test_binary_for_another_machine(node: Node) -> None:
    build_payload(node.command.payload, machine="aarch64")
    said = node.refused("wrong-machine")
    assert "is a program for aarch64, but this host is x86_64" in said
    assert str(node.command.payload) in said


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cpuManagerPolicy: static", "kubelet's CPU manager is set to the policy static"),
        ("memoryManagerPolicy: Static", "kubelet's memory manager is set to the policy static"),
    ],
)
def test_static_managers(node: Node, line: str, found: str) -> None:
    real.require_stand_in("kubelet", "start with a static manager that has nothing reserved")
    node.configure_kubelet(line)
    said = node.refused("static-managers")
    assert found in said
    assert "kubelet.acceptStaticManagers: true" in said

    node.command.set(kubelet={"acceptStaticManagers": True})
    assert node.findings() == {"static-managers": "warn"}
    assert found in node.command("plan").out


def test_static_manager_by_flag(node: Node) -> None:
    real.require_stand_in("kubelet", "start with a static manager that has nothing reserved")
    node.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--cpu-manager-policy=static\n")
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    assert "CPU manager" in node.refused("static-managers")


@rule("R14")
def test_containers_that_would_be_repinned(node: Node) -> None:
    runtime = node.host.runtime_socket
    for name in ("web-0", "db-0"):
        create_container(node.host, runtime, name)
    node.remember(create_container(node.host, runtime, "known-0"))
    node.real_policy()
    # They are adopted. Each requests a whole CPU, which this policy does not have on every machine.
    assert node.findings().keys() <= {"policy-capacity"}

    node.command.set(proxy={"existingContainers": "refuse"})
    said = node.refused("repinning")
    assert "2 running containers created outside the proxy" in said
    assert "default/db-0/db-0, default/web-0/web-0" in said
    assert "known-0" not in said
    assert "recreate their pods" in said
    assert "proxy.existingContainers: adopt" in said


@rule("R14")
def test_a_cache_of_an_unknown_format_is_refused(node: Node) -> None:
    create_container(node.host, node.host.runtime_socket, "web-0")
    node.write("/var/lib/cri-resmgr/cache", json.dumps({"Version": "2", "PolicyName": "none"}))
    node.real_policy()
    assert "an unknown format (version 2)" in node.refused("repinning")


def test_pending_reload_in_a_directory_that_systemd_does_not_know(node: Node) -> None:
    node.write(f"{DROP_INS}/20-more.conf", "[Service]\nEnvironment=ROOM=7\n")
    ended = node.command("install")
    assert ended.code == 4, ended.said
    assert "kubelet.service was edited" in ended.err
    assert "ROOM" not in node.host.show(UNIT, "Environment")


def test_pending_reload(node: Node) -> None:
    node.write(f"{DROP_INS}/20-more.conf", "[Service]\nEnvironment=ROOM=7\n")
    node.host.systemctl("daemon-reload")
    node.write(f"{DROP_INS}/20-more.conf", "[Service]\nEnvironment=ROOM=8\n")
    said = node.refused("pending-reload")
    assert "kubelet.service was edited" in said
    assert "--accept-pending" in said

    assert "kubelet.service was edited" in node.installed("--accept-pending").out
    assert "ROOM=8" in node.host.show(UNIT, "Environment")
    assert node.host.show(UNIT, "NeedDaemonReload") == "no"


def make_read_only(host: ThrowawayHost, directory: str) -> None:
    host.run("mkdir", "-p", directory)
    host.run("mount", "--bind", directory, directory)
    host.run("mount", "-o", "remount,ro,bind", directory)


def test_drop_in_directory_that_reads_only(node: Node) -> None:
    make_read_only(node.host, DROP_INS)
    said = node.refused("unit-directory-read-only")
    assert f"{DROP_INS} is not writable: " in said
    assert "kubelet.dropInDirectory" in said

    node.command.set(kubelet={"dropInDirectory": "/usr/local/lib/systemd/system"})
    node.installed()
    assert (node.host.root / "usr/local/lib/systemd/system/kubelet.service.d/90-cri-resmgr.conf").exists()


def test_every_directory_that_reads_only(node: Node) -> None:
    for directory in ("/opt", "/etc"):
        make_read_only(node.host, directory)
    said = node.refused("unit-directory-read-only", "directory-not-writable")
    for directory in ("/opt/intel/bin", "/etc/cri-resmgr", "/etc/default", "/etc/systemd/system"):
        assert f"{directory} is not writable: " in said


def test_a_file_system_that_starts_no_program(node: Node) -> None:
    node.host.run("mount", "-t", "tmpfs", "-o", "noexec,mode=755", "tmpfs", "/opt")
    said = node.refused("directory-noexec")
    assert "no program can be started from /opt/intel/bin: its file system is mounted noexec" in said

    node.host.run("mount", "-o", "remount,exec", "/opt")
    assert node.findings() == {}


@pytest.mark.parametrize("directory", ["/opt/intel/bin", "/var/lib/cri-resmgr-installer"])
def test_no_space(node: Node, directory: str) -> None:
    real.require_stand_in("cri-resmgr", "be of this size")
    build_payload(node.command.payload, ballast_mib=8)
    node.host.run("mkdir", "-p", directory)
    node.host.run("mount", "-t", "tmpfs", "-o", "size=12m,mode=755", "tmpfs", directory)
    said = node.refused("no-space")
    assert f"the file system of {directory} has less than 25 MiB free" in said

    node.host.run("mount", "-o", "remount,size=32m", directory)
    assert node.findings() == {}


def test_all_at_once(node: Node) -> None:
    real.require_stand_in("kubelet", "start with a static manager that has nothing reserved")
    build_payload(node.command.payload, machine="aarch64")
    node.configure_kubelet("cpuManagerPolicy: static")
    node.write(f"{DROP_INS}/20-more.conf", "[Service]\nEnvironment=ROOM=7\n")
    node.host.run("mkdir", "-p", "/opt/intel/bin/cri-resmgr")
    make_read_only(node.host, "/etc/default")
    node.host.systemctl("stop", RUNTIME)
    said = node.refused(
        "directory-not-writable",
        "path-blocked",
        "pending-reload",
        "runtime-not-ready",
        "static-managers",
        "wrong-machine",
    )
    assert "a directory is in the way" in said
    planned = node.command("plan")
    assert planned.code == 4
    assert "refused (6 reasons)" in planned.out


CONFIG = """\
instrumentation:
  HTTPEndpoint: ":8891"
dump:
  Config: full:.*,short:Stop.*
"""
SERVICES = ("gardener-node-agent", "nodeadm-config", "machine-config-daemon-pull")


def test_warnings(node: Node) -> None:
    cache = {"Version": "1", "Cfg": {"NodeName": "node", "Data": {"policy": "Active: none\n"}}}
    node.write("/var/lib/cri-resmgr/cache", json.dumps(cache))
    (node.command.configs / "fallback.cfg").write_text(CONFIG)
    for service in SERVICES:
        node.write(f"/usr/lib/systemd/system/{service}.service", "[Service]\nExecStart=/bin/true\n")

    node.command.set(kubelet={"dropInDirectory": "/etc/systemd/system"})
    assert node.findings() == dict.fromkeys(
        (
            "cached-configuration",
            "full-dump",
            "gardener-node-agent",
            "machine-config-daemon",
            "nodeadm",
            "open-metrics",
        ),
        "warn",
    )
    said = node.installed().said
    assert "fallback.cfg has no effect on this node" in said
    assert "use force.cfg, which takes precedence over it" in said
    assert "on all interfaces" in said
    assert "the secrets in them" in said
    assert f"may delete all of {DROP_INS}" in said


def test_versions_that_do_not_go_together(node: Node) -> None:
    """The run asks kubelet for its version only before a change, and refuses what would hurt."""
    real.require_stand_in("kubelet", "be of another version")
    node.write("/etc/standin-kubelet.json", '{"version": "1.38.1"}')
    (node.command.payload / "VERSION").write_text("v0.8.4\n")
    said = node.refused("kubelet-too-new")
    assert "RuntimeConfig" in said
    assert "use cri-resmgr 0.9 or later" in said

    (node.command.payload / "VERSION").write_text("v0.9.2\n")
    assert node.findings() == {"in-place-resize": "warn", "newer-cri": "warn"}
    first = node.installed().said
    assert "resizes pods in place" in first
    assert "no longer maintained upstream" in first
    assert "through the relay" not in first

    again = node.command("install")
    assert again.code == 0
    assert "warning" not in again.said
    node.write("/etc/standin-kubelet.json", "{}")
    assert node.command("remove").code == 0
