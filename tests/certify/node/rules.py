"""What has to hold of each run: of what was there before, of each effect, and of what is there after it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from installer.inputs.systemd_syntax import parse_environment_file
from installer.model import paths
from installer.model.host import ProcessState
from installer.model.plan import Assessment, StepKind
from tests.certify.node.facts import FACTS, parse_facts
from tests.certify.node.kubelets import BASE, CONFIG
from tests.certify.node.world import LOOK, NATURE, REFUSES, SHARES, Effect, Moment
from tests.faults.disks.crash import Entry, Tree
from tests.faults.disks.node import BASE_ENVIRONMENT, DROP_IN, KUBELET
from tests.faults.disks.recorder import Verb

OF_OURSELVES = (paths.OUR_STATE, paths.OUR_RUNTIME)
_OF_THE_PROXY = (*paths.PROXY_STATE, "/var/run/cri-resmgr")
_NOT_UNDONE = (paths.OUR_STATE, paths.PROXY_STATE[0])
_FILE = Entry("f", 0)
# With what a rollback may fail, too; what says nothing of a generation; the same of a runtime.
_SICK = (
    *(
        "broken",
        "too slow",
        "stuck",
        "canceled",
        "exits",
        "lost",
        "ill",
        "long ill",
        "ill behind it",
        "flagless",
    ),
    "immovable and slow",
)
HOPELESS = tuple(map(str.encode, _SICK))
_AWAY = (b"runtime dies", b"not ready")
BLAMELESS = (
    *(b"canceled", b"not set up", b"flagless", b"lost", b"ill", b"long ill", b"blind", b"unseeing"),
    *(b"immovable and slow", b"immovable, and the new one is slow", *_AWAY),
)
_SHOWN = 200  # characters of what differs
# Its text may differ in a deadline; a file that no line of the unit names is not read.
_NOT_ALONE = (paths.PROXY_UNIT_FILE, paths.EXTRA_OPTIONS)
_JOBS = ("restart", "stop", "signal", "daemon-reload")
_FILE_STEPS = (StepKind.WRITE, StepKind.MARK_PENDING, StepKind.DELETE, StepKind.RESTORE)
_MAY_START_THE_PROXY = (
    StepKind.RESTART_IF_REFUSED,
    StepKind.AWAIT_START,
    StepKind.CHECK_PODS,
    StepKind.CHECK_WEIGHTS,
    StepKind.ADOPT,
)


ENDED_WELL = {"changed", "nothing to do", "left some"}


class Step(NamedTuple):
    """An effect, and the node after it."""

    effect: Effect
    after: Moment


@dataclass(frozen=True, slots=True)
class Run:
    """A run as somebody sees it who knows nothing of its insides. `foreseen`: what `plan` said before it;
    None: nothing. `ended`: in a word (`attempt`). `disk`: as it was before us, where that is known."""

    before: Moment
    steps: Sequence[Step]
    after: Moment
    foreseen: Assessment | None
    ended: str
    removes: bool
    unattended: bool = False  # nobody watches it, and what is good is repaired if it is refused
    disk: Tree | None = None
    foresees: bool = True  # somebody has asked for the plan
    gives_back: bool = True  # a removal gives CPUs and weight back
    remembers: bool = False  # it is not tried again: it has failed before

    @property
    def undone(self) -> bool:
        return self.ended in ("rolled back", "rollback failed")

    @property
    def brings_out(self) -> bool:
        """Whether its daemon-reload has made a drop-in of somebody else known."""
        before, after = (moment.units[KUBELET].drop_in_paths for moment in (self.before, self.after))
        return bool({*after} - {*before, DROP_IN})

    @property
    def touched(self) -> list[Effect]:
        """What it has changed that is not the installer's own."""
        return [one.effect for one in self.steps if _of_the_host(one.effect)]

    def jobs(self, verb: str, unit: str) -> list[Step]:
        return [one for one in self.steps if (one.effect.verb, one.effect.target) == (verb, unit)]


