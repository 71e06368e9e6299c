"""The circuit breaker: what a fleet has learnt of one generation, and whether others may begin it. Pure.

It is an annotation of a Lease that nodes write with its resourceVersion. It never lapses by itself. A failed
node that succeeds takes its failure back (`install --retry` there), `rollout retry` deletes the Lease, and
another generation has another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from installer.cluster.leases import breaker_name, build_lease, share_of
from installer.model.fleet import BREAKER, REMOVAL, FleetRules
from installer.model.instant import parse_past, plain_time
from installer.model.jsontext import parse_json, text_at

_LABELLED, _FIRST = "labelled", "first"
"""Which nodes are the canaries: those with the label, or the first ones that ask."""
_CANARY_SHARE = "1%"
CANARY_SECONDS = 900.0
"""Nobody waits longer for a canary that has not reported, nor for labelled ones of which none has begun:
others go first in their place."""
_FORGOTTEN_SECONDS = 4 * CANARY_SECONDS
_WHY = 300  # characters of a failure
_REASONS = 50  # failures that say why; annotations of an object have 256 KiB together
_MOST_CANARIES = 1000  # where more nodes have the label


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Breaker:
    """Times are of the epoch."""

    generation: str
    begun: float = 0.0
    canaries: Mapping[str, float] = field(default_factory=dict)  # node -> when it was admitted
    succeeded: frozenset[str] = frozenset()  # those of the canaries that ended well
    failures: Mapping[str, Failure] = field(default_factory=dict)
    passed: float = 0.0  # when the canaries were through; 0 before
    version: str = ""  # the resourceVersion
    labelled: int = 0  # how many nodes had the label when the generation was begun

    @property
    def missing(self) -> int:
        """The number of nodes with the label that have not begun yet."""
        return max(0, min(self.labelled, _MOST_CANARIES) - len(self.canaries))


def read_breaker(generation: str, lease: Mapping[str, Any], now: float) -> Breaker:
    """Read it at the time `now` of the epoch. Raises ValueError for a Lease that is not understood: no node
    begins then."""
    try:
        written = parse_json(text_at(lease, "metadata", "annotations", BREAKER))
        return Breaker(
            generation,
            parse_past(written["begun"], now),
            {str(node): parse_past(canary["begun"], now) for node, canary in written["canaries"].items()},
            frozenset(str(node) for node, canary in written["canaries"].items() if canary.get("done")),
            {
                str(node): Failure(parse_past(failure["time"], now), str(failure["why"])[:_WHY])
                for node, failure in written["failures"].items()
            },
            parse_past(written.get("passed"), now),
            text_at(lease, "metadata", "resourceVersion"),
            int(written.get("labelled", 0)),
        )
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"Lease {breaker_name(generation)} cannot be parsed: {error}") from None


def build_breaker(breaker: Breaker, namespace: str, rules: FleetRules, nodes: int) -> dict[str, Any]:
    """Build the Lease. People also read its annotation."""
    canaries = {
        node: {"begun": plain_time(at)} | ({"done": True} if node in breaker.succeeded else {})
        for node, at in sorted(breaker.canaries.items())
    }
    failures = {
        node: {"time": plain_time(failure.at), "why": failure.why}
        for node, failure in sorted(breaker.failures.items())
    }
    found = {
        "stopped": stopped(breaker, rules, nodes),
        "ring": _LABELLED if breaker.labelled else _FIRST,
        "labelled": breaker.labelled,
        "begun": plain_time(breaker.begun),
        "passed": plain_time(breaker.passed) if breaker.passed else "",
        "canaries": canaries,
        "failures": failures,
    }
    name, says = breaker_name(breaker.generation), {BREAKER: json.dumps(found, ensure_ascii=False)}
    return build_lease(name, namespace, breaker.generation, breaker.version, says)


# -- what it says ---------------------------------------------------------------------------


def stopped(breaker: Breaker, rules: FleetRules, nodes: int) -> str:
    """Return why no other node may begin this generation, empty if one may. One failed canary is enough."""
    if not breaker.failures:
        return ""
    by_time = sorted(breaker.failures.items(), key=lambda found: found[1].at)
    node, first = by_time[0]
    early = not breaker.passed or first.at < breaker.passed + rules.soak_seconds
    limit = 1 if rules.order == "canary" and early else share_of(rules.max_failures, nodes)
    if len(by_time) < limit:
        return ""
    node, last = by_time[limit - 1]
    more = f" ({len(by_time)} nodes have failed)" if len(by_time) > 1 else ""
    what = "the removal" if breaker.generation == REMOVAL else f"generation {breaker.generation[:12]}"
    return f"{what} is stopped: it failed on node {node}: {last.why}{more}"


def is_over(breaker: Breaker, started: float) -> bool:
    """Whether it is the breaker of an earlier removal than the one whose DaemonSet was created at `started`:
    each removal has the same generation."""
    return breaker.generation == REMOVAL and breaker.begun < started


def is_forgotten(breaker: Breaker, now: float) -> bool:
    """Whether nodes have stopped asking for the generation before any result was reported, because a newer
    generation replaced it. Otherwise a node that asks after CANARY_SECONDS would have become a canary."""
    reported = breaker.passed or breaker.succeeded or breaker.failures
    return not reported and now - max(breaker.begun, *breaker.canaries.values(), 0.0) >= _FORGOTTEN_SECONDS


def allows_more(rules: FleetRules, nodes: int) -> bool:
    """Whether a fleet of so many nodes may do more at once than the smallest."""
    shares = rules.concurrent_restarts, rules.max_failures, _CANARY_SHARE
    return any(share_of(text, nodes) > share_of(text, 1) for text in shares)


def may_be_canary(breaker: Breaker, *, labelled: bool, nodes: int, now: float) -> bool:
    """Whether one more node may begin before the canaries are through."""
    counted = [
        name for name, at in breaker.canaries.items() if name in breaker.succeeded or _is_awaited(at, now)
    ]
    if breaker.labelled:
        chosen = labelled and len(breaker.canaries) < _MOST_CANARIES
        return chosen or (not counted and not _is_awaited(breaker.begun, now))
    return len(counted) < share_of(_CANARY_SHARE, nodes)


def is_through(breaker: Breaker, now: float) -> bool:
    """Whether the canaries are through: one has succeeded, none has failed, and none is
    awaited, including nodes with the label that have not asked yet."""
    awaited = any(
        name not in breaker.succeeded and _is_awaited(at, now) for name, at in breaker.canaries.items()
    )
    if breaker.missing and _is_awaited(breaker.begun, now):
        return False
    return bool(breaker.succeeded) and not awaited and not breaker.failures


def _is_awaited(begun: float, now: float) -> bool:
    return now - begun < CANARY_SECONDS


# -- what is written ------------------------------------------------------------------------


def with_canary(breaker: Breaker, node: str, now: float) -> Breaker:
    """Admit one more node before the others."""
    return replace(breaker, canaries={**breaker.canaries, node: now})


def with_success(breaker: Breaker, node: str, now: float) -> Breaker:
    """Note that the node runs the generation. Its earlier failure does not count any more."""
    failures = {name: failure for name, failure in breaker.failures.items() if name != node}
    done = breaker.succeeded | ({node} if node in breaker.canaries else frozenset())
    return with_passed(replace(breaker, failures=failures, succeeded=done), now)


def with_passed(breaker: Breaker, now: float) -> Breaker:
    """Note when the canaries are through, once."""
    return replace(breaker, passed=now) if not breaker.passed and is_through(breaker, now) else breaker


def without_canary(breaker: Breaker, node: str) -> Breaker:
    """Do not wait for a node that has touched nothing: another one may go first."""
    return replace(breaker, canaries={name: at for name, at in breaker.canaries.items() if name != node})


def with_failure(breaker: Breaker, node: str, why: str, now: float) -> Breaker:
    """Note that the generation failed on this node; its first failure stays."""
    if node in breaker.failures:
        return breaker
    why = " ".join(why.split())[:_WHY] if len(breaker.failures) < _REASONS else ""
    return replace(breaker, failures={**breaker.failures, node: Failure(now, why)})


def with_result(breaker: Breaker, node: str, ok: bool | None, why: str, now: float) -> Breaker:
    """Note what the fleet learns from one node. Return the same breaker if that is nothing: it keeps few
    successes."""
    if ok is False:
        return with_failure(breaker, node, why, now)
    awaited = node in breaker.canaries and node not in breaker.succeeded
    if ok and (awaited or node in breaker.failures):
        return with_success(breaker, node, now)
    return without_canary(breaker, node) if ok is None and awaited else breaker
