"""What an installer does to a node, as something that can be cut off at any instant.

A way says where it begins, what is then asked for, what the next run is asked for, and how often kubelet and
the proxy may be started until that one is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from installer.model.names import Mode
from tests.host.node import BINARY, FALLBACK, Node
from tests.host.product import offer_good, put_right
from tests.host.workload import POLICIES, repin_by_hand, start_once

FORCE = "/etc/cri-resmgr/force.cfg"

#: Short enough that a broken start costs little.
SETTINGS = {"guardSeconds": 4, "startTimeoutSeconds": 16}

Change = Callable[[Node, int], None]
"""Possible to pickle, as `hack/faults` tries a way in a process of its own."""


@dataclass(frozen=True, slots=True)
class Starts:
    """How often a unit may be started, at least and at most: one more than what is needed."""

    least: int
    most: int

    def and_more(self, by_others: int) -> Starts:
        return Starts(self.least, self.most + by_others)


_NONE, _ANY = Starts(0, 0), Starts(0, 1000)


def nothing_else(_node: Node, _number: int) -> None:
    """The inputs stay as they are."""


@dataclass(frozen=True, slots=True)
class Way:
    """`lay` makes the inputs that the way begins with, `ask` those of the run that is cut off, other ones for
    each number, `mend` those of the next run. Before that one, with `spoil`, an installation is tried
    that fails if it has anything to do. Effects count from the first event of the kind `since` on.
    `kubelet` and `proxy` are bounds for both runs together. `proxy_read` is a file that the proxy must have
    read as it is then. With a `policy`, containers run from the first, and it says which one is in force
    in the end: none of them has less then."""

    name: str
    kubelet: Starts
    proxy: Starts
    mode: Mode = Mode.INSTALL
    then: Mode = Mode.INSTALL
    installed: bool = True
    lay: Change = nothing_else
    ask: Change = nothing_else
    spoil: Change | None = None
    mend: Change = nothing_else
    since: str = ""
    proxy_read: str = ""
    policy: str = ""

    def lay_inputs(self, node: Node) -> None:
        """No fault, the good payload, and what the way begins with."""
        put_right(node)
        node.command.set(kubelet=SETTINGS)
        self.lay(node, 0)

    @property
    def kubelet_works(self) -> bool:
        """Whether kubelet starts wherever it is."""
        return self.kubelet != _ANY

    @property
    def fails(self) -> bool:
        """Whether the run fails by itself, if nobody cuts it off: its proxy crashes."""
        return bool(self.since)


def _new_payload(node: Node, number: int) -> None:
    """Another version for each number, made once; two of them are never the same to the byte."""
    node.command.payload = node.scratch / "other"
    mark = node.scratch / "other-number"
    if not mark.exists() or mark.read_text() != str(number):
        node.upgrade(version=f"v0.{number + 10}.0")
        mark.write_text(str(number))


def _policy_none(node: Node, _number: int) -> None:
    start_once(node)
    node.fallback("policy:\n  Active: none\n")


def _policy(name: str, node: Node, number: int) -> None:
    start_once(node)
    node.fallback(f"{POLICIES[name]}logger:\n  Debug: number-{number}\n")


_real_policy = partial(_policy, "topology-aware")
_balloons = partial(_policy, "balloons")
_static_pools = partial(_policy, "static-pools")


def _repinned(node: Node, _number: int) -> None:
    """Everybody's weight is taken."""
    repin_by_hand(node)


def _crashing_real_policy(node: Node, number: int) -> None:
    _real_policy(node, 0)
    _crashing_payload(node, number)


def _good_payload(node: Node, _number: int) -> None:
    offer_good(node)


def _crashing_payload(node: Node, number: int) -> None:
    node.command.payload = node.scratch / "broken"
    node.upgrade(fault={"exitAfterSeconds": 0.3}, version=f"v0.{number + 10}.0")


def _new_fallback(node: Node, number: int) -> None:
    node.fallback(f"policy:\n  Active: none\nlogger:\n  Debug: number-{number}\n")


def _new_everything(node: Node, number: int) -> None:
    _new_payload(node, number)
    _new_fallback(node, number)


def _new_force(node: Node, number: int) -> None:
    text = f"policy:\n  Active: none\nlogger:\n  Debug: number-{number}\n"
    (node.command.configs / "force.cfg").write_text(text)


def _old_force(node: Node, _number: int) -> None:
    (node.command.configs / "force.cfg").write_text("policy:\n  Active: none\n")


def _no_fallback(node: Node, _number: int) -> None:
    offer_good(node)
    (node.command.configs / "fallback.cfg").unlink(missing_ok=True)


def _kubelet_exits_on_the_relay(node: Node, _number: int) -> None:
    node.fault("kubelet", '{"onRelay": {"startup": "exit"}}')


def _kubelet_refuses_a_real_policy(node: Node, number: int) -> None:
    _kubelet_exits_on_the_relay(node, number)
    _policy_none(node, number)


def _good_policy_none(node: Node, number: int) -> None:
    _good_payload(node, number)
    _policy_none(node, number)


def _good_real_policy(node: Node, number: int) -> None:
    _good_payload(node, number)
    _real_policy(node, 0)


def _old_settings(node: Node, _number: int) -> None:
    node.command.set(kubelet=SETTINGS)


def _other_guard(node: Node, _number: int) -> None:
    node.command.set(kubelet={**SETTINGS, "guardSeconds": SETTINGS["guardSeconds"] + 1})


