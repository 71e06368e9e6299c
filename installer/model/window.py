"""When a rollout may begin planned work: windows of local time, each day or on some days of the week. Pure.

A window that ends at or before its begin ends on the next day. Its days are those on which it begins. Where a
change of the clocks skips a time, it counts as what the clocks showed before; of a time that comes twice, the
first counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MINUTES = 24 * 60
_AHEAD = 15  # days: of a window on one day of the week, a change of the clocks may skip one
_OFFSET = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Window:
    """`days` are 0 for Monday to 6, `begins` and `ends` minutes of the day. `zone`: UTC, an offset such as
    +01:00, or a name of the IANA database."""

    days: tuple[int, ...]
    begins: int
    ends: int
    zone: str

    @property
    def minutes(self) -> int:
        return self.ends - self.begins + (_MINUTES if self.ends <= self.begins else 0)


@dataclass(frozen=True, slots=True)
class WindowState:
    """`until`: when this changes, a time of the epoch; 0: never, or not known. `fault`: why it is not known
    whether a window is open. None is, then."""

    open: bool
    until: float = 0.0
    fault: str = ""


def find_zone(name: str) -> tzinfo:
    """Raises ValueError for a name that the time zone data of this machine does not have."""
    if name == "UTC":
        return UTC
    if offset := _OFFSET.fullmatch(name):
        sign = -1 if offset[1] == "-" else 1
        return timezone(sign * timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    from zoneinfo import ZoneInfo  # late: few need it

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ValueError(f"there is no data of the time zone {name}") from None


def has_zones() -> bool:
    """Whether this machine has time zone data at all."""
    try:
        return find_zone("Europe/London") is not None
    except ValueError:
        return False


def judge_windows(windows: Sequence[Window], now: float) -> WindowState:
    """Return whether one of them is open at `now`, a time of the epoch."""
    spans = list[tuple[float, float]]()
    fault = ""
    for window in windows:
        try:
            spans += _spans(window, now)
        except (ValueError, OverflowError) as error:
            fault = str(error)
    for begins, ends in _merged(spans):
        if begins <= now < ends:
            is_endless = ends >= now + (_AHEAD - 2) * 86_400
            return WindowState(True, 0.0 if is_endless else ends)
        if begins > now:
            return WindowState(False, begins)
    return WindowState(False, fault=fault)


def _spans(window: Window, now: float) -> Iterator[tuple[float, float]]:
    """Yield begin and end from yesterday on. Raises ValueError, OverflowError."""
    zone = find_zone(window.zone)
    today = datetime.fromtimestamp(now, zone).date()
    for day in (today + timedelta(days=each) for each in range(-1, _AHEAD)):
        begins = _at(day, window.begins, zone)
        ends = _at(day, window.begins + window.minutes, zone)
        if day.weekday() in window.days and ends > begins:
            yield begins, ends


def _at(day: date, minutes: int, zone: tzinfo) -> float:
    days, rest = divmod(minutes, _MINUTES)
    local = datetime.combine(day + timedelta(days=days), datetime.min.time(), zone)
    return local.replace(hour=rest // 60, minute=rest % 60).timestamp()


def _merged(spans: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Join those that overlap, or follow without a gap."""
    begins, ends = 0.0, -1.0
    for start, stop in sorted(spans):
        if start > ends:
            if ends > begins:
                yield begins, ends
            begins, ends = start, stop
        ends = max(ends, stop)
    if ends > begins:
        yield begins, ends
