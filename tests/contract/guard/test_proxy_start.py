"""What the guard does at a start of the proxy."""

from __future__ import annotations

import json
import threading
import time

import pytest
import yaml

from installer.inputs.systemd_syntax import parse_environment_file
from tests.contract.guard.node import FLAG, SOON, Node, elapsed, uptime
from tests.lib.rules import rule


def test_mark_start(node: Node) -> None:
    node.pid_file.write_text("42\n")
    before = uptime()
    assert node.guard("mark-start").returncode == 0
    assert not node.pid_file.exists()
    noted = int((node.run / "proxy-start").read_text()) / 100
    assert before - 0.02 <= noted <= uptime()


def cached(node: Node, content: str = '{"PolicyName":"balloons"}') -> None:
    cache = node.root / "var/lib/cri-resmgr/cache"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(content)


def spares(node: Node) -> bool:
    """Whether the start that comes now activates the policy none, as systemd reads what the guard wrote."""
    done = node.guard("mark-start")
    file = node.run / "proxy.env"
    assert done.returncode == 0
    found = file.exists() and file.read_text()
    assert ("policy none" in done.stdout) == bool(found)
    if not found:
        return False
    options = parse_environment_file(file.read_text())
    assert options == {"CONFIG_OPTIONS": f"--force-config {node.run}/none.cfg"}
    assert yaml.safe_load((node.run / "none.cfg").read_text()) == {"policy": {"Active": "none"}}
    return True


@rule("R14")
def test_r14_a_start_that_is_not_ours_spares_containers_that_came_past_the_proxy(node: Node) -> None:
    """They came while kubelet was on its base endpoint."""
    cached(node)
    assert not spares(node), "the first start since boot: no container runs"
    assert not spares(node), "kubelet has been on the relay all the time"
    node.hold.write_text("held\n")
    node.guard("compose")
    assert spares(node)
    node.hold.unlink()
    node.serve()
    assert "relay: ready" not in node.guard("compose").stdout
    (node.run / "kubelet-start-ours").touch()
    assert "relay: ready" in node.guard("compose").stdout
    assert spares(node), "kubelet is on the relay again, and still nobody has told the proxy of them"
    (node.run / "proxy-start-ours").write_text("ours\n")
    assert not spares(node), "the installer begins this start, and has told it"
    assert spares(node), "and no other one"
    (node.run / "containers-unknown").unlink()
    assert not spares(node)


@rule("R14")
@pytest.mark.parametrize("why", ["failed on the relay 2 times", "has an open quote", "names no variable"])
def test_r14_whatever_keeps_kubelet_off_the_relay_containers_may_come_past_the_proxy(
    node: Node, why: str
) -> None:
    cached(node)
    node.serve()
    assert not spares(node)
    node.run.mkdir(exist_ok=True)
    (node.run / "relay-failures").write_text("2\n" if "failed" in why else "0\n")
    base, flag = "--v='2" if "quote" in why else "--v=2", "" if "variable" in why else FLAG
    assert why in node.guard("compose", base, CRI_RESMGR_GUARD_FLAG=flag).stdout
    assert spares(node)


@rule("R14")
def test_r14_a_proxy_that_starts_again_while_kubelets_start_waits_for_it_has_its_policy(node: Node) -> None:
    """As at a boot at which its first start fails: kubelet has not started anything yet."""
    cached(node)
    assert not spares(node)
    mark = node.run / "containers-unknown"
    waits = threading.Thread(target=lambda: node.guard("compose", "--v=2", CRI_RESMGR_GUARD_SECONDS="2"))
    waits.start()
    try:
        while not (mark.exists() and mark.read_text().endswith("\n")):
            assert waits.is_alive(), "kubelet's start has not marked the danger"
        comm = node.root / f"proc/{mark.read_text().strip()}/comm"
        comm.parent.mkdir()
        comm.write_text("cri-resmgr-kube\n")  # as the kernel cuts the name of the script
        assert not spares(node)
        comm.write_text("another\n")
        assert spares(node), "it has ended, and another process has its number"
    finally:
        waits.join()
    assert spares(node), "kubelet is on its base endpoint"


