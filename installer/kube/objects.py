"""Objects of an API server as they come: plain JSON, read without trust in its shape. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]


def parse_time(text: object) -> datetime:
    """A time of the API; what is none was long ago."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def mapping_at(given: Object, *path: str) -> Object:
    found: Any = given
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def text_at(given: Object, *path: str) -> str:
    found = mapping_at(given, *path[:-1]).get(path[-1])
    return found if isinstance(found, str) else ""
