"""One start and one target: the run that nothing cuts, and from each instant of it the run that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from installer.errors import InstallerError, RollbackFailedError, RolledBackError
from installer.inputs.load import Request
from installer.model import paths
from installer.model.event import silent
from installer.model.plan import Assessment
from installer.node.picture import Picture, take_picture
from installer.node.reconcile import preview, reconcile
from tests.certify.node.earlier import kubelets_own, repairs
from tests.certify.node.picture import picture, undone
from tests.certify.node.rules import (
    BLAMELESS,
    ENDED_WELL,
    HOPELESS,
    Run,
    Step,
    broken,
    difference,
    repaired,
    took_over,
)
from tests.certify.node.starts import Ground, Start, describe, is_usual
from tests.certify.node.targets import FORMERS, RARE, REMOVAL, Target, without_earlier
from tests.certify.node.world import LOOK, NATURE, Effect, Moment, World, lay
from tests.faults.disks.crash import Disk, Tree
from tests.faults.disks.node import DROP_IN, KUBELET, program
from tests.faults.disks.recorder import Operation, Verb


class Cut(NamedTuple):
    """Where a run was cut: after so many effects, by what, and the node that is left. `lost`: the power went,
    and the disk is all that is left."""

    after: int
    how: str
    moment: Moment
    lost: bool = False


@dataclass(slots=True)
class Found:
    """What was tried, and what did not hold."""

    states: int = 0
    depth: int = 0  # the most effects of one plan
    twice: int = 0  # ends that took one more run
    ends: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.states += other.states
        self.depth = max(self.depth, other.depth)
        self.twice += other.twice
        for word, count in other.ends.items():
            self.ends[word] = self.ends.get(word, 0) + count
        self.faults += other.faults


def attempt(world: World, request: Request, *, asks: bool = False) -> str:
    """One run, and how it ended, in a word. `asks`: the world is told of its questions."""
    try:
        changed = reconcile(request, world.host if asks else world.fake.host, silent).changed
    except RolledBackError:
        return "rolled back"
    except RollbackFailedError:
        return "rollback failed"
    except InstallerError as error:
        # A removal that nothing proves some files to be ours in: it is done, and names them.
        return "left some" if error.hint.startswith("everything else was removed") else "refused"
    return "changed" if changed else "nothing to do"


def watch(
    world: World,
    request: Request,
    target: Target,
    disk: Tree | None,
    *,
    foresees: bool = True,
    asks: bool = False,
    strike: Callable[[int], None] = lambda _number: None,
) -> Run:
    """The same, seen whole. `strike` is told each effect's number, and 0 before the first."""
    before, steps = world.keep(), list[Step]()
    if disk is not None:
        taken = took_over(before.tree)
        disk = without_earlier(disk) if taken else {**disk, **repaired(before.tree, repairs(disk))}
    world.effects.clear()
    world.runtime_died = False
    foreseen: Assessment | None = None
    error: InstallerError | None = None
    seen: Picture | None = None
    if foresees:
        with suppress(InstallerError):
            foreseen, error = preview(request, world.fake.host)
        seen, _ = take_picture(request, world.fake.host)
    looked = [effect for effect in world.effects if effect.verb != LOOK]

    def note(effect: Effect) -> None:
        steps.append(Step(effect, world.keep()))
        strike(len(steps))

    strike(0)
    world.on_effect = note
    ended = attempt(world, request, asks=asks)
    world.on_effect = lambda _effect: None
    if looked:
        ended = f"{ended}, and a look did {looked[0]}"
    if seen is not None and (wrong := _misread(seen, ended, take_picture(request, world.fake.host)[0])):
        ended = f"{wrong}, though it ends '{ended}'"
    remembers = isinstance(error, RolledBackError)
    gives_back = dict(target.removal).get("reset_pinning", True) is True
    return Run(
        *(before, steps, world.keep(), foreseen, ended, target.removes),
        *(request.mandate.unattended, disk, foresees),
        gives_back=gives_back,
        remembers=remembers,
    )


def _misread(seen: Picture, ended: str, after: Picture) -> str:
    """What the daemon would do wrong that has these pictures: begin runs without end that have nothing to do,
    or none though there is something to do. What only the runtime can tell, a picture may show in vain."""
    if after.due and after.in_files and ended == "nothing to do":
        return f"the picture has something to do ({after.differs})"
    if not seen.due and ended == "changed":
        return f"the picture had nothing to do ({seen.code} {seen.reason})"
    return ""


