"""What else is in kubelet's unit, and in drop-ins for every service: our lines work, or the node is refused
with nothing touched."""

from pathlib import Path

import pytest

from tests.host.node import GUARD, PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

UNITS = "/etc/systemd/system"
LXC = """[Service]
ProcSubset=all
ProtectProc=default
ProtectControlGroups=no
ProtectKernelTunables=no
NoNewPrivileges=no
LoadCredential=
PrivateNetwork=no
BindReadOnlyPaths=/sys
"""


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


def lay(node: Node, directory: str, text: str) -> None:
    write(node.path(f"{UNITS}/{directory}/50-theirs.conf"), text)
    node.host.systemctl("daemon-reload")


@rule("R12")
@pytest.mark.parametrize("when", ["before", "after"])
def test_kubelets_environment_and_sandbox_do_not_reach_the_guard(node: Node, when: str) -> None:
    """PATH from anybody's file as well."""
    write(node.path("/etc/theirs"), "PATH=/opt/bin\n")
    text = (
        "[Service]\nEnvironment=PATH=/nowhere\nEnvironmentFile=-/etc/theirs\nProtectSystem=strict\n"
        "ProcSubset=pid\nNoExecPaths=/opt\nInaccessiblePaths=-/opt/intel\n"
        "CapabilityBoundingSet=CAP_NET_BIND_SERVICE\nReadOnlyPaths=/run\n"
    )
    if when == "after":
        node.run("install")
    lay(node, f"{UNIT}.d", text)
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    node.run("install")
    node.expect_good()
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    assert node.on_relay()


@rule("R12")
@pytest.mark.parametrize("unit", [UNIT, PROXY])
def test_a_network_of_its_own_hides_no_relay(node: Node, unit: str) -> None:
    lay(node, f"{unit}.d", "[Service]\nPrivateNetwork=yes\n")
    node.host.systemctl("restart", UNIT)
    node.command.set(kubelet={"healthzUrl": ""})
    node.run("install")
    assert node.on_relay()
    assert "converged" in node.run("status").out


@rule("R12")
@pytest.mark.parametrize("directory", ["service.d", "cri-.service.d", "cri-resource-.service.d"])
@pytest.mark.parametrize("text", [LXC, "[Service]\nProtectSystem=strict\nProcSubset=pid\nNoExecPaths=/opt\n"])
def test_what_drop_ins_for_many_services_restrict_does_not_reach_the_proxy(
    node: Node, directory: str, text: str
) -> None:
    lay(node, directory, text)
    node.run("install")
    node.expect_good()


@rule("R1")
@pytest.mark.parametrize(
    ("directory", "line"),
    [
        (f"{UNIT}.d", "TemporaryFileSystem=/opt"),
        (f"{UNIT}.d", "TemporaryFileSystem=/var/lib:ro"),
        (f"{UNIT}.d", "BindPaths=/usr:/opt"),
        (f"{UNIT}.d", "User=nobody"),
        ("service.d", "TemporaryFileSystem=/opt"),
        ("cri-.service.d", "ExecStartPre="),
        ("cri-resource-.service.d", "EnvironmentFile="),
        ("cri-.service.d", "Type=oneshot"),
        ("cri-.service.d", "RootDirectory=/srv"),
        ("cri-.service.d", "WorkingDirectory=/missing"),
        ("service.d", "BindReadOnlyPaths=/missing"),
        (f"{UNIT}.d", "WorkingDirectory=/missing"),
        ("cri-.service.d", "ExecCondition=/bin/false"),
        ("cri-.service.d", "WatchdogSec=1"),
        ("service.d", "[Unit]\nConditionPathExists=/missing"),
        ("cri-.service.d", "[Unit]\nAssertPathExists=/missing"),
    ],
)
def test_what_would_keep_our_lines_from_their_files_is_refused(node: Node, directory: str, line: str) -> None:
    lay(node, directory, f"[Service]\n{line}\n")
    invocations = node.invocations()
    refused = node.run("install", code=4)
    assert line.removeprefix("[Unit]\n").split("=")[0] in refused.err
    assert f"{directory}/50-theirs.conf" in refused.err
    assert node.invocations() == invocations
    assert not node.path(f"{UNITS}/{PROXY}").exists()


@rule("R8")
@pytest.mark.parametrize(
    ("line", "said"), [("Group=nosuch", "status=216/GROUP"), ("[Unit]\nRequires=missing.service", "")]
)
def test_a_unit_that_others_keep_from_starting_blames_no_generation(node: Node, line: str, said: str) -> None:
    lay(node, "cri-.service.d", f"[Service]\n{line}\n")
    invocations = node.invocations()
    failed = node.run("install", code=5)
    assert said in failed.err
    assert "not retried" not in failed.err
    assert node.invocations()[0] == invocations[0]
    assert "failed here" not in node.run("plan", code=3).out


@rule("R8")
def test_a_guard_that_kubelets_unit_keeps_from_working_blames_no_generation(node: Node) -> None:
    """What nobody foresaw: here, something that is mounted over the guard meanwhile."""
    mount = f"ExecStartPre=-/bin/sh -c 'mount --bind /dev/null {GUARD}'"
    lay(node, f"{UNIT}.d", f"[Service]\n{mount}\n")
    failed = node.run("install", code=5)
    assert "the guard says: nothing" in failed.err
    assert "not retried" not in failed.err
    assert "will be retried" in failed.err
    assert "failed here" not in node.run("plan", code=3).out
