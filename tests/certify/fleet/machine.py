"""One node of the fleet that is enumerated: a host, its kubelet and its daemon, which goes on only when it is
told to. What decides, asks and remembers is the program's own; the node and its daemon are the simulator's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from installer.cluster.kubeapi import Answer, Api
from installer.cluster.sync import SyncRequest
from installer.cluster.sync_child import Sync, parse_request
from installer.daemon.decision import Action
from installer.host.command import Finished
from installer.model.daemon import Job
from installer.model.fleet import REMOVAL, AskFirst, FleetRules, PlannedWork
from installer.model.jsontext import to_json
from installer.model.result import RunResult
from installer.model.window import Window
from tests.certify.values import EPOCH, NOW
from tests.faults.fleets.sim import MemoryFiles, Nature, SimNode
from tests.faults.fleets.watcher import Watcher
from tests.lib.fleet_bench import NAMESPACE

FAILED = RunResult(5, True, remembered=True, rolled_back=True, restarts=1, reason="it does not start")
"""How a pass may end that a generation fails: it is blamed; its host is; or it is killed."""
FAULTY = RunResult(5, True, rolled_back=True, restarts=1, reason="the disk is full")
KILLED = RunResult(137, True, restarts=1, reason="killed")
ENDS = {"blamed": FAILED, "faulty": FAULTY, "killed": KILLED}
_DAYS, _HOUR = tuple(range(7)), 60  # at EPOCH it is 22:13
WINDOWS = {
    "": (),
    "shut": (Window(_DAYS, 22 * _HOUR + 14, 23 * _HOUR, "UTC"),),
    "open": (Window(_DAYS, 22 * _HOUR, 23 * _HOUR, "UTC"),),
    "unknown": (Window(_DAYS, 22 * _HOUR, 23 * _HOUR, "Mars/Olympus"),),
}
"""What the settings say of the rollout's windows."""
GRID = 10.0  # seconds: timers are late until the next of these, so that much is due at once
_AT_ONCE = 0.05
_TIMERS = ("turn", "sync", "ended")
_KEEPS = "~starts~"


def half() -> float:
    """The chance of the program: in the middle. It varies times alone, and which permit is tried first."""
    return 0.5


class Instant:
    """The clock of a state: it stands still."""

    now = NOW


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    body: Any = None


class _PendingError(BaseException):
    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.call = call


class RestlessError(Exception):
    """A daemon begins one thing after the other, and time does not pass."""


class Script:
    """An API server that has answered so far; the next call ends it."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        if not self._answers:
            raise _PendingError(Call(method, path, body))
        return self._answers.pop(0)


class Child:
    """A sync's process: how far it has come, is what it was answered so far."""

    is_gone = True  # when it has ended

    def __init__(self, job: Job, wall: float, now: float, window: str) -> None:
        self.began_at, self.window = now, window
        self.text, self.wall, self.on_line, self.on_end = job.argv[-1], wall, job.on_line, job.on_end
        self.answers: tuple[Answer, ...] = ()
        self.pending: Call | None = None
        self.reply = ""
        self.late = False  # its reply is on its way
        self.thwarted = False  # others are always first to write
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    @property
    def request(self) -> SyncRequest:
        request = parse_request(self.text)
        return replace(request, rules=replace(request.rules, window=WINDOWS[self.window]))

    def go_on(self) -> None:
        """To its next request, or its end."""
        try:
            found = Sync(Script(self.answers), self.request, lambda: self.wall, half).run()
        except _PendingError as error:
            self.pending = error.call
        else:
            self.pending, self.reply = None, to_json(found)


