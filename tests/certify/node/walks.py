"""The same end from every way there: after any installations, the node is as after the last one alone, and
after a removal as before all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from installer.model import paths
from tests.certify.node.engine import Found, attempt
from tests.certify.node.picture import picture
from tests.certify.node.rules import difference
from tests.certify.node.starts import Ground
from tests.certify.node.targets import (
    BAD,
    FORCED,
    FORMERS,
    INSTALL,
    POLICY,
    REMOVAL,
    REREAD,
    SETTINGS,
    UPGRADE,
    Target,
)
from tests.certify.node.world import Moment, World, lay

Walk = tuple[Target, ...]
_ON_THE_WAY = (INSTALL, POLICY, FORCED, REREAD, UPGRADE, SETTINGS, BAD, REMOVAL)
_LAST = (INSTALL, POLICY, FORCED, REREAD, UPGRADE, SETTINGS)
#: What is about the way, and not about its end; what the policy none leaves to containers of an earlier one.
_OF_THE_WAY = ("record: failed", "record: owned /run", paths.PROXY_CACHE)
_OF_A_POLICY = ("container",)


def all_walks(count: int) -> list[Walk]:
    """Of 5 to 20 targets each, the same each time."""
    return [_walk(random.Random(number)) for number in range(count)]


def _walk(choose: random.Random) -> Walk:
    length = choose.randint(5, 20)
    return (*choose.choices(_ON_THE_WAY, k=length - 1), choose.choice(_LAST))


def walk(ground: Ground, targets: Walk) -> Found:
    found = Found(states=len(targets) + 1)
    name = f"walk: {', '.join(target.name for target in targets)}"
    for former in ("nothing", "a clean node"):
        found.faults += [f"{former}: {name}: {why}" for why in _faults(ground, former, targets)]
    return found


def _faults(ground: Ground, former: str, targets: Walk) -> Iterator[str]:
    fresh = _new(ground, former)
    before = fresh.keep()
    if (word := attempt(fresh, targets[-1].request(ground.directory))) != "changed":
        yield f"a fresh installation ends '{word}'"
    wanted = fresh.keep()
    world = _new(ground, former)
    for number, target in enumerate(targets):
        word = attempt(world, target.request(ground.directory))
        if word not in ("changed", "nothing to do", *(["rolled back"] if target == BAD else [])):
            yield f"{number}, {target.name}, ends '{word}'"
    yield from _differ(world.keep(), wanted, *_OF_A_POLICY)
    attempt(world, REMOVAL.request(ground.directory))
    yield from (f"removed: {why}" for why in _differ(world.keep(), before))


def _new(ground: Ground, former: str) -> World:
    root = ground.directory / "node"
    lay(FORMERS[former].bare(), root)
    return World(root, containers=2)


def _differ(found: Moment, wanted: Moment, *but: str) -> list[str]:
    both = (picture(one) for one in (found, wanted))
    without = (*_OF_THE_WAY, *but)
    return difference(*({k: v for k, v in one.items() if not k.startswith(without)} for one in both))
