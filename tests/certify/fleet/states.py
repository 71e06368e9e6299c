"""States of a fleet as small numbers: each part is told apart once, and what becomes of it is computed once.

A state is the API server, each node, and how many faults may still happen. Nodes are alike: states that
differ by their names alone are one, and so are those that differ by how often an object was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Any

from installer.cluster.pod_context import PodContext
from installer.daemon.configuration import Configuration
from installer.model.fleet import FleetRules
from tests.certify.fleet import happenings, moves
from tests.certify.fleet.machine import GRID, Instant, Machine, Site
from tests.certify.fleet.moves import Fleet, Move
from tests.certify.fleet.store import VERSION, CertStore
from tests.certify.values import Copier, Describer, digest, passing

State = tuple[int, ...]
"""The store, each node, and the faults that are left."""
Said = tuple[tuple[Any, ...], ...]

#: Nothing depends on these: they count, for people.
_COUNTS = ("passes", "changes", "repairs", "rollbacks", "rescues", "failures", "all_restarts", "restarts")
LEFT_OUT = frozenset(
    {("PassHistory", "counts"), ("PassHistory", "last"), ("RunResult", "seconds"), ("Watcher", "_published")}
    | {("Report", "changes"), ("Report", "changed"), ("ClusterClient", "_output"), ("CertStore", "taken")}
    | {("DaemonState", each) for each in (*_COUNTS, "last_exit", "last_seconds")}
)
#: After so many seconds it does not matter any more how long ago it was.
HORIZONS = {
    **dict.fromkeys(("due", "timers", "quiet_until", "retry_at", "locked_until", "_read_by"), 0.0),
    **dict.fromkeys(("_closer_at", "_rescue_at", "_now", "begun_at", "watched", "time"), 0.0),
    **dict.fromkeys(("_answered_at", "_runtime_since", "_invocation_since", "good_since"), 0.0),
    **dict.fromkeys(("granted_at", "_granted_at", "denied_since", "_begun"), 60.0),
    "synced_at": 1.0,
    "_began": 5.0,
    "_overtaken_since": 10.0,
    "_dead_since": 20.0,
    "silent_since": 61.0,
    "read_at": 10.0,
    "worked_at": 300.0,
    "_judged_at": 300.0,
    "since": 261.0,
    "waits_since": 150.0,
    "restarts": 3_601.0,
    "_returns": 3_601.0,
}
_OF_RESCUES = {
    **dict.fromkeys(("_answered_at", "_runtime_since"), 21.0),
    **dict.fromkeys(("_invocation_since", "good_since"), 61.0),
}
"""The same where relays fall silent."""
_STARTS = re.compile(r"~starts~(\d+)~")
_NAME = re.compile(r"node-(\d)")


class Table:
    """Values by number, each once."""

    def __init__(self, describe: Callable[[Any], str]) -> None:
        self._describe = describe
        self._numbers: dict[bytes, int] = {}
        self.values: list[Any] = []
        self.versions: list[frozenset[str]] = []

    def add(self, value: Any, text: str = "") -> int:
        text = text or self._describe(value)
        number = self._numbers.setdefault(digest(text), len(self.values))
        if number == len(self.values):
            self.values.append(value)
            self.versions.append(frozenset(found[0] for found in VERSION.finditer(text)))
        return number


class States:
    """What follows what. Nothing here forgets, so that equal questions have one answer."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.site = Site(fleet.rules, Instant())
        self._horizons = HORIZONS | (_OF_RESCUES if fleet.rescues else {})
        shared = frozenset({Site, Instant, FleetRules, Configuration, PodContext})
        self.describe = Describer(LEFT_OUT, shared)
        self.stores = Table(lambda store: self.describe(store.says()))
        self.nodes = Table(self.describe)
        self._memo: dict[Any, Any] = {}
        self._perms = [
            each
            for each in permutations(range(fleet.nodes))
            if all((number in fleet.labelled) == (each[number] in fleet.labelled) for number in each)
        ][1:]

    def first(self) -> State:
        store, machines = moves.first_state(self.fleet, self.site)
        numbers = (self.stores.add(store), *(self._add(machine) for machine in machines))
        return (*numbers, self.fleet.faults)

    # -- values -------------------------------------------------------------------------------------

    def store(self, state: State) -> CertStore:
        return self.stores.values[state[0]]  # type: ignore[no-any-return]

    def machines(self, state: State) -> list[Machine]:
        return [self.nodes.values[number] for number in state[1:-1]]

    def _copy(self, number: int) -> Machine:
        machine = self.nodes.values[number]
        return Copier(shared=(self.site, self.site.clock))(machine)  # type: ignore[no-any-return]

    def _change(self, machine: Machine, text: Any, time: Any = None) -> Machine:
        return Copier(text, time, (self.site, self.site.clock))(machine)  # type: ignore[no-any-return]

    def _add(self, machine: Machine) -> int:
        """The starts of kubelet are told apart, and not counted: the last one has the highest number."""
        text = self.describe(machine)
        found = list(dict.fromkeys(each[0] for each in _STARTS.finditer(text)))
        found = [each for each in found if each != machine.now_at] + [machine.now_at]
        names = {old: f"~starts~{number}~" for number, old in enumerate(found)}
        if any(old != new for old, new in names.items()):
            machine = self._change(machine, lambda given: _replace(_STARTS, names, given))
            text = ""
        return self.nodes.add(machine, text)

    def remembered(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = make()
        return found

    # -- one of the states that are alike -------------------------------------------------------------

    def canonical(self, state: State) -> State:
        state = self.with_versions(state)
        return min([state, *(self.renamed(state, order) for order in self._perms)])

    def orders(self) -> list[tuple[int, ...]]:
        return [tuple(range(self.fleet.nodes)), *self._perms]

    def renamed(self, state: State, order: tuple[int, ...]) -> State:
        """As if each node had the name of another one: `order` has its new number."""
        if order == tuple(range(len(order))):
            return state
        names = {f"node-{old}": f"node-{new}" for old, new in enumerate(order)}
        store = self.remembered(("sr", state[0], order), lambda: self._rename_store(state[0], names))
        places = [0] * len(order)
        for old, new in enumerate(order):
            number = state[1 + old]
            places[new] = self.remembered(
                ("nr", number, order),
                lambda number=number, new=new: self._rename_node(number, names, new),  # type: ignore[misc]
            )
        return (store, *places, state[-1])

    def _rename_store(self, number: int, names: dict[str, str]) -> int:
        return self.stores.add(self.stores.values[number].renamed(lambda text: _replace(_NAME, names, text)))

    def _rename_node(self, number: int, names: dict[str, str], new: int) -> int:
        machine = self._change(self.nodes.values[number], lambda text: _replace(_NAME, names, text))
        machine.number = new
        return self._add(machine)

    def with_versions(self, state: State) -> State:
        """The present version of each Lease is the first, the others follow."""
        now = self.remembered(("v", state[0]), lambda: self._present(state[0]))
        known = set[str]().union(*(self.nodes.versions[number] for number in state[1:-1]))
        if not known and not any(now.values()):
            return state
        names = self.remembered(("vm", state[0], frozenset(known)), lambda: _number(now, known))
        if not names:
            return state
        key = tuple(sorted(names.items()))
        change = lambda text: _replace(VERSION, names, text)  # noqa: E731
        store = self.remembered(
            ("sv", state[0], key), lambda: self.stores.add(self.store(state).renamed(change))
        )
        nodes = [
            number
            if not (self.nodes.versions[number] & names.keys())
            else self.remembered(
                ("nv", number, key),
                lambda number=number: self._add(self._change(self.nodes.values[number], change)),  # type: ignore[misc]
            )
            for number in state[1:-1]
        ]
        return (store, *nodes, state[-1])

    def _present(self, number: int) -> dict[str, int]:
        """The number of the present version of each Lease."""
        store = self.stores.values[number]
        found = (lease["metadata"]["resourceVersion"] for lease in store.leases_there())
        return {match[1]: int(match[2]) for match in map(VERSION.fullmatch, found) if match}

    # -- what follows ---------------------------------------------------------------------------------

    def node_moves(self, number: int) -> tuple[Move, ...]:
        return self.remembered(  # type: ignore[no-any-return]
            ("nm", number), lambda: tuple(moves.node_moves(self.nodes.values[number]))
        )

    def store_moves(self, number: int) -> tuple[Move, ...]:
        return self.remembered(  # type: ignore[no-any-return]
            ("sm", number), lambda: tuple(happenings.store_moves(self.stores.values[number], self.fleet))
        )

    def step(self, state: State, move: Move) -> tuple[State, Said]:
        """The state after it, and what the node has done."""
        left = state[-1] - move.cost
        if move.node < 0 or move.kind in ("pause-node", "resume-node"):
            store = self.remembered(("h", state[0], move), lambda: self._happen(state[0], move))
            return (store, *state[1:-1], left), ()
        at = 1 + move.node
        taken = frozenset[str]()
        if move.kind in (*moves.ANSWERS, *moves.WITH_REQUESTS):
            taken = taken.union(*(self.nodes.versions[number] for number in state[1:-1]))
        key = ("st", state[0], state[at], move, taken)
        store, node, said = self.remembered(key, lambda: self._step(state[0], state[at], move, taken))
        after = [store, *state[1:-1], left]
        after[at] = node
        return tuple(after), said

    def _happen(self, number: int, move: Move) -> int:
        store = self.stores.values[number].copy()
        store.taken = frozenset(
            f"~{name}.{each}~" for name in ("fleet", "permit-0", "permit-1") for each in range(9)
        )
        happenings.happen(move, store, self.fleet)
        store.watch_breakers()
        return self.stores.add(store)

    def _step(self, store_at: int, node_at: int, move: Move, taken: frozenset[str]) -> tuple[int, int, Said]:
        if move.kind not in (*moves.ANSWERS, *moves.WITH_REQUESTS):
            node, said = self.remembered(("l", node_at, move), lambda: self._local(node_at, move))
            return self._told(store_at, node, move), node, said
        machine, store = self._copy(node_at), self.stores.values[store_at].copy()
        store.taken = taken
        if move.kind in moves.ANSWERS:
            changed = moves.answer(move, machine, store).method != "GET"
        else:
            moves.with_requests(move, machine, store, self.site)
            changed = True
        said, machine.said = machine.said, ()
        if changed:
            store.watch_breakers()
            store_at = self.stores.add(store)
        node = self._add(machine)
        return self._told(store_at, node, move), node, said

    def _local(self, number: int, move: Move) -> tuple[int, Said]:
        machine = self._copy(number)
        moves.step(move, machine)
        said, machine.said = machine.said, ()
        return self._add(machine), said

    def _told(self, store_at: int, node_at: int, move: Move) -> int:
        machine = self.nodes.values[node_at]
        key = ("t", store_at, machine.name, machine.shows, move.kind == "gone")

        def make() -> int:
            store = self.stores.values[store_at].copy()
            moves.tell(machine, store, move)
            return self.stores.add(store)

        return self.remembered(key, make)  # type: ignore[no-any-return]

    # -- time -----------------------------------------------------------------------------------------

    def tick(self, state: State) -> float:
        """The seconds until something is due; 0 if something is due now, or must not wait."""
        times = [
            self.remembered(("n", each), lambda each=each: node_look(self.nodes.values[each]))  # type: ignore[misc]
            for each in state[1:-1]
        ]
        times.append(self.remembered(("nx", state[0]), lambda: store_look(self.stores.values[state[0]])))
        return on_grid(float(min(times)))

    def later(self, state: State, seconds: float, cost: int = 0) -> State:
        store = self.remembered(("sl", state[0], seconds), lambda: self._store_later(state[0], seconds))
        nodes = [
            self.remembered(("nl", each, seconds), lambda each=each: self._node_later(each, seconds))  # type: ignore[misc]
            for each in state[1:-1]
        ]
        return (store, *nodes, state[-1] - cost)

    def _store_later(self, number: int, seconds: float) -> int:
        return self.stores.add(self.stores.values[number].later(seconds))

    def _node_later(self, number: int, seconds: float) -> int:
        text, time = passing(seconds, self._horizons)
        machine = self._change(self.nodes.values[number], text, time)
        moves.end_late_sync(machine)
        return self._add(machine)

    def most_stall(self, state: State) -> float:
        return min(  # type: ignore[no-any-return]
            self.remembered(("ms", each), lambda each=each: moves.most_stall(self.nodes.values[each]))  # type: ignore[misc]
            for each in state[1:-1]
        )

    def next_of_its_own(self, number: int) -> Move | None:
        """What the node does next by itself, without anybody who notices; None if that is nothing."""
        found = self.remembered(("o", number), lambda: (moves.next_of_its_own(self.nodes.values[number]),))
        return found[0]  # type: ignore[no-any-return]


def _number(now: dict[str, int], known: set[str]) -> dict[str, str]:
    """New names of versions; empty if all have theirs."""
    names: dict[str, str] = {}
    by_lease: dict[str, list[int]] = {name: [] for name in now}
    for each in known:
        match = VERSION.fullmatch(each)
        assert match
        if int(match[2]) != now.get(match[1], -1):
            by_lease.setdefault(match[1], []).append(int(match[2]))
    for name, others in by_lease.items():
        order = [*([now[name]] if name in now else [-1]), *sorted(others)]
        for new, old in enumerate(order):
            if old >= 0 and old != new:
                names[f"~{name}.{old}~"] = f"~{name}.{new}~"
    return names


def _replace(pattern: re.Pattern[str], names: dict[str, str], text: str) -> str:
    if "-" not in text and "~" not in text:
        return text
    return pattern.sub(lambda found: names.get(found[0], found[0]), text)


def node_look(machine: Machine) -> float:
    """The seconds until it has to be looked at again; 0 if there is something to do before time passes."""
    return 0.0 if moves.is_urgent(machine) else moves.next_time(machine)


def store_look(store: CertStore) -> float:
    """The seconds until a permit expires."""
    times = [permit.expires - store.now for permit in store.held()]
    return min([moves.LAZY, *(each for each in times if each > 0)])


def on_grid(seconds: float) -> float:
    return max(0.0, float(-int(-seconds // GRID)) * GRID)


def next_look(store: CertStore, machines: Iterable[Machine]) -> float:
    """The seconds that pass until something is due."""
    return on_grid(min([store_look(store), *map(node_look, machines)]))
