"""Which permit a node may take, by the Leases that exist. Pure.

At most `limit` are held at once, one by each node. A permit that has expired is free: its holder died, or
could not reach the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from installer.cluster.leases import MOST_PERMITS, Holder, Permit, permit_name

_OLD = 120.0  # seconds: whoever has held a permit for longer may be gone


@dataclass(frozen=True, slots=True)
class PermitChoice:
    mine: Permit | None = None  # this node holds it already
    free: tuple[Permit, ...] = ()  # else: may be taken, in the order of the attempts
    held: tuple[Permit, ...] = ()  # if there are neither: those of others, the oldest first


def choose_permit(
    permits: Sequence[Permit],
    me: Holder,
    limit: int,
    now: float,
    random: Callable[[], float],
    gone: str = "",
) -> PermitChoice:
    """Choose for `me`. The Node of the holder `gone` does not exist any more. Nodes that ask at the same time
    try different permits first."""
    earlier = {permit.holder for permit in permits if permit.node == me.node} - {me.identity, ""}
    freed = {
        permit.name
        for permit in permits
        if permit.holder in earlier | ({gone} - {""}) and not permit.is_ahead(now)
    }
    held = sorted(
        (permit for permit in permits if permit.is_held(now) and permit.name not in freed),
        key=lambda permit: permit.taken,
    )
    mine = next((permit for permit in held if permit.holder == me.identity), None)
    if mine is not None:
        return PermitChoice(mine=mine)
    if len(held) >= limit:
        return PermitChoice(held=tuple(held))
    # Together with those that are held there are `limit` of them: nodes that take one at the same moment are
    # not too many, whichever they take.
    shut = {permit.name for permit in held} | {permit.name for permit in permits if permit.is_lost(now)}
    free = (name for name in map(permit_name, range(MOST_PERMITS)) if name not in shut)
    names = list(islice(free, limit - len(held)))
    known = {permit.name: permit for permit in permits}
    start = int(random() * len(names))
    return PermitChoice(
        free=tuple(known.get(name, Permit(name)) for name in (*names[start:], *names[:start]))
    )


def pick_suspect(held: Sequence[Permit], now: float, random: Callable[[], float]) -> Permit | None:
    """Return a permit whose holder may be gone, which is worth a look at its Node. It is any of those held
    for long: the holder of the oldest may be well, and no node would check the others. A holder without a
    slash, as a person may write it, names no Node."""
    named = [permit for permit in held if permit.node]
    old = [permit for permit in named if now - permit.taken >= _OLD and not permit.is_ahead(now)]
    return old[int(random() * len(old))] if old else None


def is_holder_gone(permit: Permit, code: int, uid: str) -> bool:
    """Whether the holder is gone, by the answer for its Node: there is none of that name, or it has another
    UID. Any doubt leaves the permit to its holder until it expires."""
    return code == 404 or (code == 200 and bool(uid) and uid != permit.holder.rpartition("/")[2])
