"""Nodes that have cri-resmgr from another installer, or by hand: recognised, and taken over if that is asked.

Taking over means to describe that installation in the record as if it were ours: its files are claimed with
nothing before them, kubelet's files with a repaired text before them. The rest is the usual way: the
difference, the plan, the rollback and the removal follow from the record.
"""

from __future__ import annotations

from installer.model import paths
from installer.model.snapshot import HostSnapshot
from installer.record.schema import Record, is_earlier
from installer.record.takeover import base_claims


def may_be_earlier(snapshot: HostSnapshot, record: Record) -> bool:
    """Whether a closer look is worth its time: on most nodes there is nothing."""
    if base_claims(record) or is_earlier(record):
        return True
    if paths.PROXY_UNIT_FILE not in record.claims and snapshot.proxy.unit.fragment_path:
        return True
    return any(paths.RELAY_NAME in text.text for text in snapshot.base.configured())
