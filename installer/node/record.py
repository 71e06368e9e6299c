"""What we own on the host, kept below /var/lib/cri-resmgr-installer.

The record says what is ours to remove and what to give back. It never says what the host is like: that is
observed. Pure functions return a new `Record`; only `load_record`, `save_record` and the object store touch
the host.

A crash in any function leaves the old record or the new one, never a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from installer.errors import UnservableHostError
from installer.host.ports import Files
from installer.model import paths
from installer.model.controls import Originals
from installer.model.host import (
    ABSENT,
    DesiredFile,
    FileState,
    HostSnapshot,
    Identity,
    Kind,
    Part,
)
from installer.model.jsontext import parse_json, sha256_hex
from installer.model.names import REMEMBERED
from installer.model.plan import Desired

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 1
_READABLE_SCHEMA = SCHEMA + 1  # the next version promises that we can run and remove what it wrote
_RECORD_LIMIT = 8 << 20  # bytes
# The checksum in the last line covers everything before it. To a reader that does not know it, it is an
# unknown field. A record without one is believed, but not one whose last line is damaged.
_CHECKSUM = re.compile(rb',\n "checksum": "([^"\n]*)"\n}\s*\Z')
_OF_PROXY = "/cri-res"  # part of every path that is deleted with its content
_LAST_OWNER = 0xFFFF_FFFE
_DIGEST = re.compile(r"[0-9a-f]{64}|")
_NOT_KEPT: Any = {
    "owned": {"__all__": {"before": {"content", "identity"}}},
    "good": {"files": {"__all__": {"content"}}},
}
_OUR_MARK = b"cri-resmgr-installer"
_MARK_WITHIN = 512  # bytes; our header is the first or second line


RELOAD_OWED = "daemon-reload"
"""A key of what is owed: a run has begun to replace our drop-in, or to repair kubelet's unit (a takeover)."""
HEALTH_OWED = "kubelet-health"
"""The same: a run has begun after which kubelet has to be healthy. Its value is `SOUND` if all was well
before."""
SOUND = "sound"


class RecordStatus(StrEnum):
    MISSING = "missing"
    OK = "ok"
    CORRUPT = "corrupt"
    FUTURE = "from the future"
    RENAMED = "from before this machine got its host name"
    FOREIGN = "from another machine"


class Goes(StrEnum):
    """What happens to a path that is no longer wanted."""

    BACK = "back"  # a file or link: restore what was there before us, or delete it
    EMPTY = "empty"  # a directory: delete it if it is empty
    WHOLE = "whole"  # cri-resmgr's own: delete it with its content


@dataclass(frozen=True, slots=True)
class Owned:
    """A path that is ours."""

    part: Part = Part.PROXY
    goes: Goes = Goes.BACK
    before: FileState = ABSENT  # what was there
    # Digests that we wrote or are about to write; none for a link to the proxy's unit, which systemd creates.
    wrote: tuple[str, ...] = ()

    @property
    def was_there(self) -> bool:
        return self.before.exists


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    time: str
    # The settings of the attempts that failed, by digest (`settings_digest`); none in an earlier record.
    made_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What is ours on this host. `owed` and `signalled` are about what a unit was started from, and its
    process cannot tell."""

    schema: int = SCHEMA
    machine_id: str = ""
    hostname: str = ""
    owned: Mapping[str, Owned] = field(default_factory=dict)  # by path
    digests: Mapping[str, tuple[Identity, str]] = field(default_factory=dict)  # known, not computed again
    good: Desired | None = None  # the last generation that was verified healthy; its contents are kept
    failed: Mapping[str, Failure] = field(default_factory=dict)
    # The invocation of a unit that has to end, because it may have been started from an edited file; and
    # RELOAD_OWED, HEALTH_OWED.
    owed: Mapping[str, str] = field(default_factory=dict)
    signalled: tuple[str, str] = ("", "")  # invocation, digest of the force.cfg that it re-read
    checked: str = ""  # the proxy's invocation after whose start every container had its weight
    controls: Originals = field(default_factory=dict)  # of what cri-resmgr may have set in the kernel
    # What was at paths of ours or of cri-resmgr when a new record began in place of a lost one.
    unproven: tuple[str, ...] = ()
    payload_version: str = ""  # of the good generation, as its payload names itself
    link_directories: tuple[str, ...] = ()  # for links that enable units, as they were before us
    asked: Mapping[str, str] = field(default_factory=dict)  # the options of the last run, see `sane_options`

    @property
    def claims(self) -> dict[str, Owned]:
        """The files among what is owned."""
        return {path: owned for path, owned in self.owned.items() if owned.wrote}

    @property
    def links(self) -> dict[str, Owned]:
        """The links that enabled a unit of the proxy's name before us, and ours."""
        return {path: self.owned[path] for path in self.going(Goes.BACK) if not self.owned[path].wrote}

    def going(self, goes: Goes) -> list[str]:
        return [path for path, owned in self.owned.items() if owned.goes is goes]

    def known_digest(self, path: str, identity: Identity) -> str | None:
        """The port's `KnownDigest`: a digest by identity, without reading the file."""
        known, digest = self.digests.get(path, (None, None))
        return digest if known == identity else None