class StepLoop:
    """The port Loop. Timers fire when they are told to."""

    def __init__(
        self, clock: Any, api: Api, wall: Callable[[], float], _is_over: Callable[[], bool] | None = None
    ) -> None:
        self._clock, self._api, self._wall = clock, api, wall
        self.timers: dict[int, tuple[float, Callable[[], None]]] = {}
        self.child: Child | None = None

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        number = 1 + _TIMERS.index(call_name(call))
        assert number not in self.timers
        whole = 0.0 if seconds <= _AT_ONCE or number == 3 else float(-int(-seconds // GRID)) * GRID
        self.timers[number] = (self._clock.now + whole, call)
        return number

    def cancel(self, timer: int) -> None:
        self.timers.pop(timer, None)

    def due(self) -> list[str]:
        return sorted({call_name(call) for at, call in self.timers.values() if at <= self._clock.now})

    def fire(self, name: str) -> None:
        number = next(
            number
            for number, (at, call) in sorted(self.timers.items())
            if at <= self._clock.now and call_name(call) == name
        )
        self.timers.pop(number)[1]()  # who cancels it now, cancels nothing

    def start(self, job: Job) -> Child:
        window = self._api.window if isinstance(self._api, Machine) else ""
        self.child = Child(job, self._wall(), self._clock.now, window)
        return self.child

    def run(self, argv: Sequence[str], _seconds: float) -> Finished:
        """A child for which the daemon waits: all of it at once."""
        found = Sync(self._api, parse_request(argv[-1]), self._wall, half).run()
        return Finished(tuple(argv), 0, to_json(found))


def call_name(call: Any) -> str:
    return str(getattr(call, "func", call).__name__).strip("_")


class Site:
    """What all nodes share. `store` is there for a request that the daemon waits for; `away` answers it
    instead."""

    def __init__(self, rules: FleetRules, clock: Any) -> None:
        self.annotates = self.has_pods = self.has_rescues = self.has_surges = False
        self.namespace = NAMESPACE
        self.rules, self.clock, self.loop, self.chance = rules, clock, StepLoop, half
        self.store: Any = None
        self.away: Answer | None = None

    def began(self, node: Machine, permitted: PlannedWork | None, generation: str) -> None:
        node.planned = True
        begins = node.installed != generation
        node.said = (*node.said, ("began", node.name, generation, begins, permitted is not None))

    def ended(self, _node: Machine) -> None:
        """It says so itself."""

    def arrived(self, _node: Machine) -> None:
        """The same."""


class Machine(SimNode):
    """`said` is what its last step was to the others. `waits_since`: for what it needs to go on, a pod, the
    end of a pass, a kubelet that is Ready; `slow`: and it takes its time. `planned`: its last pass was.
    `window`: what its syncs are told of the rollout's windows; `pod`: how the one with a readiness probe is;
    `plugin`: what the NRI plugin says that follows; `elder`: the daemon that still runs beside the newer
    one."""

    def __init__(self, site: Site, number: int, nature: Nature) -> None:
        self.fleet, self.number, self.nature = site, number, nature  # type: ignore[assignment]
        self.name = f"node-{number}"
        self.files = MemoryFiles()
        self.installed = ""
        self.failed = set()
        self.drifted = self.busy = self.is_dead = self.unready = self.slow = False
        self.silent = self.rescued = self.planned = False
        self.window = self.plugin = ""
        self.pod = "ready" if site.has_pods else ""
        self.may_fall_silent, self.may_have_two = site.has_rescues, site.has_surges
        self.hold = self.blind = self.pod_generation = ""
        self.now_at = f"{_KEEPS}0~"
        self.pods = 0
        self.watcher: Watcher | None = None
        self.elder: Watcher | None = None
        self.action, self.unread = Action.INSTALL, None
        self.skew = 0.0
        self.worked_at = 0.0
        self.passing: tuple[Watcher, Action, RunResult] | None = None
        self.waits_since: float | None = None
        self.said: tuple[tuple[Any, ...], ...] = ()

    # -- what the simulator's daemon calls ---------------------------------------------------------

    @property
    def starts(self) -> int:
        return int(self.now_at[len(_KEEPS) : -1])

    @starts.setter
    def starts(self, value: int) -> None:
        self.now_at = f"{_KEEPS}{value}~"

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        site: Any = self.fleet
        answer: Answer = site.away or site.store.call(method, path, body)
        return answer

    def wall(self) -> float:
        return self.fleet.clock.now - NOW + EPOCH + self.skew

    def pod_is(self, *, ready: bool) -> None:
        """Nobody asks."""

    def work(self, generation: str, asks: AskFirst, restarts_left: int) -> tuple[float, RunResult]:
        self.planned = False  # unless `began` says so
        return super().work(generation, asks, restarts_left)

    def rescue(self, why: str) -> tuple[float, RunResult]:
        self.planned = False
        return super().rescue(why)

    def run(self, watcher: Watcher, action: Action, seconds: float, outcome: RunResult) -> None:
        self.passing = (watcher, action, outcome)
        self.action = action
        if outcome.restarts:
            self.waits_since = self.worked_at = self.now

    # -- its steps ---------------------------------------------------------------------------------

    @property
    def loop(self) -> StepLoop | None:
        return self.watcher.loop if self.watcher is not None else None  # type: ignore[return-value]

    @property
    def child(self) -> Child | None:
        return self.loop.child if self.loop is not None else None

    @property
    def loops(self) -> list[StepLoop]:
        """Of all its daemons."""
        found: list[Any] = [each.loop for each in (self.watcher, self.elder) if each is not None]
        return found

    @property
    def is_rescue(self) -> bool:
        """Whether the pass at work takes kubelet off the relay."""
        return self.passing is not None and self.passing[1] is Action.RESCUE

    @property
    def is_left(self) -> bool:
        """Whether cri-resmgr is removed there."""
        return self.pod_generation == REMOVAL and not self.installed

    @property
    def works(self) -> bool:
        """Whether a pass that restarts kubelet is at work."""
        return self.passing is not None

    @property
    def now(self) -> float:
        return float(self.fleet.clock.now)

    @property
    def disturbs(self) -> bool:
        """Whether its kubelet is away for planned work. Others may begin before it is Ready only when its
        permit is nearly over, which was taken within a minute before; or before its pod is, after as long."""
        rules, ago = self.fleet.rules, self.now - self.worked_at
        is_away = self.works or (self.unready and ago < rules.hold_seconds - 60.0)
        return self.planned and (is_away or (self.pod in ("flipped", "broken") and ago < rules.pod_seconds))

    @property
    def shows(self) -> tuple[bool, str, str]:
        """What the API server is told of it by others than its daemon."""
        return self.unready, self.pod, self.plugin

    def settle(self) -> None:
        """What takes no time: a pass that restarts nothing ends, and the daemon hears a reply."""
        for _ in range(20):
            child, loop = self.child, self.loop
            if self.passing is not None and not self.passing[2].restarts:
                self.finish_pass()
            elif child is not None and loop is not None and child.is_killed:
                loop.child = None
            elif child is not None and not child.reply and child.pending is None:
                child.go_on()
            elif child is not None and child.reply and not child.late:
                self.hear(child.reply, 0)
            else:
                return
        raise RestlessError("a daemon that never rests")

    def hear(self, reply: str, code: int) -> None:
        assert self.loop is not None
        assert self.loop.child is not None
        child, self.loop.child = self.loop.child, None
        if reply:
            child.on_line(reply)
        child.on_end(code)

    def finish_pass(self, end: str = "ok") -> None:
        assert self.passing is not None
        (watcher, action, outcome), self.passing = self.passing, None
        if outcome.restarts:
            if action is not Action.RESCUE:
                outcome = replace(ENDS.get(end, outcome), fleet_generation=watcher.generation)
            self.pod = "flipped" if self.pod else ""
            self.said = (*self.said, ("ended", watcher.generation, end))
            self.waits_since, self.slow = None if self.watcher is not None else self.now, False
            self.unready = end == "unready"
        self.end(watcher, action, outcome)
        if watcher is self.elder:
            with self.as_elder():
                watcher.ended(action, outcome)

    def is_ready_again(self) -> None:
        self.unready = False

    def begin_daemon(self) -> None:
        if not self.works:
            self.waits_since, self.slow = None, False
        self.watcher = Watcher(self, self.pod_generation)

    def begin_another_daemon(self) -> None:
        """Of a newer pod, while the one before still runs, and soon hears of it."""
        elder = self.watcher
        assert elder is not None
        elder.superseded = True
        self.begin_daemon()
        self.elder = elder
        elder.stir()

    @contextlib.contextmanager
    def as_elder(self) -> Iterator[None]:
        """What happens meanwhile, happens to the elder daemon."""
        self.settle()
        newer, waits_since, self.watcher = self.watcher, self.waits_since, self.elder
        yield
        self.settle()
        if self.watcher is None:
            self.waits_since = waits_since
        self.elder, self.watcher = self.watcher, newer

    def end_daemon(self, *, clean: bool) -> None:
        """Its pod ends, or only its process, which says nothing then."""
        if self.watcher is not None and clean:
            self.watcher.end()
        elif self.watcher is not None:
            self.watcher.alive = False
        self.watcher = None
        if self.waits_since is None:
            self.waits_since = self.fleet.clock.now

    def lose_power(self) -> None:
        self.end_daemon(clean=False)
        self.elder = None
        self.files, self.unread, self.passing = MemoryFiles(), None, None
        self.busy = self.unready = self.slow = self.planned = False
        self.starts += 1
        self.waits_since = self.fleet.clock.now

    def lose_drop_in(self) -> None:
        self.drifted = True
        self.starts += 1
        self.stir()

    def stir(self) -> None:
        if self.watcher is not None:
            self.watcher.stir()