def certify(ground: Ground, start: Start, target: Target, *, every: int = 1, power: bool = True) -> Found:
    """Everything about one start and one target. `every`: only each so many cuts; 0: none."""
    found = Found()
    moment, disk = ground.begin(start)
    unattended = dict(start).get("who") == "nobody"
    request = target.request(ground.directory, unattended=unattended)
    name = f"{describe(start)} -> {target.name}"
    world = ground.world(moment)
    everything = target.consent.without_record  # which nothing proves to be ours
    origin = disk if _knows_all(start) and not everything else None
    uncut = watch(world, request, target, origin)
    found.states += 1
    found.depth = len(uncut.steps)
    found.ends[uncut.ended] = 1
    found.faults += [f"{name}: {why}" for why in broken(uncut)]
    found.faults += [f"{name}: R2: {uncut.ended}"] if uncut.ended.startswith("the picture") else []
    found.faults += [f"{name}: {why}" for why in _as_planned(start, target, uncut)]
    found.faults += [f"{name}: {why}" for why in _as_fresh(ground, start, target, uncut)]
    again = watch(world, request, target, origin)
    found.faults += [f"{name}: again: {why}" for why in (*broken(again), *_again(uncut, again))]
    ends = _Ends(ground, target, request, moment, End(uncut, picture(again.after)), origin)
    for number, cut in enumerate(cuts(uncut, power=power)) if every else ():
        if number % every:
            continue
        found.states += 1
        try:
            for why in _resume(ground, cut, request, target, ends, origin, found):
                found.faults.append(f"{name}: {cut.how} after {cut.after} ({_last(uncut, cut)}): {why}")
            if is_usual(start) and cut.how == "killed":
                found.states += 1
                for why in _otherwise(ground, cut, start, target, origin):
                    found.faults.append(f"{name}: {cut.how} after {cut.after} ({_last(uncut, cut)}), {why}")
        except Exception as error:  # whatever it is, it is what we look for
            found.faults.append(f"{name}: {cut.how} after {cut.after}: {type(error).__name__}: {error}")
    return found


def _as_fresh(ground: Ground, start: Start, target: Target, run: Run) -> Iterator[str]:
    """The files of an installation are those of a fresh one, wherever it began."""
    if target.removes or run.ended not in ENDED_WELL or not dict(target.given).get("payload", True):
        return
    places = (*paths.OUR_FILES, DROP_IN)
    fresh = ground.fresh(start, target)
    wanted = {path: fresh[path] for path in places if path in fresh}
    found = {path: run.after.tree[path] for path in places if path in run.after.tree and path in wanted}
    yield from (f"R1: not as a fresh installation: {why}" for why in difference(found, wanted))


def _as_planned(start: Start, target: Target, run: Run) -> Iterator[str]:
    """What works is not undone on a node where nothing is sick, and kubelet's unit is the usual one."""
    given = dict(start)
    is_well = not {"nature", "theirs"} & given.keys() and given.get("former", next(iter(FORMERS))) in FORMERS
    if run.undone and target.works and is_well:
        yield f"R1: it ends '{run.ended}', though nothing is sick"


def _otherwise(ground: Ground, cut: Cut, start: Start, asked: Target, origin: Tree | None) -> Iterator[str]:
    """Somebody starts the proxy, which reads what lies there; then they have thought better of it: the
    installation before is asked for again, or all of it has to go. A takeover that has begun goes on without
    being asked for again."""
    former = {**FORMERS, **RARE}[dict(start).get("former", next(iter(FORMERS)))]
    goes_on = asked.takes_over and asked.works and took_over(cut.moment.tree)
    once = (replace(asked, takes_over=False),) if goes_on else ()
    again = (each for each in former.installed[-1:] if each.works)
    for target in (*once, *again, REMOVAL):
        world = ground.world(cut.moment)
        unit = world.systemd.unit(paths.PROXY_UNIT)
        if unit.load_state == "loaded":
            world.systemd.restart(paths.PROXY_UNIT, 0)
        run = watch(world, target.request(ground.directory), target, origin, foresees=False)
        yield from (f"then {target.name}: {why}" for why in broken(run))
        if run.ended not in ENDED_WELL:
            yield f"then {target.name}: it ends '{run.ended}'"


def _last(uncut: Run, cut: Cut) -> str:
    return str(uncut.steps[cut.after - 1].effect) if cut.after else "the first"


def _again(uncut: Run, again: Run) -> Iterator[str]:
    """A second run is empty: it ends as it did, and changes nothing."""
    well = ENDED_WELL if again.removes else {"nothing to do"}
    if uncut.ended in ENDED_WELL and again.ended not in well:
        yield f"R2: it ends '{again.ended}'"
    elif uncut.ended not in ENDED_WELL and again.ended != uncut.ended and not uncut.brings_out:
        yield f"R13: it ends '{again.ended}', not '{uncut.ended}'"