def broken(run: Run, only: Collection[str] = ()) -> list[str]:
    """Every rule that this run has broken, with how; of all rules, or of these."""
    checks = {
        "R1": _plan_is_the_truth,
        "R2": _nothing_for_nothing,
        "R3": _mildest,
        "R4": _no_dead_relay,
        "R5": _atomic,
        "R6": _restored,
        "R7": _nothing_forgotten,
        "R8": _rolled_back,
        "R14": _containers_keep,
    }
    return [
        f"{rule}: {why}" for rule, check in checks.items() if rule in (only or checks) for why in check(run)
    ]


def broken_in_trouble(run: Run) -> list[str]:
    """The same of a run in which something went wrong that lasts: nothing is lost, the node stays alive."""
    return broken(run, ("R4", "R5", "R6", "R14"))


def _plan_is_the_truth(run: Run) -> Iterator[str]:
    plan = run.foreseen.plan if run.foreseen else None
    touched = run.touched
    if run.unattended or run.undone or not run.foresees:
        return
    if plan is None or run.ended == "refused":
        yield from (f"refused, but it did {effect}" for effect in touched[:1])
        return
    files = {step.target for step in plan.steps if step.kind in _FILE_STEPS}
    disables = any(step.kind is StepKind.DISABLE for step in plan.steps)
    starts = any(step.kind in _MAY_START_THE_PROXY for step in plan.steps)
    jobs = {(step.kind.value, step.target) for step in plan.steps}
    kinds = {step.kind for step in plan.steps}
    for effect in touched:
        path = _changed(effect)
        if path is not None:
            link = disables and path.endswith(f"/{paths.PROXY_UNIT}")
            if path not in files and not link and not path.startswith(_OF_THE_PROXY):
                yield f"{effect}, which the plan does not say"
        elif (
            effect.verb == "daemon-reload"
            and StepKind.DAEMON_RELOAD not in kinds | {StepKind.DISABLE} & kinds
        ):
            yield "a daemon-reload, which the plan does not say"
        elif effect.verb in ("restart", "stop"):
            said = (effect.verb, effect.target) in jobs or (effect.target == paths.PROXY_UNIT and starts)
            said = said or (effect.verb == "stop" and ("restart", effect.target) in jobs)
            if not said:
                yield f"{effect}, which the plan does not say"
    if run.ended in ("changed", "left some"):
        did = {_changed(effect) for effect in touched} | {(effect.verb, effect.target) for effect in touched}
        for step in plan.steps:
            if step.kind in _FILE_STEPS and step.target not in did:
                yield f"the plan says {step.describe}, which was not done"
            if step.kind in (StepKind.RESTART, StepKind.STOP) and (step.kind.value, step.target) not in did:
                yield f"the plan says {step.describe}, which was not done"


def _nothing_for_nothing(run: Run) -> Iterator[str]:
    if (
        run.foreseen
        and not run.foreseen.plan.steps
        and not run.undone
        and not run.unattended
        and not run.removes
    ):
        yield from (f"nothing differs, but it did {effect}" for effect in run.touched)
    if run.ended == "nothing to do":
        some = (effect for effect in run.touched if not _closes(run, effect))
        yield from (f"nothing to do, but it did {effect}" for effect in some)


def _closes(run: Run, effect: Effect) -> bool:
    """Whether a removal that was cut off before its last breath deletes an empty directory of ours."""
    return run.removes and effect.verb == Verb.RMDIR


def _mildest(run: Run) -> Iterator[str]:
    if run.undone or run.removes:
        return
    restarts, kubelet = run.jobs("restart", KUBELET), run.before.process(KUBELET)
    starts = run.jobs("restart", paths.PROXY_UNIT)
    if kubelet and restarts:
        wanted = _generation(run.after.tree, paths.KUBELET_ENVIRONMENT)
        lost = not kubelet.link or kubelet.generation != wanted
        # Where the kernel cannot end connections, a kubelet that has left returns by a restart.
        stays = (run.before.content(NATURE) or b"").startswith(b"immovable")
        lost = lost or (stays and not run.before.on_relay)
        if not (lost or not run.before.units[KUBELET].running):
            yield "kubelet was restarted, though it was on our link and its part did not differ"
    if len(restarts) > 1:
        yield f"kubelet was restarted {len(restarts)} times"
    proxy = run.before.process(paths.PROXY_UNIT)
    if proxy and starts:
        files = {one for one in paths.OUR_FILES if one not in (paths.GUARD, paths.KUBELET_ENVIRONMENT)}
        why = (
            proxy.generation != _generation(run.after.tree, paths.PROXY_ENVIRONMENT)
            or any(_content(run.before.tree, one) != _content(run.after.tree, one) for one in files)
            or proxy.flag("--force-config") == paths.SPARING_CONFIG
            or bool(_record(run.before.tree).get("owed"))
            or run.before.tree.get(paths.PROXY_CACHE) != run.after.tree.get(paths.PROXY_CACHE)
            or paths.CONTAINERS_UNKNOWN in run.before.tree
            or not run.before.proxy_answers
            or "low" in parse_facts(run.before.content(FACTS))  # its weight is given back
            or (run.before.content(NATURE) == REFUSES and bool(run.jobs("signal", paths.PROXY_UNIT)))
        )
        if not why:
            yield "the proxy was restarted, though nothing that it was started from differed"


