"""Programs between systemd and kubelet: a flag that does not arrive costs two restarts, so only what
certainly passes it on is served."""

from pathlib import Path

import pytest

from tests.host.node import Node
from tests.lib.rules import rule
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

SCRIPT = "/opt/start"
FLAGS = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"
DROPS = f"#!/bin/sh\nexec /usr/bin/kubelet {FLAGS} --v=2\n"  # its arguments
SHELL = f"/bin/sh -c 'exec /usr/bin/kubelet {FLAGS} $$KUBELET_EXTRA_ARGS'"
PASSES = f'#!/bin/sh\nexec /usr/bin/kubelet {FLAGS} "$@"\n'


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


def start(node: Node, line: str, script: str = DROPS, more: str = "") -> None:
    """From now on kubelet's unit is this one, and runs."""
    write(node.path(SCRIPT), script, 0o755)
    drop_in = f"[Service]\n{more}ExecStart=\nExecStart={line}\n"
    write(node.path(f"/etc/systemd/system/{UNIT}.d/50-line.conf"), drop_in)
    node.host.systemctl("daemon-reload")
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)


@rule("R12", "R13")
@pytest.mark.parametrize("flock", ["/usr/bin/flock -n /run/kubelet.lock", "/usr/bin/flock /run/k"])
def test_a_launcher_that_stays_in_front_of_kubelet(node: Node, flock: str) -> None:
    start(node, f"{flock} /usr/bin/kubelet {FLAGS} --v=2")
    node.run("install")
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"
    node.run("remove")
    wait_healthy(node.host)
    assert not node.on_relay()


@rule("R1")
@pytest.mark.parametrize(
    "line",
    [
        f"/usr/bin/systemd-inhibit --who kubelet {SCRIPT}",
        f"/usr/bin/systemd-cat -t kubelet {SCRIPT}",
        f"/usr/bin/env -u KUBELET_EXTRA_ARGS {SHELL}",
        f"/usr/bin/env KUBELET_EXTRA_ARGS=--v=4 {SHELL}",
        f"/usr/bin/setpriv --reset-env {SHELL}",
        f"/usr/bin/env -vi {SHELL}",
    ],
)
def test_one_through_which_our_flag_may_not_pass_is_refused(node: Node, line: str) -> None:
    start(node, line)
    before = node.invocations()
    refused = node.run("install", code=4)
    assert "our flag would not reach it" in refused.err
    assert node.invocations() == before


@rule("R2", "R13")
def test_a_script_whose_environment_file_is_edited_while_kubelet_is_on_the_relay(node: Node) -> None:
    write(node.path("/etc/theirs"), "POOL=--v=2\n")
    start(node, f"{SCRIPT} $POOL", PASSES, "EnvironmentFile=/etc/theirs\n")
    node.run("install")
    node.expect_good()
    write(node.path("/etc/theirs"), "POOL=--v=4\n")
    assert node.run("install").out == "nothing to do\n"
    node.expect_good()
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    assert node.on_relay()
    node.expect_good()
