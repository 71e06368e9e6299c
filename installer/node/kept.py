"""Content kept on the host by its digest: the good generation, and originals of what was replaced.

A disk or a person may damage or delete a kept object. It is never treated as if it had not existed: that
would turn a rollback into an uninstall. A file of the good generation that the host still has is just as
good, and is kept again from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from installer.host.ports import Files, KnownDigest
from installer.model import paths
from installer.model.host import ABSENT, Content, DesiredFile, HostPath, HostSnapshot
from installer.model.plan import Desired, FileChange, Finding, Verb, refusal, warning
from installer.node.record import Record, base_claims, objects_of


def object_path(digest: str) -> str:
    return f"{paths.OBJECTS}/{digest}"


def keep_object(files: Files, digest: str, content: Content, known: KnownDigest | None = None) -> None:
    """Keep content by its digest. Does nothing if it is already kept intact.

    Raises InstallerError if the given file has another digest by now.
    """
    if files.state(object_path(digest), known).digest != digest:
        files.write(object_path(digest), content, 0o600, digest=digest)


def drop_objects(files: Files, keep: Iterable[str]) -> None:
    """Delete every kept object except those."""
    wanted = set(keep)
    for name in files.list(paths.OBJECTS):
        if name not in wanted:
            files.remove(object_path(name))


def keep_contents(files: Files, desired: Desired, known: KnownDigest | None) -> None:
    """Keep the content of every desired file as an object."""
    for file in desired.files:
        keep_object(files, file.digest, file.content, known)


def heal_good(files: Files, record: Record, known: KnownDigest | None) -> None:
    """Before the host's files are replaced, keep again what is damaged of the good generation and still
    intact on the host. At the beginning of a takeover: all of it, and kubelet's files as they are."""
    kept = {(file.path, file.digest) for file in (record.good.files if record.good else ())}
    kept |= {(path, digest) for path, claim in base_claims(record).items() for digest in claim.wrote}
    for path, digest in sorted(kept):
        if files.state(object_path(digest), known).digest != digest == files.state(path).digest:
            keep_object(files, digest, HostPath(path))


def good_desired(record: Record, files: Files) -> Desired | None:
    """The good generation as a desired state; None if there is none. If a file's content is lost, writing
    that file fails by its digest."""
    if record.good is None:
        return None
    return replace(record.good, files=tuple(_with_content(record, files, file) for file in record.good.files))


def _with_content(record: Record, files: Files, file: DesiredFile) -> DesiredFile:
    """A good file with its content, from the kept object or from the host, wherever it is intact."""
    kept = object_path(file.digest)
    for place in (kept, file.path):
        state = files.state(place, record.known_digest)
        if state.digest == file.digest:
            return replace(file, content=HostPath(place) if state.content is None else state.content)
    return replace(file, content=HostPath(kept))


def damaged_objects(record: Record, snapshot: HostSnapshot) -> frozenset[str]:
    """The digests of damaged or missing objects. `record` is the one on the disk."""
    kept = {digest: snapshot.files.get(object_path(digest)) for digest in objects_of(record)}
    return frozenset(digest for digest, state in kept.items() if state and state.digest != digest)


def lost_files(record: Record, snapshot: HostSnapshot) -> tuple[str, ...]:
    """The paths of the good generation whose content is nowhere on the host."""
    return tuple(
        file.path
        for file in (record.good.files if record.good else ())
        if file.digest in snapshot.damaged and snapshot.files.get(file.path, ABSENT).digest != file.digest
    )


def without_lost_originals(record: Record, damaged: frozenset[str]) -> Record:
    """The record for a removal that gives up the originals whose content is damaged."""
    lost = {
        path: replace(claim, before=ABSENT)
        for path, claim in record.claims.items()
        if claim.before.digest in damaged
    }
    return replace(record, owned={**record.owned, **lost})


def check_kept(
    record: Record, snapshot: HostSnapshot, desired: Desired, changes: Iterable[FileChange]
) -> Iterator[Finding]:
    """What an operator should know about damaged objects. A removal that could not restore a file is
    refused."""
    returns = {change.path for change in changes if change.verb is Verb.RESTORE}
    for path, claim in sorted(record.claims.items()):
        digest = claim.before.digest
        if digest in snapshot.damaged and snapshot.files.get(path, ABSENT).digest != digest:
            finding = refusal if path in returns else warning
            yield finding(
                "original-lost",
                f"the original of {path}, kept at {object_path(digest)}, is damaged or missing",
                "put a file with that sha256 back there; or give up the original: "
                f"`remove --without-record` deletes {path} without restoring it",
            )
    obtainable, lost = {file.digest for file in desired.files}, lost_files(record, snapshot)
    for file in record.good.files if record.good else ():
        if file.digest in snapshot.damaged:
            hint = "the next installation keeps a new copy"
            if file.path in lost and file.digest not in obtainable:
                hint = "a failed installation leaves kubelet on its base endpoint: a rollback is not possible"
            yield warning(
                "copy-damaged",
                f"the copy of {file.path} for a rollback, {object_path(file.digest)}, is damaged or missing",
                hint,
            )
