"""What may happen in a fleet, one thing at a time: which moves there are in a state, and what each does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import Holder, permits_of
from installer.model.fleet import REMOVAL, FleetRules
from installer.model.instant import plain_time
from tests.certify.fleet.machine import Call, Machine, Site, StepLoop
from tests.certify.fleet.store import CertStore
from tests.certify.values import EPOCH
from tests.faults.fleets.sim import Nature
from tests.faults.fleets.watcher import Watcher
from tests.lib.fleet_bench import DAEMONSET, LEASES, NAMESPACE, PODS

AWAY = Answer(0, failure="no answer in time")
_DENIED = Answer(403, failure="403: Forbidden")
_BUSY = Answer(429, failure="429: TooManyRequests", retry_after=60.0)
_CONFLICT = Answer(409, failure="409: Conflict")
_INSTEAD = {"lost": AWAY, "denied": _DENIED, "busy": _BUSY, "conflict": _CONFLICT}

WORK_SECONDS, LONGEST_WORK = 20.0, 140.0  # of a pass that restarts kubelet, usually and at most
SYNC_LIMIT = 10.0  # a sync's process has no more time
HOLD = 200.0
STALLS = (9.0, 46.0, 201.0, 901.0, 3601.0)  # beside each bound of the program
LAZY = 600.0
_BEGINS = {"install": "one", "upgrade": "two", "drift": "one", "remove": REMOVAL}
ANSWERS = ("answer", "elder-answer")
WITH_REQUESTS = ("start", "replace", "update", "surge", "elder-ends")
THIEF = Holder("thief", "uid-thief")


class Move(NamedTuple):
    """`node`: the number of whose it is, -1: nobody's. `cost`: how many faults it is."""

    kind: str
    node: int = -1
    how: str = ""
    cost: int = 0

    def __str__(self) -> str:
        whose = f" node-{self.node}" if self.node >= 0 else ""
        return f"{self.kind}{whose}{' ' + self.how if self.how else ''}"


