"""Power loss: each plan is recorded once, and the next run is tried on every disk that a crash may leave.

The next run boots the node from that disk, converges with the same verb, finds nothing to do when
asked again, and its removal gives back the disk as it was before us, to the byte. Killing a process
could not show this: the page cache would survive.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path

from installer.errors import InstallerError, RolledBackError
from installer.inputs.load import Consent, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import silent
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults import Report
from tests.faults.disks.crash import Disk, Tree, build, read_tree
from tests.faults.disks.node import KUBELET, Node, bare_node, earlier_node, node_after_takeover, program
from tests.faults.disks.recorder import Careless, Operation, Recorder

_RUN = "/run"  # a tmpfs: not on the disk
_EDITED = f"{paths.OUR_STATE}/edited"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run is given: the program's version and whether it works, and cri-resmgr's configs by name."""

    version: str = "one"
    works: bool = True
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`before` is what had been installed; `now` what is installed while the power goes, None: removed.
    In between, somebody has put the content `edit` into our fallback.cfg, kubelet is `held`, or the proxy's
    unit is `linked` to kubelet's (`systemctl add-wants`). `earlier`: it takes over what another installer has
    done."""

    name: str
    now: Inputs | None
    before: Inputs | None = None
    edit: bytes = b""
    held: bool = False
    linked: bool = False
    earlier: bool = False

    @property
    def bare(self) -> Tree:
        """The disk without us, before all or after a removal."""
        tree = node_after_takeover() if self.earlier else bare_node()
        return {path: entry for path, entry in tree.items() if path != _RUN}

    @property
    def fails(self) -> bool:
        return self.now is not None and not self.now.works


_FIRST = Inputs()
_FALLBACK = Inputs(configs=(("fallback.cfg", "policy:\n  Active: balloons\n"),))
_FORCED = Inputs(configs=(("force.cfg", "policy:\n  Active: none\n"),))
_REREAD = Inputs(configs=(("force.cfg", "policy:\n  Active: none\nlogger:\n  Debug: cache\n"),))
_MORE = Inputs(configs=(*_FORCED.configs, ("EXTRA_OPTIONS.cfg", 'EXTRA_OPTIONS="--metrics-interval 30s"\n')))
PLANS = (
    Plan("first install", _FIRST),
    Plan("upgrade", Inputs("two"), _FIRST),
    Plan("configuration change", _FALLBACK, _FIRST),
    Plan("a signal", _REREAD, _FORCED),
    Plan("fewer files", _FIRST, _MORE),
    Plan("rollback of a first install", Inputs("two", works=False)),
    Plan("rollback of an upgrade", Inputs("two", works=False), _FIRST),
    Plan("repair of an edit", _FIRST, _FIRST, edit=b"policy:\n  Active: static-pools\n"),
    Plan("end of a hold", _FIRST, _FIRST, held=True),
    Plan("removal", None, _FIRST),
    Plan("repair of a link", _FIRST, _FIRST, linked=True),
    Plan("removal with a link", None, _FIRST, linked=True),
    Plan("takeover", _FIRST, earlier=True),
)


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A plan's way: the disk it began with, what it did, and what a run that nothing disturbs leaves."""

    plan: Plan
    start: Tree
    log: tuple[Operation, ...]
    end: Tree
    on_relay: bool


