"""What must never be in a fleet, and where it has to get when nothing is in its way any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from installer.model.instant import parse_time
from tests.certify.fleet.happenings import is_at_large
from tests.certify.fleet.machine import Machine
from tests.certify.fleet.moves import SYNC_LIMIT, Fleet, Move
from tests.certify.fleet.store import CertStore
from tests.certify.values import EPOCH, NOW

GOOD = "good"
"""The generation that people apply when another one has failed."""
_CANARY_SECONDS = 900.0  # after which nobody waits for canaries that say nothing
_MINUTE = 60.0  # within which all nodes know of a pause, or that a generation is stopped
Said = tuple[tuple[object, ...], ...]


def judge_what_is_said(said: Said, store: CertStore, fleet: Fleet) -> str:
    """Return what a node must not have begun, or taken a permit for; empty if all is well. `store`: before
    that."""
    now = store.now - EPOCH + NOW
    for what in said:
        ages = {name: now - at for name, at in store.since.items()}
        if len(what) > 2 and str(what[1]) in (store.breaker(str(what[2])) or {}).get("failures", {}):
            ages.pop(f"stopped {what[2]}", None)  # it may try again what failed on it, and take that back
        if what[0] == "took":
            wrong = _judge_taken(str(what[1]), str(what[2]), bool(what[3]), bool(what[4]), ages, store, fleet)
        elif what[0] == "began":
            permitted = bool(what[4]) or fleet.alone
            wrong = _judge_began(str(what[1]), str(what[2]), bool(what[3]), permitted, ages)
        else:
            wrong = ""
        if wrong:
            return wrong
    return ""


def _judge_taken(
    node: str,
    generation: str,
    begins: bool,
    is_shut: bool,
    ages: Mapping[str, float],
    store: CertStore,
    fleet: Fleet,
) -> str:
    if ages.get("fleet", 0.0) >= SYNC_LIMIT:
        return "a node took a permit though the fleet was paused before it asked"
    if not begins:
        return ""
    if is_shut and not store.is_new(node):
        return f"a node took a permit for generation {generation} though the window was shut"
    if ages.get(f"stopped {generation}", 0.0) >= SYNC_LIMIT:
        return f"a node took a permit for generation {generation}, which was stopped before it asked"
    says = store.breaker(generation) or {}
    canaries = says.get("canaries", {})
    waits = store.now - parse_time(says.get("begun")) < _CANARY_SECONDS
    if fleet.rules.order == "canary" and not says.get("passed") and waits and node not in canaries:
        return f"a node took a permit for generation {generation} before the canaries were through"
    return ""


def _judge_began(node: str, generation: str, begins: bool, permitted: bool, ages: Mapping[str, float]) -> str:
    if not permitted:
        return "a node began planned work without a permit"
    if ages.get("fleet", 0.0) > _MINUTE:
        return "a node began planned work more than a minute after the fleet was paused"
    if ages.get(node, 0.0) > _MINUTE:
        return "a node began planned work more than a minute after it was paused"
    if begins and ages.get(f"stopped {generation}", 0.0) > _MINUTE:
        return f"a node began generation {generation} more than a minute after it was stopped"
    return ""


def permit_in_use(machine: Machine, hold_seconds: float) -> str:
    """Return the permit with which a node works, or may begin to; empty if there is none."""
    cluster = machine.watcher.cluster if machine.watcher is not None else None
    held = cluster.member.held if cluster is not None else None
    if cluster is None or held is None or machine.now - held.since >= hold_seconds:
        return ""
    return held.name if machine.works or cluster.permission().granted is not None else ""


def judge_state(
    store: CertStore, works: Sequence[bool], permits: Sequence[str], fleet: Fleet, *, is_well: bool = False
) -> str:
    """Return what must not be; empty if all is well. `works`: which nodes restart their kubelet as planned,
    or have just done so and are not Ready; `permits`: with which permit; `is_well`: nothing has gone wrong so
    far."""
    if sum(works) > fleet.limit:
        return f"more kubelets are restarted at once than the {fleet.limit} that are permitted"
    for name in filter(None, permits):
        if permits.count(name) > 1:
            return f"two nodes may work with {name}"
    if fleet.rules.successor and store.unserved():
        return "a node says that its removal is through, and no plugin has served it yet"
    if is_well and store.has_forgotten():
        return "a permit has expired that its node has not given back, though nothing was in its way"
    if not fleet.thief and len(store.held()) > fleet.limit:
        return f"more permits are held than the {fleet.limit} that there are"
    return ""


# -- the way out ----------------------------------------------------------------------------------


def fair_move(
    store: CertStore, machines: Iterable[Machine], free: Iterable[Move], seconds: float, fleet: Fleet
) -> Move | None:
    """What comes next if all goes well: what costs nothing (`free`), else time passes until something is due.
    People end each pause, take the thief's node away, retry what is stopped, and apply another generation
    where this one is not tried again. None where the fleet
    has got where it is to get."""
    for move in free:
        return move
    alive = [machine for machine in machines if not machine.is_dead]
    asked = store.generation
    if is_at_large(store):
        return Move("arrest")
    if store.to_retry(fleet.rules, fleet.nodes):
        return Move("retry")
    if asked != GOOD and any(asked in each.failed for each in alive):
        return Move("apply", -1, GOOD)
    for machine in alive:
        if machine.pod_generation != asked:
            return Move("update", machine.number, "ok")
    if all(is_there(machine, asked) for machine in alive) and not store.held():
        return None
    return Move("wait", -1, f"{seconds:.0f}")


def is_there(machine: Machine, generation: str) -> bool:
    """Whether it runs what is asked, and owes the fleet nothing."""
    there = not machine.lacks(generation) and not machine.works
    member = machine.watcher.cluster.member if machine.watcher is not None else None
    return there and member is not None and member.held is None and not member.results


def describe_stuck(store: CertStore, machines: Iterable[Machine]) -> str:
    """Say who does not get there."""
    told = [f"permits of {[permit.holder for permit in store.held()]}"] if store.held() else []
    for machine in machines:
        if not machine.is_dead and not is_there(machine, store.generation):
            state = machine.watcher.policy.state if machine.watcher is not None else None
            reason = f", {state.phase}: {state.reason}" if state is not None else ", without a daemon"
            told.append(f"{machine.name} has {machine.installed!r}, not {store.generation!r}{reason}")
    return "with nothing in their way, the nodes do not get there: " + "; ".join(told)
