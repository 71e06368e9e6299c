"""What a fleet has learnt of one generation: its canaries, its failures, and whether others may begin. Pure.

It is an annotation of a Lease that nodes write with its resourceVersion. A brake never lapses by itself: a
failed node that succeeds takes its failure back (`install --retry` there), `rollout retry` deletes the Lease,
and another generation has another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from installer.cluster.leases import annotations_of, brake_name, build_lease, metadata_of, share_of
from installer.model.fleet import BRAKE, FleetRules
from installer.model.instant import parse_past, plain_time

LABELLED, FIRST = "labelled", "first"
"""Who are the canaries: nodes with the label, or the first ones that ask."""

_CANARY_SHARE = "1%"
CANARY_SECONDS = 900.0
"""A canary that has said nothing for so long is not waited for, and labelled ones of which none has begun are
not either: others go first in their place."""
_WHY = 300  # characters of a failure
_REASONS = 50  # failures that say why; annotations of an object have 256 KiB together
_MOST_CANARIES = 1000  # where more nodes have the label


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Brake:
    """`canaries` were admitted at these times of the epoch, `succeeded` are those that ended well. `passed`:
    when the canaries were through, 0 before. `labelled` is how many nodes had the label when the generation
    was `begun`. `version` is the resourceVersion."""

    generation: str
    ring: str = FIRST
    begun: float = 0.0
    canaries: Mapping[str, float] = field(default_factory=dict)
    succeeded: frozenset[str] = frozenset()
    failures: Mapping[str, Failure] = field(default_factory=dict)
    passed: float = 0.0
    version: str = ""
    labelled: int = 0

    @property
    def missing(self) -> int:
        """How many nodes with the label have not begun yet."""
        return max(0, min(self.labelled, _MOST_CANARIES) - len(self.canaries))


def read_brake(generation: str, lease: Mapping[str, Any], now: float) -> Brake:
    """At the time `now` of the epoch. Raises ValueError for a Lease that is not one of ours any more: nobody
    begins on it."""
    try:
        found = json.loads(annotations_of(lease)[BRAKE])
        return Brake(
            generation,
            str(found["ring"]),
            parse_past(found["begun"], now),
            {str(node): parse_past(each["begun"], now) for node, each in found["canaries"].items()},
            frozenset(str(node) for node, each in found["canaries"].items() if each.get("done")),
            {
                str(node): Failure(parse_past(each["time"], now), str(each["why"])[:_WHY])
                for node, each in found["failures"].items()
            },
            parse_past(found.get("passed"), now),
            str(metadata_of(lease).get("resourceVersion", "")),
            int(found.get("labelled", 0)),
        )
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"Lease {brake_name(generation)} is not understood: {error}") from None


def build_brake(brake: Brake, namespace: str, rules: FleetRules, nodes: int) -> dict[str, Any]:
    """The Lease. People read its annotation, too."""
    canaries = {
        node: {"begun": plain_time(at)} | ({"done": True} if node in brake.succeeded else {})
        for node, at in sorted(brake.canaries.items())
    }
    failures = {
        node: {"time": plain_time(failure.at), "why": failure.why}
        for node, failure in sorted(brake.failures.items())
    }
    found = {
        "stopped": stopped(brake, rules, nodes),
        "ring": brake.ring,
        "labelled": brake.labelled,
        "begun": plain_time(brake.begun),
        "passed": plain_time(brake.passed) if brake.passed else "",
        "canaries": canaries,
        "failures": failures,
    }
    name, says = brake_name(brake.generation), {BRAKE: json.dumps(found, ensure_ascii=False)}
    return build_lease(name, namespace, brake.generation, brake.version, says)


# -- what it says ---------------------------------------------------------------------------


def stopped(brake: Brake, rules: FleetRules, nodes: int) -> str:
    """Why no other node may begin this generation; empty if one may. The failure of a canary is enough."""
    if not brake.failures:
        return ""
    by_time = sorted(brake.failures.items(), key=lambda found: found[1].at)
    node, first = by_time[0]
    early = not brake.passed or first.at < brake.passed + rules.soak_seconds
    limit = 1 if rules.order == "canary" and early else share_of(rules.max_failures, nodes)
    if len(by_time) < limit:
        return ""
    node, last = by_time[limit - 1]
    more = f" ({len(by_time)} nodes have failed)" if len(by_time) > 1 else ""
    return f"generation {brake.generation[:12]} is stopped: it failed on node {node}: {last.why}{more}"


def allows_more(rules: FleetRules, nodes: int) -> bool:
    """Whether a fleet of so many nodes may do more at once than the smallest."""
    shares = rules.concurrent_restarts, rules.max_failures, _CANARY_SHARE
    return any(share_of(text, nodes) > share_of(text, 1) for text in shares)


def may_be_canary(brake: Brake, node: str, *, labelled: bool, nodes: int, now: float) -> bool:
    """Whether this node may begin before the canaries are through."""
    if node in brake.canaries:
        return True
    counted = [name for name, at in brake.canaries.items() if name in brake.succeeded or _is_awaited(at, now)]
    if brake.ring == LABELLED:
        chosen = labelled and len(brake.canaries) < _MOST_CANARIES
        return chosen or (not counted and not _is_awaited(brake.begun, now))
    return len(counted) < share_of(_CANARY_SHARE, nodes)


def is_through(brake: Brake, now: float) -> bool:
    """Whether the canaries are through: one has succeeded, none has failed, and none is waited for. A node
    with the label that has not asked yet is waited for, too."""
    awaited = any(name not in brake.succeeded and _is_awaited(at, now) for name, at in brake.canaries.items())
    if brake.missing and _is_awaited(brake.begun, now):
        return False
    return bool(brake.succeeded) and not awaited and not brake.failures


def _is_awaited(begun: float, now: float) -> bool:
    return now - begun < CANARY_SECONDS


# -- what is written ------------------------------------------------------------------------


def with_canary(brake: Brake, node: str, now: float) -> Brake:
    """One node more begins before the others."""
    return replace(brake, canaries={**brake.canaries, node: now})


def with_success(brake: Brake, node: str, now: float) -> Brake:
    """The node runs the generation. Its earlier failure counts no longer."""
    failures = {name: failure for name, failure in brake.failures.items() if name != node}
    done = brake.succeeded | ({node} if node in brake.canaries else frozenset())
    return with_passed(replace(brake, failures=failures, succeeded=done), now)


def with_passed(brake: Brake, now: float) -> Brake:
    """Notes when the canaries are through, once."""
    return replace(brake, passed=now) if not brake.passed and is_through(brake, now) else brake


def without_canary(brake: Brake, node: str) -> Brake:
    """The node has touched nothing and is not waited for: another one may go first."""
    return replace(brake, canaries={name: at for name, at in brake.canaries.items() if name != node})


def with_failure(brake: Brake, node: str, why: str, now: float) -> Brake:
    """The generation failed on this node; the first failure stays."""
    if node in brake.failures:
        return brake
    why = " ".join(why.split())[:_WHY] if len(brake.failures) < _REASONS else ""
    return replace(brake, failures={**brake.failures, node: Failure(now, why)})


def with_result(brake: Brake, node: str, ok: bool | None, why: str, now: float) -> Brake:
    """What the fleet learns from one node; the same brake if that is nothing: most successes are not
    written down."""
    if ok is False:
        return with_failure(brake, node, why, now)
    awaited = node in brake.canaries and node not in brake.succeeded
    if ok and (awaited or node in brake.failures):
        return with_success(brake, node, now)
    return without_canary(brake, node) if ok is None and awaited else brake
