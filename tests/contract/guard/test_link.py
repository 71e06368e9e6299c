"""Kubelet's endpoint is a link: what the guard does with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.guard.node import BASE, FLAG, LINK, RELAY, Node, uptime
from tests.lib.rules import rule

CRIO = "/run/cri-resmgr-installer/endpoint/run/crio/crio.sock"


@rule("R12")
def test_without_a_relay_kubelet_gets_the_link_to_its_base_endpoint(node: Node) -> None:
    """So that it can be moved later, without a restart."""
    done = node.guard("compose", "--v=2", CRI_RESMGR_GUARD_SECONDS="1")
    assert "base endpoint: the relay is not ready" in done.stdout
    assert node.composed_value() == f"--v=2 {FLAG}"
    assert node.target == BASE
    assert (node.run / "containers-unknown").exists()
    node.serve()
    (node.run / "containers-unknown").unlink()
    node.guard("compose")
    assert node.target == RELAY


@rule("R12")
@pytest.mark.parametrize("base", ["", "/run/nobody.sock", "/etc", LINK])
def test_where_nothing_is_at_the_base_endpoint_kubelet_finds_its_runtime_itself(
    node: Node, base: str
) -> None:
    done = node.guard("compose", CRI_RESMGR_GUARD_SECONDS="1", CRI_RESMGR_GUARD_BASE=base)
    assert done.returncode == 0
    assert "nothing listens at" in done.stdout
    assert not node.composed.exists()


@rule("R12")
@pytest.mark.parametrize("what", ["a file", "a directory", "a full one", "a link to one", "a dangling link"])
@pytest.mark.parametrize("flag", [FLAG, f"--container-runtime-endpoint=unix://{CRIO}"])
def test_whatever_is_in_the_links_place_becomes_the_link(node: Node, what: str, flag: str) -> None:
    link = node.root / flag.partition("unix://")[2][1:]
    link.parent.mkdir(parents=True)
    if what == "a file":
        link.touch()
    elif what in ("a directory", "a full one"):
        link.mkdir()
        (link / "file").touch()
    else:
        link.symlink_to(node.root / "proc" if what == "a link to one" else "/nowhere")
    node.serve()
    assert "relay: ready" in node.guard("compose", CRI_RESMGR_GUARD_FLAG=flag).stdout
    assert link.readlink() == Path(RELAY)
    assert node.composed_value() == flag
    assert (node.root / "proc/42/comm").exists()


@rule("R12")
@pytest.mark.parametrize("flag", ["--container-runtime-endpoint=unix:///etc/passwd", "--v=2", "unix://"])
def test_a_flag_that_names_no_link_of_ours_makes_none(node: Node, flag: str) -> None:
    node.serve()
    done = node.guard("compose", CRI_RESMGR_GUARD_FLAG=flag)
    assert (done.returncode, node.composed.exists()) == (1, False)
    assert "cannot write" in done.stdout


# -- when the proxy has ended ----------------------------------------------------------------------


def with_tools(node: Node, **does: str) -> None:
    """The guard finds these programs before the system's."""
    tools = node.root / "tools"
    tools.mkdir(exist_ok=True)
    for name, lines in does.items():
        (tools / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tools / name).chmod(0o755)
    script = node.script.read_text()
    if str(tools) not in script:
        node.script.write_text(script.replace('export PATH="', f'export PATH="{tools}:'))


def ended(node: Node, result: str, restart: str = "always") -> str:
    """What the guard says when the proxy has ended. It finds a systemctl that tells how systemd restarts
    the proxy, and a systemd-run that writes down its command."""
    later = f'echo "$@" >{node.root}/later'
    with_tools(node, **{"systemctl": f"echo {restart}", "systemd-run": later})
    done = node.guard("left", SERVICE_RESULT=result)
    assert done.returncode == 0
    return done.stdout


