"""Is it done? Observes and compares again: an empty difference *is* done, health aside."""

from __future__ import annotations

from installer.diff import diff
from installer.host.ports import Host
from installer.model.change import Changes
from installer.model.state import Desired, Observation
from installer.observe import observe
from installer.record.schema import Record


def look_again(
    host: Host, desired: Desired, record: Record, kubelet_unit: str, healthz_url: str
) -> tuple[Observation, Changes]:
    """What the host is like now and what still differs from `desired`."""
    wanted = (file.path for file in desired.files)
    observation = observe(host, record, wanted, kubelet_unit, healthz_url)
    return observation, diff(desired, observation, record)


def differences(changes: Changes) -> tuple[str, ...]:
    """What differs and why, a line each."""
    files = (f"{change.path}: {change.why}" for change in changes.files)
    units = (f"{change.name}: {', '.join(change.why)}" for change in changes.units)
    return (*files, *units)


def remaining(changes: Changes) -> str:
    """What still differs, in words; empty if nothing does."""
    return "; ".join(differences(changes))