#: What a shell's own commands do not do for it.
_PROCESSES = ("rm", "mkdir", "mv", "sed", "tr", "grep", "head", "tail", "sleep")


@rule("R14")
@pytest.mark.parametrize("verb", ["compose", "mark-start"])
def test_r14_danger_is_marked_before_another_process_is_needed(dash: Node, verb: str) -> None:
    """A node without a free process: the shell ends where it needs one."""
    cached(dash)
    dash.guard("mark-start")
    dash.guard("compose", "--v='2")
    (dash.run / "kubelet-start-ours").touch()
    if verb == "compose":
        (dash.run / "containers-unknown").unlink()
        (dash.run / "kubelet.env").write_text("")
    dash.pid_file.write_text("42\n")
    for name in _PROCESSES:  # the first one ends the script
        end = f"{name}() {{ exit 2; }}\n"
        dash.script.write_text(end + dash.script.read_text())
    assert dash.guard(verb, "--v=2", complains=True).returncode == 2
    if verb == "compose":
        assert (dash.run / "containers-unknown").exists()
    else:
        assert "none.cfg" in (dash.run / "proxy.env").read_text()


@rule("R14")
def test_r14_a_start_that_cannot_spare_unknown_containers_fails(node: Node) -> None:
    """/run takes no file any more. kubelet is on its base endpoint then."""
    cached(node)
    node.guard("mark-start")
    node.guard("compose", "--v='2")
    (node.run / "none.cfg").mkdir()  # root writes whatever the mode
    assert node.guard("mark-start", complains=True).returncode != 0


@rule("R14")
@pytest.mark.parametrize("content", ["", None])
def test_r14_a_start_that_is_not_ours_spares_all_containers_where_the_cache_is_empty(
    node: Node, content: str | None
) -> None:
    cached(node)
    assert not spares(node)
    if content is None:
        (node.root / "var/lib/cri-resmgr/cache").unlink()
    else:
        cached(node, content)
    assert spares(node)


def test_await_relay_returns_as_soon_as_it_serves(dash: Node) -> None:
    (dash.root / "proc/42").mkdir()
    later = threading.Timer(0.3, dash.serve)
    later.start()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="42")
    later.join()
    assert (done.returncode, done.stdout) == (0, "")
    assert elapsed(began) < SOON


def test_await_relay_notes_that_it_is_done(node: Node) -> None:
    """However that ends: compose has the rest of the budget then."""
    node.guard("mark-start")
    began = (node.run / "proxy-start").read_text()
    assert node.guard("await-relay", MAINPID="41").returncode == 1
    assert (node.run / "proxy-start").read_text() == f"{began}waited\n"
    node.serve()
    node.guard("mark-start")
    assert "waited" not in (node.run / "proxy-start").read_text()


@rule("R12")
def test_await_relay_gives_up_at_once_when_the_process_is_gone(dash: Node) -> None:
    (dash.root / "proc/41").mkdir()
    later = threading.Timer(0.3, (dash.root / "proc/41").rmdir)
    later.start()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="41")
    later.join()
    assert done.returncode == 1
    assert "the proxy has exited" in done.stdout
    assert elapsed(began) < SOON


def test_await_relay_does_not_keep_a_held_kubelet_waiting(dash: Node) -> None:
    (dash.root / "proc/41").mkdir()
    later = threading.Timer(0.3, dash.hold.touch)
    later.start()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="41")
    later.join()
    assert done.returncode == 0
    assert "held on its base endpoint" in done.stdout
    assert elapsed(began) < SOON