def _no_dead_relay(run: Run) -> Iterator[str]:
    answered, before = False, run.before
    for effect, after in run.steps:
        if (effect.verb, effect.target) in (("restart", paths.PROXY_UNIT), ("stop", paths.PROXY_UNIT)):
            answered = False
            if run.removes and effect.verb == "stop" and before.on_relay and not run.undone:
                yield "a removal stopped the proxy before kubelet had left it"
        elif effect.verb == LOOK:
            answered = effect.ended == "yes"
        elif (effect.verb, effect.target) == ("restart", KUBELET) and after.on_relay and not answered:
            yield "kubelet was moved to a relay that had not answered"
        before = after
    dead = run.after.on_relay and run.after.process(paths.PROXY_UNIT) is None
    serves = run.before.content(NATURE) not in _AWAY  # else kubelet has no other runtime, either
    if dead and run.ended != "refused" and serves and not _is_anothers(run):
        yield "kubelet stays on a relay whose proxy is dead"
    if run.before.process(KUBELET) and run.after.process(KUBELET) is None:
        yield "kubelet runs no more"


def _atomic(run: Run) -> Iterator[str]:
    unsynced: set[str] = set()
    pending: dict[str, str] = {}  # directory -> what is not durable in it yet
    for effect, _after in run.steps:
        done = effect.operation
        if done is None:
            if effect.verb in _JOBS:
                yield from (f"{what} was not durable when it did {effect}" for what in pending.values())
                pending.clear()
            continue
        if done.place.startswith("/run/"):
            continue
        directory = posixpath.dirname(done.place)
        if done.verb is Verb.SYNC:
            unsynced.discard(done.place)
            pending.pop(done.place, None)
        elif done.verb in (Verb.DATA, Verb.CREATE, Verb.MODE):
            if done.verb is not Verb.MODE and paths.TEMPORARY not in done.place:
                yield f"{done.place} was written in its place"
            if paths.TEMPORARY in done.place:
                unsynced.add(done.place)
        elif done.verb is Verb.RENAME:
            if done.place in unsynced:
                yield f"{done.target} was renamed before its content was durable"
            if posixpath.dirname(done.target) != directory and done.place != paths.RECORD:  # not a file
                yield f"{done.place} went to another directory"
            pending[directory] = done.target
        elif done.verb is Verb.UNLINK and paths.TEMPORARY not in done.place:
            pending[directory] = done.place
        elif done.verb is Verb.RMDIR:
            pending.pop(done.place, None)  # what was in it
            pending[directory] = done.place
    yield from (f"{what} is not durable at the end" for what in pending.values())