def cuts(uncut: Run, *, power: bool) -> Iterator[Cut]:
    """Each different node that may be left when the run is cut."""
    seen: set[int] = set()
    first = Step(uncut.steps[0].effect, uncut.before) if uncut.steps else None
    for number, (effect, moment) in enumerate((first, *uncut.steps) if first else ()):
        if effect.verb == LOOK and number:
            continue
        mark = _mark(moment)
        if mark in seen:
            continue
        seen.add(mark)
        yield Cut(number, "killed", moment)
    if power:
        yield from _power_cuts(uncut)


def _power_cuts(uncut: Run) -> Iterator[Cut]:
    seen: set[int] = set()
    tree = {path: one for path, one in uncut.before.tree.items() if not f"{path}/".startswith("/run/")}
    disk = Disk(tree)
    for number, (effect, moment) in enumerate(uncut.steps, 1):
        operations = (
            [effect.operation] if effect.operation else list(_by_others(disk_tree(disk), moment.tree))
        )
        operations = [one for one in operations if not f"{one.place}/".startswith("/run/")]
        for one in operations:
            disk.apply(one)
        if not operations:
            continue
        for left in disk.crashes(worst_only=True):
            mark = hash(frozenset(left.items()))
            if mark not in seen:
                seen.add(mark)
                yield Cut(number, "power lost", Moment(left), lost=True)


def disk_tree(disk: Disk) -> Tree:
    """As a process sees it."""
    return next(disk.crashes(worst_only=True))


def _by_others(seen: Tree, now: Tree) -> Iterator[Operation]:
    """What a job of systemd has left on the disk; it lasts."""
    now = {path: one for path, one in now.items() if not f"{path}/".startswith("/run/")}
    for path in sorted(seen.keys() - now.keys(), reverse=True):
        yield Operation(Verb.UNLINK, path)
        yield Operation(Verb.SYNC, path.rpartition("/")[0])
    for path in sorted(now):
        entry = now[path]
        if seen.get(path) == entry:
            continue
        if path in seen:
            yield Operation(Verb.UNLINK, path)
        verb = {"f": Verb.CREATE, "d": Verb.MKDIR, "l": Verb.SYMLINK}[entry.kind]
        yield Operation(verb, path, entry.mode, target=entry.target)
        if entry.kind == "f":
            yield Operation(Verb.DATA, path, data=entry.content)
            yield Operation(Verb.SYNC, path)
        yield Operation(Verb.SYNC, path.rpartition("/")[0])


def _mark(moment: Moment) -> int:
    return hash(
        (
            frozenset(moment.tree.items()),
            frozenset(moment.units.items()),
            frozenset(moment.dialled.items()),
            moment.running and str(moment.running),
        )
    )


def _resume(
    ground: Ground,
    cut: Cut,
    request: Request,
    target: Target,
    ends: _Ends,
    origin: Tree | None,
    found: Found,
) -> Iterator[str]:
    """The run that follows, and one more if it takes that."""
    uncut = ends.uncut.run
    if cut.lost:
        world = ends.boot(cut.moment.tree)
        loaded = uncut.before.units[KUBELET].load_state == "loaded"
        well = uncut.before.content(NATURE) not in (b"ill", b"long ill", b"ill behind it")
        if loaded and well and uncut.before.process(KUBELET) and not world.kubelet_healthy():
            untouched = kubelets_own(cut.moment.tree) == kubelets_own(uncut.before.tree)
            if not (untouched and ends.boots_ill):
                yield "R12: kubelet is not healthy after the boot"
    else:
        world = ground.world(cut.moment)
        world.wait()
    run = watch(world, request, target, origin)
    yield from broken(run)
    if run.undone and not uncut.undone and not uncut.before.content(NATURE):
        yield f"R7: it ends '{run.ended}', though nothing is sick"
    if wrong := ends.unlike(run, lost=cut.lost):
        more = watch(world, request, target, origin)
        found.twice += 1
        yield from (f"in one more run: {why}" for why in broken(more))
        if wrong := ends.unlike(more, lost=cut.lost):
            yield f"R7: {'; '.join(wrong)}"
            return
    else:
        again = watch(world, request, target, origin, foresees=False)
        yield from (f"again: {why}" for why in (*broken(again), *_again(run, again)))


class End(NamedTuple):
    """A run that nothing has cut, and the node after one more."""

    run: Run
    wanted: dict[str, object]


