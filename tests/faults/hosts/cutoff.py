"""One run that is cut off and the next one: what has to hold then, by systemd, kubelet and the tree."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.model.names import Mode
from installer.model.paths import RELAY_ENDPOINT
from tests.faults.hosts.ways import SETTINGS, Starts, Way
from tests.host.mortal import converge, temporary_directory
from tests.host.node import PROXY, STATE, Node
from tests.host.workload import expect_kept
from tests.lib.throwaway import real
from tests.lib.throwaway.host import HostError
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.snapshot import difference, files
from tests.lib.throwaway.standins.cri_resmgr import read_line

UP_SECONDS = float(SETTINGS["guardSeconds"]) + 60.0  # of one without the relay, on a busy machine
_DYING_SECONDS = 60.0
_SILENT_SECONDS = 30.0  # for an answer of the relay, on a busy machine
_UNITS = (UNIT, PROXY)

Cut = Callable[[Node], str]
"""Runs the way's command and cuts it off: `killed`, or how it ended otherwise."""


def try_out(node: Node, way: Way, number: int, cut: Cut) -> str:
    """One run that is cut off and the next one; returns how the first ended. Raises AssertionError. The
    inputs that the way begins with are laid already."""
    begin(node, way, number)
    journal = Journal(node)
    outcome = cut(node)
    ends = ("killed", "RolledBackError") if way.fails else ("killed", "changed")
    assert outcome.startswith(ends), f"the run: {outcome}"
    expect_no_process(node)
    kubelet, proxy = meddle(node, way, number) if outcome == "killed" else (0, 0)
    if outcome == "killed" and (way.spoil or (way.fails and number % 2)):
        fail_again(node, way, number)
    way.mend(node, number)
    ended = converge(node, way.then)
    assert ended in ("changed", "nothing"), f"the next run: {ended}"
    expect_settled(node, way.then)
    if way.then is Mode.INSTALL and ended == "changed":  # only then is there anything to check beforehand
        left = [path.name for path in temporary_directory(node.scratch).iterdir()]
        assert not left, f"left below the directory for temporary files: {left}"
    journal.expect({UNIT: way.kubelet.and_more(kubelet), PROXY: way.proxy.and_more(proxy)})
    if way.proxy_read and not real.named("cri-resmgr"):  # which does not say what it reads
        journal.expect_read(way.proxy_read)
    if way.policy:
        expect_kept(node, way.policy)
    way.lay(node, number)
    return outcome


def fail_again(node: Node, way: Way, number: int) -> None:
    """An installation that fails, if it has anything to do: then all is as before the way began, or as after
    it when that was cut off at its very end."""
    if way.spoil:
        way.spoil(node, number)
    done = not way.installed and has_good(node)
    # Else somebody has restarted it, and R8 leaves it there. One that is not to be served may not even run.
    was_on_relay = way.installed and node.on_relay()
    # What fails may be kubelet's start, and the run that was cut off had that behind it.
    was_through = not way.installed and _is_up_on_relay(node)
    ended = converge(node, Mode.INSTALL)
    if ended == "nothing":
        return
    if ended == "changed" and was_through:
        expect_settled(node, Mode.INSTALL)
        return
    assert ended.startswith("RolledBackError"), f"the failing run: {ended}"
    if done:  # a first installation that was killed behind its last effect
        assert "the last good generation: nothing to do" in node.command("plan").said
        return
    if not way.installed:
        expect_bare(node, STATE)
        return
    plans = []
    for inputs in (way.mend, way.ask):
        inputs(node, number)
        plans.append(node.command("plan"))
    assert any(plan.code == 0 for plan in plans) or not was_on_relay, (
        f"after the failing run: {plans[0].said}"
    )


def _is_up_on_relay(node: Node) -> bool:
    try:
        return node.on_relay()
    except HostError:  # kubelet does not run just now
        return False


def has_good(node: Node) -> bool:
    """Whether the record names a generation that was verified."""
    record = node.path(f"{STATE}/record.json")
    return record.exists() and bool(json.loads(record.read_text())["good"])


def begin(node: Node, way: Way, number: int) -> None:
    """The node is where the way begins, and the new inputs are there."""
    mode = Mode.INSTALL if way.installed else Mode.REMOVE
    ended = converge(node, mode)
    assert ended in ("changed", "nothing"), f"to begin with, {mode}: {ended}"
    if not way.installed:
        expect_bare(node)
    way.ask(node, number)