def _restored(run: Run) -> Iterator[str]:
    tree = run.before.tree
    for effect, after in run.steps:
        path = _changed(effect)
        if path is not None and not path.startswith(_OF_THE_PROXY):
            owned = _record(tree).get("owned", {}).get(path)
            if path.endswith(f".wants/{paths.PROXY_UNIT}") and tree.get(path, _FILE).kind == "l":
                pass  # somebody's `systemctl add-wants` or `enable` of our unit, which goes with it
            elif owned is None:
                yield f"{effect} before the record has it"
            elif path in after.tree and effect.verb == Verb.RENAME and after.tree[path].kind == "f":
                digest = sha256(after.tree[path].content).hexdigest()
                if digest not in owned["wrote"] and digest != owned["before"]["digest"]:
                    yield f"{effect}: the record does not know that content"
        tree = after.tree
    ours = _ours(run)
    for path in sorted({*run.before.tree, *run.after.tree} - ours):
        own = path.startswith(("/run", "/sys")) or path.endswith(paths.TEMPORARY)
        if run.before.tree.get(path) != run.after.tree.get(path) and not own:
            yield f"{path} is not ours, and changed"
    kept = {entry.content for entry in run.after.tree.values() if entry.kind == "f"}
    known = _written_by_us(run)
    for path, entry in run.before.tree.items():
        own = path.startswith(("/run", "/sys", *_OF_THE_PROXY)) or path.endswith(paths.TEMPORARY)
        lost = entry.kind == "f" and entry.content not in kept and not own
        lost = (
            lost and sha256(entry.content).hexdigest() not in known and not path.startswith(paths.OUR_STATE)
        )
        if lost and (b"cri-resmgr-installer" not in entry.content[:512] or b"edited" in entry.content):
            yield f"what somebody had at {path} is lost"
    if run.removes and run.ended in ENDED_WELL and run.after.on_relay and not _is_anothers(run):
        yield "after the removal kubelet is on the relay"
    if run.disk is not None and run.removes and run.ended in ENDED_WELL:
        left = _disk_of(run.after.tree)
        left = {
            path: entry for path, entry in left.items() if not path.startswith(f"{paths.OUR_STATE}/edited")
        }
        if left.keys() - run.disk.keys() == {paths.OUR_STATE}:  # with edits in it
            del left[paths.OUR_STATE]
        if left.keys() & run.disk.keys() & {paths.PROXY_CACHE}:  # an earlier proxy's, and ours wrote it
            left[paths.PROXY_CACHE] = run.disk[paths.PROXY_CACHE]
        yield from (f"after the removal {why}" for why in difference(left, _disk_of(run.disk)))


def _is_anothers(run: Run) -> bool:
    """Whether kubelet is on the relay of an installation that nobody has asked us to take over."""
    files = (BASE_ENVIRONMENT, BASE, CONFIG)
    named = any(paths.RELAY_ENDPOINT.encode() in (run.before.content(path) or b"") for path in files)
    return named and not _record(run.before.tree).get("owned")


def _nothing_forgotten(run: Run) -> Iterator[str]:
    """The processes that run are what the files say, once a run has ended well."""
    if run.ended not in ("changed", "nothing to do") or run.removes:
        return
    for unit, carrier in ((paths.PROXY_UNIT, paths.PROXY_ENVIRONMENT), (KUBELET, paths.KUBELET_ENVIRONMENT)):
        process, wanted = run.after.process(unit), _generation(run.after.tree, carrier)
        if process is None or process.generation != wanted or wanted.startswith(paths.PENDING):
            yield f"{unit} runs {process and process.generation!r}, not {wanted!r}"
    kubelet = run.after.process(KUBELET)
    where, _since = run.after.dialled.get(kubelet.pid if kubelet else 0, ("", ""))
    if where and run.after.on_relay and not paths.same_endpoint(where, paths.RELAY_ENDPOINT):
        yield f"kubelet's connection still leads to {where}"
    now = run.after.read.get(run.after.units[paths.PROXY_UNIT].main_pid, {})
    for path, content in now.items():
        same = content == run.after.content(path)
        if path == paths.PROXY_ENVIRONMENT and content is not None:  # a comment does not matter to it
            same = _variables(content) == _variables(run.after.content(path) or b"")
        if path not in _NOT_ALONE and not same:
            yield f"the proxy runs with another {path} than there is"
    for place in run.after.tree:
        if place.endswith(paths.TEMPORARY) and not place.startswith("/run/"):
            yield f"{place} was left"


