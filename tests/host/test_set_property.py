"""Whether kubelet's unit waits for a reload: systemd 252 says so after `systemctl set-property`, whose values
are in force. What is loaded and what is on the disk decides."""

from pathlib import Path

import pytest

from tests.host.daemon import SOON, Daemon, within
from tests.host.node import FALLBACK, PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.kubelet import UNIT

THEIRS = f"/etc/systemd/system/{UNIT}.d/20-theirs.conf"
SET = f"/etc/systemd/system.control/{UNIT}.d/50-MemoryHigh.conf"


@pytest.fixture
def installed(node: Node) -> Node:
    node.run("install")
    return node


def reverted(node: Node, *units: str) -> None:
    for unit in units:
        for where in ("/etc", "/run"):
            node.host.run("rm", "-rf", f"{where}/systemd/system.control/{unit}.d")
    places = ("/etc/systemd/system.control", "/run/systemd/system.control", "/etc/systemd/system/service.d")
    node.host.run("rmdir", "--ignore-fail-on-non-empty", *places, check=False)
    node.path(THEIRS).unlink(missing_ok=True)
    node.host.systemctl("daemon-reload")


@rule("R2", "R13")
@pytest.mark.parametrize("unit", [UNIT, PROXY])
@pytest.mark.parametrize(
    "how",
    [
        ["MemoryHigh=2G"],
        ["--runtime", "CPUWeight=50", "TasksMax=infinity"],
        ["AllowedCPUs=0", "AllowedMemoryNodes=0", "Description=5", "CPUQuota=50%", "CPUAccounting=yes"],
    ],
)
def test_a_property_that_somebody_sets_is_no_edit(installed: Node, unit: str, how: list[str]) -> None:
    installed.host.systemctl("set-property", unit, *how)
    with installed.restarts(kubelet=False, proxy=False):
        assert installed.run("install").out == "nothing to do\n"
    installed.expect_good()
    installed.path(FALLBACK).unlink()
    installed.run("install")
    installed.expect_good()
    reverted(installed, unit)


@rule("R3")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        (THEIRS, "[Service]\nEnvironment=ROOM=7\n"),
        (f"/etc/systemd/system/{UNIT}.d/95-theirs.conf", "[Service]\nEnvironment=ROOM=7\n"),
        ("/etc/systemd/system/service.d/theirs.conf", "[Service]\nEnvironment=ROOM=7\n"),
        (SET, ""),
    ],
)
def test_an_edit_beside_such_a_property_is_still_one(installed: Node, path: str, text: str) -> None:
    installed.host.systemctl("set-property", UNIT, "MemoryHigh=2G")
    if text:
        write(installed.path(path), text)
    else:
        file = installed.path(path)
        file.write_text(file.read_text().replace("MemoryHigh=2147483648", "MemoryHigh=3221225472"))
    refused = installed.run("install", code=4)
    assert "kubelet.service was edited" in refused.err
    installed.path(path).unlink()
    reverted(installed, UNIT)


@rule("R3", "R13")
def test_the_daemon_repairs_the_proxys_files_beside_such_an_edit(installed: Node, tmp_path: Path) -> None:
    write(installed.path(THEIRS), "[Service]\nEnvironment=ROOM=7\n")
    installed.path(FALLBACK).unlink()
    daemon = Daemon(installed, tmp_path / "ready", {})
    try:
        with installed.restarts(kubelet=False, proxy=False):
            within(SOON, installed.path(FALLBACK).exists)
            daemon.reach("refused")
        assert "ROOM" not in installed.host.show(UNIT, "Environment")
    finally:
        daemon.kill()
    reverted(installed, UNIT)
