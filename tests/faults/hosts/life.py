"""A random life: what is asked of a node, what somebody does to it, and what has to hold then.

Its model knows what was asked for, what somebody has done since the host last converged, and from
that which unit a pass may restart and whether it may refuse. What it sees, it sees of its ground.
"""

from __future__ import annotations

import json
import posixpath
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from installer.model.names import Mode
from tests.faults.hosts.ground import Ground
from tests.faults.hosts.lifemodel import (
    BROKEN,
    CACHE,
    CONFIGURATIONS,
    EDITED,
    EXTRA,
    FORCE,
    MASK,
    PAUSE,
    PAYLOADS,
    SOMEBODYS_DROP_IN,
    Asked,
    Since,
    tell,
)
from tests.faults.hosts.watcher import Watcher
from tests.host.flavours import UNIT_FILE
from tests.host.mortal import Ended, Instant, run_apart
from tests.host.node import BINARY, PROXY, PROXY_UNIT, STATE
from tests.lib.throwaway.kubelet import UNIT
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import Entry, difference, files, snapshot, walk

#: The flavour whose kubelet gets no argument of its unit, only a variable.
ONLY_A_VARIABLE = "shell-command"


class Life:
    """One ground for many lives. A life that goes wrong costs it, so the next gets a new one."""

    def __init__(self, scratch: Path, flavour: str) -> None:
        self._scratch, self._flavour = scratch, flavour
        self._ground: Ground | None = None
        self.payloads = {name: build_payload(scratch / name, version=name) for name in PAYLOADS}
        for name, fault in BROKEN.items():
            self.payloads[name] = build_payload(scratch / name, version="v0.9.4", fault=fault)
        self.watcher: Watcher | None = None
        self.story: list[str] = []
        self.failures: list[str] = []  # of all lives: hypothesis hides those that come only once
        self.count = 0

    def close(self) -> None:
        """The host ends."""
        self.kill_watcher()
        if self._ground is not None:
            self._ground.close()
        self._ground = None

    # -- a life -------------------------------------------------------------

    def begin(self) -> None:
        """A bare node."""
        self.count += 1
        self.story = []
        if self._ground is None:
            self._ground = Ground(Path(tempfile.mkdtemp(dir=self._scratch)), self._flavour)
        self.ground, self.node, self.host = self._ground, self._ground.node, self._ground.host
        self.asked = Asked()
        self.converged: Asked | None = None
        self.since = Since()
        self.before = dict(self.node.before)
        self.replaced: set[str] = set()  # somebody's content that a pass has replaced
        self.foreign: list[str] = []
        self.paused = False
        self._as_paused: dict[str, Entry] = {}
        self.ask(self.asked)

    def fail(self, error: Exception) -> str:
        """It has gone wrong. Returns how, with the story."""
        self.failures.append(f"{error}\n{tell(self.story)}")
        self.close()
        return self.failures[-1]

    def end(self) -> None:
        """We go, and nothing is left of us. Then somebody else clears away what is theirs."""
        self.end_watcher()
        self.remove()
        self.unmask()
        picture = difference(self.before, snapshot(self.host))
        left = [line for line in picture if not self._of_command_line(line)]
        assert not left, "after the last remove:\n" + "\n".join(left)
        self.host.run("rm", "-rf", PAUSE, *self.foreign)
        for directory in ("/etc/cri-resmgr", "/opt/intel/bin", "/opt/intel"):
            self.host.run("rmdir", directory, check=False)
        self.ground.put_back()
        left = difference(_paths(self.node.before), files(self.host))
        assert not left, "for the next life:\n" + "\n".join(left)

    def _of_command_line(self, line: str) -> bool:
        """Whether it is what somebody's edit makes of kubelet's unit."""
        before = self.node.before
        edited = any(self.before.get(path) != before.get(path) for path in self.ground.original)
        return edited and " kubelet:" in line

    def keep_directories(self) -> None:
        """Those in which somebody else has something stay, whoever created them, and are no longer ours."""
        for path in (PAUSE, SOMEBODYS_DROP_IN):
            if path in self.before:
                self.note(posixpath.dirname(path))

    def say(self, words: str) -> None:
        self.story.append(words)

    # -- what an operator asks for ------------------------------------------

    def ask(self, asked: Asked) -> None:
        command = self.node.command
        if self._flavour == ONLY_A_VARIABLE:
            asked = replace(asked, strategy="auto")  # exec-start is refused there
        self.asked = asked
        # In one rename, as a daemon may be reading it.
        binary = BINARY[1:]
        shutil.copy2(self.payloads[asked.payload] / binary, self.node.scratch / "binary")
        (self.node.scratch / "binary").rename(command.payload / binary)
        for file in command.configs.iterdir():
            file.unlink()
        for name, text in CONFIGURATIONS[asked.configuration].items():
            (command.configs / name).write_text(text)
        command.set(
            kubelet={
                "guardSeconds": asked.guard_seconds,
                "startTimeoutSeconds": 20,
                "restartsPerHour": 100,
                "strategy": asked.strategy,
                "dropInDirectory": asked.directory,
            },
            proxy={"agent": asked.agent, "deadSeconds": 4},
        )

    def run(self, mode: Mode, instant: Instant | None = None) -> Ended:
        ended = run_apart(self.node, mode, instant or Instant(0))
        self.say(f"{mode.value}{f', killed {instant}' if instant else ''}: {ended.how}")
        return ended

    # -- converging ---------------------------------------------------------

    def install(self) -> None:
        """Installs, as often as somebody has to clear something away; then all has to be right."""
        may_kubelet, may_proxy, must_proxy = self._may_restart()
        before = self.ground.invocations()
        ended = self._without_refusal(Mode.INSTALL)
        assert ended.how in ("changed", "nothing"), ended
        after = self.ground.invocations()
        assert may_kubelet or before[0] == after[0], f"R3: kubelet was restarted for nothing: {ended.said}"
        assert may_proxy or before[1] == after[1], f"R3: the proxy was restarted for nothing: {ended.said}"
        assert not must_proxy or before[1] != after[1], "a restart of the proxy was forgotten"
        self._has_converged(self.asked)
        self.expect_converged()

    def _may_restart(self) -> tuple[bool, bool, bool]:
        """Which of kubelet and the proxy a pass may restart now, and whether it has to, the proxy."""
        was, since = self.converged, self.since
        if was is None or since.unknown or self.may_refuse():
            return True, True, False
        runs = self.host.show(PROXY, "SubState") == "running" and self.ground.relay_answers()
        kubelet = not self.ground.on_relay() or (since.kubelet_started and since.drifted)
        kubelet |= was.strategy != self.asked.strategy or since.base_edited
        must = was.restarts_proxy(self.asked)
        proxy = must or since.proxy_edited or not runs or (since.proxy_started and since.drifted)
        proxy |= since.agent_goes or since.pod_beside
        return kubelet, proxy, must and runs

    def _without_refusal(self, mode: Mode) -> Ended:
        """Runs; when it refuses what somebody has put in the way, touches nothing, and that goes away
        first."""
        # One that cannot start is tried again and again by systemd.
        steady = self.host.show(PROXY, "SubState") in ("running", "dead")
        may_refuse = self.may_refuse()
        before = files(self.host), *self.ground.invocations()
        ended = self.run(mode)
        if ended.how != "UnservableHostError" or not may_refuse:
            return ended
        after = files(self.host), *self.ground.invocations()
        assert before[1] == after[1], "a refusal has moved kubelet"
        assert not steady or before[2] == after[2], "a refusal has moved the proxy"
        lines = difference(before[0], after[0])
        # The lock of one that was killed before.
        left = [line for line in lines if "cri-resmgr-installer.lock" not in line]
        left = [line for line in left if steady or " /run/cri-res" not in line]
        assert not left, "a refusal has touched:\n" + "\n".join(left)
        self.clear_the_way()
        return self.run(mode)

    def may_refuse(self) -> bool:
        return self.since.may_refuse or self.ground.is_masked()

    def clear_the_way(self) -> None:
        """Somebody takes away what is in our way, finishes the edit, and starts kubelet again."""
        for path in self.since.in_the_way:
            self.host.run("rm", "-rf", path)
        self.since.in_the_way = []
        if self.ground.is_masked():
            self.unmask()
        if self.since.reload_pending:
            self.host.systemctl("daemon-reload")
            self.since.reload_pending = False
            self.restart(UNIT)
        if self.since.stopped:
            self.restart(UNIT)

    def unmask(self) -> None:
        """Somebody lets both units run again."""
        self.host.systemctl("unmask", PROXY, UNIT)
        self.host.systemctl("unmask", "--runtime", PROXY)
        self.note(MASK)
        self.note(UNIT_FILE)
        if not self.node.path(PROXY_UNIT).exists():
            self.since.edits.pop(PROXY_UNIT, None)  # an empty one is a mask, too

    def ask_and_install(self, asked: Asked) -> None:
        """Something else is asked for."""
        self.ask(asked)
        self.install()

    def expect_converged(self) -> None:
        """R2, R4: kubelet is on a relay that answers, and a second run finds nothing to do."""
        self.ground.wait_healthy()
        assert self.ground.on_relay(), f"kubelet is not on the relay:\n{self.host.journal(UNIT)[-2000:]}"
        assert self.ground.relay_answers(), "kubelet is on a relay that does not answer"
        self.expect_inputs()
        self.ground.run_container_through_relay()
        before = files(self.host), self.ground.invocations()
        ended = self._beside_the_watcher()
        assert ended.how == "nothing", f"R2: a second run: {ended}"
        after = files(self.host), self.ground.invocations()
        assert before[1:] == after[1:], "R2: a second run has started a unit"
        assert not (left := difference(before[0], after[0])), "R2: a second run:\n" + "\n".join(left)

    def _beside_the_watcher(self) -> Ended:
        """A second run. A pass of the daemon may have begun since it was last at rest, for what was done
        last, and holds the lock while it looks (R10): it is waited for."""
        ended = self.run(Mode.INSTALL)
        for _ in range(3):
            if ended.how != "BusyHostError" or self.watcher is None:
                break
            self.watcher.wait(self._looks_right)
            ended = self.run(Mode.INSTALL)
        return ended

    def expect_inputs(self) -> None:
        """What was asked for is what lies there."""
        binary = (self.payloads[self.asked.payload] / BINARY[1:]).read_bytes()
        assert self.node.path(BINARY).read_bytes() == binary
        given = CONFIGURATIONS[self.asked.configuration]
        for path in (FORCE, EXTRA):
            exists = path.rpartition("/")[2] in given or path in self.foreign
            assert self.node.path(path).exists() == exists, path
        for name, text in given.items():
            assert text in self.node.path(f"/etc/cri-resmgr/{name}").read_text()
        assert self.host.systemctl("is-enabled", PROXY, check=False) == "static"
        kept = json.loads(self.node.path(CACHE).read_text())["Cfg"]
        assert kept is None or not self.asked.forgets_agent, "of an agent that is switched off"

    def remove(self) -> None:
        """Removes; what is left is what was there before us, and what somebody has done since."""
        stays = not (self.ground.has_our_flag() or self.may_refuse())
        before = self.ground.invocation(UNIT)
        ended = self._without_refusal(Mode.REMOVE)
        assert ended.how in ("changed", "nothing"), ended
        moved = self.ground.invocation(UNIT) != before
        assert not (stays and moved), "R3: kubelet had nothing of ours, and restarted"
        if self.since.stopped:
            self.see_kubelet()
            self.restart(UNIT)
        self._has_converged(None)
        self.ground.wait_healthy()
        assert not self.ground.on_relay()
        self._collect_edits()
        self.keep_directories()
        left = difference(_paths(self.before), files(self.host))
        assert not left, "R6: after a remove:\n" + "\n".join(left)
        ended = self.run(Mode.REMOVE)
        assert ended.how == "nothing", f"R2: a second removal: {ended}"

    def _has_converged(self, asked: Asked | None) -> None:
        self.replaced |= set(self.since.edits.values())
        pending = self.since.reload_pending and self.host.show(UNIT, "NeedDaemonReload") == "yes"
        self.converged, self.since = asked, Since(reload_pending=pending, base_edited=pending)

    def _collect_edits(self) -> None:
        """Somebody fetches what was kept of their edits: all of it is there."""
        place = self.node.path(EDITED)
        kept = {file.read_text(errors="replace") for file in place.iterdir()} if place.exists() else set()
        lost = self.replaced - kept
        assert not lost, f"R6: somebody's content in a file of ours is lost: {lost}"
        self.replaced = set()
        if place.exists():
            self.host.run("rm", "-r", EDITED)
            self.host.run("rmdir", "--ignore-fail-on-non-empty", STATE)

    def failed_upgrade(self, broken: str) -> None:
        """A broken payload is offered: exit 5, and what was there is there. Then the good one again."""
        clean, bare = self.is_clean(), self.converged is None and self.since == Since()
        before = self.ground.invocation(UNIT)
        good = self.asked
        self.ask(replace(good, payload=broken))
        ended = self._without_refusal(Mode.INSTALL)
        # One that does not even start is found out before anything is touched.
        assert ended.how == ("InvalidInputError" if broken == "exits" else "RolledBackError"), ended
        self.ground.wait_healthy()
        if clean:
            assert self.ground.invocation(UNIT) == before, "R8: kubelet was restarted by a rollback"
            assert self.ground.on_relay()
            assert self.ground.relay_answers()
        if bare:
            left = difference(_paths(self.before), files(self.host))
            left = [line for line in left if f" {STATE}" not in line]
            assert not left, "R8: after a first install that failed:\n" + "\n".join(left)
        self.ask(good)
        self.since.unknown = True

    def is_clean(self) -> bool:
        """Whether all is installed as asked, and runs."""
        if self.converged != self.asked or self.since != Since():
            return False
        return self.ground.on_relay() and self.ground.relay_answers()

    # -- a daemon ---------------------------------------------------------

    def start_watcher(self) -> None:
        """From now on somebody is there to repair; first of all, to install."""
        self.watcher = Watcher(self.node)
        self.since.unknown = True

    def end_watcher(self) -> None:
        """It goes, and leaves all as it is."""
        watcher, self.watcher = self.watcher, None
        if watcher is not None:
            try:
                watcher.end_well()
            finally:
                watcher.kill()

    def kill_watcher(self) -> None:
        """Its container dies with the host."""
        watcher, self.watcher = self.watcher, None
        if watcher is not None:
            watcher.kill()

    def watched(self, before: tuple[str, str]) -> None:
        """After a deed: with a daemon there, all is right again; in a pause nothing happens."""
        if self.watcher is None:
            return
        if self.paused:
            self._as_paused = files(self.host)
            return
        if self.since.stopped:
            return
        self.clear_the_way()
        since = self.since
        restarts = since.proxy_edited or since.proxy_started or since.kubelet_started or since.unknown
        restarts |= since.base_edited or since.agent_goes
        self.watcher.wait(self._looks_right)
        after = self.ground.invocations()
        assert restarts or self.asked != self.converged or after == before, "R3: a restart for nothing"
        self._has_converged(self.asked)
        self.expect_converged()

    def undisturbed(self) -> None:
        """In a pause nothing was changed since the last deed."""
        if self.watcher is not None and self.paused:
            left = difference(self._as_paused, files(self.host))
            # A look that was under way when the pause began holds the lock until it has seen.
            left = [line for line in left if " /run/" not in line]
            assert not left, "in a pause:\n" + "\n".join(left)

    def _looks_right(self) -> bool:
        ended = run_apart(self.node, Mode.INSTALL, only_look=True)
        return ended.how == "nothing" and self.ground.on_relay() and self.ground.relay_answers()

    # -- what others do, too ------------------------------------------------

    def note(self, path: str) -> None:
        """Somebody else's path is from now on as they have left it."""
        for name in [name for name in self.before if name == path or name.startswith(f"{path}/")]:
            del self.before[name]
        self.before.update(walk(self.host.root, self.node.path(path)))

    def restart(self, unit: str) -> None:
        """Somebody restarts a unit; should it fail, kubelet must be up all the same."""
        if unit == UNIT and self.ground.is_masked():
            self.unmask()
        self.host.systemctl("restart", unit, check=False)
        self.since.proxy_started = True  # kubelet's start may bring it up
        if unit == UNIT:
            self.since.kubelet_started, self.since.stopped = True, False
        self.see_kubelet()

    def see_kubelet(self) -> None:
        """R12: whatever was done, kubelet is healthy; but nobody starts one that somebody has stopped."""
        if self.since.stopped:
            assert self.ground.is_stopped(), "kubelet was started, though somebody had stopped it"
        else:
            self.ground.wait_healthy()
        self.ground.expect_containers()


def _paths(picture: Mapping[str, Entry]) -> dict[str, Entry]:
    """A snapshot without what systemd says."""
    return {name: entry for name, entry in picture.items() if name.startswith("/")}
