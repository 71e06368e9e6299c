"""What the daemon does when the proxy is dead, cut at every effect: kubelet is held on its base endpoint, and
comes back with the next installation."""

from __future__ import annotations

from collections.abc import Iterator

from installer.errors import InstallerError
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import silent
from installer.model.hold import BY_DAEMON
from installer.node.rescue import hold_kubelet, restart_proxy
from tests.certify.node.engine import Found, attempt
from tests.certify.node.picture import picture
from tests.certify.node.rules import Step, difference
from tests.certify.node.starts import Ground, Start, describe
from tests.certify.node.targets import INSTALL
from tests.certify.node.world import LOOK, World

_REASON = f"{BY_DAEMON}the proxy is dead"
_SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
_TWO = ("containers", "two")
_NATURES: tuple[Start, ...] = ((), (("nature", "broken"),), (("nature", "too slow"),))
_NODES: tuple[Start, ...] = (
    (),
    (_TWO,),
    (("cache", "torn"),),
    (("hold", "a person's"),),
    (("hold", "ours"),),
    (("proxy", "stopped"),),
    (("proxy", "failed"),),
    (("proxy", "failed"), ("hold", "a person's")),
    (("proxy", "failed"), ("cache", "torn")),
    (("proxy", "missing"),),
    (("proxy", "masked"),),
    (("kubelet", "stopped"),),
    (("kubelet", "failed"),),
    (("kubelet", "missing"),),
    (("endpoint", "base"),),
    (("record", "damaged"),),
    (("former", "nothing"),),
)
RESCUES = [(*node, *nature) for node in _NODES for nature in _NATURES]


def rescue(ground: Ground, start: Start) -> Found:
    found = Found()
    for restart in (True, False):
        name = f"{describe(start)} -> {'rescue' if restart else 'hold'}"
        found.faults += [f"{name}: {why}" for why in _faults(ground, start, found, restart=restart)]
    return found


def _faults(ground: Ground, start: Start, found: Found, *, restart: bool) -> Iterator[str]:
    moment, _ = ground.begin(start)
    world, steps = ground.world(moment), list[Step]()
    world.on_effect = lambda effect: steps.append(Step(effect, world.keep()))
    ended = _hold(world, restart=restart)
    world.on_effect = lambda _effect: None
    theirs = ("hold", "a person's") in start
    yield from _wrong(world, restart=restart, ended=ended, theirs=theirs)
    wanted = picture(world.keep())
    found.depth = max(found.depth, len(steps))
    for number, (effect, after) in enumerate(steps, 1):
        if effect.verb == LOOK:
            continue
        found.states += 1
        cut = ground.world(after)
        again = _hold(cut, restart=restart)
        for why in (
            *_wrong(cut, restart=restart, ended=again, theirs=theirs),
            *difference(picture(cut.keep()), wanted),
        ):
            yield f"killed after {number} ({effect}): {why}"
    for trouble in ("ill", "/run full", "disk read-only"):
        sick = ground.world(moment, "sick")
        sick.struck = trouble
        _hold(sick, restart=restart)
        restart_proxy(_SETTINGS, sick.fake.host, silent)
        sick.struck = ""
        if (ended := _hold(sick, restart=restart)) != _hold(ground.world(moment, "well"), restart=restart):
            yield f"after the trouble '{trouble}' it ends '{ended}'"
    restart_proxy(_SETTINGS, world.fake.host, silent)
    world.refresh()
    works = not {("proxy", "masked"), ("proxy", "missing"), ("former", "nothing")} & {*start}
    if works and not any(name == "nature" for name, _ in start) and not world.proxy_answers:
        yield "the proxy does not answer after its restart"
    if all(factor in ("cache", "containers", "endpoint") or value == "ours" for factor, value in start):
        word = attempt(world, INSTALL.request(ground.directory))
        if word != "changed" or not world.on_relay or paths.HOLD in world.tree:
            yield f"the next installation ends '{word}', and kubelet does not come back to the relay"


def _hold(world: World, *, restart: bool) -> str:
    try:
        hold_kubelet(_SETTINGS, world.fake.host, silent, _REASON, restart=restart)
    except InstallerError as error:
        return type(error).__name__
    return "done"


def _wrong(world: World, *, restart: bool, ended: str, theirs: bool) -> Iterator[str]:
    held = (world.read(paths.HOLD) or b"").decode()
    if held != ("ticket 4711\n" if theirs else f"{_REASON}\n"):
        yield f"R12: the hold says {held!r}"
    if ended == "done" and restart and (world.on_relay or not world.kubelet_healthy()):
        yield "R12: kubelet is not on its base endpoint, and healthy"
