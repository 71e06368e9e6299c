"""R7: kill -9 of the installer, before and after each of its effects and at random instants.

The effects are counted while a run makes them, so a new one is tried by itself. After each the next run has
to converge, with no forgotten and at most one needless restart, and to leave nothing of the first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.model.paths import RELAY_ENDPOINT
from installer.model.state import Mode
from tests.faults import Report
from tests.faults.ways import SETTINGS, WAYS, Starts, Way
from tests.host.command import PROGRAM
from tests.host.mortal import STARTED, DieSoon, Instant, converge, temporary_directory
from tests.host.node import PROXY, STATE, Node
from tests.host.product import put_right
from tests.throwaway.host import HostError, ThrowawayHost
from tests.throwaway.kubelet import UNIT, wait_healthy
from tests.throwaway.snapshot import difference, files

_MORE_THAN_ANY_PLAN_HAS = 2000
UP_SECONDS = float(SETTINGS["guardSeconds"]) + 15.0  # of a kubelet that may have to go without the relay
STEPS = 16  # most have more than that
SOON = 0.2  # seconds, in which most steps end
_UNITS = (UNIT, PROXY)
_SLOWLY = 60.0  # seconds, in which any command ends

Cut = Callable[[Node], str]
"""Runs the way's command and cuts it off: `killed`, or how it ended otherwise."""


@dataclass(slots=True)
class Tried:
    """How many instants there were, and of each that did not hold a line."""

    count: int = 0
    bad: list[str] = field(default_factory=list)


class Bench:
    """A node to be tried on; a new one when something has gone wrong with it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._count = 0
        self.node = self._boot()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _boot(self) -> Node:
        self._count += 1
        scratch = self._scratch / f"node-{self._count}"
        scratch.mkdir()
        temporary_directory(scratch).mkdir()
        with contextlib.ExitStack() as stack:
            node = Node(stack.enter_context(ThrowawayHost()), scratch)
            self._stack = stack.pop_all()
        return node

    def attempt(self, what: str, trial: Callable[[Node], str], tried: Tried) -> str:
        """Makes a trial, and a line of what has not held in it. Returns what the trial did, `` if nothing."""
        tried.count += 1
        try:
            return trial(self.node)
        except (AssertionError, HostError, OSError, subprocess.SubprocessError) as error:
            tried.bad.append(f"{what}: {type(error).__name__}: {error}")
            self._stack.close()
            self.node = self._boot()
            return ""

    def finish(self, tried: Tried) -> None:
        """Nothing is left of all that, by systemd's word, too."""

        def leave(node: Node) -> str:
            put_right(node)
            assert converge(node, Mode.REMOVE) in ("changed", "nothing")
            node.expect_untraced()
            return "left"

        self.attempt("at the end", leave, tried)
        tried.count -= 1


# -- a trial -------------------------------------------------------------------------------------------


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
    journal.expect({UNIT: way.kubelet.and_more(kubelet), PROXY: way.proxy.and_more(proxy)})
    if way.proxy_read[0]:
        journal.expect_read(*way.proxy_read)
    way.lay(node, number)
    return outcome


def fail_again(node: Node, way: Way, number: int) -> None:
    """An installation that fails, if it has anything to do: then all is as before the way began, or as after
    it when that was cut off at its very end."""
    if way.spoil:
        way.spoil(node, number)
    ended = converge(node, Mode.INSTALL)
    if ended == "nothing":
        return
    assert ended.startswith("RolledBackError"), f"the failing run: {ended}"
    if not way.installed:
        expect_bare(node, STATE)
        return
    plans = []
    for inputs in (way.mend, way.ask):
        inputs(node, number)
        plans.append(node.command("plan"))
    assert any(plan.code == 0 for plan in plans), f"after the failing run: {plans[0].said}"


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
    proxy are theirs; a proxy that cannot start is tried again and again."""
    if number % 5 == 3 and way.kubelet_works:
        node.host.systemctl("restart", UNIT)
        wait_healthy(node.host, UP_SECONDS)
        return 1, 1
    if number % 3 == 1:
        done = node.host.run("systemctl", "restart", PROXY, check=False)
        return 0, 1 if done.returncode == 0 else 1000
    return 0, 0


def expect_settled(node: Node, mode: Mode) -> None:
    """Nothing is left to do, kubelet is healthy on an endpoint that answers, and nothing is orphaned."""
    ended = converge(node, mode)
    assert ended == "nothing", f"the run after the next: {ended}"
    if mode is Mode.INSTALL:
        wait_healthy(node.host)
        assert node.on_relay(), "kubelet is not on the relay"
        assert SocketCri(RootedFiles(node.host.root)).answers(RELAY_ENDPOINT, 2.0), "the relay is silent"
    else:
        expect_bare(node)
    left = [path.name for path in temporary_directory(node.scratch).iterdir()]
    assert not left, f"left below the directory for temporary files: {left}"


def expect_bare(node: Node, *allowed: str) -> None:
    """Nothing of ours is left among the files; systemd is asked at the end only, it takes its time."""
    wait_healthy(node.host)
    assert not node.on_relay(), "kubelet is on the relay"
    before = {path: entry for path, entry in node.before.items() if not path.startswith("unit:")}
    lines = difference(before, files(node.host))
    left = [line for line in lines if not line.split()[1].startswith(("/etc/standin-", *allowed))]
    assert not left, "\n".join(left)


def expect_no_process(node: Node) -> None:
    """Whatever a killed run had started goes with it."""
    ours = str(temporary_directory(node.scratch)).encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = process.read_bytes()
            assert ours not in said, f"left running: {said.decode().split(chr(0))}"


class Journal:
    """What the units go through from now on, by systemd's own journal."""

    _CURSOR = "--cursor-file=/run/journal-of-faults"  # where the last reading has ended

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known = {
            *self._invocations(),
            *((unit, node.host.show(unit, "InvocationID")) for unit in _UNITS),
        }

    def _invocations(self) -> set[tuple[str, str]]:
        """The unit and the ID of each start that was heard of since the last time."""
        entries = self._read(self._CURSOR, *(f"UNIT={unit}" for unit in _UNITS))
        return {(entry["UNIT"], entry["INVOCATION_ID"]) for entry in entries if "INVOCATION_ID" in entry}

    def _read(self, *words: str) -> list[dict[str, Any]]:
        fields = "UNIT,INVOCATION_ID,MESSAGE"
        argv = ("journalctl", "--quiet", "--no-pager", "--output=json", f"--output-fields={fields}", *words)
        self._node.host.run("journalctl", "--sync")
        return [json.loads(line) for line in self._node.host.run(*argv).stdout.splitlines()]

    def expect(self, starts: Mapping[str, Starts]) -> None:
        """Each unit was started so often."""
        found = [unit for unit, _ in self._invocations() - self._known]
        for unit, bounds in starts.items():
            count = found.count(unit)
            assert bounds.least <= count <= bounds.most, f"{unit} was started {count} times: {bounds}"

    def expect_read(self, path: str, said: str) -> None:
        """The running proxy has read the file as it is now."""
        invocation = self._node.invocations()[1]
        entries = self._read(f"_SYSTEMD_INVOCATION_ID={invocation}")
        read = [int(entry["__REALTIME_TIMESTAMP"]) for entry in entries if said in str(entry["MESSAGE"])]
        written = self._node.path(path).stat().st_mtime_ns // 1000
        assert read, f"the proxy has not said: {said}"
        assert read[-1] >= written, f"the proxy has not read the {path} that is there"