@dataclass(frozen=True, slots=True)
class Crash:
    """A disk after `done` operations of the plan. `finished`: no run was at work any more."""

    done: int
    tree: Tree
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A disk from which the next run went wrong, and how."""

    crash: Crash
    why: str


class Bench:
    """Everything that is tried, below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._root = directory / "node"

    def record(self, plan: Plan) -> Recorded:
        """Carries the plan out on a node of its own."""
        self._lay(earlier_node() if plan.earlier else bare_node())
        if plan.before is not None:
            installed = self._run(Node(self._root, Careless()), plan.before, plan)
            assert installed == "changed", f"{plan.name}, what was before: {installed}"
        for path, content in ((paths.FALLBACK_CONFIG, plan.edit), (paths.HOLD, b"why\n" * plan.held)):
            if content:
                (self._root / path[1:]).write_bytes(content)
        if plan.linked:
            wants = self._root / paths.LINKS[1:] / f"{KUBELET}.wants"
            wants.mkdir()
            (wants / paths.PROXY_UNIT).symlink_to(paths.PROXY_UNIT_FILE)
        start = read_tree(self._root, (_RUN,))
        recorder = Recorder(self._root)
        node = Node(self._root, recorder)
        ended = self._run(node, plan.now, plan)
        assert ended == ("rolled back" if plan.fails else "changed"), f"{plan.name}: {ended}"
        # What is in our own directory shows by what comes out of it.
        end = read_tree(self._root, (_RUN, paths.OUR_STATE))
        return Recorded(plan, start, tuple(recorder.log), end, node.on_relay)

    def record_next(self, recorded: Recorded, crash: Crash) -> Recorded:
        """The run that follows on a crash, from the boot on."""
        self._lay(crash.tree)
        recorder = Recorder(self._root)
        self._run(Node(self._root, recorder), recorded.plan.now, recorded.plan)
        return replace(recorded, start=crash.tree, log=tuple(recorder.log))

    def try_out(self, recorded: Recorded, crash: Crash) -> str:
        """What is wrong with the next run on this disk; empty if nothing is."""
        if crash.finished and recorded.plan.now is None:
            # There need not be a next run.
            return _difference(crash.tree, recorded.plan.bare)
        return self._try_again(recorded, crash) or self._try_otherwise(recorded, crash)

    def _try_again(self, recorded: Recorded, crash: Crash) -> str:
        """The same verb follows, twice, and a removal."""
        plan, node = recorded.plan, self._boot(crash)
        if not node.kubelet_healthy():
            return "kubelet is not healthy after the boot"
        ended = self._run(node, plan.now, plan)
        if plan.fails != (ended == "rolled back"):
            return f"the next run: {ended}"
        found = read_tree(self._root, (_RUN, paths.OUR_STATE))
        found.pop(paths.TORN_CACHE, None)  # the power has torn the cache, and nothing else has what it says
        wrong = _difference(found, recorded.end)
        if wrong:
            return f"after the next run: {wrong}"
        if not node.kubelet_healthy():
            return "kubelet is not healthy after the next run"
        # A way back moves kubelet only where its own plan has moved it (R8).
        if not plan.fails and node.on_relay is not recorded.on_relay:
            return f"after the next run kubelet is {'' if node.on_relay else 'not '}on the relay"
        node.fake.calls.clear()
        ended = self._run(node, plan.now, plan)
        if ended != ("rolled back" if plan.fails else "nothing to do"):
            return f"the run after the next: {ended}, {node.fake.calls}"
        return self._remove(node, plan)

    def _try_otherwise(self, recorded: Recorded, crash: Crash) -> str:
        """Somebody has thought better of it: an install follows a removal, and a removal all else."""
        node = self._boot(crash)
        if recorded.plan.now is None:
            ended = self._run(node, _FIRST, recorded.plan)
            if ended not in ("changed", "nothing to do"):
                return f"an install instead: {ended}"
        if recorded.plan.earlier and not node.fake.files.state(paths.RECORD).size:
            return ""  # it has not begun, and nothing of it is ours
        wrong = self._remove(node, recorded.plan)
        return f"instead: {wrong}" if wrong else ""

    def _remove(self, node: Node, plan: Plan) -> str:
        """Everything is as before us, and somebody's edit is kept."""
        edit = plan.edit
        ended = self._run(node, None, plan)
        if ended not in ("changed", "nothing to do"):
            return f"removal: {ended}"
        if node.on_relay or not node.kubelet_healthy() or node.proxy_runs:
            return "after a removal: the units are not as before"
        left = read_tree(self._root, (_RUN,))
        if edit:
            kept = [left.pop(path) for path in sorted(left) if path.startswith(f"{_EDITED}/")]
            if [entry.content for entry in kept] != [edit]:
                return f"after a removal: of the edit this is kept: {kept}"
            for directory in (_EDITED, paths.OUR_STATE):
                left.pop(directory, None)
        wrong = _difference(left, plan.bare)
        return f"after a removal: {wrong}" if wrong else ""

    def _boot(self, crash: Crash) -> Node:
        self._lay(crash.tree)
        return Node(self._root, Careless())

    def _lay(self, tree: Tree) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        build(tree, self._root)
        (self._root / "run").mkdir(exist_ok=True)

    def _run(self, node: Node, inputs: Inputs | None, plan: Plan) -> str:
        """One run, and how it ended, in a word; anything but the contract's errors comes out."""
        mode = Mode.REMOVE if inputs is None else Mode.INSTALL
        payload, configs = self._inputs(inputs or _FIRST)
        settings = Settings(kubelet=KubeletSettings(settle_seconds=1))
        try:
            request = Request(mode, settings, payload, configs, consent=Consent(take_over=plan.earlier))
            changed = reconcile(request, node.fake.host, silent).changed
        except RolledBackError:
            return "rolled back"
        except InstallerError as error:
            return f"{type(error).__name__}: {error.message}"
        return "changed" if changed else "nothing to do"

    def _inputs(self, inputs: Inputs) -> tuple[Path, Path]:
        """The payload and the configs, made once."""
        directory = self._directory / sha256(repr(inputs).encode()).hexdigest()
        binary = directory / "opt/intel/bin/cri-resmgr"
        if not directory.exists():
            binary.parent.mkdir(parents=True)
            binary.write_bytes(program(inputs.version, works=inputs.works))
            binary.chmod(0o755)
            (directory / "configs").mkdir()
            for name, content in inputs.configs:
                (directory / "configs" / name).write_text(content)
        return directory, directory / "configs"


