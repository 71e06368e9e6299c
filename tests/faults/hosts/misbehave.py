"""The system misbehaves: a table of what it does and when, and of what the run then says and leaves.

Each case is played on a real host. The run has to end in the time and with the exit code of the table, with
words that name the cause and what helps, in a state that the table names; when the cause is gone, the next
run converges. Cases that belong together share a host, which is good again after each.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.faults import Report
from tests.faults.hosts.cases import GROUPS, SMALL
from tests.faults.hosts.misfortune import Before, Case, Kubelet
from tests.host.command import PROGRAM, RELAY_FLAG, Ended
from tests.host.node import STATE, Node
from tests.throwaway.host import HostError, ThrowawayHost
from tests.throwaway.kubelet import UNIT, healthz, running_arguments, wait_healthy
from tests.throwaway.snapshot import Entry, difference, files

_versions = count(1)
# systemd does not reload with less than 16 MiB free there.
_SMALL_RUN = (
    "set -- $(df -k --output=used,iused /run | tail -1);"
    "mount -o remount,size=$(($1 + 24576))k,nr_inodes=$(($2 + 500)) /run"
)
_SLACK = 60.0  # seconds after which a run that does not end is ended
#: What each start of the proxy leaves, and each run.
_TRANSIENT = "/run/systemd/transient"  # what somebody has started by systemd-run
_OF_ITSELF = (STATE, "/run/cri-resmgr", "/var/lib/cri-resmgr", "/etc/standin-", _TRANSIENT)


class Stage:
    """A node on which cases are played, one after the other."""

    def __init__(self, host: ThrowawayHost, scratch: Path, group: str) -> None:
        for directory, size in SMALL.items() if group == "full" else ():
            # From another mount namespace an empty directory can be removed from below what is mounted there.
            host.run("sh", "-c", f"mkdir -p {directory} && touch {directory}/.theirs")
            host.run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", directory)
            host.run("touch", f"{directory}/.theirs")
        if group == "full":
            host.run("sh", "-c", _SMALL_RUN)
        self.node = Node(host, scratch)
        self.node.command.set(kubelet={"guardSeconds": 6, "startTimeoutSeconds": 8})

    def play(self, case: Case) -> list[str]:
        """What did not hold, a line each."""
        node = self.node
        self._prepare(case.before)
        before, kubelet = files(node.host), node.host.show(UNIT, "InvocationID")
        try:
            ended, seconds = self._run(case)
            wrong = [*_judge_words(case, ended, seconds), *self._judge_kubelet(case, kubelet)]
            if case.as_before and case.code != 0:
                wrong += _changed(before, files(node.host), case.theirs)
            if case.reboot:
                wrong += self._reboot()
        finally:
            case.over(node)
        return [*wrong, *self._go_on(case)]

    def _prepare(self, before: Before) -> None:
        node = self.node
        if before is Before.BARE:
            node.run("remove")
        else:
            node.run("install")
        if before is Before.UPGRADE:
            node.upgrade(version=f"v0.9.{next(_versions)}")
        if before is Before.BAD:
            node.upgrade(fault={"exitAfterSeconds": 0.5}, version=f"v0.9.{next(_versions)}")
        if before is Before.CONFIG:
            node.fallback(f"policy:\n  Active: none\nlogger:\n  Debug: number-{next(_versions)}\n")

    def _run(self, case: Case) -> tuple[Ended, float]:
        node, started = self.node, time.monotonic()
        if not case.when:
            case.happens(node)
        with subprocess.Popen(
            [str(PROGRAM), *node.command.globals(), case.verb],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            alarm = threading.Timer(case.seconds + _SLACK, process.kill)
            alarm.start()
            said, due = [], bool(case.when)
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if due and case.when in line:
                    due = False
                    case.happens(node)
            code = process.wait()
            alarm.cancel()
        if due:
            said.append(f"[it never said {case.when}]")
        return Ended(code, "".join(said), ""), time.monotonic() - started

    def _judge_kubelet(self, case: Case, invocation: str) -> Iterator[str]:
        node, well = self.node, healthz(self.node.host) == "ok"
        if well is (case.kubelet is Kubelet.SICK):
            yield f"kubelet is {'' if well else 'not '}healthy"
        if case.kubelet is Kubelet.STAYED and node.host.show(UNIT, "InvocationID") != invocation:
            yield "kubelet was restarted"
        if case.kubelet in (Kubelet.RELAY, Kubelet.OWN):
            on_relay = _on_relay(node)
            if on_relay is not (case.kubelet is Kubelet.RELAY):
                yield f"kubelet is {'' if on_relay else 'not '}on the relay"

    def _reboot(self) -> Iterator[str]:
        node = self.node
        node.host.reboot(wait=False)
        try:
            wait_healthy(node.host, timeout=20)
        except HostError as error:
            yield f"after a reboot: {error}"

    def _go_on(self, case: Case) -> Iterator[str]:
        """The cause is gone."""
        node = self.node
        ended = node.command(case.verb)
        if ended.code != 0:
            yield f"the next run exits with {ended.code}: {ended.said}"
        if case.verb == "remove":
            before = {path: entry for path, entry in node.before.items() if path.startswith("/")}
            left = difference(before, files(node.host))
            left = [line for line in left if not line.split()[1].startswith((_TRANSIENT, *case.theirs))]
            if left:
                yield f"a removal leaves: {left}"
            return
        status = node.command("status")
        if status.code != 0 or not _on_relay(node):
            yield f"after the next run: {status.said}"
        again = node.command(case.verb)
        if again.out != "nothing to do\n":
            yield f"the run after the next: {again.said}"


def _judge_words(case: Case, ended: Ended, seconds: float) -> Iterator[str]:
    wrong = [f"it does not say {word!r}" for word in case.says if word not in ended.said]
    if ended.code != case.code:
        wrong.append(f"it exits with {ended.code}, not {case.code}")
    if "(a bug" in ended.said or "[it never said" in ended.said:
        wrong.append("it fails as it should not")
    if seconds > case.seconds:
        wrong.append(f"it takes {seconds:.1f} s, not {case.seconds:g}")
    if wrong:
        yield f"{', '.join(wrong)}:\n{ended.said}"


def _changed(before: Mapping[str, Entry], after: Mapping[str, Entry], theirs: Sequence[str]) -> Iterator[str]:
    left = [
        line for line in difference(before, after) if not line.split()[1].startswith((*_OF_ITSELF, *theirs))
    ]
    if left:
        yield f"not as before: {left}"


def _on_relay(node: Node) -> bool:
    try:
        return RELAY_FLAG in running_arguments(node.host)
    except (HostError, OSError):
        return False


class Theatre:
    """Has one stage at a time: a host of its own for the cases of each group that belong together."""

    def __init__(self) -> None:
        self._group = ""
        self._stage: Stage | None = None
        self._open = ExitStack()

    def __enter__(self) -> Theatre:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def stage(self, group: str) -> Stage:
        """The host of that group; the one before it ends."""
        if self._stage is None or group != self._group:
            self._open.close()
            host = self._open.enter_context(ThrowawayHost())
            scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="misbehave-"))
            self._group, self._stage = group, Stage(host, Path(scratch), group)
        return self._stage


def run(report: Report, amount: int) -> None:
    """Every case of the table, `amount` times."""
    with Theatre() as theatre:
        for group, cases in GROUPS.items():
            for case in cases:
                wrong = [line for _ in range(amount) for line in theatre.stage(group).play(case)]
                report(f"{group}: {case.name}", amount, wrong)