# -- the instants --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Killed:
    """A trial: the way's run is killed at the instant, of the real command line when `soon` is."""

    way: Way
    number: int
    instant: Instant | None = None
    soon: DieSoon | None = None
    as_command: bool = False

    def __str__(self) -> str:
        who = "the command line " if self.as_command else ""
        return f"{self.way.name}: {who}killed {self.instant or self.soon}"

    def __call__(self, node: Node) -> str:
        return try_out(node, self.way, self.number, self._cut)

    def _cut(self, node: Node) -> str:
        if self.instant:
            return converge(node, self.way.mode, self.instant)
        assert self.soon
        if self.as_command:
            return kill_command(node, self.way.mode, self.soon)
        return converge(node, self.way.mode, listen=self.soon)


def at_each_instant(bench: Bench, way: Way, stride: int = 1, first: int = 0) -> Tried:
    """Cuts the way off before and after each of its effects (or every `stride`-th instant), until it ends."""
    tried = Tried()
    node: Node | None = None
    for number in itertools.count(first, stride):
        assert number < _MORE_THAN_ANY_PLAN_HAS, f"{way.name} does not end"
        if bench.node is not node:
            node = bench.node
            way.lay_inputs(node)
        trial = Killed(way, number, Instant(number // 2 + 1, bool(number % 2), way.since))
        if bench.attempt(str(trial), trial, tried) not in ("killed", ""):
            break
    bench.finish(tried)
    return tried


def at_random(bench: Bench, amount: int, seed: int) -> Tried:
    """Cuts ways off at random instants, a quarter of them as the real command line."""
    tried = Tried()
    for number in range(amount):
        chance = random.Random(f"{seed}-{number}")
        way = chance.choice(WAYS)
        soon = DieSoon(chance.randrange(STEPS), chance.uniform(0, SOON), way.since)
        trial = Killed(way, number, soon=soon, as_command=chance.random() < 0.25)
        way.lay_inputs(bench.node)
        bench.attempt(f"seed {seed}, number {number}: {trial}", trial, tried)
    bench.finish(tried)
    return tried


def start_command(node: Node, mode: Mode) -> subprocess.Popen[str]:
    """The real command line, which tells all that happens as JSON lines."""
    verb = "install" if mode is Mode.INSTALL else "remove"
    return subprocess.Popen(
        [str(PROGRAM), *node.command.globals(), "--output", "json", verb],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"TMPDIR": str(temporary_directory(node.scratch)), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def until_due(process: subprocess.Popen[str], soon: DieSoon) -> Iterator[str]:
    """What the command says until the step from which the seconds count, or until its end."""
    assert process.stdout is not None
    if soon.is_due(STARTED.kind):
        return
    while line := process.stdout.readline():
        yield line
        if line.startswith("{") and soon.is_due(json.loads(line)["kind"]):
            return


def kill_command(node: Node, mode: Mode, soon: DieSoon) -> str:
    """Runs the real command line and kills it then; returns what `converge` would."""
    with start_command(node, mode) as process:
        try:
            said = "".join(until_due(process, soon))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(soon.seconds)
        finally:
            process.kill()
        said += process.communicate(timeout=_SLOWLY)[0]
        if process.returncode < 0:
            return "killed"
        return {0: "changed", 5: "RolledBackError"}.get(process.returncode, said)


def run(report: Report, amount: int) -> None:
    """Every instant of every way, and `amount` random ones."""
    with tempfile.TemporaryDirectory(prefix="killed-") as directory, Bench(Path(directory)) as bench:
        for way in WAYS:
            tried = at_each_instant(bench, way)
            report(f"killed: {way.name}", tried.count, tried.bad)
        tried = at_random(bench, amount, random.randrange(1 << 32))
        report("killed at random instants", tried.count, tried.bad)