class LoadedRecord(NamedTuple):
    """What `load_record` found."""

    record: Record
    status: RecordStatus
    orphans: tuple[str, ...] = ()  # digests of kept originals that `record` no longer refers to
    unclaimed: tuple[str, ...] = ()  # files that nothing proves ours, although a record has claimed them


NOTHING_LOADED = LoadedRecord(Record(), RecordStatus.MISSING)


def load_record(files: Files, machine_id: str, hostname: str) -> LoadedRecord:
    """The host's record, and whether it can be believed.

    On a machine with another ID or host name (a cloned disk, a renamed machine), the files prove what is kept
    of it. Of any other record that is not OK, nothing is kept.
    """
    nothing = Record(machine_id=machine_id, hostname=hostname)
    try:
        raw = files.read(paths.RECORD, _RECORD_LIMIT)
    except UnservableHostError:  # a link that leads out of the host root
        raw = None
    if raw is None:
        is_there = files.state(paths.RECORD).exists  # but is no file
        return LoadedRecord(nothing, RecordStatus.CORRUPT if is_there else RecordStatus.MISSING)
    from pydantic import ValidationError

    try:
        found = parse_json(raw)
        schema = found["schema"]
        if not isinstance(schema, int):
            raise TypeError(schema)
        if schema > _READABLE_SCHEMA:
            return LoadedRecord(nothing, RecordStatus.FUTURE)
        _ = found["owned"]  # not in 0.1.0, which kept it elsewhere: it would seem that nothing is ours
        record = _adapter().validate_json(raw)
    except (ValueError, KeyError, TypeError, ValidationError):
        return LoadedRecord(nothing, RecordStatus.CORRUPT)
    if not _is_whole(raw) or not _is_sensible(record):
        return LoadedRecord(nothing, RecordStatus.CORRUPT)
    if record.machine_id != machine_id or record.hostname not in ("", hostname):
        return _recheck(record, files, machine_id, hostname)
    # What the next version added is dropped: we write our own schema.
    record = replace(record, schema=SCHEMA, hostname=hostname, asked=sane_options(record.asked))
    return LoadedRecord(record, RecordStatus.OK, unclaimed=record.unproven)


def sane_options(found: object) -> dict[str, str]:
    """Return the remembered options that a person can have typed: absolute paths, and no others. Somebody may
    have edited the record."""
    options = found if isinstance(found, Mapping) else {}
    return {
        name: str(value)
        for name, value in options.items()
        if name in REMEMBERED and isinstance(value, str)
        if (value == "" and name == "default_configs") or (paths.is_clean(value) and value.isprintable())
    }


def last_options(files: Files) -> dict[str, str]:
    """Return the options of the last run by hand that changed this host. Empty if the record is missing or
    damaged."""
    with suppress(ValueError, UnservableHostError, OSError):
        raw = files.read(paths.RECORD, _RECORD_LIMIT)
        found = parse_json(raw) if raw and _is_whole(raw) else None
        return sane_options(found.get("asked")) if isinstance(found, Mapping) else {}
    return {}