RULES = FleetRules(concurrent_restarts="1", max_failures="1", soak_seconds=60.0, hold_seconds=HOLD)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet that is enumerated. `begins`: how it starts; `faults`: how many may happen in all, of which
    `kinds` (empty: all); a `thief` has the token of another node; `annotates`: each node says on its Node how
    it is; `window`: how the rollout's is at first; `young`: nodes that have just joined; `pods`: each node
    has one with a readiness probe; `rescues`: relays may fall silent; `alone`: nobody needs a permit;
    `litter`: what other Leases there are; `surges`: a newer pod may start before the older one has ended."""

    nodes: int = 2
    rules: FleetRules = RULES
    labelled: tuple[int, ...] = ()
    begins: str = "upgrade"
    faults: int = 1
    kinds: tuple[str, ...] = ()
    thief: bool = False
    annotates: bool = False
    window: str = ""
    young: tuple[int, ...] = ()
    pods: bool = False
    rescues: bool = False
    alone: bool = False
    litter: str = ""
    surges: bool = False
    nature: Nature = field(default_factory=Nature)

    @property
    def limit(self) -> int:
        return permits_of(self.rules.concurrent_restarts, self.nodes)


def first_state(fleet: Fleet, site: Site) -> tuple[CertStore, list[Machine]]:
    """At rest with a generation, or with nothing; another one was just applied, or all have drifted."""
    site.annotates, site.has_pods = fleet.annotates, fleet.pods
    site.has_rescues, site.has_surges = fleet.rescues, fleet.surges
    site.namespace = "" if fleet.alone else NAMESPACE
    store = CertStore(site.clock)
    store.enough = int(fleet.rules.max_failures)
    store.size(fleet.nodes, 1)
    machines = [Machine(site, number, fleet.nature) for number in range(fleet.nodes)]
    for machine in machines:
        store.node(machine.name, canary=machine.number in fleet.labelled)
        path = f"/api/v1/nodes/{machine.name}"
        created = plain_time(EPOCH - 600.0) if machine.number in fleet.young else "2023-01-01T00:00:00Z"
        store.objects[path]["metadata"]["creationTimestamp"] = created
        if fleet.pods:
            store.objects[path]["status"]["nodeInfo"] = {"kubeletVersion": "v1.34.2"}
            store.pod(machine.name, f"pod-{machine.name}", ready=True)
    for machine in machines:
        machine.installed = "" if fleet.begins == "install" else "one"
        machine.pod_generation = _BEGINS[fleet.begins]
        machine.window = fleet.window
        machine.waits_since = site.clock.now
        machine.drifted = fleet.begins == "drift"
    store.generation = machines[0].pod_generation
    store.successor(fleet.rules.successor)
    if fleet.litter:
        store.strew(fleet.litter)
    if fleet.thief:
        store.node(THIEF.node, uid=THIEF.uid)
    return store, machines


# -- what a node may do ---------------------------------------------------------------------------


KINDS = (
    *(
        "answer",
        "start",
        "update",
        "replace",
        "crash",
        "boot",
        "gone",
        "dead",
        "pass",
        "slow",
        "stall",
        "hold",
    ),
    *("drift", "clock", "apply", "pause", "pause-node", "retry", "steal"),
    *("window", "pod", "plugin", "silent", "resource", "uninstall", "thwart", "surge"),
)
"""Of faults. Where one fault may happen in all, those of each kind can be enumerated by themselves."""


def node_moves(machine: Machine) -> Iterator[Move]:
    """By itself, whatever the others do."""
    if machine.is_dead:
        return
    number, loop, child = machine.number, machine.loop, machine.child
    for name in loop.due() if loop else ():
        yield Move("timer", number, name)
    if child is not None and child.pending is not None:
        yield from _answers(number, child.pending)
        if is_contended(child.pending) and not child.thwarted:
            yield Move("thwart", number, "", 1)
    elif child is not None and child.late:
        yield Move("reply", number)
    if machine.works:
        for end in ("ok",) if machine.pod_generation == REMOVAL or machine.is_rescue else ("ok", "blamed"):
            yield Move("pass", number, end, int(end != "ok"))
        for end in ("faulty", "killed", "unready") if not machine.is_rescue else ():
            yield Move("pass", number, end, 1)
    elif machine.unready:
        yield Move("ready", number)
    if machine.watcher is None:
        yield Move("start", number, "ok")
        yield Move("start", number, "away", 1)
    else:
        yield Move("crash", number, "", 1)
        yield Move("replace", number, "ok", 1)
        yield Move("replace", number, "away", 1)
    if machine.hold == "ask Kim":
        yield Move("release", number)
    else:
        yield Move("hold", number, "", 1)
    if machine.elder is not None:
        yield from _of_elder(machine, machine.elder)
    elif machine.watcher is not None and machine.may_have_two:
        yield Move("surge", number, "ok", 1)
    yield Move("boot", number, "", 1)
    yield Move("gone", number, "", 1)
    yield Move("dead", number, "", 1)
    if machine.installed and not machine.drifted and not machine.works:
        yield Move("drift", number, "", 1)
    if machine.waits_since is not None and not machine.slow:
        yield Move("slow", number, "", 1)
    if not machine.skew:
        yield Move("clock", number, "3600", 1)
        yield Move("clock", number, "-3600", 1)
    yield from _of_variants(machine)


def _of_elder(machine: Machine, elder: Watcher) -> Iterator[Move]:
    """What the older of two daemons does, or what is done to it."""
    loop = elder.loop
    assert isinstance(loop, StepLoop)
    for name in loop.due():
        yield Move("elder-timer", machine.number, name)
    if loop.child is not None and loop.child.pending is not None:
        yield Move("elder-answer", machine.number, "ok")
    yield Move("elder-ends", machine.number, "ok")


def _of_variants(machine: Machine) -> Iterator[Move]:
    """What only some fleets have."""
    number = machine.number
    if machine.window:
        yield from (
            Move("window", number, how, int(how != "open"))
            for how in ("open", "shut", "unknown")
            if how != machine.window
        )
    if machine.pod == "flipped":
        yield Move("pod", number, "ready")
        yield Move("pod", number, "broken", 1)
    if machine.is_left and machine.fleet.rules.successor and machine.plugin != "Success":
        yield Move("plugin", number, "Success")
        if not machine.plugin:
            yield Move("plugin", number, "Failure", 1)
    if machine.silent:
        yield Move("silent", number, "over")
    elif machine.may_fall_silent and machine.installed and not machine.works:
        yield Move("silent", number, "", 1)


def _answers(number: int, call: Call) -> Iterator[Move]:
    yield Move("answer", number, "ok")
    hows = ["lost", "denied", "busy", "killed", "late"]
    hows += ["unheard", "conflict"] if call.method != "GET" else []
    hows += ["stale"] if is_cached(call) else []
    for how in hows:
        yield Move("answer", number, how, 1)


def is_contended(call: Call) -> bool:
    """Whether others may have written the same Lease first."""
    return call.method in ("POST", "PUT") and call.path.startswith(LEASES)


def is_cached(call: Call) -> bool:
    return (
        call.method == "GET" and call.path.startswith("/api/v1/nodes/") and "resourceVersion=0" in call.path
    )


def is_own(call: Call, machine: Machine) -> bool:
    """Whether no other node's requests have to do with it: its order among them does not matter."""
    path = call.path.partition("?")[0]
    own = f"/api/v1/nodes/{machine.name}", DAEMONSET, PODS
    return path in own or path.endswith("/events") or path.startswith("/apis/config.nri")


