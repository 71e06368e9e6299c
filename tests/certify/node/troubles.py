"""What goes wrong from one instant of a run on, or what somebody does then, and the run that follows when it
is over."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
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


def _strike(name: str) -> Callable[[World], None]:
    def begin(world: World) -> None:
        world.struck = name

    return begin


def _lasting(name: str, *, retries: bool = False) -> Trouble:
    """The world knows what it means."""
    return Trouble(name, _strike(name), _strike(""), retries)


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


def _unlist(world: World) -> None:
    """A pod that no start of the proxy lists."""
    world.struck = "unlisted"
    world.count_pods()


def _list_again(world: World) -> None:
    world.struck = ""
    world.count_pods()


def _end_pods(world: World) -> None:
    world.struck = ""
    for one in world.fake.cri.running:
        if one.id.startswith("late"):
            world.end(one.id)


def _end_stop(world: World) -> None:
    """What had been stopping has stopped."""
    world.struck = ""
    unit = world.systemd.units[paths.PROXY_UNIT]
    if unit.active_state == "deactivating":
        world.somebody("stop", unit.name)


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
    _lasting("relay", retries=True),
    _lasting("disk unreadable"),
    Trouble("signal", _interrupt, _calm),
    Trouble("proxy stopped", _stop(paths.PROXY_UNIT), _start_theirs),
    Trouble("proxy restarted", _restart(paths.PROXY_UNIT)),
    Trouble("proxy crashed", _restart(paths.PROXY_UNIT, crashed=True), retries=True),
    Trouble("kubelet stopped", _stop(KUBELET), _start),
    Trouble("kubelet restarted", _restart(KUBELET)),
    Trouble("kubelet crashed", _restart(KUBELET, crashed=True), retries=True),
    Trouble("a new pod", lambda world: world.create("late"), lambda world: world.end("late")),
    _lasting("not ready"),
    _lasting("link"),
    Trouble("unlisted pod", _unlist, _list_again),
    Trouble("new pods", _strike("new pods"), _end_pods),
    Trouble("stops slowly", _strike("stops slowly"), _end_stop),
    Trouble("a pod of few words", lambda world: world.create("odd"), lambda world: world.end("odd")),
    _drop_in("no variables", "Environment="),
    _drop_in("no guard", "ExecStartPre="),
    _drop_in("no files", "EnvironmentFile="),
    _drop_in("one more file", "EnvironmentFile=-/etc/default/theirs"),
    _drop_in("two lines", "ExecStart=/usr/bin/kubelet"),
    _drop_in("another line", f"ExecStart=\nExecStart={' '.join(COMMAND)}"),
)


_SPARSER = 4  # a run asks so many times as often as it changes something
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


class Undisturbed:
    """A start, a target, and how the run ends that nothing disturbs."""

    def __init__(self, ground: Ground, start: Start, target: Target) -> None:
        self._ground, self._target = ground, target
        self._moment, self._origin = ground.begin(start)
        self._request = target.request(ground.directory, unattended=dict(start).get("who") == "nobody")
        self.name = f"{describe(start)} -> {target.name}"
        world = self.world()
        uncut = watch(world, self._request, target, self._origin)
        self._ended, self.depth = uncut.ended, len(uncut.steps)
        self._wanted = picture(watch(world, self._request, target, self._origin).after)

    def world(self) -> World:
        """As it is at the start."""
        return self._ground.world(self._moment)

    def questions(self) -> list[str]:
        """What it asks, in its order."""
        found = list[str]()
        world = self.world()
        world.on_question = found.append
        attempt(world, self._request, asks=True)
        return found

    def disturbed(self, world: World, trouble: Trouble, strike: Callable[[int], None]) -> Iterator[str]:
        """What does not hold of a run in trouble, and of the runs after it."""
        request, target = self._request, self._target
        run = watch(world, request, target, self._origin, foresees=False, asks=True, strike=strike)
        world.on_question = lambda _question: None
        yield from (why for why in broken_in_trouble(run) if not _excused(trouble, why))
        trouble.end(world)
        world.wait()
        again = replace(request, consent=replace(request.consent, retry=trouble.retries))
        pinned = target.removes and trouble.name in ("runtime", "disk unreadable")  # it says so, and goes on
        for why in _then(world, again, self._ended, self._wanted, pinned=pinned):
            yield f"it ended '{run.ended}', and {why}"


class Turn(NamedTuple):
    """The trouble begins before the run asks that for the `number`th time."""

    trouble: Trouble
    question: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.trouble.name} before {self.question} ({self.number})"

    def strikes(self, world: World) -> Callable[[str], None]:
        left = self.number

        def ask(question: str) -> None:
            nonlocal left
            left -= question == self.question
            if question == self.question and not left:
                self.trouble.strike(world)

        return ask


def turned(ground: Ground, start: Start, target: Target, turns: Iterable[Turn]) -> Found:
    """What goes wrong between two questions of a run: where it changes nothing, a trouble that begins at an
    effect comes too early or too late."""
    return _turned(Undisturbed(ground, start, target), turns)


def _turned(way: Undisturbed, turns: Iterable[Turn]) -> Found:
    found = Found(depth=way.depth)
    for turn in turns:
        found.states += 1
        world = way.world()
        world.on_question = turn.strikes(world)
        for why in way.disturbed(world, turn.trouble, lambda _number: None):
            found.faults.append(f"{way.name}: {turn}: {why}")
    return found


_NEW = (("former", "nothing"), _TWO)
_RUNTIME = "unix:///run/containerd/containerd.sock"
_CACHE = f"files.read {paths.PROXY_CACHE}"
#: What no effect comes before: by the name of the trouble, the question, and which of them.
TURNS: dict[tuple[Start, Target], tuple[tuple[str, str, int], ...]] = {
    (_NEW, INSTALL): (
        ("disk full", f"cri.pods {_RUNTIME}", 2),
        ("bus", f"systemd.restart {KUBELET}", 1),
        ("bus", "files.state /run/containerd/containerd.sock", 3),
        ("runtime", f"cri.empty_pods {paths.RELAY_ENDPOINT}", 1),
        ("runtime", f"systemd.restart {KUBELET}", 1),
        ("ill", "connections.peers", 1),
        ("relay", "clock.sleep", 3),
        ("new pods", f"systemd.restart {paths.PROXY_UNIT}", 1),
        ("link", f"files.write {paths.BINARY}", 1),
        ("a pod of few words", f"systemd.stop {paths.PROXY_UNIT}", 1),
        ("no variables", "systemd.daemon_reload", 2),
        ("not ready", f"systemd.restart {paths.PROXY_UNIT}", 1),
        ("unlisted pod", f"systemd.restart {KUBELET}", 1),
        ("disk unreadable", f"files.seal {paths.OUR_RUNTIME}", 1),
    ),
    ((("endpoint", "base"), _TWO), INSTALL): (("proxy stopped", "connections.drain", 1),),
    ((("former", "forced"), _TWO), REREAD): (("relay", f"systemd.kill {paths.PROXY_UNIT}", 1),),
    ((("proxy", "failed"), _TWO), INSTALL): (("relay", "clock.sleep", 3),),
    ((_TWO,), POLICY): (("disk full", "files.read /var/lib/kubelet/allocated_pods_state", 2),),
    ((_TWO,), UPGRADE): (
        ("runtime", f"cri.pods {_RUNTIME}", 2),
        ("stops slowly", f"systemd.restart {paths.PROXY_UNIT}", 1),
    ),
    ((_TWO,), BAD): (
        ("runtime", f"cri.status {_RUNTIME}", 3),
        ("disk unreadable", _CACHE, 5),
        ("disk unreadable", _CACHE, 6),
    ),
    ((_TWO,), REMOVAL): (("disk read-only", f"files.status {paths.HOLD}", 2),),
}


def turns_of(start: Start, target: Target) -> Iterator[Turn]:
    named = {trouble.name: trouble for trouble in TROUBLES}
    return (Turn(named[name], question, at) for name, question, at in TURNS.get((start, target), ()))


def troubled(ground: Ground, start: Start, target: Target, every: int) -> Found:
    """Each trouble at each so many effects of the run; each begins at another one."""
    way = Undisturbed(ground, start, target)
    found = Found(depth=way.depth)
    found.add(_turned(way, turns_of(start, target)))
    questions = way.questions()
    for number, trouble in enumerate(TROUBLES):
        for after in (0, *range(1 + number % every, way.depth, every)):
            found.states += 1
            world = way.world()
            for why in way.disturbed(world, trouble, _at(after, trouble, world)):
                found.faults.append(f"{way.name}: {trouble.name} after {after}: {why}")
        found.add(
            _turned(
                way,
                (
                    Turn(trouble, questions[at], questions[: at + 1].count(questions[at]))
                    for at in range(7 * number % len(questions), len(questions), _SPARSER * every)
                ),
            )
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
