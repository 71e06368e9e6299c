"""A node on which the system misbehaves, and what has to hold then."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Self

from tests.faults.hosts.cutoff import expect_up
from tests.faults.hosts.misfortunes.case import Before, Case, Kubelet, Reboot, good_version
from tests.faults.hosts.misfortunes.disk import SMALL
from tests.faults.hosts.misfortunes.program import argv, clock_environment
from tests.host.command import Ended, execute
from tests.host.daemon import BUSY
from tests.host.node import STATE, Node
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, healthz
from tests.lib.throwaway.snapshot import Entry, difference, files, walk

_SETTINGS = {"guardSeconds": 6, "startTimeoutSeconds": 8}
_UP_SECONDS = 6 + 60.0  # of a kubelet that may have to go without the relay, on a busy machine
# systemd does not reload with less than 16 MiB free there.
_SMALL_RUN = (
    "set -- $(df -k --output=used,iused /run | tail -1);"
    "mount -o remount,size=$(($1 + 24576))k,nr_inodes=$(($2 + 500)) /run"
)
_AFTER_BOOT = 60.0  # seconds: three starts of the proxy, for which kubelet does not wait then
_SLACK = 60.0  # seconds after which a run that does not end is ended
_TRANSIENT = "/run/systemd/transient"  # what somebody has started by systemd-run
#: What each start of the proxy leaves, and each run.
_OF_ITSELF = (STATE, "/run/cri-resmgr", "/var/lib/cri-resmgr", "/etc/standin-", _TRANSIENT)
#: Exit codes that promise that all is as it was.
_AS_BEFORE = (2, 4, 5, 75)
_DOCUMENTED = (0, 2, 4, 5, 6, 75)
_configs = count(1)


class Stage:
    """A host for the cases of a group, which is good again after each."""

    def __init__(self, scratch: Path, group: str) -> None:
        self._small = SMALL if group == "full" else {}
        self._scratch = scratch
        self._host = ThrowawayHost(boot=False)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            host = stack.enter_context(self._host)
            for directory, size in self._small.items():
                # From another mount namespace an empty directory can be removed from below what is mounted.
                place = host.disk / directory[1:]
                place.mkdir(parents=True, exist_ok=True)
                (place / ".theirs").touch()
                host.lay_file_system(directory, size)
            host.boot()
            self.node = Node(host, self._scratch)
            self.node.command.set(kubelet=_SETTINGS)
            self._make_run_small()
            self._before = self._files()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def _make_run_small(self) -> None:
        if self._small:
            self._host.run("sh", "-c", _SMALL_RUN)

    def _files(self) -> Mapping[str, Entry]:
        """Also those of file systems beside the host's disk."""
        root = self._host.root
        return files(self._host) | {
            path: entry for name in self._small for path, entry in walk(root, root / name[1:])
        }

    def play(self, case: Case, reboot: Reboot = Reboot.NEVER, seconds: float = 0.0) -> list[str]:
        """What did not hold, a line each. A power cut comes `seconds` after the misfortune, when the run has
        begun to work, or has ended."""
        self._prepare(case.before)
        before, kubelet = self._files(), self._host.show(UNIT, "InvocationID")
        try:
            if reboot is Reboot.MEANWHILE:
                wrong = [*self._cut_off(case, seconds)]
            else:
                wrong = [*_judge(case, *self._run(case)), *self._judge_kubelet(case, kubelet)]
                if case.code in _AS_BEFORE:
                    wrong += _changed(before, self._files(), *_OF_ITSELF, *case.theirs)
            if reboot is Reboot.AFTERWARDS:
                self._host.poweroff(case.seconds + _SLACK)
                wrong += self._boot(case)
        finally:
            case.over(self.node)
        return [*wrong, *self._go_on(case)]

    def _prepare(self, before: Before) -> None:
        node = self.node
        node.run("remove" if before is Before.BARE else "install")
        if before is Before.UPGRADE:
            good_version(node)
        if before is Before.CONFIG:
            node.fallback(f"policy:\n  Active: none\nlogger:\n  Debug: number-{next(_configs)}\n")

    def _run(self, case: Case, cut: float | None = None) -> tuple[Ended, float]:
        """The run in which it happens, and how long it has taken; with `cut` it ends with the host."""
        node = self.node
        if not case.when:
            case.happens(node)
        started = time.monotonic()
        with subprocess.Popen(
            [*argv(waits=True, clock=case.clock), *node.command.globals(), case.verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clock_environment(node) if case.clock else None,
        ) as process:
            alarm = threading.Timer(case.seconds + _SLACK, process.kill)
            alarm.start()
            said = [*_until(process, case.when)]
            if case.when and said and case.when in said[-1]:
                waits = time.monotonic()
                case.happens(node)
                started += time.monotonic() - waits  # the run stands still
            elif case.when:
                said.append(f"[it never said {case.when}]")
            assert process.stdin is not None
            process.stdin.close()
            if cut is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(cut)
                process.kill()
                node.host.kill()
            assert process.stdout is not None
            said += process.stdout
            code = process.wait()
            alarm.cancel()
        return Ended(code, "".join(said), ""), time.monotonic() - started

    def _cut_off(self, case: Case, seconds: float) -> Iterator[str]:
        """The host goes with the run; the next one finds what has outlived the boot."""
        self._run(case, seconds)
        yield from self._boot(case)
        started = time.monotonic()
        bound = max(case.seconds, _AFTER_BOOT)
        ended = execute(*self.node.command.globals(), case.verb, timeout=bound + _SLACK)
        took = time.monotonic() - started
        if ended.code not in (*_DOCUMENTED, case.code) or took > bound + BUSY:
            yield f"after the boot it exits with {ended.code} in {took:.1f} s: {ended.said}"
        if not case.may_boot_sick and healthz(self._host) != "ok":
            yield f"kubelet is not healthy after a run after the boot, which said: {ended.said}"

    def _boot(self, case: Case) -> Iterator[str]:
        """Nobody looks after it: kubelet comes up by itself."""
        self._host.boot(wait=False)
        if case.may_boot_sick:
            self._host.systemctl("is-system-running", "--wait", check=False)
        else:
            try:
                expect_up(self.node, _UP_SECONDS, crashes=case.crashes)
            except (AssertionError, HostError) as error:
                yield f"after a boot: {error}"
        self._make_run_small()

    def _judge_kubelet(self, case: Case, invocation: str) -> Iterator[str]:
        node, well = self.node, healthz(self._host) == "ok"
        if well is (case.kubelet is Kubelet.SICK):
            yield f"kubelet is {'' if well else 'not '}healthy"
        if case.kubelet is Kubelet.STAYED and node.host.show(UNIT, "InvocationID") != invocation:
            yield "kubelet was restarted"
        if case.kubelet in (Kubelet.RELAY, Kubelet.OWN):
            on_relay = _on_relay(node)
            if on_relay is not (case.kubelet is Kubelet.RELAY):
                yield f"kubelet is {'' if on_relay else 'not '}on the relay"

    def _go_on(self, case: Case) -> Iterator[str]:
        """The cause is gone."""
        node, verb = self.node, "remove" if case.verb == "remove" else "install"
        ended = node.command(verb)
        if ended.code != 0:
            yield f"the next run exits with {ended.code}: {ended.said}"
        if healthz(self._host) != "ok" or _on_relay(node) is (verb == "remove"):
            yield f"kubelet is not healthy on its endpoint after the next run: {ended.said}"
        if verb == "remove":
            yield from _changed(self._before, self._files(), _TRANSIENT, *case.theirs)
            return
        again = node.command(verb)
        if again.out != "nothing to do\n":
            yield f"the run after the next: {again.said}"


def _until(process: subprocess.Popen[str], words: str) -> Iterator[str]:
    """What it says until a line with these words, after which it waits, or until its end."""
    assert process.stdout is not None
    assert process.stdin is not None
    for line in iter(process.stdout.readline, ""):
        yield line
        if words in line:
            return
        with suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.flush()


def _judge(case: Case, ended: Ended, seconds: float) -> Iterator[str]:
    wrong = [f"it does not say {word!r}" for word in case.says if word not in ended.said]
    if ended.code != case.code:
        wrong.append(f"it exits with {ended.code}, not {case.code}")
    if "(internal error" in ended.said or "[it never said" in ended.said:
        wrong.append("it fails as it should not")
    if seconds > case.seconds + BUSY:
        wrong.append(f"it takes {seconds:.1f} s, not {case.seconds:g}")
    if wrong:
        yield f"{', '.join(wrong)}:\n{ended.said}"


def _changed(before: Mapping[str, Entry], after: Mapping[str, Entry], *allowed: str) -> Iterator[str]:
    left = [line for line in difference(before, after) if not line.split()[1].startswith(allowed)]
    if left:
        yield f"not as before: {left}"


def _on_relay(node: Node) -> bool:
    try:
        return node.on_relay()
    except (HostError, OSError):
        return False
