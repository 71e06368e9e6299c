"""What goes wrong from one instant of a run on, or what somebody does then, and the run that follows when it
is over."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from installer.inputs.load import Request
from installer.model import paths
from tests.certify.node.engine import Found, attempt, watch
from tests.certify.node.kubelets import DROP_INS
from tests.certify.node.picture import picture, undone
from tests.certify.node.rules import ENDED_WELL, broken_in_trouble, difference
from tests.certify.node.starts import Ground, Start, describe
from tests.certify.node.targets import (
    BAD,
    INSTALL,
    POLICY,
    REMOVAL,
    REREAD,
    TAKEOVER,
    UPGRADE,
    WITHOUT_AGENT,
    Target,
)
from tests.certify.node.world import World
from tests.faults.disks.node import COMMAND, KUBELET, program


class Trouble(NamedTuple):
    """`strike`: it begins; `end`: it ends. `retries`: the generation may be to blame for it."""

    name: str
    strike: Callable[[World], None]
    end: Callable[[World], None] = lambda _world: None
    retries: bool = False


def _lasting(name: str, *, retries: bool = False) -> Trouble:
    """The world knows what it means."""

    def begin(world: World) -> None:
        world.struck = name

    def end(world: World) -> None:
        world.struck = ""

    return Trouble(name, begin, end, retries)


def _interrupt(world: World) -> None:
    world.fake.clock.interrupt = signal.SIGTERM


def _calm(world: World) -> None:
    world.fake.clock.interrupt = 0


def _stop(unit: str) -> Callable[[World], None]:
    return lambda world: world.somebody("stop", unit)


def _restart(unit: str, *, crashed: bool = False) -> Callable[[World], None]:
    def restart(world: World) -> None:
        if world.process(unit) is not None:
            world.somebody("restart", unit, counts=crashed)

    return restart


def _start(world: World) -> None:
    """Whoever has stopped kubelet starts it again."""
    if world.process(KUBELET) is None:
        world.somebody("restart", KUBELET)


def _start_theirs(world: World) -> None:
    """The same of the proxy of an earlier installation, which nobody else would."""
    if world.process(paths.PROXY_UNIT) is None and world.read(paths.BINARY) == program("theirs"):
        world.somebody("restart", paths.PROXY_UNIT)


_THEIRS = f"{DROP_INS}/95-theirs.conf"


def _drop_in(name: str, lines: str) -> Trouble:
    """Somebody adds a drop-in of kubelet's unit, and thinks better of it."""

    def add(world: World) -> None:
        world.put(_THEIRS, f"[Service]\n{lines}\n".encode())
        world.refresh()

    def delete(world: World) -> None:
        world.put(_THEIRS, None)
        world.refresh()
        world.reload()
        kubelet = world.process(KUBELET)
        if kubelet is not None and not kubelet.link:  # it may have been started from that
            world.somebody("restart", KUBELET)

    return Trouble(name, add, delete)


TROUBLES = (
    _lasting("disk full"),
    _lasting("disk read-only"),
    _lasting("/run full"),
    _lasting("bus"),
    _lasting("runtime"),
    _lasting("ill"),
    _lasting("foreign healthz"),
    _lasting("immovable"),
    Trouble("signal", _interrupt, _calm),
    Trouble("proxy stopped", _stop(paths.PROXY_UNIT), _start_theirs),
    Trouble("proxy restarted", _restart(paths.PROXY_UNIT)),
    Trouble("proxy crashed", _restart(paths.PROXY_UNIT, crashed=True), retries=True),
    Trouble("kubelet stopped", _stop(KUBELET), _start),
    Trouble("kubelet restarted", _restart(KUBELET)),
    Trouble("kubelet crashed", _restart(KUBELET, crashed=True), retries=True),
    _drop_in("no guard", "ExecStartPre="),
    _drop_in("no files", "EnvironmentFile="),
    _drop_in("one more file", "EnvironmentFile=-/etc/default/theirs"),
    _drop_in("two lines", "ExecStart=/usr/bin/kubelet"),
    _drop_in("another line", f"ExecStart=\nExecStart={' '.join(COMMAND)}"),
)


_TWO = ("containers", "two")
TROUBLED: tuple[tuple[Start, Target], ...] = (
    (((("former", "nothing"), _TWO)), INSTALL),
    ((_TWO,), POLICY),
    ((_TWO,), UPGRADE),
    ((_TWO,), BAD),
    ((_TWO,), REMOVAL),
    ((("endpoint", "base"), _TWO), INSTALL),
    ((("hold", "ours"), ("endpoint", "base"), _TWO), INSTALL),
    ((("former", "forced"), _TWO), REREAD),
    ((("proxy", "failed"), _TWO), INSTALL),
    ((("cache", "of the agent"), _TWO), WITHOUT_AGENT),
    ((("former", "earlier"), _TWO), TAKEOVER),
    ((("drop-in", "edited"), _TWO), INSTALL),
)


def troubled(ground: Ground, start: Start, target: Target, every: int) -> Found:
    """Each trouble at each so many effects of the run; each begins at another one."""
    found = Found()
    moment, origin = ground.begin(start)
    request = target.request(ground.directory)
    name = f"{describe(start)} -> {target.name}"
    world = ground.world(moment)
    uncut = watch(world, request, target, origin)
    wanted = picture(watch(world, request, target, origin).after)
    found.depth = len(uncut.steps)
    for number, trouble in enumerate(TROUBLES):
        for after in (0, *range(1 + number % every, len(uncut.steps), every)):
            found.states += 1
            world = ground.world(moment)
            run = watch(world, request, target, origin, foresees=False, strike=_at(after, trouble, world))
            for why in (one for one in broken_in_trouble(run) if not _excused(trouble, one)):
                found.faults.append(f"{name}: {trouble.name} after {after}: {why}")
            trouble.end(world)
            world.wait()
            again = replace(request, retry=trouble.retries)
            pinned = target.removes and trouble.name == "runtime"  # it says so, and goes on
            for why in _then(world, again, uncut.ended, wanted, pinned=pinned):
                found.faults.append(
                    f"{name}: {trouble.name} after {after}, and it ended '{run.ended}': {why}"
                )
    return found


def _excused(trouble: Trouble, why: str) -> bool:
    """What nobody can keep in that trouble: nobody else starts kubelet, and there is no runtime elsewhere."""
    excuses = {
        "kubelet stopped": ("kubelet runs no more",),
        "runtime": ("kubelet stays on a relay whose proxy is dead", "after the removal c"),
    }
    return _THEIRS in why or any(each in why for each in excuses.get(trouble.name, ()))


def _at(after: int, trouble: Trouble, world: World) -> Callable[[int], None]:
    def strike(number: int) -> None:
        if number == after:
            trouble.strike(world)

    return strike


def _then(
    world: World, request: Request, ended: str, wanted: dict[str, object], *, pinned: bool
) -> Iterator[str]:
    """The run that follows, and one more."""
    words: list[str] = []
    wrong: list[str] = []
    for _ in range(2):
        words.append(attempt(world, request))
        both = [picture(world.keep()), wanted]
        if words[-1] in ("rolled back", "rollback failed"):
            both = [undone(one) for one in both]
        if pinned:
            both = [{key: v for key, v in one.items() if key[:9] != "container"} for one in both]
        wrong = difference(*both)
        if not wrong and (words[-1] == ended or {words[-1], ended} <= ENDED_WELL):
            return
    yield f"R7: then it ends {words}, not '{ended}': {'; '.join(wrong)}"
