"""Which permit a node may take, by the Leases there are. Pure.

At most `limit` are held at once, and one by each node. A permit that has expired is free: its holder died, or
could not reach the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from installer.fleet.objects import Member, Permit, permit_name

_OLD = 120.0  # seconds: who has held a permit for longer may be gone


@dataclass(frozen=True, slots=True)
class Choice:
    """`mine`: the permit that this node holds already. Else `free`, the permits that may be taken, in the
    order of the tries. Where there are neither, `held` are those of others, the oldest first."""

    mine: Permit | None = None
    free: tuple[Permit, ...] = ()
    held: tuple[Permit, ...] = ()


def choose(
    permits: Sequence[Permit], me: Member, limit: int, now: float, random: Callable[[], float]
) -> Choice:
    """What `me` may do. Nodes that ask at the same time begin at different permits."""
    ghosts = {permit.name for permit in permits if permit.node == me.node and permit.holder != me.identity}
    held = sorted(
        (permit for permit in permits if permit.is_held(now) and permit.name not in ghosts),
        key=lambda permit: permit.taken,
    )
    mine = next((permit for permit in held if permit.holder == me.identity), None)
    if mine is not None:
        return Choice(mine=mine)
    if len(held) >= limit:
        return Choice(held=tuple(held))
    taken = {permit.index for permit in held}
    known = {permit.name: permit for permit in permits}
    names = [permit_name(index) for index in range(_end(taken, limit)) if index not in taken]
    start = int(random() * len(names))
    return Choice(free=tuple(known.get(name, Permit(name)) for name in (*names[start:], *names[:start])))


def _end(taken: Collection[int], limit: int) -> int:
    """Which permits may be taken: those below it. All of them together, with those above that are still held
    after the limit has become smaller, are `limit`, so that nodes which take one at the same moment are not
    too many, whichever each of them takes."""
    end, above = 0, len(taken)
    while end + above < limit or end in taken:
        above -= end in taken
        end += 1
    return end


def suspect(held: Sequence[Permit], now: float, random: Callable[[], float]) -> Permit | None:
    """A permit whose holder may be gone: worth a look at its Node. Any of those held for long: who holds the
    oldest may be well, and nobody would look at the others."""
    old = [permit for permit in held if now - permit.taken >= _OLD]
    return old[int(random() * len(old))] if old else None


def is_ghost(permit: Permit, code: int, uid: str) -> bool:
    """Whether the holder is gone, by the answer for its Node: none of that name, or another UID. Any doubt
    leaves the permit to its holder until it expires."""
    return code == 404 or (code == 200 and bool(uid) and uid != permit.holder.rpartition("/")[2])