def meddle(node: Node, way: Way, number: int) -> tuple[int, int]:
    """Sometimes somebody restarts a unit between the two runs. Returns how many starts of kubelet and of the
    proxy are theirs: a kubelet that went without the relay has to be moved back, one that met a proxy which
    died the next moment was tried again by systemd, and a proxy that cannot start is so for ever."""
    if number % 5 == 3 and way.kubelet_works:
        node.host.systemctl("restart", UNIT)
        wait_healthy(node.host, UP_SECONDS)
        again = int(node.host.show(UNIT, "NRestarts"))
        return 1 + again + (not node.on_relay()), 1
    if number % 3 == 1:
        done = node.host.run("systemctl", "restart", PROXY, check=False)
        return 0, 1 if done.returncode == 0 else 1000
    return 0, 0


def expect_settled(node: Node, mode: Mode) -> None:
    """Nothing is left to do, kubelet is healthy on an endpoint that answers."""
    ended = converge(node, mode)
    assert ended == "nothing", f"the run after the next: {ended}"
    if mode is Mode.INSTALL:
        wait_healthy(node.host)
        assert node.on_relay(), "kubelet is not on the relay"
        cri = SocketCri(RootedFiles(node.host.root))
        assert cri.answers(RELAY_ENDPOINT, _SILENT_SECONDS), "the relay is silent"
    else:
        expect_bare(node)


def expect_bare(node: Node, *allowed: str) -> None:
    """Nothing of ours is left among the files; systemd is asked at the end only, it takes its time."""
    wait_healthy(node.host)
    assert not node.on_relay(), "kubelet is on the relay"
    before = {path: entry for path, entry in node.before.items() if path.startswith("/")}
    lines = difference(before, files(node.host))
    left = [line for line in lines if not line.split()[1].startswith(("/etc/standin-", *allowed))]
    assert not left, "\n".join(left)


def expect_up(node: Node, seconds: float, *, crashes: bool = False) -> bool:
    """After a boot kubelet comes up by itself within that time, at its first try, on an endpoint that
    answers; returns whether that is the relay. With a proxy that `crashes` soon after each start, the relay
    answers in between, and the guard gives it two tries. Raises HostError, AssertionError."""
    wait_healthy(node.host, seconds)
    restarts = int(node.host.show(UNIT, "NRestarts"))
    assert restarts <= (2 if crashes else 0), f"kubelet came up after {restarts} restarts"
    on_relay = node.on_relay()
    cri, deadline = SocketCri(RootedFiles(node.host.root)), time.monotonic() + _SILENT_SECONDS
    while on_relay and not cri.answers(RELAY_ENDPOINT, _SILENT_SECONDS):
        silent = not crashes or time.monotonic() > deadline
        assert not silent, "kubelet is on a relay that is silent"
        time.sleep(0.05)
    return on_relay


def expect_no_process(node: Node) -> None:
    """Whatever a killed run had started goes with it, at once."""
    deadline = time.monotonic() + _DYING_SECONDS
    while left := list(_processes(str(temporary_directory(node.scratch)))):
        assert time.monotonic() < deadline, f"left running: {left}"
        time.sleep(0.01)


def _processes(mark: str) -> Iterator[str]:
    """The command lines of this machine that name it."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = process.read_bytes().decode("utf-8", "replace").replace("\0", " ")
            if mark in said:
                yield said


class Journal:
    """What the units go through from now on, by systemd's own journal."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known = {(unit, node.host.show(unit, "InvocationID")) for unit in _UNITS}
        self._cursor = self._read("--lines=1")[0]["__CURSOR"]

    def _read(self, *words: str) -> list[dict[str, Any]]:
        fields = "UNIT,INVOCATION_ID,MESSAGE"
        argv = ("journalctl", "--quiet", "--no-pager", "--output=json", f"--output-fields={fields}", *words)
        self._node.host.run("journalctl", "--sync")
        return [json.loads(line) for line in self._node.host.run(*argv).stdout.splitlines()]

    def expect(self, starts: Mapping[str, Starts]) -> None:
        """Each unit was started so often."""
        entries = self._read(f"--after-cursor={self._cursor}", *(f"UNIT={unit}" for unit in _UNITS))
        started = {(entry["UNIT"], entry["INVOCATION_ID"]) for entry in entries if "INVOCATION_ID" in entry}
        found = [unit for unit, _ in started - self._known]
        for unit, bounds in starts.items():
            count = found.count(unit)
            assert bounds.least <= count <= bounds.most, f"{unit} was started {count} times: {bounds}"

    def expect_read(self, path: str) -> None:
        """What the running proxy has read last there is the file as it is now."""
        entries = self._read(f"_SYSTEMD_INVOCATION_ID={self._node.invocations()[1]}")
        said = [str(entry["MESSAGE"]) for entry in entries]
        last = next((each for each in reversed(said) if f" has read {path} " in each), "")
        line = read_line(path, self._node.path(path).read_bytes())
        assert last.endswith(line), f"not {line!r} last, but: {said}"