def _is_whole(raw: bytes) -> bool:
    """Whether the file is as it was written. It decides what is deleted."""
    found = _CHECKSUM.search(raw)
    if found is None:
        return b"checksum" not in raw
    return found[1] == sha256_hex(raw[: found.start()]).encode()


def _is_sensible(record: Record) -> bool:
    """Whether every path, digest and number is possible on a host, and could have been written by us."""
    states = [owned.before for owned in record.owned.values()]
    files = record.good.files if record.good else ()
    kept: list[FileState | DesiredFile] = [*states, *files]
    originals = [path for kept in record.controls.values() for path in kept]
    return (
        all(path.startswith("/sys/") and paths.is_clean(path) for path in originals)
        and all(_OF_PROXY in path for path in record.going(Goes.WHOLE))
        and all(map(paths.is_clean, (*record.owned, *record.unproven, *(file.path for file in files))))
        and all(0 <= owner <= _LAST_OWNER for state in states for owner in (state.uid, state.gid))
        and all(
            _DIGEST.fullmatch(each.digest) and 0 <= each.mode <= 0o7777 and 0 <= each.size <= 1 << 62
            for each in kept
        )
    )


def _recheck(record: Record, files: Files, machine_id: str, hostname: str) -> LoadedRecord:
    """If one file is as we wrote it, this is the disk of the installation: what was good here is good, and a
    claimed file that is missing was deleted here."""
    states = {path: files.state(path) for path in record.claims}
    # The program alone may be another installer's.
    proven = any(
        path != paths.BINARY and states[path].digest in claim.wrote and states[path] != claim.before
        for path, claim in record.claims.items()
    )
    others = {
        path: claim
        for path, claim in record.claims.items()
        if not _is_still_ours(states[path], claim) and (states[path].exists or not proven)
    }
    owned = {path: each for path, each in record.owned.items() if path not in others}
    renamed = record.machine_id == machine_id
    rechecked = replace(
        record if renamed else replace(record, controls={}, failed={}, digests={}),
        schema=SCHEMA,
        machine_id=machine_id,
        hostname=hostname,
        owned=owned if any(each.wrote for each in owned.values()) else {},
        good=record.good if proven else None,
    )
    kept = objects_of(rechecked)
    dropped = (claim.before.digest for claim in others.values())
    return LoadedRecord(
        rechecked,
        RecordStatus.RENAMED if renamed else RecordStatus.FOREIGN,
        tuple(dict.fromkeys(digest for digest in dropped if digest and digest not in kept)),
        (
            *(path for path, claim in others.items() if states[path] not in (ABSENT, claim.before)),
            *record.unproven,
        ),
    )


def is_ours(state: FileState, wrote: Collection[str]) -> bool:
    """Whether a file is provably ours: it has our header, or a digest that we wrote."""
    marked = state.content is not None and _OUR_MARK in state.content[:_MARK_WITHIN]
    return marked or (state.kind is Kind.FILE and state.digest in wrote)


def _is_still_ours(state: FileState, claim: Owned) -> bool:
    """Kubelet's files always are: an edited drop-in must not keep the kubelet of a renamed host on the
    relay."""
    return is_ours(state, claim.wrote) or (claim.part is Part.KUBELET and state.kind is Kind.FILE)


def save_record(files: Files, record: Record) -> None:
    """Write the record atomically. Its directory must exist."""
    files.write(paths.RECORD, dump_record(record), 0o600)


def dump_record(record: Record) -> bytes:
    """The content of the record's file. Pure."""
    content = _adapter().dump_json(record, indent=1, exclude=_NOT_KEPT).removesuffix(b"\n}")
    return content + f',\n "checksum": "{sha256_hex(content)}"\n}}\n'.encode()


@cache
def _adapter() -> TypeAdapter[Record]:
    """Built once, since that takes 10 ms."""
    from pydantic import TypeAdapter

    return TypeAdapter(Record)