def _rolled_back(run: Run) -> Iterator[str]:
    if not run.undone:
        return
    if run.ended == "rollback failed":
        yield from (
            _rescued(run)
            if run.before.content(NATURE) in (*HOPELESS, *_AWAY) or run.brings_out
            else ["the rollback failed"]
        )
        return
    failed = set(_record(run.after.tree).get("failed", {}))
    generation = run.foreseen.plan.desired.generation if run.foreseen else ""
    if run.remembers:
        repairs = any(one.effect.verb in ("restart", "signal") for one in run.steps)
        yield from (f"it is not tried again, but it did {effect}" for effect in run.touched if not repairs)
    elif (
        generation
        and run.foreseen
        and run.foreseen.snapshot.sound
        and generation not in failed
        and run.before.content(NATURE) not in BLAMELESS
        and not _flag_lost(run)
    ):
        yield "the generation that failed is not blamed"
    good = (_record(run.before.tree).get("good") or {}).get("files", ())
    touched = {_changed(one.effect) for one in run.steps}
    for file in good:
        if file["part"] == "kubelet" and file["path"] not in touched:
            continue  # somebody's edit that the attempt did not come to: kubelet is not moved for it
        back = run.after.tree.get(file["path"])
        if run.touched and (back is None or sha256(back.content).hexdigest() != file["digest"]):
            yield f"{file['path']} of the good generation is not back"
    if not good and not _is_somewhat_ours(run.before.tree):
        if _record(run.after.tree).get("owned"):
            yield "after a first installation that failed, the record still has what is not there"
        found, wanted = (
            {p: e for p, e in _disk_of(tree).items() if not p.startswith(_NOT_UNDONE)}
            for tree in (run.after.tree, run.before.tree)
        )
        yield from (f"after a first installation that failed {why}" for why in difference(found, wanted))
    restarts = [number for number, one in enumerate(run.steps) if one in run.jobs("restart", KUBELET)]
    fails = [number for number, one in enumerate(run.steps) if one.effect.ended == "failed"]
    moved = run.before.process(KUBELET) and restarts and fails and min(restarts) > fails[0]
    if moved and not (run.before.content(NATURE) or b"").startswith(
        b"immovable"
    ):  # there the guard has let it leave
        yield from _moved_needlessly(run)


def _flag_lost(run: Run) -> bool:
    """Whether a kubelet was started with our lines, and did not get our flag by them."""
    starts = (one.after for one in run.jobs("restart", KUBELET) if DROP_IN in one.after.tree)
    return any(process is not None and not process.link for process in map(_kubelet, starts))


def _kubelet(moment: Moment) -> ProcessState | None:
    return moment.process(KUBELET)


def _rescued(run: Run) -> Iterator[str]:
    """No proxy starts any more: kubelet serves without it, until a run succeeds."""
    if run.after.on_relay and not run.after.proxy_answers and run.before.content(NATURE) not in _AWAY:
        yield "kubelet stays on a relay that does not answer"
    kept = {paths.HOLD, paths.CONTAINERS_UNKNOWN} & run.after.tree.keys()
    if not run.after.on_relay and DROP_IN in run.before.tree and not kept:
        yield "nothing holds kubelet on its base endpoint"


def _is_somewhat_ours(tree: Tree) -> bool:
    """Whether anything there is an installation's, perhaps one whose record is lost."""
    marked = (tree[path].content for path in (*paths.OUR_FILES, DROP_IN) if path in tree)
    return bool(_record(tree).get("owned")) or any(b"cri-resmgr-installer" in content for content in marked)


def _moved_needlessly(run: Run) -> Iterator[str]:
    """Kubelet was moved though the plan failed before it had moved it: only where there was nothing good."""
    if _record(run.before.tree).get("good") and run.before.process(paths.PROXY_UNIT) is not None:
        yield "kubelet was moved by the rollback, though the plan had not moved it"


def _containers_keep(run: Run) -> Iterator[str]:
    now = {one.id: one for one in run.after.running}
    gives_back = (
        run.gives_back and not {"refusals", "ignores"} & parse_facts(run.before.content(FACTS)).keys()
    )
    created = parse_facts(run.before.content(FACTS)).get("created with", {})
    cpus, shares = created.get("cpus", ""), created.get("shares", SHARES)
    for one in run.before.running:
        found = now.get(one.id)
        if one.cgroup is None:
            continue  # nobody has found it
        if found is None or found.cgroup is None:
            yield f"{one.id} is gone"
        elif found.cgroup.has_less_than(one.cgroup):
            yield f"{one.id} has {found.cgroup}, not {one.cgroup}"
        elif (
            run.removes
            and gives_back
            and run.ended == "changed"
            and not (
                found.cgroup.fits(one.asked or shares)
                and found.cgroup.cpus == (cpus or found.cgroup.free_cpus)
            )
        ):
            yield f"after the removal {one.id} has {found.cgroup}"