def next_of_its_own(machine: Machine) -> Move | None:
    """What it does next without anybody who notices: its daemon looks and asks for its own Node. Not the look
    at which it may begin what was permitted."""
    if machine.is_dead or machine.loop is None:
        return None
    due, child = machine.loop.due(), machine.child
    if child is not None and child.pending is not None and is_own(child.pending, machine):
        return Move("answer", machine.number, "ok")
    assert machine.watcher is not None
    if "turn" in due and machine.watcher.cluster.permission().granted is not None:
        due.remove("turn")
    return Move("timer", machine.number, due[0]) if due else None


def is_urgent(machine: Machine) -> bool:
    """Whether time does not pass before it has done what it can do now, unless it stalls."""
    if machine.is_dead:
        return False
    at_it = any(loop.child is not None and not loop.child.late for loop in machine.loops)
    return at_it or any(loop.due() for loop in machine.loops)


def next_time(machine: Machine) -> float:
    """The seconds until something is due there, or has to have happened."""
    if machine.is_dead:
        return LAZY
    times = [at - machine.now for loop in machine.loops for at, _ in loop.timers.values()]
    times = [each for each in times if each > 0]
    children = [loop.child for loop in machine.loops if loop.child is not None]
    times += [SYNC_LIMIT - 1 - (machine.now - child.began_at) for child in children]
    times.append(patience_of(machine))
    return min([LAZY, *times])


def patience_of(machine: Machine) -> float:
    """The seconds within which what it waits for comes."""
    if machine.is_dead or machine.waits_since is None:
        return LAZY
    limit = (LONGEST_WORK if machine.works else float("inf")) if machine.slow else WORK_SECONDS
    return limit - (machine.now - machine.waits_since)


def most_stall(machine: Machine) -> float:
    """The seconds for which it may stall: a pass is ended in time by others than its daemon."""
    if machine.works and machine.waits_since is not None:
        return LONGEST_WORK - (machine.now - machine.waits_since)
    return float("inf")


# -- what each does -------------------------------------------------------------------------------


def step(move: Move, machine: Machine) -> None:
    """Of a node alone: what needs no answer of the API server."""
    kind = move.kind
    loop = machine.loop
    if kind == "timer":
        assert loop is not None
        loop.fire(move.how)
    elif kind == "reply":
        assert machine.child is not None
        machine.child.late = False
    elif kind == "elder-timer":
        with machine.as_elder():
            assert machine.loop is not None
            machine.loop.fire(move.how)
    elif kind == "thwart":
        assert machine.child is not None
        machine.child.thwarted = True
    elif kind == "pass":
        machine.finish_pass(move.how)
    elif kind == "ready":
        machine.is_ready_again()
    elif kind == "crash":
        machine.end_daemon(clean=False)
    elif kind == "boot":
        machine.lose_power()
    elif kind in ("gone", "dead"):
        machine.lose_power()
        machine.is_dead = True
    elif kind == "drift":
        machine.lose_drop_in()
    elif kind == "window":
        machine.window = move.how
    elif kind == "pod":
        machine.pod = move.how
    elif kind == "plugin":
        machine.plugin = move.how
    elif kind == "silent":
        machine.silent = not move.how
        machine.stir()
    elif kind == "slow":
        machine.slow = True
    elif kind == "clock":
        machine.skew = float(move.how)
    elif kind in ("hold", "release"):
        machine.hold = "ask Kim" if kind == "hold" else ""
        machine.stir()
    else:
        raise AssertionError(kind)
    machine.settle()