@rule("R12")
def test_await_relay_waits_two_thirds_of_the_budget_and_never_ends_a_proxy_that_lives(dash: Node) -> None:
    (dash.root / "proc/41").mkdir()
    began = time.monotonic()
    done = dash.guard("await-relay", MAINPID="41", CRI_RESMGR_GUARD_SECONDS="1")
    assert done.returncode == 0
    assert "the relay is not ready" in done.stdout
    assert 0.6 < elapsed(began) < SOON


def test_await_relay_counts_from_the_mark(dash: Node) -> None:
    dash.run.mkdir()
    began = time.monotonic()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 1950}\n")
    assert dash.guard("await-relay").returncode == 0
    assert 0.4 < elapsed(began) < SOON  # of two thirds of the budget, half a second is left


CACHE = b'{"Version":"1","Containers":{"0":{"Id":"aa"}},"PolicyJSON":{}}'


@rule("R12")
@pytest.mark.parametrize(
    ("content", "torn"),
    [
        (CACHE, False),
        (CACHE + b"\n", False),
        (b"", False),
        (CACHE[:-9], True),
        (b"\0" * 4096, True),
        (CACHE[:20] + bytes(20) + CACHE[40:], True),
    ],
    ids=["whole", "with-a-newline", "empty", "cut-short", "zeros", "zeros-within"],
)
def test_a_cache_that_no_start_can_read_is_set_aside_at_the_first_start_since_boot(
    node: Node, content: bytes, torn: bool
) -> None:
    cache = node.root / "var/lib/cri-resmgr/cache"
    cache.parent.mkdir()
    cache.write_bytes(content)
    kept = cache.with_name("cache.torn")
    said = node.guard("mark-start").stdout
    assert (cache.exists(), kept.exists(), "is torn" in said) == (not torn, torn, torn)
    assert not torn or kept.read_bytes() == content
    cache.write_bytes(b"\0")
    node.guard("mark-start")
    assert cache.exists()  # containers may run by now: the installer decides


def sent(policy: str, was: str) -> str:
    """A cache of cri-resmgr, whose agent has sent this section `policy`."""
    texts = {"logger": "Debug: resource-manager", "policy": policy}
    fields = [
        '"Version":"1"',
        '"Containers":{"a":{"Command":["sh","-c","echo \\"Cfg\\":{ Active: podpools"]}}',
        f'"Cfg":{json.dumps({"NodeName": "n", "Data": texts}, separators=(",", ":"))}',
        f'"PolicyName":{json.dumps(was)}',
        '"PolicyJSON":{"a":"{}"}',
    ]
    return "{" + ",".join(fields) + "}"


@rule("R14")
@pytest.mark.parametrize(
    ("policy", "was", "spared"),
    [
        ("Active: balloons\nReservedResources:\n  CPU: 1\n", "none", True),
        ("ReservedResources:\n  CPU: 1\nActive: 'topology-aware'\n", "balloons", True),
        ('ReservedResources:\n  CPU: 1\n"Active": "balloons"\n', "none", True),
        ('{"ReservedResources": {"CPU": "1"}, "Active": "balloons"}', "none", True),
        ("Active: balloons\n", "balloons", False),
        ("Active: 'balloons'\n", "balloons", False),
        ("# nothing\n", "balloons", False),  # the policy none
        ("# Active: none\nActive: balloons", "none", True),
    ],
)
def test_r14_a_policy_that_the_agent_asks_for_begins_with_a_start_of_ours_alone(
    node: Node, policy: str, was: str, spared: bool
) -> None:
    """cri-resmgr switches to what the agent sends at its next start, beside containers that were never
    adopted."""
    cached(node, sent(policy, was))
    assert not spares(node), "the first start since boot: no container runs"
    assert spares(node) is spared
    (node.run / "proxy-start-ours").write_text("ours\n")
    assert not spares(node), "the installer begins this start, and has adopted them"
    cached(node, '{"Version":"1","Cfg":null,"PolicyName":"none","PolicyJSON":{}}')
    assert not spares(node)
