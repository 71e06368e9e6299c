"""What a person types on a node: status, history and plan tell what is so."""

import json
import subprocess

import pytest

from tests.host.command import PROGRAM, Ended, execute, untouched
from tests.host.node import FALLBACK, PROXY, Node
from tests.host.product import offer_broken


@pytest.mark.matrix("words")
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

    node.host.sync_journal()
    told = node.run("history", "-n", "100", "--output", "json").document["entries"][before:]
    assert [(entry["action"], entry["outcome"].partition(":")[0]) for entry in told] == [
        ("install", "done"),
        ("install", "done"),
        ("install", "exit 5"),
        ("remove", "done"),
    ]
    first, repair, failed, removal = told
    assert "cri-resource-manager started, kubelet restarted" in first["summary"]
    assert repair["why"] == [f"{FALLBACK}: missing"]
    assert first["generation"] == repair["generation"] != failed["generation"]
    assert PROXY in failed["outcome"]
    assert (removal["who"], removal["generation"]) == ("alice", "")
    assert "remove by alice: done" in node.run("history", "-n", "1").out
    # The same for whoever looks at the node without us, and in words.
    shown = node.host.run("journalctl", "-t", "cri-resmgr-installer", "-o", "cat", "-n", "1").stdout
    assert shown.startswith("remove by alice: done: 7 deleted; ")


def test_an_entry_that_another_user_has_made_is_left_out(node: Node) -> None:
    node.run("install")
    node.host.sync_journal()
    told = node.run("history", "--output", "json").document["entries"]
    message = node.host.run("journalctl", "-t", "cri-resmgr-installer", "-o", "json", "-n", "1").stdout
    identity = json.loads(message)["MESSAGE_ID"]
    node.host.run(
        *("setpriv", "--reuid=1000", "--clear-groups", "logger", "--journald"),
        input=f"MESSAGE_ID={identity}\nMESSAGE=forged\nCRI_RESMGR_INSTALLER_ACTION=forged\n",
    )
    node.host.sync_journal()
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


@pytest.mark.matrix("words")
def test_status_needs_no_payload_and_says_how_it_came_to_be(node: Node) -> None:
    def bare(*argv: str, code: int) -> Ended:
        ended = execute("--host-root", str(node.host.root), *argv)
        assert ended.code == code, ended.said
        return ended

    assert bare("status", code=3).out.splitlines()[-1] == "not installed"
    node.fallback("policy:\n  Active: podpools\n  ReservedResources: {CPU: 750m}\n")
    node.run("install")
    node.host.sync_journal()
    said = bare("status", code=0).out
    assert "    policy: podpools, from fallback.cfg\n" in said
    assert "    runtime endpoint: /run/containerd/containerd.sock\n" in said
    (decided,) = (line for line in said.splitlines() if line.startswith("    guard: "))
    assert "relay: ready" in decided
    assert "earlier start" not in decided
    assert "last change: " in said
    assert " install by root: done: 7 created" in said
    assert "compared with what was installed last" in said
    node.path(FALLBACK).unlink()
    assert f"    {FALLBACK}: missing\n" in bare("status", code=3).out
    node.run("remove")
    assert "for an earlier start)" in bare("status", code=3).out
    assert bare("status", "--payload", "/nowhere", code=2)


def test_status_waits_until_all_is_well(node: Node) -> None:
    node.run("install")
    assert node.run("status", "--wait", "1").out.splitlines()[-1] == "converged and healthy"
    node.host.systemctl("stop", PROXY)
    assert "is not running" in node.run("status", "--wait", "1", code=3).out.splitlines()[-1]
    argv = [str(PROGRAM), *node.command.globals(), "status", "--wait", "120"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        node.run("install")
        out, err = waiting.communicate(timeout=180)
    assert (waiting.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "converged and healthy"


def test_a_plan_asks_what_an_installation_asks(node: Node) -> None:
    """Remembered failures, and the payload's own program as the judge of the configs."""
    node.run("install")
    node.fallback("policy:\n  Active: none\nlogger:\n  NoSuchField: 1\n")
    with untouched(node.host):
        planned = node.run("plan", code=2)
    assert planned.err == node.run("install", code=2).err
    assert planned.out.startswith("not possible now (see the error); otherwise: ")
    (node.command.configs / "fallback.cfg").unlink()
    offer_broken(node, {"exitAfterSeconds": 0.5})
    assert node.run("plan", code=3).err == ""
    node.run("install", code=5)
    planned = node.run("plan", code=5)
    assert planned.out.splitlines()[0] == (
        "failed here before, not retried; the last good generation: nothing to do"
    )
    assert planned.err == node.run("install", code=5).err
    assert node.run("plan", "--retry", code=3).out.startswith("2 to change; ")


def test_the_next_run_knows_what_the_last_one_was_given(node: Node) -> None:
    """Without a payload it repairs; what needs one names the paths of the last run, and so do the hints."""
    host_root = ("--host-root", str(node.host.root))
    node.fallback("policy:\n  Active: podpools\n  ReservedResources: {CPU: 750m}\n")
    node.run("install")
    node.path(FALLBACK).unlink()
    planned = execute(*host_root, "plan")
    assert (planned.code, planned.err.partition(":")[0]) == (3, "settings")
    assert planned.out.splitlines()[1] == "no --payload was given, so this is about the last good generation"
    repaired = execute(*host_root, "install")
    assert (repaired.code, repaired.out.splitlines()[-1]) == (0, "done")
    node.expect_good()
    missing = execute(*host_root, "install", "--retry")
    assert missing.code == 2
    given = node.command.globals()
    assert f"the last run had --payload {given[3]}; nothing was touched" in missing.err
    assert f"--configs {given[5]} " in execute(*host_root, "--payload", given[3], "install").err
    said = execute(*host_root, "status").out
    assert f"the last run by hand had --config {given[7]} --payload {given[3]} --configs {given[5]}\n" in said
    node.command.configs.chmod(0o777)
    try:
        assert (
            f"remark: --configs {given[5]} is gone, or not root's alone" in execute(*host_root, "status").err
        )
    finally:
        node.command.configs.chmod(0o755)