def _other_strategy(node: Node, _number: int) -> None:
    node.command.set(kubelet={**SETTINGS, "strategy": "exec-start"})


def _no_fault(node: Node, _number: int) -> None:
    node.fault("kubelet", "")


INSTALL = Way("a first install", Starts(1, 2), Starts(1, 2), installed=False, proxy_read=BINARY)
UPGRADE = Way("an upgrade", _NONE, Starts(1, 2), ask=_new_everything, proxy_read=BINARY)
REMOVAL = Way("a removal", Starts(1, 2), Starts(0, 1), mode=Mode.REMOVE, then=Mode.REMOVE)
WAY_BACK = Way(
    "the way back from an upgrade",
    _NONE,
    _ANY,
    ask=_crashing_payload,
    mend=_good_payload,
    since="rollback.started",
)

WAYS = (
    INSTALL,
    Way("a first install, then removed", Starts(0, 3), Starts(0, 2), then=Mode.REMOVE, installed=False),
    UPGRADE,
    Way("an upgrade, then back to the old", _NONE, Starts(0, 3), ask=_new_everything, mend=_no_fallback),
    Way(
        "a first install, then one that fails",
        _ANY,
        _ANY,
        installed=False,
        then=Mode.REMOVE,
        lay=_no_fault,
        spoil=_kubelet_exits_on_the_relay,
    ),
    Way(
        "an upgrade, then one that fails",
        _NONE,
        _ANY,
        ask=_new_everything,
        spoil=_crashing_payload,
        mend=_no_fallback,
    ),
    Way(
        "another fallback.cfg",
        _NONE,
        Starts(1, 2),
        ask=_new_fallback,
        proxy_read=FALLBACK,
    ),
    Way(
        "another guardSeconds",
        _NONE,
        Starts(0, 1),
        lay=_old_settings,
        ask=_other_guard,
    ),
    Way(
        "another strategy",
        Starts(1, 2),
        Starts(0, 1),
        lay=_old_settings,
        ask=_other_strategy,
    ),
    Way(
        "another force.cfg",
        _NONE,
        Starts(0, 1),
        lay=_old_force,
        ask=_new_force,
        proxy_read=FORCE,
    ),
    WAY_BACK,
    Way(
        "the way back from a first install",
        _ANY,
        _ANY,
        then=Mode.REMOVE,
        installed=False,
        lay=_kubelet_exits_on_the_relay,
        ask=_new_payload,
        since="rollback.started",
    ),
    REMOVAL,
    Way("a removal, then installed", Starts(0, 3), Starts(0, 2), mode=Mode.REMOVE),
)

ADOPTION = Way(
    "a first install with a real policy",
    Starts(1, 2),
    Starts(1, 2),
    installed=False,
    lay=_policy_none,
    ask=_real_policy,
    policy="real",
)
GIVING_BACK = Way(
    "a removal of a real policy",
    Starts(1, 2),
    Starts(0, 1),
    mode=Mode.REMOVE,
    then=Mode.REMOVE,
    lay=_real_policy,
    policy="none",
)

WAY_BACK_OF_CONTAINERS = Way(
    "the way back from a real policy",
    _NONE,
    _ANY,
    lay=_policy_none,
    ask=_crashing_real_policy,
    mend=_good_policy_none,
    since="rollback.started",
    policy="none",
)

#: With containers. They do not live through a boot.
WAYS_OF_CONTAINERS = (
    ADOPTION,
    Way("a real policy after none", _NONE, Starts(1, 2), lay=_policy_none, ask=_real_policy, policy="real"),
    Way("balloons after topology-aware", _NONE, Starts(1, 2), lay=_real_policy, ask=_balloons, policy="real"),
    Way("static-pools after balloons", _NONE, Starts(1, 2), lay=_balloons, ask=_static_pools, policy="real"),
    Way(
        "topology-aware after static-pools",
        _NONE,
        Starts(1, 2),
        lay=_static_pools,
        ask=_real_policy,
        policy="real",
    ),
    Way(
        "the policy none after a real one",
        _NONE,
        Starts(1, 2),
        lay=_real_policy,
        ask=_policy_none,
        policy="none",
    ),
    GIVING_BACK,
    Way(
        "a removal of a policy that has taken weight",
        Starts(1, 2),
        Starts(0, 1),
        mode=Mode.REMOVE,
        then=Mode.REMOVE,
        lay=_policy_none,
        ask=_repinned,
        policy="none",
    ),
    Way(
        "a first install with a real policy, then one that fails",
        _ANY,
        _ANY,
        installed=False,
        then=Mode.REMOVE,
        lay=_good_policy_none,
        ask=_real_policy,
        spoil=_crashing_real_policy,
        policy="none",
    ),
    WAY_BACK_OF_CONTAINERS,
    Way(
        "the way back from a first install with a real policy",
        _ANY,
        _ANY,
        then=Mode.REMOVE,
        installed=False,
        lay=_kubelet_refuses_a_real_policy,
        ask=_real_policy,
        since="rollback.started",
        policy="none",
    ),
    Way(
        "the way back from an upgrade behind a real policy",
        _NONE,
        _ANY,
        lay=_good_real_policy,
        ask=_crashing_real_policy,
        mend=_good_real_policy,
        since="rollback.started",
        policy="real",
    ),
)
