"""The record during one run: claim before the first write, close after the last.

Holds the only mutable reference to the record. Whatever is claimed here is ours to give back, whatever
happens afterwards.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from installer.errors import UnservableHostError
from installer.host.ports import Clock, Files
from installer.model import paths
from installer.model.host import ABSENT, DesiredFile, HostPath, HostSnapshot, Identity, Kind, Part
from installer.model.jsontext import sha256_hex
from installer.model.plan import Desired, FileChange, Plan, StepKind, UnitAction, Verb
from installer.node.controls import claim_controls
from installer.node.kept import (
    damaged_objects,
    drop_objects,
    heal_good,
    keep_contents,
    keep_object,
    object_path,
    without_lost_originals,
)
from installer.node.links import find_directories, find_links
from installer.node.record import (
    HEALTH_OWED,
    NOTHING_LOADED,
    RELOAD_OWED,
    SOUND,
    Failure,
    Goes,
    LoadedRecord,
    Owned,
    Record,
    RecordStatus,
    base_claims,
    claim_paths,
    is_earlier,
    is_ours,
    objects_of,
    save_record,
    takes_over,
)

_RECORD_KEPT = 8 << 20  # bytes
_EDITED = f"{paths.OUR_STATE}/edited"


class RecordStore:
    """The record and its state during a run."""

    def __init__(self, files: Files, loaded: LoadedRecord = NOTHING_LOADED) -> None:
        self._files = files
        self.record, self.status = loaded.record, loaded.status
        self._on_disk = loaded.record if loaded.status is RecordStatus.OK else None
        self._loaded = loaded.record
        # Files at our paths that nothing proves ours; only filled if the record cannot be believed.
        self.unclaimed = loaded.unclaimed
        self._orphans = loaded.orphans  # kept originals that only the lost record could assign
        self.originals_aside: list[str] = []  # where this run has moved them
        self._repaired: dict[str, bytes] = {}  # kubelet's files in a new takeover, by digest
        self.asked: Mapping[str, str] | None = None  # the options of this run; None: they stay as they are

    @property
    def names_another_host(self) -> bool:
        """Whether the record on the disk has another machine ID or host name than this host."""
        return self.status in (RecordStatus.RENAMED, RecordStatus.FOREIGN)

    @property
    def has_strays(self) -> bool:
        """Whether a killed run has left kept objects that nothing refers to, perhaps a whole program."""
        return bool(set(self._files.list(paths.OBJECTS)) - objects_of(self.record))

    @property
    def began_sound(self) -> bool:
        """Whether all was well when this run began, or one that was cut off and that this one carries on."""
        return self.record.owed.get(HEALTH_OWED) == SOUND

    def reconstruct(self, drop_ins: Sequence[str], payload_digest: str, everything: bool) -> None:
        """Without a record, claim what is provably ours: files with our header, and the payload's own
        binary; with `everything`, all files at our paths, also beside a record that names another host.
        `drop_ins`: where our drop-in may be."""
        if everything and self.status is RecordStatus.OK:
            self._claim(self.there_still(), drop_ins)
            self.unclaimed = ()
        if self.status is RecordStatus.OK or (self.names_another_host and not everything):
            return
        unit, kept = self._files.state(paths.PROXY_UNIT_FILE), self._files.list(paths.OBJECTS)
        runs_ours = is_ours(unit, ())
        # The same program is not ours if it belongs to another installer.
        wrote = (payload_digest,) if payload_digest and (runs_ours or unit.kind is not Kind.FILE) else ()
        places = dict.fromkeys((*paths.OUR_FILES, *drop_ins))
        there = {path: state for path in places if (state := self._files.state(path)).exists}
        ours = [path for path, state in there.items() if everything or is_ours(state, wrote)]
        # What is below /run is of this boot, and of the proxy that our unit runs.
        of_proxy = [path for path in paths.PROXY_STATE if self._files.state(path).exists]
        proven = [path for path in of_proxy if everything or (runs_ours and path.startswith(f"{paths.RUN}/"))]
        unclaimed = [path for path in (*there, *of_proxy) if path not in (*ours, *proven)]
        # Without a record and a header, nothing was installed here, or the last removal was complete.
        if ours or self.status is not RecordStatus.MISSING:
            self.unclaimed = tuple(unclaimed)
            used = {state.digest for state in there.values()} | objects_of(self.record)  # no originals
            # Nor is the payload's program, which a killed run may have kept.
            others = set(kept).difference(used, self._orphans, (payload_digest,))
            self._orphans += tuple(self._find_orphans(others, wrote))
        if ours or proven:
            known = self.record.owned  # of a record that names another host
            self._claim((*ours, *proven), drop_ins)
            owned = {path: Owned(goes=Goes.WHOLE) for path in paths.PROXY_STATE if path not in of_proxy}
            # In all likelihood we made them. They go only if they are empty.
            parents = (*_DIRECTORIES_OF_OURS, paths.CONTROL_UNITS, *map(posixpath.dirname, drop_ins))
            owned |= {path: Owned(goes=Goes.EMPTY) for path in parents if ours}
            self.record = replace(self.record, owned={**owned, **self.record.owned, **known})

    def _claim(self, found: Iterable[str], drop_ins: Sequence[str]) -> None:
        """Claim what lies at these paths, as if we had written it."""
        owned = dict(self.record.owned)
        for path in found:
            part = Part.KUBELET if path in (paths.KUBELET_ENVIRONMENT, *drop_ins) else Part.PROXY
            claim = Owned(part, wrote=(self._files.state(path).digest,))
            owned[path] = Owned(goes=Goes.WHOLE) if path in paths.PROXY_STATE else claim
        self.record = replace(self.record, owned=owned)

    def take_over(self, record: Record, repaired: Iterable[bytes]) -> None:
        """From now on `record` describes another installer's work; `repaired` are kubelet's files without
        it."""
        self.record = record
        self._repaired |= {sha256_hex(content): content for content in repaired}

    def repairs(self) -> dict[str, str]:
        """Kubelet's files as a takeover leaves them, path -> text. A file that someone else has written since
        is theirs, and no longer claimed."""
        owned, found = dict(self.record.owned), {}
        for path, claim in base_claims(self.record).items():
            content = self._repaired.get(claim.before.digest)
            content = content or self._files.read(object_path(claim.before.digest))
            state = self._files.state(path)
            if content is None or state.digest not in (claim.before.digest, *claim.wrote):
                del owned[path]
            else:
                found[path] = content.decode("utf-8", "surrogateescape")
        self.record = replace(self.record, owned=owned)
        return found

    def with_damage(self, snapshot: HostSnapshot, *, give_up: bool) -> HostSnapshot:
        """The snapshot with the damaged objects that the record on the disk refers to. `give_up`: a person
        wants the removal without the originals among them."""
        damaged = damaged_objects(self._loaded, snapshot)
        if give_up:
            self.record = without_lost_originals(self.record, damaged)
        return replace(snapshot, damaged=damaged)

    def _find_orphans(self, kept: Iterable[str], wrote: tuple[str, ...]) -> Iterable[str]:
        """The originals among the kept objects."""
        for name in sorted(kept):
            state = self._files.state(object_path(name))
            if state.digest == name and not is_ours(state, wrote):
                yield name

    def _set_aside(self) -> Iterable[str]:
        """Without its claim an original cannot be restored. Keep it, and the present record, where people
        find them, before a new record replaces it."""
        for name in self._orphans:
            if self._files.state(object_path(name)).kind is not Kind.FILE:
                continue
            self._files.make_directory(_EDITED, 0o700)
            aside = f"{_EDITED}/original.{name[:12]}"
            self._files.write(aside, HostPath(object_path(name)), 0o600, digest=name)
            self.originals_aside.append(aside)
            yield f"{object_path(name)} -> {aside}"
        kind, aside = self._files.state(paths.RECORD).kind, f"{_EDITED}/{posixpath.basename(paths.RECORD)}"
        record = self._files.read(paths.RECORD, _RECORD_KEPT) if self._orphans and kind is Kind.FILE else None
        if record is not None:
            self._files.write(aside, record, 0o600)
        if kind in (Kind.DIRECTORY, Kind.OTHER):  # nothing can be written there
            self._files.make_directory(_EDITED, 0o700)
            free = (f"{aside}.{number}" for number in count(1))
            aside = next(path for path in free if not self._files.state(path).exists)
            self._files.move(paths.RECORD, aside)
            yield f"{paths.RECORD} -> {aside}"
        self._orphans = ()

    def claim(self, plan: Plan, snapshot: HostSnapshot, *, owes_health: bool = False) -> tuple[str, ...]:
        """Record what the plan is about to own, after keeping the originals; then create the directories.
        `owes_health`: the plan is not done before kubelet is healthy.

        Returns where the content of edited files was kept.
        """
        self._make_own_directories()
        for digest, content in self._repaired.items():
            keep_object(self._files, digest, content)
        writes = [step.file for step in plan.steps if isinstance(step.file, DesiredFile)]
        # The program is large: a copy that its identity tells is read only before the program is replaced.
        known = None if any(file.path == paths.BINARY for file in writes) else self.record.known_digest
        heal_good(self._files, self.record, known)
        self._keep_originals(writes, snapshot)
        # Keep the next good generation before anything is replaced, so that a full disk is noticed while
        # nothing has been touched.
        keep_contents(self._files, plan.desired, known)
        kept = (*self._set_aside(), *self._keep_edits(plan.changes.files))
        owned, theirs = dict(self.record.owned), self.record.link_directories
        if not self.record.claims:  # the first claim: what exists was there before us
            theirs = find_directories(self._files)
            owned |= {path: Owned(goes=Goes.WHOLE) for path in paths.PROXY_STATE}
            owned = {path: one for path, one in owned.items() if path not in snapshot.leftovers}
        links = find_links(self._files)
        if paths.PROXY_UNIT_FILE not in owned and not takes_over(self.record):
            owned |= {path: Owned(before=state) for path, state in links.items()}
        needed = {posixpath.dirname(file.path) for file in writes}
        missing = {made for directory in needed for made in self._files.missing_directories(directory)}
        if any(step.kind is StepKind.DISABLE for step in plan.steps):  # somebody's `systemctl add-wants`
            missing |= {posixpath.dirname(path) for path in links} - {paths.LINKS, *theirs}
        owned |= {path: Owned(goes=Goes.EMPTY) for path in sorted(missing - owned.keys())}
        owed = self._owed(plan, snapshot) | self._owed_health(snapshot, begins=owes_health)
        record = replace(self._noted(), owned=owned, owed=owed, link_directories=theirs)
        if plan.desired.proxy is not None:
            controls = claim_controls(record.controls, plan.desired, snapshot, self._files)
            record = replace(record, controls=controls)
        if any(step.kind is StepKind.SIGNAL for step in plan.steps):
            record = replace(record, signalled=(record.signalled[0], ""))  # until the signal is sent
        record = claim_paths(record, snapshot.files, writes)
        self._save(replace(record, unproven=self._unproven(record)))
        for file in writes:
            self._files.make_directory(posixpath.dirname(file.path))
        return kept

    def _make_own_directories(self) -> None:
        self._files.make_directory(paths.OUR_STATE, 0o700)
        self._files.make_directory(paths.OBJECTS, 0o700)
        # A killed run may have created it without syncing, but what is in it has to be durable.
        self._files.sync(posixpath.dirname(paths.OUR_STATE))

    def _keep_originals(self, writes: Iterable[DesiredFile], snapshot: HostSnapshot) -> None:
        for file in writes:
            before = snapshot.files.get(file.path, ABSENT)
            if file.path not in self.record.claims and before.kind is Kind.FILE:
                keep_object(self._files, before.digest, HostPath(file.path))
        self._files.sync(paths.OBJECTS)  # including what a killed run has kept

    def _keep_edits(self, changes: Iterable[FileChange]) -> Iterable[str]:
        """Keep the content of our files that someone has edited, which the plan overwrites."""
        for change in changes:
            claim = self.record.claims.get(change.path)
            if claim is None or change.before.kind is not Kind.FILE:
                continue
            if change.before.digest not in (*claim.wrote, claim.before.digest):
                name = f"{posixpath.basename(change.path)}.{change.before.digest[:12]}"
                self._files.make_directory(_EDITED, 0o700)
                source = HostPath(change.path)
                self._files.write(f"{_EDITED}/{name}", source, 0o600, digest=change.before.digest)
                yield f"{change.path} -> {_EDITED}/{name}"

    def _noted(self) -> Record:
        """The record with the options of this run."""
        return self.record if self.asked is None else replace(self.record, asked=self.asked)

    def _owed(self, plan: Plan, snapshot: HostSnapshot) -> dict[str, str]:
        files = plan.changes.files
        edited = (each.path for each in files if each.verb is Verb.CHANGE)
        repaired = [each.path for each in files if each.path in base_claims(self.record)]  # by a takeover
        rewrites = any(path.endswith(f"/{paths.DROP_IN_NAME}") for path in edited)
        rewrites = rewrites or any(path.startswith(paths.UNIT_DIRECTORIES) for path in repaired)
        owed = {RELOAD_OWED: ""} if rewrites or RELOAD_OWED in self.record.owed else {}
        unit, kubelet = plan.changes.unit(Part.PROXY), snapshot.kubelet.unit
        if unit is not None and unit.action is UnitAction.RESTART and snapshot.proxy.unit.invocation_id:
            owed[unit.name] = snapshot.proxy.unit.invocation_id
        if is_earlier(self.record) and kubelet.invocation_id:
            # It may have read the relay from a file that has been repaired since.
            known = {} if repaired else self.record.owed
            owed[kubelet.name] = known.get(kubelet.name, kubelet.invocation_id)
        return owed

    def _owed_health(self, snapshot: HostSnapshot, *, begins: bool) -> dict[str, str]:
        """What a run that was cut off has owed is owed still, whatever it has done to kubelet since."""
        owed = self.record.owed.get(HEALTH_OWED)
        if owed is None and begins:
            owed = SOUND if snapshot.sound else ""
        return {} if owed is None else {HEALTH_OWED: owed}

    def _save(self, record: Record) -> None:
        """Write the record, unless it is already on the disk as it is: a removal needs no space for it. A
        record that the disk refuses is not in force: what it owes or claims has not been begun."""
        if record == self._on_disk:
            self._files.sync(paths.OUR_STATE)  # a run may have been killed before that
        else:
            self._on_disk = None
            save_record(self._files, record)
        self.record = self._on_disk = record

    def note_applied(self, plan: Plan, invocation: str) -> None:
        """After the last step nothing but kubelet's health is owed, and the proxy (its `invocation` now) has
        read force.cfg if it was started or signalled. Closing saves this."""
        did = {step.kind for step in plan.steps if step.part is Part.PROXY}
        signalled = self.record.signalled
        if plan.desired.proxy is not None and did & {StepKind.RESTART, StepKind.SIGNAL}:
            signalled = (invocation, plan.desired.proxy.reload_digest)
        controls = {name: kept for name, kept in self.record.controls.items() if name not in plan.controls}
        owed = {key: value for key, value in self.record.owed.items() if key == HEALTH_OWED}
        self.record = replace(self.record, owed=owed, signalled=signalled, controls=controls)

    def close_as_good(self) -> None:
        """After a change was undone: the good generation is in place again. The other one's objects are
        deleted before it is blamed: after that, no run of it would delete them."""
        drop_objects(self._files, objects_of(self.record) | objects_of(self._loaded))
        self._settle()
        owed = {key: value for key, value in self.record.owed.items() if key != HEALTH_OWED}
        self._save(replace(self.record, asked=self._loaded.asked, owed=owed))
        drop_objects(self._files, objects_of(self.record))

    def close_installed(
        self, desired: Desired, snapshot: HostSnapshot, payload_file: str, payload_version: str | None = None
    ) -> tuple[str, ...]:
        """This generation is good: keep it whole, and delete objects that nothing refers to. Return where
        originals were set aside."""
        if desired.proxy is None or not desired.proxy.generation:
            self.close_as_good()  # an earlier installation was repaired, which was good before
            return ()
        digests = {file.path: file.digest for file in desired.files}
        links = self.record.links if takes_over(self.record) else ()  # that installation does not return
        owned = {
            path: replace(owned, wrote=(digests[path],)) if path in digests else owned
            for path, owned in self.record.owned.items()
            if path not in links
            if path in digests or not owned.wrote or snapshot.files.get(path, ABSENT) != owned.before
        }
        self._make_own_directories()
        aside = tuple(self._set_aside())
        keep_contents(self._files, desired, self.record.known_digest)
        failed = {gen: why for gen, why in self.record.failed.items() if gen != desired.generation}
        self._settle()
        self._save(
            replace(
                self._noted(),
                owned=owned,
                good=desired,
                payload_version=self.record.payload_version if payload_version is None else payload_version,
                owed={},
                checked=snapshot.proxy.unit.invocation_id,
                failed=failed,
                digests=self._identities(snapshot, digests, payload_file),
                unproven=self._unproven(replace(self.record, owned=owned)),
            )
        )
        drop_objects(self._files, objects_of(self.record))
        return aside

    def there_still(self) -> tuple[str, ...]:
        """What is unclaimed and still there."""
        return tuple(path for path in self.unclaimed if self._files.state(path).exists)

    def _unproven(self, record: Record) -> tuple[str, ...]:
        """What a new record that begins in place of a lost one has to name. After a killed run, nothing but
        the record knows."""
        there = self.there_still()
        return tuple(path for path in there if path not in record.owned or not self.names_another_host)

    def set_aside(self) -> tuple[str, ...]:
        """Where the edits and originals are that nothing refers to."""
        return tuple(f"{_EDITED}/{name}" for name in sorted(self._files.list(_EDITED)))

    def _identities(
        self, snapshot: HostSnapshot, digests: dict[str, str], payload_file: str
    ) -> dict[str, tuple[Identity, str]]:
        """Of the proxy's binary: on the host, as kept, and in the payload."""
        digest, kept = digests[paths.BINARY], object_path(digests[paths.BINARY])
        found = {paths.BINARY: snapshot.files.get(paths.BINARY, ABSENT).identity}
        found[kept] = self._files.state(kept, lambda _path, _identity: digest).identity
        with suppress(OSError):
            found[payload_file] = Identity.of(os.stat(payload_file))
        return {path: (identity, digest) for path, identity in found.items() if identity}

    def blame(self, generation: str, reason: str, clock: Clock, made_with: str) -> None:
        """Remember that this generation failed in a sound environment with these settings, so that it is not
        retried. Closing saves this: until then the next run has to finish the rollback."""
        earlier = self.record.failed.get(generation)
        attempts = dict.fromkeys((*(earlier.made_with if earlier else ()), made_with))
        failure = Failure(reason, clock.now(), tuple(attempts))
        self.record = replace(self.record, failed={**self.record.failed, generation: failure})

    def _settle(self) -> None:
        """Make the disk agree with the record. A run killed during a write leaves a temp file, or a name that
        is not durable, in a directory that the next run had no reason to touch."""
        record = self.record
        directories = {posixpath.dirname(path) for path in record.going(Goes.BACK)}
        directories.update(record.going(Goes.EMPTY))
        own = (paths.WANTS, paths.OBJECTS, paths.OUR_STATE, paths.PROXY_STATE[0])
        for directory in sorted({*directories, *own}):
            with suppress(UnservableHostError):  # a link now leads out of the host root
                for name in self._files.list(directory):
                    if name.startswith(".") and name.endswith(paths.TEMPORARY):
                        self._files.remove(f"{directory}/{name}")
                self._files.sync(directory)

    def close_removed(self, *, undone: bool = False) -> tuple[str, ...]:
        """Delete what is left: empty directories, then the record, then what it refers to. `undone`: after a
        first install or a takeover was undone, keep directories that were there before, and of the record
        the failures. Kept edits stay; otherwise nothing remains. Return where originals were set aside."""
        files = self._files
        aside = tuple(self._set_aside())
        self._settle()
        files.remove_tree(paths.OUR_RUNTIME)
        for directory in sorted(self.record.going(Goes.EMPTY), reverse=True):  # innermost first
            if not (undone and self.record.owned[directory].was_there):
                files.remove_empty_directory(directory)
        files.remove_tree(paths.HOLD)
        # Before the originals: after a crash here, an install must not rely on what is gone.
        if undone and self.record.failed:
            record = Record(machine_id=self.record.machine_id, hostname=self.record.hostname)
            self._save(replace(record, failed=self.record.failed))
        else:
            files.remove(paths.RECORD)
        files.remove_tree(paths.OBJECTS)
        files.remove_empty_directory(paths.OUR_STATE)
        return aside


_DIRECTORIES_OF_OURS = frozenset({"/etc/cri-resmgr", "/opt/intel", "/opt/intel/bin"})
