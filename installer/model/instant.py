"""Times of the epoch as the Kubernetes API writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

CLOCKS_DIFFER = 60.0
"""Seconds by which a time that another machine wrote may be ahead."""
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def micro_time(when: datetime) -> str:
    """As the API's MicroTime has it."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain_time(seconds: float) -> str:
    """A time of the epoch as the API's Time has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> float:
    """Seconds of the epoch of a Time or MicroTime, so far within its bounds that a day more can be written,
    too; 0 for anything else."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, found), _LATEST)


def parse_past(text: object, now: float) -> float:
    """The same for what has happened: 0 for a time that is still to come. Whoever wrote it, nobody waits
    until then."""
    found = parse_time(text)
    return found if found <= now + CLOCKS_DIFFER else 0.0
