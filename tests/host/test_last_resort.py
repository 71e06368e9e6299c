"""R8, when nothing else is left: what a quarantine keeps, and which commands the message names."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from installer.node.record import SCHEMA
from tests.host.node import BINARY, GUARD, PROXY, PROXY_ENVIRONMENT, STATE, Node
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT, healthz, wait_healthy

RECORD = f"{STATE}/record.json"
CRASHES: dict[str, object] = {"exitAfterSeconds": 0.5}


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    booted.command.set(kubelet={"guardSeconds": 4, "startTimeoutSeconds": 4})
    return booted


@rule("R8")
def test_r8_without_a_runtime_nothing_more_is_touched_and_what_to_type_brings_kubelet_back(
    node: Node,
) -> None:
    """Kubelet is being restarted when its own runtime goes away: neither way is left."""
    with runtime_that_ends_with_kubelet(node):
        said = node.run("install", code=6).err
    now, by_hand, then, _more = said[said.index("hint: ") :].splitlines()
    assert "the container runtime at unix:///var/run/containerd/containerd.sock does not answer" in now
    assert "kubelet.service is NOT running" in now
    (typed,) = re.findall("`(.+?)`", by_hand)
    assert "nothing more was touched" in then
    assert healthz(node.host) != "ok"
    node.host.run("sh", "-c", typed)
    wait_healthy(node.host)
    node.run("remove")
    node.expect_untraced()
    node.run("install")
    node.expect_good()


@rule("R8")
def test_r8_drift_in_a_quarantine_is_mended_towards_the_good_generation(node: Node) -> None:
    node.run("install")
    good = {path: node.path(path).read_bytes() for path in (BINARY, GUARD, PROXY_ENVIRONMENT)}
    node.upgrade(fault=CRASHES)
    assert "remembered and not retried" in node.run("install", code=5).err
    with node.restarts(kubelet=False, proxy=False):
        node.path(GUARD).unlink()
        said = node.run("install", code=5)
        assert "is not retried" in said.err
        assert "the last good generation stays in place meanwhile" in said.err
        assert {path: node.path(path).read_bytes() for path in good} == good
    with node.restarts(kubelet=False, proxy=True):
        node.replace(BINARY, b"somebody's\n")
        node.run("install", code=5)
        assert {path: node.path(path).read_bytes() for path in good} == good
    with node.restarts(kubelet=False, proxy=False):
        assert node.run("install", code=5).out == ""
    assert node.on_relay()
    node.upgrade(version="v0.9.2")
    node.run("install")
    node.expect_good()


def test_what_the_next_installer_wrote_is_run_on_and_removed(node: Node) -> None:
    """A record of the next schema, with what this one does not know; of the one after it, it is refused."""
    node.run("install")
    rewrite_record(node, 1)
    assert node.run("install").out == "nothing to do\n"
    node.upgrade(version="v0.9.4")
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    node.expect_good()
    assert json.loads(node.path(RECORD).read_text())["schema"] == SCHEMA
    rewrite_record(node, 2)
    node.upgrade(version="v0.9.5")
    with node.restarts(kubelet=False, proxy=False):
        assert "from the future" in node.run("install", code=4).err
    rewrite_record(node, 1)
    node.run("remove")
    assert node.host.systemctl("is-active", PROXY, check=False) == "inactive"
    node.expect_untraced(allowed=STATE)


@contextmanager
def runtime_that_ends_with_kubelet(node: Node) -> Iterator[None]:
    """The relay has answered before kubelet's next stop, and serves nobody after it."""
    drop_in, due = node.path(f"/run/systemd/system/{UNIT}.d/50-once.conf"), node.path("/run/once")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nExecStopPost=-+/bin/sh -c 'rm /run/once && systemctl stop containerd'\n")
    due.touch()
    node.host.systemctl("daemon-reload")
    yield
    assert not due.exists()
    drop_in.unlink()
    drop_in.parent.rmdir()
    node.host.systemctl("daemon-reload")


def rewrite_record(node: Node, newer: int) -> None:
    """As the installer would write it whose schema is newer by so much."""
    record = json.loads(node.path(RECORD).read_text())
    record.pop("checksum", None)
    record |= {"schema": SCHEMA + newer, "new": {"something": 1}}
    for claim in record["owned"].values():
        claim["new"] = True
    node.path(RECORD).write_text(json.dumps(record))
