"""Hosts that name kubelet's unit, or lay out their directories, in another way than most."""

from pathlib import Path

import pytest

from tests.host.node import Node
from tests.lib.rules import rule
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


@rule("R13")
def test_a_kubelet_service_that_is_an_alias_has_a_guard_in_status(node: Node) -> None:
    units = node.path("/etc/systemd/system")
    node.host.systemctl("stop", UNIT)
    text = node.host.run("systemctl", "cat", UNIT).stdout
    write(units / "node-agent.service", text)
    (units / UNIT).unlink(missing_ok=True)
    (units / UNIT).symlink_to("node-agent.service")
    node.host.systemctl("daemon-reload")
    node.host.systemctl("start", UNIT)
    wait_healthy(node.host)
    node.run("install")
    assert "guard: relay: ready" in node.run("status").out


@rule("R1")
@pytest.mark.parametrize("program", ["k3s", "rke2", "k0s"])
def test_a_distribution_in_one_process_is_refused_as_one(node: Node, program: str) -> None:
    write(node.path(f"/usr/local/bin/{program}"), "#!/bin/sh\nexec sleep 1000\n", 0o755)
    unit = f"[Service]\nExecStart=/usr/local/bin/{program} agent\n"
    write(node.path(f"/etc/systemd/system/{program}.service"), unit)
    node.host.systemctl("daemon-reload")
    node.host.systemctl("start", program)
    node.command.set(kubelet={"unit": f"{program}.service"})
    refused = node.run("install", code=4)
    assert "its own process" in refused.err
    assert "exec-start" not in refused.err


@rule("R1", "R6")
def test_a_var_run_that_is_not_run_is_refused_and_left_alone(node: Node) -> None:
    node.host.run("sh", "-c", "rm -rf /var/run && mkdir /var/run")
    before = node.invocations()
    refused = node.run("install", code=4)
    assert "make /var/run a link to /run" in refused.err
    assert node.invocations() == before
    assert not list(node.path("/var/run").iterdir())


@rule("R1")
def test_a_read_only_unit_directory_gives_no_hint_that_leads_back_to_it(node: Node) -> None:
    node.host.run("mount", "--bind", "/etc/systemd/system", "/etc/systemd/system")
    node.host.run("mount", "-o", "remount,ro,bind", "/etc/systemd/system")
    node.command.set(kubelet={"dropInDirectory": "/run/systemd/system"})
    refused = node.run("install", code=4)
    assert "/etc/systemd/system is not writable" in refused.err
    assert "dropInDirectory" not in refused.err
