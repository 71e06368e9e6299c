"""JSON that may be damaged: every fault is one kind of error."""

from __future__ import annotations

from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What the text says. Raises ValueError, also where it nests too deep for Python to follow."""
    import json  # late: most runs read none

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