def crashes(recorded: Recorded, *, worst_only: bool = False) -> Iterator[Crash]:
    """Every different disk that a crash of the plan may leave, after each of its operations."""
    disk = Disk(recorded.start)
    seen = set()
    for done in range(len(recorded.log) + 1):
        if done:
            disk.apply(recorded.log[done - 1])
        for tree in disk.crashes(worst_only=worst_only):
            # The nonce and the times differ between runs, but a log is of one run.
            mark = hash(frozenset(tree.items()))
            if mark not in seen:
                seen.add(mark)
                yield Crash(done, tree)


def crashes_after_kill(bench: Bench, recorded: Recorded, done: int) -> Iterator[tuple[Recorded, Crash]]:
    """The plan is killed after `done` operations, the next run completes, and then the power goes: what
    that run has found done already need not be on the disk."""
    disk = Disk(recorded.start)
    for operation in recorded.log[:done]:
        disk.apply(operation)
    following = bench.record_next(recorded, Crash(done, next(disk.crashes(worst_only=True))))
    for operation in following.log:
        disk.apply(operation)
    both = replace(recorded, log=recorded.log[:done] + following.log)
    different = {frozenset(tree.items()): tree for tree in disk.crashes()}
    for tree in different.values():
        yield both, Crash(len(both.log), tree, finished=True)


def find_bad(bench: Bench, recorded: Recorded, tried: Iterable[Crash]) -> Iterator[Bad | None]:
    """Tries them one by one; None stands for one from which all went well."""
    for crash in tried:
        try:
            why = bench.try_out(recorded, crash)
        except Exception as error:  # whatever it is, it is what we look for
            why = f"{type(error).__name__}: {error}"
        yield Bad(crash, why) if why else None


def run(report: Report, amount: int, again: int = 8) -> None:
    """Tries `amount` disks of every plan, 0: every one. On every disk number `again` the power goes a second
    time, during the next run. After a kill at each operation it goes when the next run is done."""
    limit = amount or None
    with tempfile.TemporaryDirectory(prefix="power-", dir=_fast_directory()) as directory:
        bench = Bench(Path(directory))
        for plan in PLANS:
            recorded = bench.record(plan)
            once = list(islice(crashes(recorded), limit))
            _judge(bench, f"power lost: {plan.name}", {recorded: once}, report)
            nexts = [bench.record_next(recorded, crash) for crash in once[again // 2 :: again]]
            twice = {following: list(islice(crashes(following), limit)) for following in nexts}
            _judge(bench, "  and again in the next run", twice, report)
            killed: dict[Recorded, list[Crash]] = {}
            for done in range(len(recorded.log) + 1)[:limit]:
                for both, crash in crashes_after_kill(bench, recorded, done):
                    killed.setdefault(both, []).append(crash)
            _judge(bench, "  killed, and power lost after the next run", killed, report)


def _judge(bench: Bench, what: str, tries: Mapping[Recorded, Sequence[Crash]], report: Report) -> None:
    """Tries them all and reports in one row."""
    bad = [
        describe(recorded, one)
        for recorded, tried in tries.items()
        for one in find_bad(bench, recorded, tried)
        if one
    ]
    report(what, sum(len(tried) for tried in tries.values()), bad)


def describe(recorded: Recorded, bad: Bad) -> str:
    """After which operation the power went, and what was wrong then, for people."""
    last = recorded.log[bad.crash.done - 1] if bad.crash.done else "the first"
    return f"{recorded.plan.name}: power lost after {bad.crash.done} ({last}): {bad.why}"


def _fast_directory() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None


def _difference(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Which paths differ, in words; empty if none does."""
    return "; ".join(
        f"{path} is {found.get(path, 'absent')}, not {wanted.get(path, 'absent')}"
        for path in sorted({*found, *wanted})
        if found.get(path) != wanted.get(path)
    )
