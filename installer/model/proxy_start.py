"""How long a start of cri-resmgr takes. Pure; times in seconds.

It places every container before it answers. Seen with the real 0.9.2: topology-aware and balloons take 14 to
20 ms for each, up to 40 ms on a busy machine; none, static and static-pools 1 to 3 ms. A slow machine takes
longer, and its last start tells how much.
"""

from __future__ import annotations

from dataclasses import dataclass

WHILE_HANGING = 11.0
"""What a start may take while kubelet hangs on the relay: the node goes NotReady after ~31 s, and the
attempt, the rollback, and kubelet's move to its base endpoint should that fail too, have to fit into 30 s
(R8)."""

BELIEVED = 300.0
"""A start that seems to have taken longer tells nothing: the clock was set, or the pid file was written by
another hand."""

_LEAVES_ALONE = frozenset({"none", "static"})
_QUICK = _LEAVES_ALONE | {"static-pools"}  # which is quick if it was there before, and places when it comes
_BASE, _EACH, _EACH_QUICK = 1.0, 0.05, 0.005
_PROMPT = 3.0  # a node that has placed its containers in this time is not one where 11 s are just slow


@dataclass(frozen=True, slots=True)
class LastStart:
    """The last start of the proxy that runs. `seconds` from listening to serving; `at`: when it listened, in
    seconds since 1970 by the host's clock; `policy` is the one it activated, empty if unknown."""

    seconds: float
    at: float
    policy: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """What a start may take. `told`: the last one on this node says so, else only figures of other machines
    do. `unsure`: it may well take longer, for nothing tells how long this node takes to place containers, or
    it is known to be slow."""

    seconds: float = 0.0
    told: bool = False
    unsure: bool = False

    @property
    def outlasts_kubelet(self) -> bool:
        """Whether it may take longer than kubelet may hang on the relay."""
        return self.seconds > WHILE_HANGING


def longest_start(containers: int, policy: str = "") -> float:
    """What a start may take with so many containers, on a busy machine. Without a policy: with any."""
    return _BASE + containers * (_EACH_QUICK if policy in _QUICK else _EACH)


def expect_start(
    containers: int, policy: str, last: LastStart | None = None, running: int = 0, then: int = 0
) -> ExpectedStart:
    """What a start with this policy may take. So many containers run, and `then` of them did at the `last`
    start: one that most of them have come after (at a boot none was there) tells nothing. One with a policy
    that placed none tells only the least that one which places them may take."""
    seconds, places = longest_start(containers, policy), policy not in _LEAVES_ALONE
    if last is None or then * 2 < running:
        return ExpectedStart(seconds, unsure=places and containers > 0)
    if places and last.policy in _QUICK and last.policy != policy:
        seen, unsure = last.seconds, True
    else:
        more = max(0.0, last.seconds - _BASE) * (running / then if then else 1.0)
        share = 1.0 if places or last.policy in _QUICK else _EACH_QUICK / _EACH
        seen, unsure = _BASE + more * share, more > _PROMPT
    return ExpectedStart(max(seconds, seen), told=seen > seconds, unsure=unsure)


def patience(timeout: float, containers: int, expected: float = 0.0) -> float:
    """When a start that nobody hangs on has failed: settings' proxy.startTimeoutSeconds, and what the
    containers call for besides, here or on this machine."""
    return timeout + max(containers * _EACH, expected)
