"""Label selectors of the Kubernetes API (documentation, "Labels and Selectors"), as far as we use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_PART = re.compile(
    r"(?P<key>[^\s=,()]+)(?:\s*==?\s*(?P<value>[^\s=,()]*)|\s+in\s*\((?P<values>[^)]*)\))?(?:,|$)"
)


def matches(selector: str, labels: Mapping[str, str] | None) -> bool:
    """All requirements of it: `key`, `key=value`, `key in (one,two)`. Raises ValueError for others."""
    there = labels or {}
    return all(
        key in there and (values is None or there[key] in values) for key, values in _requirements(selector)
    )


@lru_cache(256)
def _requirements(selector: str) -> tuple[tuple[str, frozenset[str] | None], ...]:
    found, at = [], 0
    while at < len(selector):
        part = _PART.match(selector, at)
        if part is None:
            raise ValueError(f"the selector is not understood: {selector}")
        at, text = part.end(), part["value"] if part["values"] is None else part["values"]
        values = None if text is None else frozenset(each.strip() for each in text.split(","))
        found.append((part["key"], values))
    return tuple(found)
