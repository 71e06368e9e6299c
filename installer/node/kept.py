"""Content that is kept on the host by its digest: the good generation, and originals of what was replaced.

A kept object may be damaged or gone: by a disk, or by a person. It is never taken for one that was not there:
that would turn a rollback into an uninstall. A file of the good generation is as good where the host still
has it, and is kept anew from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from installer.host.ports import Files
from installer.model import paths
from installer.model.host import ABSENT, Content, DesiredFile, FileState, HostPath, HostSnapshot
from installer.model.plan import Desired, FileChange, Finding, Verb, refusal, warning
from installer.node.record import Record, base_claims, objects_of


def object_path(digest: str) -> str:
    return f"{paths.OBJECTS}/{digest}"


def keep_object(files: Files, digest: str, content: Content) -> None:
    """Keeps content by its digest; a no-op if it is kept already, whole.

    Raises InstallerError if the file given has another digest by now.
    """
    if files.state(object_path(digest)).digest != digest:
        files.write(object_path(digest), content, 0o600, digest=digest)


def drop_objects(files: Files, keep: Iterable[str]) -> None:
    """Removes every kept object but those."""
    wanted = set(keep)
    for name in files.list(paths.OBJECTS):
        if name not in wanted:
            files.remove(object_path(name))


def keep_contents(files: Files, desired: Desired) -> None:
    """Keeps the content of every desired file as an object."""
    for file in desired.files:
        keep_object(files, file.digest, file.content)


def heal_good(files: Files, record: Record) -> None:
    """Before the host's files are replaced: keeps anew what is damaged of the good generation, where the host
    still has it. Where a takeover begins, all of it, and kubelet's files as they are."""
    kept = {(file.path, file.digest) for file in (record.good.files if record.good else ())}
    kept |= {(path, digest) for path, claim in base_claims(record).items() for digest in claim.wrote}
    for path, digest in sorted(kept):
        if files.state(object_path(digest)).digest != digest == files.state(path).digest:
            keep_object(files, digest, HostPath(path))


def good_desired(record: Record, files: Files) -> Desired | None:
    """The good generation as a desired state, or None if there is none. Where content is lost, writing that
    file fails by its digest."""
    if record.good is None:
        return None
    return replace(record.good, files=tuple(_with_content(record, files, file) for file in record.good.files))


def _with_content(record: Record, files: Files, file: DesiredFile) -> DesiredFile:
    source, state = _source(record, files, file)
    whole = state.content if state.digest == file.digest else None
    return replace(file, content=source if whole is None else whole)


def _source(record: Record, files: Files, file: DesiredFile) -> tuple[HostPath, FileState]:
    """Where the content of a good file is found whole; the kept object where it is found nowhere."""
    kept = object_path(file.digest)
    state = files.state(kept, record.known_digest)
    if state.digest != file.digest:
        there = files.state(file.path, record.known_digest)
        if there.digest == file.digest:
            return HostPath(file.path), there
    return HostPath(kept), state


def good_content(record: Record, files: Files, path: str) -> bytes | None:
    """What the good generation has at `path`: a small file; None if it has none, empty if that is lost."""
    found = [file for file in record.good.files if file.path == path] if record.good else []
    if not found:
        return None
    state = _source(record, files, found[0])[1]
    return (state.content or b"") if state.digest == found[0].digest else b""


def damaged_objects(record: Record, snapshot: HostSnapshot) -> frozenset[str]:
    """The digests of objects that are not what they should be; `record` is the one that lies on the disk."""
    kept = {digest: snapshot.files.get(object_path(digest)) for digest in objects_of(record)}
    return frozenset(digest for digest, state in kept.items() if state and state.digest != digest)


def lost_files(record: Record, snapshot: HostSnapshot) -> tuple[str, ...]:
    """The paths of the good generation whose content is found nowhere on the host."""
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
    """What an operator should know of damaged objects."""
    if snapshot.damaged:
        yield from _check_originals(record, snapshot, changes)
        yield from _check_copies(record, snapshot, desired)


def _check_originals(
    record: Record, snapshot: HostSnapshot, changes: Iterable[FileChange]
) -> Iterator[Finding]:
    """A removal that could not give a file back is refused."""
    returns = {change.path for change in changes if change.verb is Verb.RESTORE}
    for path, claim in sorted(record.claims.items()):
        digest = claim.before.digest
        if digest in snapshot.damaged and snapshot.files.get(path, ABSENT).digest != digest:
            finding = refusal if path in returns else warning
            yield finding(
                "original-lost",
                f"the original of {path}, kept at {object_path(digest)}, is damaged or gone",
                "put a file with the sha256 of that name back there; or give it up: "
                f"`remove --without-record` deletes {path}, and its original does not return",
            )


def _check_copies(record: Record, snapshot: HostSnapshot, desired: Desired) -> Iterator[Finding]:
    obtainable = {file.digest for file in desired.files}
    lost = set(lost_files(record, snapshot))
    for file in record.good.files if record.good else ():
        if file.digest in snapshot.damaged:
            hint = "a run that installs keeps it anew"
            if file.path in lost and file.digest not in obtainable:
                hint = "one that fails leaves kubelet on its base endpoint: there is nothing to roll back to"
            yield warning(
                "copy-damaged",
                f"the copy of {file.path} for a rollback, {object_path(file.digest)}, is damaged or gone",
                hint,
            )
