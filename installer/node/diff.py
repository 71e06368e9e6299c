"""Compare what should be with what is. Pure: values in, changes out.

A restart is derived, never remembered: the running process testifies to the generation it was started from,
and systemd to the text it has loaded. Only what a process cannot testify to (that it read an edited file) is
in the record as owed, with the invocation that has to end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from installer.inputs.systemd_syntax import parse_environment_file
from installer.model import paths
from installer.model.host import (
    ABSENT,
    DesiredFile,
    FileState,
    HostSnapshot,
    Kind,
    Part,
    ProcessState,
    ProxySnapshot,
    UnitState,
)
from installer.model.plan import Changes, Desired, DesiredUnit, FileChange, UnitAction, UnitChange, Verb
from installer.node.header import started_from
from installer.node.record import Goes, Owned, Record, base_claims, takes_over

_ON_BASE = "it runs on its base endpoint, not on the relay"
# Read at the next start of kubelet or the proxy; a running process does not depend on it.
_NO_RUNTIME_EFFECT = frozenset({paths.GUARD})


def diff(desired: Desired, snapshot: HostSnapshot, record: Record) -> Changes:
    """Every difference. Empty means converged."""
    files = (*_diff_desired(desired, snapshot), *_diff_owned(desired, snapshot, record))
    units = []
    if desired.proxy is not None:
        units.append(_diff_proxy(desired.proxy, snapshot, record, files))
    else:
        units.append(_diff_no_proxy(desired, snapshot, record, files))
    if desired.kubelet is not None:
        units.append(_diff_kubelet(desired.kubelet.unit, snapshot, files, links=not desired.names_relay))
    else:
        units.append(_diff_no_kubelet(snapshot, record, files))
    return Changes(files, tuple(unit for unit in units if unit is not None))


def _diff_desired(desired: Desired, snapshot: HostSnapshot) -> Iterable[FileChange]:
    for file in desired.files:
        before = snapshot.files.get(file.path, ABSENT)
        why = why_different(file, before)
        if why:
            verb = Verb.CREATE if before.kind is Kind.ABSENT else Verb.CHANGE
            yield FileChange(file.path, file.part, verb, before, file, why)


def why_different(file: DesiredFile, before: FileState) -> str:
    """Empty if the path is as it should be."""
    if before.kind is Kind.ABSENT:
        return "missing"
    if before.kind is not Kind.FILE:
        return f"is {before.kind.words}"
    if before.digest != file.digest:
        return "content differs"
    if before.mode != file.mode:
        return f"mode is {before.mode:04o}, not {file.mode:04o}"
    if (before.uid, before.gid) != (0, 0):
        return f"owner is {before.uid}:{before.gid}, not 0:0"
    return ""


def _diff_owned(desired: Desired, snapshot: HostSnapshot, record: Record) -> Iterable[FileChange]:
    """Owned but not desired: restore the original, or leave nothing."""
    wanted = {file.path for file in desired.files}
    for path, owned in sorted(record.owned.items()):
        before = snapshot.files.get(path, ABSENT)
        if path in wanted or before == owned.before or not _goes_back(owned, desired, record):
            continue
        verb, after = (Verb.RESTORE, owned.before) if owned.was_there else (Verb.DELETE, None)
        yield FileChange(path, owned.part, verb, before, after, _why_unwanted(path, owned, before, record))


def _goes_back(owned: Owned, desired: Desired, record: Record) -> bool:
    """The links that enabled a unit of our name return with it. While a takeover is undone, nothing of it
    goes."""
    if owned.goes is not Goes.BACK:
        return False
    if not owned.wrote:
        return _returns_links(desired, record)
    return desired.kubelet is not None or desired.proxy is None or owned.part is not Part.KUBELET


def _returns_links(desired: Desired, record: Record) -> bool:
    if desired.proxy is not None and desired.proxy.generation:
        return False
    return bool(desired.files) or not takes_over(record)


def _why_unwanted(path: str, owned: Owned, before: FileState, record: Record) -> str:
    if not owned.wrote:
        return "it enabled another unit of this name" if owned.was_there else "it did not exist before"
    if path in base_claims(record):
        return "an earlier installation has edited it"
    edited = before.kind is not Kind.ABSENT and before.digest not in owned.wrote
    return "no longer wanted" + (" (edited since it was installed)" if edited else "")


def _diff_proxy(
    unit: DesiredUnit, snapshot: HostSnapshot, record: Record, files: tuple[FileChange, ...]
) -> UnitChange | None:
    proxy = snapshot.proxy
    if snapshot.cache.torn:
        proxy = replace(proxy, starting=False)  # no start with such a cache succeeds
    state = proxy.unit
    reasons = _restart_reasons(unit, proxy, record, files)
    action = UnitAction.RESTART if reasons else UnitAction.NOTHING
    reread = record.signalled == (state.invocation_id, unit.reload_digest) and not _force_edited(files)
    if action is UnitAction.NOTHING and unit.reload_digest and not reread:
        action, reasons = UnitAction.RELOAD, [f"{paths.FORCE_CONFIG} changed"]
    disable = bool(proxy.links) and unit.generation != ""  # an earlier installation keeps its links
    if disable:
        reasons.append("something else than kubelet's unit starts it")
    awaited = proxy.starting and action is not UnitAction.RESTART
    if awaited:
        reasons.insert(0, "it is still starting")
    change = UnitChange(unit.name, Part.PROXY, action, tuple(reasons), disable=disable, awaited=awaited)
    return _with_reload(change, unit, state, files)


def _restart_reasons(
    unit: DesiredUnit, proxy: ProxySnapshot, record: Record, files: tuple[FileChange, ...]
) -> list[str]:
    """Why the proxy has to restart; empty if it need not."""
    state, process = proxy.unit, proxy.process
    reasons = []
    if process is None or not (state.running or proxy.starting):
        reasons.append("it is not running" if not state.flapping else f"it keeps crashing ({state.result})")
    elif process.generation != unit.generation:
        reasons.append(_generation_reason(process.generation, Part.PROXY, files))
    elif not (proxy.relay_answers or proxy.starting):
        reasons.append("its relay does not answer")
    elif process.flag("--force-config") == paths.SPARING_CONFIG:
        reasons.append("the guard started it without its policy, to protect containers that it does not know")
    if process is not None and record.owed.get(unit.name, "") == state.invocation_id != "":
        reasons.append("it may have been started from an edited file")
    elif not reasons:
        edited = (*drifted(files, _unread(unit, state, record)), *_read_carriers(files, process, record))
        reasons += [f"{path} was edited, and it may have been started from that" for path in edited]
    return reasons


def _force_edited(files: Iterable[FileChange]) -> bool:
    """Whether force.cfg was edited. After a signal by hand, the running proxy uses the edit."""
    return any(
        change.path == paths.FORCE_CONFIG
        and isinstance(change.after, DesiredFile)
        and change.before.digest != change.after.digest
        for change in files
    )


def _unread(unit: DesiredUnit, state: UnitState, record: Record) -> frozenset[str]:
    """Files whose edits cannot be in the running proxy, or can be corrected in it without a restart."""
    if not unit.reload_digest:
        return _NO_RUNTIME_EFFECT
    unread = _NO_RUNTIME_EFFECT | {paths.FALLBACK_CONFIG}  # not read if there is a force.cfg
    reread = record.signalled[0] == state.invocation_id
    return unread | {paths.FORCE_CONFIG} if reread else unread


def drifted(files: Iterable[FileChange], unread: frozenset[str]) -> tuple[str, ...]:
    """The proxy's files that differ in content and that a start in the meantime may have read.

    No start can have read a file that is absent: it would have failed. EXTRA_OPTIONS.cfg is the exception: a
    start without it has other options, so its absence counts.
    """
    return tuple(
        change.path
        for change in files
        if change.part is Part.PROXY
        and change.path not in unread
        and isinstance(change.after, DesiredFile)
        and not change.after.generation_carrier
        and (change.before.digest != change.after.digest or change.before.kind is not Kind.FILE)
        and (change.before.kind is not Kind.ABSENT or change.path == paths.EXTRA_OPTIONS)
        and not _starts_the_same(change)
    )


def _read_carriers(
    files: Iterable[FileChange], process: ProcessState | None, record: Record
) -> Iterable[str]:
    """The proxy's carrier, if somebody has edited it and the process was started from that. The edit leaves
    the generation as it is, but the process has the edited variables."""
    for change in files:
        after, before = change.after, change.before.content
        if not (process and before and isinstance(after, DesiredFile) and after.generation_carrier):
            continue
        if change.part is not Part.PROXY:
            continue
        if change.before.digest in record.owned.get(change.path, Owned()).wrote:
            continue  # ours, which other settings change
        content = after.content if isinstance(after.content, bytes) else b""
        read, wanted = (parse_environment_file(one.decode("utf-8", "replace")) for one in (before, content))
        differ = [name for name in read.keys() | wanted.keys() if read.get(name) != wanted.get(name)]
        if any(process.environ.get(name) == read.get(name) for name in differ):
            yield change.path


def _starts_the_same(change: FileChange) -> bool:
    """Whether another text of the unit starts the same process: only its deadline has changed."""
    before, after = change.before.content, change.after
    if change.path != paths.PROXY_UNIT_FILE or before is None or not isinstance(after, DesiredFile):
        return False
    return isinstance(after.content, bytes) and started_from(before) == started_from(after.content)


def _diff_kubelet(
    unit: DesiredUnit, snapshot: HostSnapshot, files: tuple[FileChange, ...], *, links: bool
) -> UnitChange | None:
    kubelet, state, process = snapshot.kubelet, snapshot.kubelet.unit, snapshot.kubelet.process
    reason, action = "", UnitAction.RESTART
    if process is None or not state.running:
        reason = "it is not running"
    elif not unit.generation:  # an earlier installation's, on whatever endpoint
        reason = "it was started with our lines" if process.generation else ""
    elif not (kubelet.linked or kubelet.on_relay):
        reason = _ON_BASE
    elif process.generation != unit.generation or kubelet.linked != links:
        reason = _generation_reason(process.generation, Part.KUBELET, files)
    elif links and not kubelet.is_at(paths.RELAY_ENDPOINT):
        leads = "its link leads elsewhere" if kubelet.target else "its link is missing"
        reason = leads if kubelet.on_relay else _ON_BASE
        action = UnitAction.MOVE if kubelet.moves else UnitAction.RESTART
    elif kubelet.is_silent and snapshot.may_be_unknown:  # who moved it there has been killed, or it dials
        reason = "it has no connection to the relay"
        action = UnitAction.MOVE if kubelet.moves else UnitAction.RESTART
    action = action if reason else UnitAction.NOTHING
    change = UnitChange(unit.name, Part.KUBELET, action, (reason,) if reason else ())
    return _with_reload(change, unit, state, files)


def _with_reload(
    change: UnitChange, unit: DesiredUnit, state: UnitState, files: tuple[FileChange, ...]
) -> UnitChange | None:
    """The change with the daemon-reload that it needs; None if nothing is to be done."""
    reload = change.disable or state.need_daemon_reload or state.loaded_digest != unit.unit_digest
    reload = reload or any(_is_unit_text(file, change.part, unit) for file in files)
    if not (change.action or change.awaited or reload):
        return None
    return replace(change, why=change.why or ("daemon-reload required",), daemon_reload=reload)


def _is_unit_text(file: FileChange, part: Part, unit: DesiredUnit) -> bool:
    """Whether a daemon-reload has to follow this change. When a drop-in moves to another directory, the old
    one is deleted; a takeover repairs kubelet's own files and deletes a package's unit."""
    return file.path == unit.unit_file or (part is file.part and file.path.startswith(paths.UNIT_DIRECTORIES))


def _generation_reason(running: str, part: Part, files: tuple[FileChange, ...]) -> str:
    changed = [c.path for c in files if c.part is part and c.path not in _NO_RUNTIME_EFFECT]
    if not running:
        return "it was started without our settings"
    if changed:
        return f"{', '.join(changed)} changed"
    return "it was started from an older generation"


def _diff_no_proxy(
    desired: Desired, snapshot: HostSnapshot, record: Record, files: tuple[FileChange, ...]
) -> UnitChange | None:
    state = snapshot.proxy.unit
    if paths.PROXY_UNIT_FILE not in record.claims:
        return None
    up = state.running or state.flapping or state.active_state == "activating"
    # What links there were before us is restored or deleted by itself; whoever has made others since.
    returned_links = tuple(record.links) if _returns_links(desired, record) else ()
    disable = not snapshot.proxy.links.issubset(returned_links)
    # systemd has unloaded our unit. Another of the same name may be in a later unit directory.
    read = not (state.loaded_digest or state.need_daemon_reload)
    returned = all(change.path != paths.PROXY_UNIT_FILE for change in files)
    if not up and read and returned and not disable:
        return None
    return UnitChange(
        state.name,
        Part.PROXY,
        UnitAction.STOP if up else UnitAction.NOTHING,
        ("no longer wanted",),
        daemon_reload=True,
        disable=disable,
        kept_links=returned_links,
    )


def _diff_no_kubelet(
    snapshot: HostSnapshot, record: Record, files: tuple[FileChange, ...]
) -> UnitChange | None:
    state = snapshot.kubelet.unit
    reload = bool(state.loaded_digest) or any(
        c.part is Part.KUBELET and c.path.startswith(paths.UNIT_DIRECTORIES) for c in files
    )
    # A takeover was interrupted between the repair of kubelet's unit and the reload.
    reload = reload or (state.need_daemon_reload and bool(base_claims(record)))
    # A start in progress for which the guard has composed the relay ends up on it.
    moving = snapshot.composed and state.active_state == "activating" and not state.flapping
    process = snapshot.kubelet.process
    ours = bool(process and process.generation) or any(c.part is Part.KUBELET for c in record.claims.values())
    uses_ours = snapshot.kubelet.linked or (snapshot.kubelet.on_relay and ours)
    leaves = uses_ours or moving  # else another installer put it there
    # An interrupted takeover: it was started from a configuration that has been repaired since.
    leaves = leaves or (state.running and record.owed.get(state.name, "") == state.invocation_id != "")
    if not reload and not leaves:
        return None
    action = UnitAction.RESTART if leaves else UnitAction.NOTHING
    why = "it returns to its base endpoint" if action else "daemon-reload required"
    return UnitChange(state.name, Part.KUBELET, action, (why,), daemon_reload=reload)
