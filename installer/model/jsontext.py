"""JSON: of what may be damaged every fault is one kind of error, and dataclasses are written as they are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What the text says. Raises ValueError, also where it nests too deep for Python to follow."""
    import json  # late: most runs read none

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def to_json(value: Any) -> str:
    """JSON on one line, a dataclass as an object with its fields. Raises TypeError for other types."""
    import json

    return json.dumps(value, default=_fields_of)


def _fields_of(value: Any) -> dict[str, Any]:
    """Without copies, of which `dataclasses.asdict` makes one of everything below."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
