"""What changed on this host, by whom and why: an entry in the host's journal for each run that changed
something, and how to read such entries.

The journal is the host's own, so `journalctl -t cri-resmgr-installer` on the node shows the same, and a
removal leaves none of our files behind. A host without a journal works as well, without a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from installer.errors import InstallerError
from installer.host.ports import Journal
from installer.model import paths
from installer.model.history import History, HistoryEntry, Past
from installer.model.names import Mode
from installer.model.plan import Plan
from installer.node.run import DAEMON
from installer.report.planned import summarise_plan

MESSAGE_ID = "42fa621d53b44a9f91095e477e8c4d1a"
"""Marks our entries: `journalctl MESSAGE_ID=...`."""
_IDENTIFIER = "cri-resmgr-installer"
_PREFIX = "CRI_RESMGR_INSTALLER_"
_WHY = f"{_PREFIX}WHY"
_FIELDS = {
    name: f"{_PREFIX}{name.upper()}"
    for name in ("who", "action", "outcome", "summary", "generation", "payload_version")
}
_NOTICE, _WARNING = "5", "4"  # of syslog(3)
_WHY_LINES = 30
_GUARD = paths.GUARD.rpartition("/")[2]


def entry_of_hold(reason: str, outcome: str, *, moved: bool) -> HistoryEntry:
    """The entry of a rescue. `moved`: kubelet was restarted for it."""
    when = "; kubelet restarts" if moved else " from its next start on"
    summary = f"kubelet is held on its base endpoint{when}"
    return HistoryEntry("", DAEMON, "hold", outcome, summary, (reason,))


def entry_of(plan: Plan, who: str, because: str, outcome: str, payload_version: str) -> HistoryEntry:
    """The entry of a run that carried out all or a part of `plan`. The journal adds its time."""
    removing = plan.mode is Mode.REMOVE
    units = (f"{unit.name}: {why}" for unit in plan.changes.units for why in unit.why)
    files = (f"{change.path}: {change.why}" for change in plan.changes.files)
    return HistoryEntry(
        "",
        who,
        plan.mode.value,
        outcome,
        summarise_plan(plan, done=outcome == "done"),
        tuple(filter(None, (because, *units, *files))),
        plan.desired.generation,
        "" if removing else payload_version,
    )


def describe_end(error: InstallerError) -> str:
    """The outcome of a run that ended with `error`."""
    return f"exit {error.exit_code}: {error.message.partition(chr(10))[0]}"


def write_entry(journal: Journal, entry: HistoryEntry) -> None:
    """Write to the host's journal. Raises nothing: the change is done in any case."""
    journal.write(
        {
            "MESSAGE": entry.describe,
            "MESSAGE_ID": MESSAGE_ID,
            "PRIORITY": _NOTICE if entry.outcome == "done" else _WARNING,
            "SYSLOG_IDENTIFIER": _IDENTIFIER,
            **{field: getattr(entry, name) for name, field in _FIELDS.items()},
            _WHY: "\n".join(entry.why[:_WHY_LINES]),
        }
    )


def read_history(journal: Journal, count: int) -> History:
    """The last `count` entries.

    Anyone may write an entry with our MESSAGE_ID, so only root's are believed, and those whose writer
    journald does not know. Such a writer is in a PID namespace that the host does not see, as when a
    throwaway host is changed from outside; no user of the host can be.
    """
    read = journal.entries((f"MESSAGE_ID={MESSAGE_ID}", "_UID=0"), count)
    if not read.entries and not read.fault:
        read = journal.entries((f"MESSAGE_ID={MESSAGE_ID}",), count)
    believed = (entry for entry in read.entries if entry.get("_UID", "0") == "0")
    return History(tuple(map(_entry, believed)), read.fault)


def read_past(journal: Journal, kubelet_unit: str) -> Past:
    """The last change, and the guard's last decision for a start of kubelet."""
    changes = read_history(journal, 1).entries
    matches = (f"_SYSTEMD_UNIT={kubelet_unit}", f"SYSLOG_IDENTIFIER={_GUARD}", "_UID=0")
    said = journal.entries(matches, 1).entries
    fields = said[-1] if said else {}
    decision = fields.get("MESSAGE", "").removeprefix(f"{_GUARD}: ")
    last = changes[-1] if changes else None
    return Past(last, _time(fields), decision, fields.get("_SYSTEMD_INVOCATION_ID", ""))


def _entry(said: Mapping[str, str]) -> HistoryEntry:
    why = tuple(line for line in said.get(_WHY, "").split("\n") if line)
    given = {name: said.get(field, "") for name, field in _FIELDS.items()}
    return HistoryEntry(time=_time(said), why=why, **given)


def _time(fields: Mapping[str, str]) -> str:
    microseconds = fields.get("__REALTIME_TIMESTAMP", "")
    if not microseconds.isdecimal():
        return ""
    return datetime.fromtimestamp(int(microseconds) / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
