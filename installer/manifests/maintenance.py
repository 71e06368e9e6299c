"""Reads the maintenance window of a Shoot as a window of a rollout. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d)([0-5]\d)([+-])(0\d|1[0-4])([0-5]\d)")
_DAY = 24 * 60
_SHORTEST = 10  # minutes of a window of a rollout; Gardener's have 30 at least


def read_time_window(given: object) -> Mapping[str, str] | None:
    """`begin` and `end` are HHMMSS+ZONE (MaintenanceTimeWindow of core.gardener.cloud/v1beta1). Return None
    for anything that Gardener itself would refuse."""
    if not isinstance(given, Mapping):
        return None
    begin, end = (_TIME.fullmatch(str(given.get(key))) for key in ("begin", "end"))
    if begin is None or end is None:
        return None
    # The end in the zone of the begin.
    ends = (_minutes(end) - _offset(end) + _offset(begin)) % _DAY
    if (ends - _minutes(begin)) % _DAY < _SHORTEST:
        return None
    zone = f"{begin[4]}{begin[5]}:{begin[6]}"
    return {"from": f"{begin[1]}:{begin[2]}", "to": f"{ends // 60:02}:{ends % 60:02}", "timeZone": zone}


def _minutes(time: re.Match[str]) -> int:
    return int(time[1]) * 60 + int(time[2])


def _offset(time: re.Match[str]) -> int:
    return (-1 if time[4] == "-" else 1) * (int(time[5]) * 60 + int(time[6]))
