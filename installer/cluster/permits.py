"""Which permit a node may take, by the Leases there are. Pure.

At most `limit` are held at once, and one by each node. A permit that has expired is free: its holder died, or
could not reach the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from installer.cluster.leases import MOST_PERMITS, Holder, Permit, permit_name

_OLD = 120.0  # seconds: who has held a permit for longer may be gone


@dataclass(frozen=True, slots=True)
class Choice:
    """`mine`: the permit that this node holds already. Else `free`, the permits that may be taken, in the
    order of the tries. Where there are neither, `held` are those of others, the oldest first."""

    mine: Permit | None = None
    free: tuple[Permit, ...] = ()
    held: tuple[Permit, ...] = ()


def choose(
    permits: Sequence[Permit],
    me: Holder,
    limit: int,
    now: float,
    random: Callable[[], float],
    gone: str = "",
) -> Choice:
    """What `me` may do, once the holder `gone` is known to be no more. Nodes that ask at the same time begin
    at different permits."""
    earlier = {permit.holder for permit in permits if permit.node == me.node} - {me.identity, ""}
    ghosts = {
        permit.name
        for permit in permits
        if permit.holder in earlier | ({gone} - {""}) and not permit.is_ahead(now)
    }
    held = sorted(
        (permit for permit in permits if permit.is_held(now) and permit.name not in ghosts),
        key=lambda permit: permit.taken,
    )
    mine = next((permit for permit in held if permit.holder == me.identity), None)
    if mine is not None:
        return Choice(mine=mine)
    if len(held) >= limit:
        return Choice(held=tuple(held))
    # With those that are held they are `limit`, so that nodes which take one at the same moment are not too
    # many, whichever each of them takes.
    shut = {permit.name for permit in held} | {permit.name for permit in permits if permit.is_lost(now)}
    free = (name for name in map(permit_name, range(MOST_PERMITS)) if name not in shut)
    names = list(islice(free, limit - len(held)))
    known = {permit.name: permit for permit in permits}
    start = int(random() * len(names))
    return Choice(free=tuple(known.get(name, Permit(name)) for name in (*names[start:], *names[:start])))


def suspect(held: Sequence[Permit], now: float, random: Callable[[], float]) -> Permit | None:
    """A permit whose holder may be gone: worth a look at its Node. Any of those held for long: who holds the
    oldest may be well, and nobody would look at the others."""
    old = [permit for permit in held if now - permit.taken >= _OLD and not permit.is_ahead(now)]
    return old[int(random() * len(old))] if old else None


def is_ghost(permit: Permit, code: int, uid: str) -> bool:
    """Whether the holder is gone, by the answer for its Node: none of that name, or another UID. Any doubt
    leaves the permit to its holder until it expires."""
    return code == 404 or (code == 200 and bool(uid) and uid != permit.holder.rpartition("/")[2])