@rule("R4")
def test_kubelet_leaves_a_proxy_that_is_stopped(node: Node) -> None:
    node.lead_to(RELAY)
    assert f"kubelet's next connection goes to {BASE}" in ended(node, "success")
    assert node.target == BASE
    assert (node.run / "containers-unknown").exists()
    assert ended(node, "success") == ""


@rule("R4")
@pytest.mark.parametrize("result", ["success", "timeout"])
def test_a_hold_takes_effect_when_the_proxy_is_stopped(node: Node, result: str) -> None:
    """Without any installer, and although the proxy is frozen."""
    node.serve()
    node.lead_to(RELAY)
    node.hold.write_text("broken CPU map\n")
    assert "held: broken CPU map: kubelet's next connection" in ended(node, result)
    assert node.target == BASE


@rule("R3")
def test_kubelet_stays_while_the_installer_restarts_the_proxy(node: Node) -> None:
    node.lead_to(RELAY)
    (node.run / "proxy-start-ours").write_text("ours\n")
    assert ended(node, "success", "71 cri-resource-manager.service restart running") == ""
    with_tools(node, systemctl="exit 1")  # it does not answer
    assert node.guard("left", SERVICE_RESULT="success").stdout == ""
    assert node.target == RELAY
    assert not (node.root / "later").exists()
    assert "the proxy has failed (exit-code)" in ended(node, "exit-code", "no")
    assert node.target == BASE


@rule("R4", "R7")
def test_an_announcement_of_a_killed_installer_keeps_kubelet_on_no_proxy_that_is_stopped(node: Node) -> None:
    node.lead_to(RELAY)
    (node.run / "proxy-start-ours").write_text("ours\n")
    assert "the proxy was stopped" in ended(node, "success", "71 cri-resource-manager.service stop running")
    assert node.target == BASE


@rule("R4")
@pytest.mark.parametrize("result", ["success", "signal"])
@pytest.mark.parametrize("slow", ["systemctl", "systemd-run"])
def test_a_busy_systemd_keeps_kubelet_on_no_dead_proxy(dash: Node, result: str, slow: str) -> None:
    """It gives all that follows the proxy's end one second."""
    dash.serve()
    dash.lead_to(RELAY)
    tools = {"systemctl": "echo always restart", "systemd-run": ":"} | {slow: "exec sleep 5"}
    with_tools(dash, **tools)
    began = uptime()
    assert "kubelet's next connection" in dash.guard("left", SERVICE_RESULT=result).stdout
    assert uptime() - began < 1
    assert dash.target == BASE


MARK = "/run/cri-resmgr-installer/containers-unknown"
MOVE = """mv=$(PATH=/usr/bin:/bin command -v mv)
case $* in
*{word}*) {before}; "$mv" "$@" && {{ {after}; }} ;;
*) "$mv" "$@" ;;
esac"""


def while_moving(node: Node, word: str, before: str = ":", after: str = ":") -> None:
    """Something happens just before or behind the guard renames a file whose name has this word. (busybox
    would not look for this program.)"""
    with_tools(node, mv=MOVE.format(word=word, before=before, after=after))


@rule("R7", "R14")
def test_a_run_that_takes_the_mark_away_while_kubelet_leaves_does_not_lose_it(dash: Node) -> None:
    """Pods that kubelet makes from now on are unknown."""
    dash.lead_to(RELAY)
    dash.run.joinpath("containers-unknown").touch()
    while_moving(dash, "containerd.sock", f"rm {dash.root}{MARK}")
    assert "kubelet's next connection" in ended(dash, "success")
    assert dash.target == BASE
    assert (dash.run / "containers-unknown").exists()


