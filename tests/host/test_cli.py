"""What a person types on a node: status, history and plan tell what is so."""

import json
from collections.abc import Iterator

import pytest

from tests.host.command import execute
from tests.host.node import FALLBACK, PROXY, Node
from tests.host.product import lent, offer_broken
from tests.throwaway.host import ThrowawayHost


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost() as host:
        yield Node(host, tmp_path_factory.mktemp("node"))


@pytest.fixture
def node(booted: Node) -> Iterator[Node]:
    with lent(booted):
        booted.command.set(kubelet={"startTimeoutSeconds": 4, "guardSeconds": 6})
        yield booted


def test_the_hosts_journal_tells_every_change_and_nothing_else(node: Node) -> None:
    before = len(node.run("history", "--output", "json").document["entries"])
    node.run("install")
    node.run("install")
    node.path(FALLBACK).unlink()
    node.run("install")
    offer_broken(node, {"exitAfterSeconds": 0.5})
    node.run("install", code=5)
    node.run("install", code=5)
    by_alice = execute(*node.command.globals(), "remove", environment={"SUDO_USER": "alice"})
    assert by_alice.code == 0, by_alice.said

    told = node.run("history", "-n", "100", "--output", "json").document["entries"][before:]
    assert [(entry["action"], entry["outcome"].partition(":")[0]) for entry in told] == [
        ("install", "done"),
        ("install", "done"),
        ("install", "exit 5"),
        ("remove", "done"),
    ]
    first, repair, failed, removal = told
    assert "cri-resource-manager starts, kubelet restarts" in first["summary"]
    assert repair["why"] == [f"{FALLBACK}: missing"]
    assert first["generation"] == repair["generation"] != failed["generation"]
    assert PROXY in failed["outcome"]
    assert (removal["who"], removal["generation"]) == ("alice", "")
    assert "remove by alice: done" in node.run("history", "-n", "1").out
    # The same for whoever looks at the node without us, and in words.
    shown = node.host.run("journalctl", "-t", "cri-resmgr-installer", "-o", "cat", "-n", "1").stdout
    assert shown.startswith("remove by alice: done: 7 to delete; ")


def test_an_entry_that_another_user_has_made_is_left_out(node: Node) -> None:
    node.run("install")
    told = node.run("history", "--output", "json").document["entries"]
    message = node.host.run("journalctl", "-t", "cri-resmgr-installer", "-o", "json", "-n", "1").stdout
    identity = json.loads(message)["MESSAGE_ID"]
    node.host.run(
        *("setpriv", "--reuid=1000", "--clear-groups", "logger", "--journald"),
        input=f"MESSAGE_ID={identity}\nMESSAGE=forged\nCRI_RESMGR_INSTALLER_ACTION=forged\n",
    )
    node.host.run("journalctl", "--sync")
    assert "forged" in node.host.run("journalctl", f"MESSAGE_ID={identity}", "-o", "cat").stdout
    assert node.run("history", "--output", "json").document["entries"] == told


def test_a_host_without_journald_is_served_and_has_no_history(node: Node) -> None:
    node.host.run("mv", "/run/systemd/journal/socket", "/run/systemd/journal/away")
    node.host.run("mv", "/usr/bin/journalctl", "/usr/bin/journalctl.away")
    try:
        node.run("install")
        assert "journal of this host cannot be read" in node.run("history", code=4).err
        node.expect_good()
    finally:
        node.host.run("mv", "/usr/bin/journalctl.away", "/usr/bin/journalctl")
        node.host.run("mv", "/run/systemd/journal/away", "/run/systemd/journal/socket")