def base_claims(record: Record) -> dict[str, Owned]:
    """Kubelet's own files that a takeover repairs: `before` is the repaired text, `wrote` the text that the
    other installer had left."""
    return {
        path: claim
        for path, claim in record.claims.items()
        if claim.part is Part.KUBELET
        and claim.before.kind is Kind.FILE
        and path != paths.KUBELET_ENVIRONMENT
        and not path.endswith(f"/{paths.DROP_IN_NAME}")
    }


def objects_of(record: Record) -> set[str]:
    """The digests of all objects that the record refers to."""
    found = {owned.before.digest for owned in record.owned.values() if owned.before.digest}
    found.update(file.digest for file in (record.good.files if record.good else ()))
    return found.union(*(claim.wrote for claim in base_claims(record).values()))


def claim_paths(
    record: Record,
    before: Mapping[str, FileState],
    writes: Iterable[DesiredFile],
) -> Record:
    """The record with a claim, including the digest, for every file about to be written.

    `before` is what is at those paths now. It becomes the original unless the path is already ours.
    """
    owned = dict(record.owned)
    for file in writes:
        claim = owned.get(file.path) or Owned(file.part, before=before.get(file.path, ABSENT))
        owned[file.path] = replace(claim, wrote=tuple(dict.fromkeys((*claim.wrote, file.digest))))
    return replace(record, owned=owned)


def is_open(record: Record, desired: Desired) -> bool:
    """Whether a run was interrupted after its last step: everything is installed, but not yet recorded as
    good."""
    return record.good is None or record.good.generation != desired.generation


def is_proven(record: Record, desired: Desired) -> bool:
    """Whether the good generation was verified with this binary and these configurations."""
    judged = (paths.BINARY, paths.FALLBACK_CONFIG, paths.FORCE_CONFIG)
    wanted = {file.path: file.digest for file in desired.files if file.path in judged}
    good = record.good.files if record.good else ()
    return wanted == {file.path: file.digest for file in good if file.path in judged}


def leftovers_of_ours(record: Record, snapshot: HostSnapshot, *, undone: bool = False) -> tuple[str, ...]:
    """What cri-resmgr has created on the host since we installed it, or may still create until it is stopped.
    A removal deletes it. If a change is `undone`, what was there before stays."""
    whole = {path for path in record.going(Goes.WHOLE) if not (undone and record.owned[path].was_there)}
    stopped = snapshot.proxy.unit.active_state in ("inactive", "failed")
    found = snapshot.leftovers if stopped else dict.fromkeys((*paths.PROXY_STATE, *sorted(whole)))
    return tuple(path for path in found if path in whole)


def takes_over(record: Record) -> bool:
    """Whether what is kept as good is another installer's work: a takeover has begun and is not verified
    yet."""
    good = record.good
    return good is not None and not (good.proxy is not None and good.proxy.generation)


def is_earlier(record: Record) -> bool:
    """Whether kubelet was on the relay of the installation that is being taken over, and returns to it on
    failure."""
    return record.good is not None and record.good.proxy is not None and takes_over(record)


def was_moving_kubelet(record: Record, snapshot: HostSnapshot) -> bool:
    """Whether an interrupted run started kubelet on the relay and did not verify it: a kubelet that keeps
    crashing may be our doing. If there is a good generation, someone else deleted a file that is merely
    missing. An earlier installation that is being taken over, with a dead proxy, keeps kubelet down by
    itself."""
    if is_earlier(record):
        return True
    if not snapshot.composed:
        return False
    ours = record.good if not takes_over(record) else None
    good = {file.path: file.digest for file in ours.files} if ours else {}
    missing = () if good else (ABSENT.digest,)
    return any(
        claim.part is Part.KUBELET and digest in (*claim.wrote, *missing) and digest != good.get(path)
        for path, claim in record.claims.items()
        for digest in (snapshot.files.get(path, ABSENT).digest,)
    )


def may_be_earlier(snapshot: HostSnapshot, record: Record) -> bool:
    """Whether a closer look is worth its time. Most nodes have no earlier installation."""
    if base_claims(record) or is_earlier(record):
        return True
    if paths.PROXY_UNIT_FILE not in record.claims and snapshot.proxy.unit.fragment_path:
        return True
    return any(paths.RELAY_NAME in text.text for text in snapshot.base.configured())
