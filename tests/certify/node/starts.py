"""The kinds of start, and how many of them are tried together.

Each factor has values; the first is the usual one. A bound of 1 has each value in some start, 2 each pair of
values of two factors, 3 each three of three. What is refused hides what else is so: values that are refused
with most targets (`ALONE`) are tried one by one, with all else as usual, on a node with an installation and
on one without. `repairs` has every other value by itself.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

from installer.errors import InstallerError
from installer.host.kubelet_place import BASE_VARIABLE
from installer.model import hold, paths
from installer.model.event import silent
from installer.model.host import ProcessState, UnitState
from installer.node.adoption import OLD_CACHE
from installer.node.reconcile import reconcile
from installer.node.record import HEALTH_OWED, SOUND, dump_record, load_record
from tests.certify.node.earlier import EARLIER
from tests.certify.node.facts import FACTS, HOSTS
from tests.certify.node.kubelets import BASE, DROP_INS, KUBELETS
from tests.certify.node.targets import (
    ACCEPTING,
    AGAIN,
    ASKING,
    ASKING_FOR_ALL,
    BAD,
    BAD_TAKEOVER,
    BY_VARIABLE,
    CONTROLLED,
    CONTROLS,
    DEFAULTS,
    DESPITE,
    ELSEWHERE_DROP_IN,
    EMPTY,
    EXEC_START,
    FORCED,
    FORGETFUL,
    FORMERS,
    INSTALL,
    INSTALLED,
    LIVED,
    NAMED,
    NAMED_ANOTHER,
    NO_RESTART_LEFT,
    OLD_PROXY,
    ON_CPUS,
    ONE_POLICY,
    OTHER_MACHINE,
    OTHER_UNIT,
    OWN_SOCKETS,
    POLICY,
    RARE,
    REFUSING,
    REMOVAL,
    REMOVAL_AS_IT_IS,
    REMOVAL_FOR_NRI,
    REMOVAL_OF_ALL,
    REPAIR,
    REPAIR_WITH_CONFIGS,
    REREAD,
    SLOWER,
    TAKEOVER,
    TAKEOVER_AT,
    TAKEOVER_WITHOUT,
    UPGRADE,
    USUAL_DROP_IN,
    WITHOUT_AGENT,
    Target,
    without_earlier,
)
from tests.certify.node.world import ELSEWHERE, MASK, NATURE, Moment, World, lay
from tests.faults.disks.crash import Tree
from tests.faults.disks.node import BASE_ENVIRONMENT, BASE_UNIT, DROP_IN, KUBELET, bare_node

PATHS = {
    "binary": paths.BINARY,
    "guard": paths.GUARD,
    "unit": paths.PROXY_UNIT_FILE,
    "environment": paths.PROXY_ENVIRONMENT,
    "fallback": paths.FALLBACK_CONFIG,
    "force": paths.FORCE_CONFIG,
    "extra": paths.EXTRA_OPTIONS,
    "kubelet.env": paths.KUBELET_ENVIRONMENT,
    "drop-in": DROP_IN,
    "wants": paths.PROXY_WANTED,
}
_AT_A_PATH = ("as it is", "absent", "foreign", "ours", "edited", "mode", "link", "directory")
FACTORS: dict[str, tuple[str, ...]] = {
    "former": tuple(FORMERS),
    **dict.fromkeys(PATHS, _AT_A_PATH),
    "record": ("whole", "missing", "damaged", "of another machine"),
    "hold": ("none", "a person's", "ours"),
    "cache": ("as it is", "missing", "torn"),
    "reloaded": ("no", "yes"),
    "proxy": ("as it is", "stopped", "failed", "masked", "missing", "restarted"),
    "kubelet": ("as it is", "stopped", "failed", "masked", "missing", "restarted"),
    "endpoint": ("as it is", "base", "elsewhere"),
    "link": ("as it is", "to the base", "missing", "a directory", "elsewhere", "not followed"),
    "containers": ("none", "two"),
    "who": ("a person", "nobody"),
}
Start = tuple[tuple[str, str], ...]
"""What differs from the usual: (factor, value)."""

ALONE = {
    *((path, "directory") for path in PATHS if path not in ("force", "extra", "wants")),
    ("kubelet", "stopped"),
    ("kubelet", "failed"),
    ("kubelet", "masked"),
    ("kubelet", "missing"),
    ("proxy", "masked"),
}
_FOREIGN = "# somebody's own {}\npolicy:\n  Active: none\n"
_ABOUT_ALL = ("former", "containers", "who")
ELSEWHERE_FILE = "/srv/elsewhere"
_EDIT = "# edited {}\n"
_RECORDS: dict[str, dict[str, object]] = {
    "of the future": {"schema": 99},
    "of no version": {"schema": "1"},
    "edited": {},
}
_THEIRS = {
    "a reset": (f"{DROP_INS}/95-theirs.conf", b"[Service]\nEnvironmentFile=\n"),
    "two lines": (f"{DROP_INS}/95-theirs.conf", b"[Service]\nExecStart=/usr/bin/kubelet\n"),
    "the relay": (
        BASE_ENVIRONMENT,
        f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={paths.RELAY_ENDPOINT}\n".encode(),
    ),
    "an environment": (BASE_ENVIRONMENT, b"KUBELET_EXTRA_ARGS=--v=3\n"),
    "another script": (BASE, b"[Service]\nExecStart=\nExecStart=/opt/other $KUBELET_EXTRA_ARGS\n"),
    "schemata": ("/sys/fs/resctrl/schemata", b"L3:0=1\n"),
}
_STARTING = {"starting": 2.0, "starting slowly": 8.0, "starting for ever": 400.0}  # seconds
_OTHER_CACHE = b'{"Version": "9", "Pods": {}, "Containers": {}, "PolicyName": "topology-aware"}'
_BROKEN_AGENT = {"Data": {"policy": "Active: nonsense\n"}}
_AGENT = {"Data": {"policy": "Active: balloons\n"}}


def all_starts(bound: int) -> list[Start]:
    """Every start of a bound."""
    formers = list(FORMERS)
    alone: list[Start] = [(one,) for one in sorted(ALONE)]
    alone += [(("former", formers[1]), one) for one in sorted(ALONE)]
    others = {name: tuple(v for v in found if (name, v) not in ALONE) for name, found in FACTORS.items()}
    usual: list[Start] = [() if former == formers[0] else (("former", former),) for former in formers]
    usual += [(*start, ("containers", "two")) for start in usual]
    return list(dict.fromkeys([*usual, *alone, *cover(others, bound)]))


def repairs() -> list[Start]:
    """Each value by itself on a node with an installation, and each edit that the proxy was started from."""
    single: list[Start] = [
        ((name, value),) for name, values in FACTORS.items() for value in values[1:] if name not in _ABOUT_ALL
    ]
    read = [((name, "edited"), ("proxy", "restarted")) for name in PATHS if name not in ("drop-in", "wants")]
    return [*(one for one in single if one[0] not in ALONE), *read]


def is_usual(start: Start) -> bool:
    """Whether nothing has been done to the node but installations."""
    return all(factor in _ABOUT_ALL for factor, _value in start)


def cover(factors: Mapping[str, Sequence[str]], strength: int) -> list[Start]:
    """A covering array: each combination of values of `strength` factors is in one of the starts. Greedy, and
    the same each time."""
    choose, names = random.Random(strength), list(factors)
    left = {
        tuple(zip(some, values, strict=True))
        for some in itertools.combinations(range(len(names)), strength)
        for values in itertools.product(*(range(len(factors[names[one]])) for one in some))
    }
    queue = sorted(left)
    choose.shuffle(queue)
    found: list[Start] = []
    while left:
        while queue[-1] not in left:
            queue.pop()
        row = dict(queue[-1])
        for one in choose.sample(range(len(names)), len(names)):
            if one not in row:
                row[one] = _fullest(row, one, len(factors[names[one]]), left, strength, choose)
        left.difference_update(itertools.combinations(sorted(row.items()), strength))
        found.append(
            tuple((names[one], factors[names[one]][value]) for one, value in sorted(row.items()) if value)
        )
    return found


def _fullest(
    row: Mapping[int, int],
    one: int,
    values: int,
    left: set[tuple[tuple[int, int], ...]],
    strength: int,
    choose: random.Random,
) -> int:
    """The value with which most of what is left is covered."""
    others = list(itertools.combinations(sorted(row.items()), strength - 1))
    gains = [sum(tuple(sorted((*some, (one, value)))) in left for some in others) for value in range(values)]
    return choose.choice([value for value in range(values) if gains[value] == max(gains)])


_TWO, _ALL = ("containers", "two"), ("containers", "all kinds")
_TAKES = (TAKEOVER, BAD_TAKEOVER, INSTALL, REMOVAL)
_EVERY_KUBELET = (INSTALL, EXEC_START, NAMED, REMOVAL)
_SOME_KUBELETS = ("no variable", "a script", "a shell's variable", "an unset variable")
_LATER = (
    "containers on one memory node",
    "containers on one CPU",
    "a runtime of fewer words, and nothing pinned",
)
_MANAGED = ("an endpoint in its configuration", "managers in flags", "no cgroups of classes")
_STARTS_IT = (INSTALL, POLICY, UPGRADE, BAD, REMOVAL)


def _nature(name: str, *others: tuple[str, str]) -> Start:
    return (*others, ("nature", name))


#: What else may be sick there: the proxy, the manager, the runtime, kubelet.
_SICK: dict[str, tuple[Target, ...]] = {
    "fatal": (BAD,),
    "not set up": (BAD,),
    "stuck": (UPGRADE, REMOVAL),
    "canceled": (UPGRADE,),
    "exits": (UPGRADE,),
    "no runtime": (INSTALL, POLICY, REMOVAL),
    "runtime dies": (BAD,),
    "not ready": (UPGRADE,),
    "lost": (REMOVAL,),
    "immovable": (INSTALL, POLICY, UPGRADE, BAD, REMOVAL),
    "ill": (UPGRADE, BAD),
    "ill behind it": (UPGRADE,),
    "flagless": (UPGRADE,),
    "fails": (UPGRADE,),
    "takes": (UPGRADE, POLICY),
    "blind": (POLICY,),
    "unseeing": (POLICY,),
    "long ill": (UPGRADE, REMOVAL),
    "immovable and slow": (UPGRADE,),
}
TAKEOVERS: tuple[Start, ...] = tuple((("former", name),) for name in ("earlier", "packaged", "unused"))
#: What is tried once: it needs a node of its own kind, or another proxy.
RARE_WAYS: dict[Start, tuple[Target, ...]] = {
    **dict.fromkeys(TAKEOVERS, _TAKES),
    (("former", "earlier"), _TWO): _TAKES,
    (("former", "earlier"), ("proxy", "stopped")): _TAKES,
    (("former", "taken over"),): (TAKEOVER, UPGRADE, BAD_TAKEOVER, REMOVAL),
    _nature("broken", ("former", "earlier")): (TAKEOVER,),
    _nature("broken"): _STARTS_IT,
    _nature("broken", ("former", "nothing")): (INSTALL,),
    _nature("slow", _TWO): _STARTS_IT,
    _nature("slow", ("former", "nothing"), _TWO): (INSTALL,),
    _nature("too slow", _TWO): _STARTS_IT,
    _nature("too slow"): (UPGRADE,),
    _nature("late", _TWO): (INSTALL, UPGRADE, BAD, REMOVAL),
    _nature("late", ("former", "nothing"), _TWO): (INSTALL, REFUSING),
    (("former", "forced"), _TWO): (REREAD,),
    **{_nature(name, _TWO): found for name, found in _SICK.items()},
    **{_nature(name, ("former", "nothing"), _TWO): (INSTALL, BAD) for name in _SICK},
    **{(("record", name),): (INSTALL, UPGRADE, REMOVAL) for name in _RECORDS},
    **{(("originals", name),): (INSTALL, POLICY, BAD, REMOVAL) for name in ("missing", "damaged")},
    **{(("originals", name), ("record", "missing")): (INSTALL, REMOVAL) for name in ("missing", "damaged")},
    (("cache", "of the agent"),): (INSTALL, POLICY, UPGRADE, BAD, WITHOUT_AGENT, REMOVAL),
    (("cache", "of the agent"), _TWO): (INSTALL, FORCED, UPGRADE, WITHOUT_AGENT, REFUSING),
    (_ALL,): (*_STARTS_IT, FORCED),
    (_ALL, ("former", "nothing")): (INSTALL, POLICY, FORCED, BAD),
    (_ALL, ("former", "forced")): (INSTALL, REREAD, REMOVAL),
    (_ALL, ("cache", "missing")): (INSTALL, POLICY, REMOVAL),
    (_ALL, ("endpoint", "base")): (INSTALL, UPGRADE, BAD, REMOVAL),
    (("cache", "of another version"), _TWO): (INSTALL, POLICY, UPGRADE, REMOVAL),
    (("pause", "yes"),): (INSTALL, UPGRADE, REMOVAL),
    (("pause", "yes"), ("former", "nothing")): (INSTALL,),
    **{(("old cache", how), ("endpoint", "base"), _TWO): (POLICY, BAD) for how in ("torn", "whole")},
    (_TWO, ("who", "nobody")): (ASKING, ASKING_FOR_ALL, NO_RESTART_LEFT),
    (("former", "nothing"), ("who", "nobody")): (ASKING, ASKING_FOR_ALL, NO_RESTART_LEFT),
    (("drop-in", "absent"), ("who", "nobody")): (ASKING, NO_RESTART_LEFT),
    (("hold", "ours"), ("endpoint", "base"), ("who", "nobody")): (ASKING, NO_RESTART_LEFT, UPGRADE),
    _nature("refuses", ("former", "forced"), _TWO): (REREAD,),
    _nature("refuses", ("former", "forced")): (REREAD,),
    (("endpoint", "base"), _TWO): (*_STARTS_IT, REFUSING),
    (("endpoint", "base"), ("former", "nothing"), _TWO): (INSTALL, REFUSING),
    **{(("former", name), _TWO): _EVERY_KUBELET for name in KUBELETS},
    **{(("former", name),): (BY_VARIABLE, NAMED_ANOTHER) for name in _SOME_KUBELETS},
    **{(("former", name),): (ACCEPTING,) for name in _MANAGED},
    **{(("former", name), _TWO): (INSTALL, REMOVAL_FOR_NRI) for name in HOSTS},
    (("former", "host: a kubelet that has been ill"),): (REMOVAL,),
    (("former", "host: resctrl"),): (CONTROLLED,),
    (("record", "owing"),): (INSTALL, UPGRADE, REMOVAL),
    _nature("ill", ("record", "owing")): (INSTALL, UPGRADE),
    _nature("long ill", ("record", "owing")): (INSTALL,),
    _nature("ill behind it", ("record", "owing"), ("endpoint", "base")): (INSTALL,),
    (("former", "throttled"), _TWO): (INSTALL, REMOVAL),
    (("theirs", "a reset"),): (INSTALL, UPGRADE, REMOVAL),
    (("drop-in", "edited"), ("reloaded", "yes")): (INSTALL,),
    (("theirs", "a reset"), ("fallback", "edited"), ("who", "nobody")): (INSTALL,),
    (("originals", "missing"), ("binary", "absent")): (REPAIR, UPGRADE),
    (("cache", "of a broken agent"), _TWO): (INSTALL, UPGRADE),
    (("former", "host: gardener"),): (USUAL_DROP_IN,),
    (("former", "host: few CPUs"),): (ON_CPUS,),
    (("former", "nothing"), _TWO, ("link", "as it is")): (CONTROLLED,),
    **{(("former", f"{name}{INSTALLED}"), _TWO): (POLICY, BAD, REMOVAL) for name in LIVED},
    (("former", "installed"),): (
        *(REPAIR, REPAIR_WITH_CONFIGS, FORGETFUL, DEFAULTS, EMPTY, EXEC_START, BY_VARIABLE, OWN_SOCKETS),
        *(ELSEWHERE_DROP_IN, OTHER_UNIT, REMOVAL_OF_ALL, REMOVAL_FOR_NRI, CONTROLLED),
    ),
    (("former", "failed"),): (AGAIN, BAD, SLOWER),
    (("former", "nothing"), ("binary", "ours")): (REPAIR, REMOVAL_OF_ALL),
    (("former", "controlled"), _TWO): (INSTALL, BAD, REMOVAL),
    (("pause", "yes"), ("containers", "two")): (DESPITE,),
    (("containers", "two"), ("policy", "pins")): (REMOVAL_AS_IT_IS,),
    (("originals", "missing"), ("record", "whole")): (REMOVAL_OF_ALL, REPAIR),
    (("record", "damaged"), ("originals", "damaged")): (REMOVAL_OF_ALL,),
    (("record", "of another machine"), ("containers", "two")): (REMOVAL_OF_ALL, REPAIR),
    (("former", "earlier"), ("who", "nobody")): (TAKEOVER_WITHOUT, TAKEOVER_AT),
    **{(("former", name),): (TAKEOVER,) for name in EARLIER},
    (("former", "earlier, of no unit"),): (TAKEOVER_AT,),
    (("former", "one policy"), ("cache", "of the agent")): (ONE_POLICY, UPGRADE),
    (("former", "without its agent"), ("cache", "of the agent"), ("proxy", "restarted")): (WITHOUT_AGENT,),
    **{_nature(name, ("former", "forced"), _TWO): (REREAD,) for name in ("mute", "leaves")},
    _nature("slow job", _TWO): (UPGRADE,),
    _nature("reads slowly", ("cache", "missing"), _TWO): (POLICY,),
    (("kubelet", "failed"), ("proxy", "stopped")): (INSTALL,),
    (("later", "immutable"),): (REMOVAL,),
    (("former", "host: a kubelet of the future"),): (OLD_PROXY,),
    (("former", "host: a runtime that ignores too little"), _TWO, ("link", "as it is")): (POLICY,),
    (("former", "balloons, host: a runtime that ignores too little"), _TWO): (REMOVAL,),
    **{(("former", f"host: {name}, controlled"), _TWO): (REMOVAL,) for name in CONTROLS},
    **{(("former", f"host: {name}"), _TWO, ("link", "as it is")): (CONTROLLED,) for name in CONTROLS},
    (("former", "controlled"), ("theirs", "schemata")): (REMOVAL,),
    (("former", "controlled"), ("theirs", "schemata"), ("later", "a kernel that refuses")): (REMOVAL,),
    (("former", "a script, by its line"), ("theirs", "another script"), ("reloaded", "yes")): (
        EXEC_START,
        INSTALL,
    ),
    (("former", "nothing"), ("containers", "none")): (OTHER_MACHINE,),
    **{(("proxy", how), _TWO): (INSTALL, UPGRADE) for how in _STARTING},
    _nature("immovable", ("proxy", "starting for ever"), _TWO): (INSTALL, UPGRADE),
    (("record", "a directory"),): (INSTALL, REMOVAL),
    (("kubelet", "vanished"),): (INSTALL,),
    (("theirs", "a reset"), ("endpoint", "elsewhere")): (ACCEPTING, INSTALL),
    (("record", "missing"), ("cache", "gone"), ("proxy", "stopped")): (REMOVAL,),
    (("old cache", "torn"), ("cache", "missing"), _TWO): (POLICY,),
    **{(("later", name), _TWO): (REMOVAL,) for name in _LATER},
    (("former", "host: links that lead away"),): (FORCED,),
    (("theirs", "a reset"), ("endpoint", "elsewhere"), ("fallback", "edited"), ("who", "nobody")): (UPGRADE,),
    _nature("immovable, and the new one is slow", _TWO): (UPGRADE,),
    _nature("the new one is slow", _TWO): (UPGRADE,),
    (("former", "managers, and NRI, accepted"),): (REMOVAL_FOR_NRI,),
    (("former", "host: NRI, installed"),): (REMOVAL_FOR_NRI,),
    (("former", "rounded weights"), _TWO): (INSTALL, POLICY, REMOVAL),
    (("former", "forced"), _TWO, ("link", "as it is")): (REMOVAL_AS_IT_IS,),
}


class Ground:
    """Makes the starts, each at its own place below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made: dict[tuple[str, int], tuple[Moment, Tree]] = {}
        self._ours: Tree = {}
        self._fresh: dict[tuple[Target, Callable[[], Tree]], Tree] = {}

    def begin(self, start: Start) -> tuple[Moment, Tree]:
        """The node of that start, and the disk as it was before us, if all that is said of it was there."""
        given = dict(start)
        count = {"two": 2, "all kinds": 5}.get(given.get("containers", ""), 0)
        former, bare = self._former(given.get("former", next(iter(FORMERS))), count)
        world = self.world(former)
        for name, path in PATHS.items():
            self._put(world, path, given.get(name, ""))
        self._record(world, given.get("record", ""))
        if reason := {"a person's": "ticket 4711", "ours": f"{hold.BY_ROLLBACK}it failed"}.get(
            given.get("hold", "")
        ):
            world.put(paths.HOLD, reason.encode() + b"\n")
        cache = given.get("cache", "")
        if cache and world.read(paths.PROXY_CACHE):
            content = {"missing": None, "gone": None, "torn": b'{"Ver', "of another version": _OTHER_CACHE}
            sent = _AGENT if cache == "of the agent" else _BROKEN_AGENT
            agent = {**json.loads(world.read(paths.PROXY_CACHE) or b"{}"), "Cfg": sent}
            world.put(paths.PROXY_CACHE, content.get(cache, json.dumps(agent).encode()))
        if cache == "gone":
            world.put(paths.PROXY_STATE[0], None)
        for place in world.names(paths.OBJECTS) if given.get("originals", "whole") != "whole" else ():
            lost = given["originals"] == "missing"
            world.put(f"{paths.OBJECTS}/{place}", None if lost else b"damaged")
        self._units(world, given)
        if "theirs" in given:
            world.put(*_THEIRS[given["theirs"]])
        if "pause" in given:
            world.put(hold.PAUSE_FILE, b"ticket 4712\n")
        if "old cache" in given:
            world.put(OLD_CACHE, b'{"Ver' if given["old cache"] == "torn" else world.read(paths.PROXY_CACHE))
        if later := given.get("later"):  # the host has become another one
            world.become(HOSTS[f"host: {later}"]()[FACTS].content)
        if nature := given.get("nature"):
            world.put(NATURE, nature.encode())
        world.refresh()
        return world.keep(), bare

    def world(self, moment: Moment, name: str = "node") -> World:
        """That node, alive."""
        root = self.directory / name
        lay(moment.tree, root)
        return World(root, moment)

    def run(self, world: World, target: Target) -> None:
        reconcile(target.request(self.directory), world.fake.host, silent)

    def fresh(self, start: Start, target: Target) -> Tree:
        """What an installation of that leaves on a node of that kind that had nothing."""
        former = dict(start).get("former", "").removesuffix(INSTALLED)
        bare = (KUBELETS | HOSTS).get(former, FORMERS["a clean node"].bare)
        if (target, bare) not in self._fresh:
            root = self.directory / "fresh"
            lay(bare(), root)
            world = World(root)
            self.run(world, replace(target, asks="", restarts_left=inf))
            self._fresh[target, bare] = world.tree
        return self._fresh[target, bare]

    def _former(self, name: str, containers: int) -> tuple[Moment, Tree]:
        if (name, containers) not in self._made:
            former, root = {**FORMERS, **RARE}[name], self.directory / "node"
            lay(former.bare(), root)
            world = World(root, containers=containers)
            bare = dict(world.tree)
            for target in former.installed:
                with suppress(*(() if target.works else (InstallerError,))):
                    self.run(world, target)
            if former.boots:
                world = World(root, containers=containers)
            if former.installed:
                bare = without_earlier(bare)
            self._made[name, containers] = world.keep(), bare
        return self._made[name, containers]

    def _content(self, path: str) -> bytes:
        """What an installation of ours has there."""
        if not self._ours:
            for target in FORMERS["forced"].installed:
                root = self.directory / "ours"
                lay(bare_node(), root)
                world = World(root)
                self.run(world, target)
                self._ours = {**self._ours, **world.tree}
        found = self._ours.get(path)
        return found.content if found is not None else b"[Unit]\n"

    def _put(self, world: World, path: str, what: str) -> None:
        if what in ("", "as it is"):
            return
        entry = world.tree.get(path)
        if what == "mode":
            if entry is not None and entry.kind == "f":
                world.put(path, entry.content, 0o606)
            return
        mode = entry.mode if entry is not None and entry.kind == "f" else 0o644
        before = entry.content if entry is not None and entry.kind == "f" else self._content(path)
        edit = _EDIT.format(path) + ("EDITED=1\n" if path == paths.PROXY_ENVIRONMENT else "")
        content = {
            "foreign": _FOREIGN.format(path).encode(),
            "ours": self._content(path),
            "edited": before + edit.encode(),
        }.get(what)
        if what == "link":
            world.put(ELSEWHERE_FILE, _FOREIGN.format("elsewhere").encode())
            world.put(path, None, link=ELSEWHERE_FILE)
        elif what == "directory":
            world.put(path, None, directory=True)
        else:
            world.put(path, content, mode)

    def _record(self, world: World, what: str) -> None:
        raw = world.read(paths.RECORD)
        if not raw or what in ("", "whole"):
            return
        if what == "missing":
            world.put(paths.RECORD, None)
        elif what == "a directory":
            world.put(paths.RECORD, None, directory=True)
        elif what == "damaged":
            world.put(paths.RECORD, raw[: len(raw) // 2], 0o600)
        elif what in _RECORDS:
            world.put(paths.RECORD, json.dumps({**json.loads(raw), **_RECORDS[what]}).encode(), 0o600)
        else:
            known = world.fake.identity
            record = load_record(world.fake.files, known.machine_id, known.hostname).record
            if what == "owing":  # a run was killed before kubelet was healthy
                record = replace(record, owed={HEALTH_OWED: SOUND})
            else:
                record = replace(record, machine_id="f" * 32)
            world.put(paths.RECORD, dump_record(record), 0o600)

    def _units(self, world: World, given: Mapping[str, str]) -> None:
        """What other people have done with systemd."""
        systemd, proxy, kubelet = world.systemd, given.get("proxy", ""), given.get("kubelet", "")
        if proxy == "masked":
            world.put(paths.PROXY_UNIT_FILE, None, link=MASK)
        elif proxy == "missing":
            world.put(paths.PROXY_UNIT_FILE, None)
        if kubelet == "masked":
            world.put(BASE_UNIT, None, link=MASK)
        elif kubelet in ("missing", "vanished"):
            world.put(BASE_UNIT, None)
            world.put(BASE, None if kubelet == "vanished" else world.read(BASE))
        reloads = "yes" in given.get("reloaded", "") or {proxy, kubelet} & {"masked", "missing"}
        if reloads:
            systemd.daemon_reload(0)
        for name, how in ((paths.PROXY_UNIT, proxy), (KUBELET, kubelet)):
            unit = systemd.unit(name)
            if how in _STARTING and unit.main_pid:  # a run was killed that had started it
                world.answers[unit.main_pid] = world.fake.clock.time + _STARTING[how]
                world.put(paths.PROXY_PID_FILE, None)
            if how == "restarted" and unit.load_state == "loaded":
                systemd.restart(name, 0)
            elif how in ("stopped", "failed") and unit.exists:
                systemd.units[name] = _ended(unit, how)
            elif how == "missing":
                systemd.units[name] = UnitState(name)
        process = world.process(KUBELET)
        if process is not None and process.link:
            _link(world, process, given.get("link", "as it is"))
        endpoint = given.get("endpoint", "")
        if process is None or endpoint in ("", "as it is"):
            return
        argv = tuple(word for word in process.argv if word != process.environ.get("CRI_RESMGR_GUARD_FLAG"))
        if endpoint == "elsewhere":
            argv = (*argv, f"--container-runtime-endpoint={ELSEWHERE}")
        elif process.link or process.names_relay:
            world.put(paths.CONTAINERS_UNKNOWN, b"1\n")
            world.put(paths.KUBELET_USED, None)
        world.fake.processes.processes[process.pid] = replace(process, argv=argv)


def _link(world: World, kubelet: ProcessState, how: str) -> None:
    """What has become of kubelet's link."""
    base = kubelet.environ[BASE_VARIABLE]
    if how in ("to the base", "elsewhere"):
        world.put(kubelet.link, None, link=base if how == "to the base" else "/run/somewhere/else.sock")
    elif how in ("missing", "a directory"):
        world.put(kubelet.link, None, directory=how == "a directory")
    elif how == "not followed":  # somebody has been killed who moved kubelet to the relay
        world.fake.connections.dialled[kubelet.pid] = (base, "")
    if how in ("to the base", "not followed"):
        world.put(paths.CONTAINERS_UNKNOWN, b"1\n")


def _ended(unit: UnitState, how: str) -> UnitState:
    if how == "stopped":
        return replace(unit, active_state="inactive", sub_state="dead", main_pid=0)
    return replace(unit, active_state="failed", sub_state="failed", result="exit-code", main_pid=0)


def describe(start: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{factor}: {value}" for factor, value in start) or "as usual"