# -- what is read of a tree -----------------------------------------------------------


def difference(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Which paths differ, in words."""
    return [
        f"{path} is {str(found.get(path, 'absent'))[:_SHOWN]}, not {str(wanted.get(path, 'absent'))[:_SHOWN]}"
        for path in sorted({*found, *wanted})
        if found.get(path) != wanted.get(path)
    ]


def _disk_of(tree: Tree) -> Tree:
    return {
        path: one
        for path, one in tree.items()
        if not f"{path}/".startswith(("/run/", "/sys/")) and "/srv" not in path
    }


def _of_the_host(effect: Effect) -> bool:
    """Whether it changes something that is not the installer's own."""
    if effect.operation is None:
        return effect.verb in _JOBS
    place = effect.operation.target if effect.operation.verb is Verb.RENAME else effect.operation.place
    own = (*OF_OURSELVES, posixpath.dirname(paths.OUR_STATE))
    return not any(place == one or place.startswith(f"{one}/") for one in OF_OURSELVES) and (
        effect.operation.verb is not Verb.SYNC and paths.TEMPORARY not in place and place not in own
    )


def _changed(effect: Effect) -> str | None:
    """The path of the host that is somebody's now, or nobody's."""
    done = effect.operation
    if done is None or not _of_the_host(effect) or effect.target.startswith("/run"):
        return None
    if done.verb is Verb.RENAME:
        return done.target
    return done.place if done.verb is Verb.UNLINK else None


def _ours(run: Run) -> set[str]:
    """What the installer may change, with what is above and below it."""
    found = {*paths.OUR_FILES, DROP_IN, paths.OUR_STATE, *_OF_THE_PROXY}
    record = {**_record(run.before.tree).get("owned", {}), **_record(run.after.tree).get("owned", {})}
    for one in run.steps:
        record |= _record(one.after.tree).get("owned", {}) if one.effect.operation else {}
    found |= record.keys()
    both = {*run.before.tree, *run.after.tree}
    links = {path for path in both if path.endswith(f"/{paths.PROXY_UNIT}")}
    above = {posixpath.dirname(path) for path in (*found, *links)}
    below = {path for path in both if path.startswith((f"{paths.OUR_STATE}/", *_OF_THE_PROXY))}
    return found | links | above | {posixpath.dirname(path) for path in above} | below


def _written_by_us(run: Run) -> set[str]:
    """The digests that the record knows as ours, in any of its states during the run."""
    found: set[str] = set()
    for tree in (run.before.tree, run.after.tree, *(one.after.tree for one in run.steps)):
        for path, owned in _record(tree).get("owned", {}).items():
            found.update(owned.get("wrote", ()))
            if path == BASE_ENVIRONMENT:  # repaired by a takeover, and not somebody's
                found.add(owned["before"]["digest"])
    return found


_records: dict[bytes, dict[str, Any]] = {}


def _record(tree: Tree) -> dict[str, Any]:
    entry = tree.get(paths.RECORD)
    if entry is None or entry.kind != "f":
        return {}
    if entry.content not in _records:
        if len(_records) > 1000:
            _records.clear()
        try:
            _records[entry.content] = json.loads(entry.content)
        except ValueError:
            _records[entry.content] = {}
    return _records[entry.content]


def took_over(tree: Tree) -> bool:
    """Whether the record describes an earlier installation as ours."""
    owned = _record(tree).get("owned", {}).get(paths.BINARY)
    return owned is not None and not owned["before"]["digest"]


def repaired(tree: Tree, repairs: Tree) -> Tree:
    """Of these repairs, those that are done there, or that the record has begun."""
    owned = _record(tree).get("owned", {})
    return {path: entry for path, entry in repairs.items() if path in owned or tree.get(path) == entry}


def _variables(content: bytes) -> dict[str, str]:
    return parse_environment_file(content.decode("utf-8", "replace"))


def _content(tree: Tree, path: str) -> object:
    return tree.get(path)


def _generation(tree: Tree, path: str) -> str:
    entry = tree.get(path)
    text = entry.content.decode("utf-8", "replace") if entry else ""
    return parse_environment_file(text).get(paths.GENERATION_VARIABLE, "")