def answer(move: Move, machine: Machine, store: CertStore) -> Call:
    """A node's sync gets an answer to its request, which is returned; or its process is killed."""
    if move.kind == "elder-answer":
        with machine.as_elder():
            return _answer(move.how, machine, store)
    return _answer(move.how, machine, store)


def _answer(how: str, machine: Machine, store: CertStore) -> Call:
    child = machine.child
    assert child is not None
    call = child.pending
    assert call is not None, "there is nothing to answer"
    if child.thwarted and is_contended(call):
        how = "conflict"
    found = respond(call, how, store)
    note_taken(machine, call, found)
    hear(machine, how, found)
    return call


def hear(machine: Machine, how: str, answer: Answer | None) -> None:
    """It goes on with the answer, or ends."""
    child = machine.child
    assert child is not None
    if answer is None:
        machine.hear("", 137)
    else:
        child.answers = (*child.answers, answer)
        child.pending = None
        child.go_on()
        child.late = how == "late" and bool(child.reply)
    machine.settle()


def note_taken(machine: Machine, call: Call, answer: Answer | None) -> None:
    """A node says so when it takes a permit for a generation."""
    name = (
        call.path.rpartition("/")[2]
        if call.method == "PUT"
        else (call.body or {}).get("metadata", {}).get("name", "")
    )
    if call.method in ("PUT", "POST") and name.startswith("permit-") and answer is not None and answer.ok:
        assert machine.child is not None
        work = machine.child.request.begin
        assert work is not None
        is_shut = machine.child.window not in ("", "open")
        machine.said = (*machine.said, ("took", machine.name, work.generation, work.begins, is_shut))


def respond(call: Call, how: str, store: CertStore) -> Answer | None:
    """What the API server does and answers."""
    if how == "killed":
        return None
    if how in _INSTEAD:
        return _INSTEAD[how]
    if how == "stale":
        path = call.path.partition("?")[0]
        there = store.before.get(path)
        if there is not None:
            return Answer(200, there, "", store.now)
    answer = store.call(call.method, call.path, call.body)
    return AWAY if how == "unheard" else answer


def with_requests(move: Move, machine: Machine, store: CertStore, site: Site) -> None:
    """A daemon begins or ends, with a sync that it waits for."""
    site.store, site.away = store, AWAY if move.how == "away" else None
    try:
        if move.kind == "start":
            machine.begin_daemon()
        elif move.kind == "surge":
            machine.begin_another_daemon()
        elif move.kind == "elder-ends":
            with machine.as_elder():
                machine.end_daemon(clean=True)
        else:
            machine.end_daemon(clean=True)
            if move.kind == "update":
                machine.pod_generation = store.generation
        machine.settle()
    finally:
        site.store = site.away = None


def end_late_sync(machine: Machine) -> None:
    """Its time is over, so its process is ended."""
    if machine.elder is not None:
        with machine.as_elder():
            _end_late_sync(machine)
    _end_late_sync(machine)


def _end_late_sync(machine: Machine) -> None:
    child = machine.child
    if child is not None and machine.now - child.began_at >= SYNC_LIMIT:
        machine.hear("", 143)
        machine.settle()


def tell(machine: Machine, store: CertStore, move: Move) -> tuple[tuple[Any, ...], ...]:
    """The Node of a machine says what is so; what it has done is returned."""
    said, machine.said = machine.said, ()
    path = f"/api/v1/nodes/{machine.name}"
    if path in store.objects:
        there = store.objects[path]["status"]["conditions"][0]["status"] == "True"
        if there == machine.unready:
            store.node_is(machine.name, ready=not machine.unready)
        store.shows(machine.name, machine.pod, machine.plugin)
        if move.kind == "gone":
            store.before.pop(path, None)
            del store.objects[path]
            store.since.pop(machine.name, None)
    return said
