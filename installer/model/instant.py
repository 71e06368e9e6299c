"""Times of the epoch as the Kubernetes API writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def micro_time(when: datetime) -> str:
    """As the API's MicroTime has it."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain_time(seconds: float) -> str:
    """A time of the epoch as the API's Time has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> float:
    """Seconds of the epoch of a Time or MicroTime; 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