@rule("R4", "R14")
@pytest.mark.parametrize("word", ["containerd.sock", "kubelet.env"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_proxy_that_is_stopped_while_kubelet_starts_is_not_its_endpoint(
    dash: Node, word: str, when: str
) -> None:
    """Both let the link lead elsewhere at the same time."""
    dash.serve()
    dash.lead_to(RELAY)
    left = f'rm {dash.pid_file}; sed "s|tools:|none:|" "{dash.script}" >{dash.root}/left'
    left += f"; SERVICE_RESULT=success {' '.join(dash.shell)} {dash.root}/left left >{dash.root}/said"
    while_moving(dash, word, **{when: f"[ -e {dash.root}/said ] || {{ {left}; }}"})
    dash.guard("compose")
    assert (dash.root / "said").exists()
    assert dash.composed_value() == FLAG
    assert dash.target == BASE
    assert (dash.run / "containers-unknown").exists()


@rule("R3", "R4")
@pytest.mark.parametrize("kind", ["restart", "try-restart"])
def test_kubelet_stays_while_somebody_restarts_the_proxy(node: Node, kind: str) -> None:
    node.serve()
    node.lead_to(RELAY)
    assert ended(node, "success", f"71 cri-resource-manager.service {kind} running") == ""
    assert node.target == RELAY
    assert node.guard("gone").stdout == ""
    node.pid_file.unlink()
    assert "has not come back" in node.guard("gone").stdout
    assert node.target == BASE


@rule("R3", "R4")
def test_kubelet_stays_for_one_crash_of_a_proxy_that_comes_back(node: Node) -> None:
    node.serve()
    node.lead_to(RELAY)
    assert ended(node, "signal") == ""
    assert node.target == RELAY
    assert f"{node.script} gone" in (node.root / "later").read_text()
    assert node.guard("gone").stdout == ""
    assert node.target == RELAY
    assert "failed again (signal)" in ended(node, "signal")
    assert node.target == BASE


@rule("R3")
def test_crashes_that_are_far_apart_are_single_ones(node: Node) -> None:
    node.serve()
    node.lead_to(RELAY)
    assert ended(node, "signal") == ""
    (node.run / "proxy-crash").write_text(f"{int((uptime() - 11) * 100)}\n")
    assert ended(node, "signal") == ""
    assert node.target == RELAY


@rule("R4")
def test_a_proxy_that_has_not_come_back_is_left(node: Node) -> None:
    node.serve()
    node.lead_to(RELAY)
    assert ended(node, "signal") == ""
    node.pid_file.unlink()
    assert "has not come back" in node.guard("gone").stdout
    assert node.target == BASE


@rule("R4")
@pytest.mark.parametrize(
    ("served", "restart"), [(True, "no"), (True, ""), (True, "sideways"), (False, "always")]
)
def test_a_proxy_that_cannot_come_back_is_left_at_once(node: Node, served: bool, restart: str) -> None:
    """systemd does not restart it, or its start has failed."""
    if served:
        node.serve()
    node.lead_to(RELAY)
    assert "the proxy has failed (exit-code)" in ended(node, "exit-code", restart)
    assert node.target == BASE


@rule("R4")
def test_while_the_runtime_is_away_no_endpoint_is_better(node: Node) -> None:
    (node.root / BASE[1:]).unlink()
    node.lead_to(RELAY)
    assert "kubelet stays on the relay" in ended(node, "success")
    assert node.target == RELAY


@rule("R4")
@pytest.mark.parametrize("result", ["success", "exit-code"])
def test_a_kubelet_that_is_not_on_the_relay_is_left_alone(node: Node, result: str) -> None:
    node.lead_to(BASE)
    assert ended(node, result) == ""
    assert (node.target, (node.run / "containers-unknown").exists()) == (BASE, False)
    node.link.unlink()
    assert ended(node, result) == ""
    assert not node.link.is_symlink()


@rule("R4", "R8")
def test_kubelet_leaves_a_start_that_is_silent_for_three_seconds(dash: Node) -> None:
    dash.lead_to(RELAY)
    dash.guard("mark-start")
    began = uptime()
    (dash.root / "proc/42").mkdir()
    done = dash.guard("await-relay", MAINPID="42", CRI_RESMGR_GUARD_SECONDS="7")
    assert "not ready 3 s after" in done.stdout
    assert dash.target == BASE
    assert uptime() - began >= 2.9
