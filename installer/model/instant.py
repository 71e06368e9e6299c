"""Points in time, in seconds of the epoch, and in the formats of the Kubernetes API. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

CLOCKS_DIFFER = 60.0
"""Seconds by which another machine's clock may be ahead."""
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def micro_time(seconds: float) -> str:
    """Format seconds since the epoch as the API's MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain_time(seconds: float) -> str:
    """Format seconds since the epoch as the API's Time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> float:
    """Seconds since the epoch of a Time or MicroTime, in UTC if it names no zone; 0 for anything else.
    Bounded so that a day can be added and still be formatted."""
    try:
        when = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        found = when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, found), _LATEST)


def parse_past(text: object, now: float) -> float:
    """Like `parse_time`, but 0 for a time in the future, whoever wrote it: nothing may wait for it."""
    found = parse_time(text)
    return found if found <= now + CLOCKS_DIFFER else 0.0