class _Ends:
    """The ends that a run may come to that follows one that was cut. A boot may mend what is sick, or bring
    it out, or what somebody has edited without a daemon-reload: with it come the ends of a run that begins
    after a boot, or ends before it. And what was undone for no fault of its own is tried again, or what had
    taken weight before: with that comes the end of a node on which nothing is sick."""

    def __init__(
        self,
        ground: Ground,
        target: Target,
        request: Request,
        moment: Moment,
        uncut: End,
        origin: Tree | None,
    ) -> None:
        self.uncut = uncut
        self._ground, self._target, self._request = ground, target, request
        self._moment, self._origin = moment, origin

    def boot(self, tree: Tree, name: str = "node") -> World:
        """The node with that disk."""
        root = self._ground.directory / name
        lay({path: one for path, one in tree.items() if not f"{path}/".startswith("/run/")}, root)
        return World(root, containers=len(self._moment.running))

    @cached_property
    def boots_ill(self) -> bool:
        """Whether the node before the run does not boot to a kubelet that is healthy, either."""
        return not self.boot(self._moment.tree, "other").kubelet_healthy()

    def unlike(self, run: Run, *, lost: bool) -> list[str]:
        """How the node differs from the most similar of them."""
        wrong, nature = _unlike(run, self.uncut, lost=lost), self._moment.content(NATURE)
        if not wrong:
            return wrong
        if lost and run.ended == "rollback failed" and nature in HOPELESS:
            return []  # `broken` has seen that kubelet serves without a proxy
        if self._hides and run.ended == self._booted[0].run.ended == "refused" and not run.touched:
            return []  # whatever had been done when that edit was loaded
        others = self._booted if lost and (nature or self._hides) else []
        again = self.uncut.run.undone and (nature in BLAMELESS or self._had_taken(run))
        if nature and (lost or again):
            others = [*others, self._well]
        return min((wrong, *(_unlike(run, other, lost=lost) for other in others)), key=len)

    def _had_taken(self, run: Run) -> bool:
        """Whether the run that was cut had taken weight: the next one finds it low, and blames nobody."""
        before = {one.id: one.cgroup for one in self._moment.running}
        return any(one.cgroup and one.cgroup.has_less_than(before.get(one.id)) for one in run.before.running)

    @cached_property
    def _hides(self) -> bool:
        """Whether somebody has edited kubelet's unit, which only a boot or a daemon-reload makes known."""
        return self._ground.world(self._moment, "other").systemd.unit(KUBELET).need_daemon_reload

    @cached_property
    def _booted(self) -> list[End]:
        trees = (self._moment.tree, self.uncut.run.after.tree)
        return [self._end(self.boot(tree, "other")) for tree in trees]

    @cached_property
    def _well(self) -> End:
        well = {path: one for path, one in self._moment.tree.items() if path != NATURE}
        return self._end(self._ground.world(replace(self._moment, tree=well), "other"))

    def _end(self, world: World) -> End:
        run = watch(world, self._request, self._target, self._origin)
        return End(run, picture(watch(world, self._request, self._target, self._origin).after))


def _unlike(run: Run, end: End, *, lost: bool) -> list[str]:
    """How the node differs from that one."""
    uncut, wanted = end
    same = run.ended == uncut.ended or {run.ended, uncut.ended} <= ENDED_WELL
    wrong = [] if same else [f"it ends '{run.ended}', not '{uncut.ended}'"]
    found = picture(run.after)
    if lost:
        moved = uncut.jobs("restart", KUBELET) and not (uncut.undone or uncut.removes)
        wanted, found = (_after_a_boot(one, kubelet=bool(moved)) for one in (wanted, found))
        if run.after.content(paths.BINARY) == program("theirs"):  # which is enabled: the boot has started it
            for one in (wanted, found):
                one.pop(paths.PROXY_UNIT, None)
                one.pop(f"{paths.PROXY_UNIT} runs", None)
    if run.unattended and run.after.on_relay:  # it leaves a hold that is no run's to the daemon
        wanted, found = ({**one, paths.HOLD: None} for one in (wanted, found))
    if run.undone:
        wanted, found = undone(wanted), undone(found)
    return wrong + difference(found, wanted)


def _after_a_boot(picture: dict[str, object], *, kubelet: bool) -> dict[str, object]:
    """What a boot does not touch, and kubelet, where the run has started it as well."""
    touched = (
        "container",
        "/run",
        "record: owned /run",
        paths.PROXY_CACHE,
        paths.TORN_CACHE,
        *(() if kubelet else (KUBELET,)),
    )
    kept = {key: value for key, value in picture.items() if not key.startswith(touched)}
    if kept.get(f"{paths.PROXY_UNIT} runs") is None:
        kept.pop(paths.PROXY_UNIT)  # whether it failed at that boot
    return kept


def _knows_all(start: Start) -> bool:
    """Whether the removal can be exact: nobody has changed what it would give back."""
    harmless = {"proxy", "kubelet", "endpoint", "hold", "who", "containers", "former", "reloaded", "nature"}
    if ("former", "host: links that lead away") in start:
        return False
    return all(factor in harmless and value not in ("masked", "missing") for factor, value in start)
