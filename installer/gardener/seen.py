"""What is kept of a pod and a node of a Shoot: what a judgement needs, and no more. A Shoot may have
thousands, and its API server may be hostile and try to fill our memory. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from installer.model.names import STATUS
from installer.operator.api import Page
from installer.operator.kube_objects import (
    Object,
    complaint_of,
    condition_of,
    cut_line,
    is_ready_pod,
    parse_time,
    silent_since,
    text_at,
)

_NAME = 253  # characters, of a DNS name (RFC 1123)
_WORD = 40


@dataclass(frozen=True, slots=True)
class Pod:
    """`ready`: and not about to go. `complaint`: what kubelet says of one that cannot run, or nothing."""

    node: str
    ready: bool
    going: bool
    created: datetime
    complaint: str


@dataclass(frozen=True, slots=True)
class SeenNode:
    """`silent`: since when its kubelet is silent, None if it is. `unready`: why it is not Ready, as
    kubelet says. `state` and `reason` are the installer's word on it, empty if there is none."""

    name: str
    silent: datetime | None = None
    unready: str = ""
    state: str = ""
    reason: str = ""


def parse_pod(given: Object) -> Pod:
    return Pod(
        node=cut_line(text_at(given, "spec", "nodeName"), _NAME),
        ready=is_ready_pod(given),
        going=bool(text_at(given, "metadata", "deletionTimestamp")),
        created=parse_time(text_at(given, "metadata", "creationTimestamp")),
        complaint=complaint_of(given),
    )


def parse_node(given: Object) -> SeenNode:
    ready, word = condition_of(given, "Ready"), _word(given)
    return SeenNode(
        name=cut_line(text_at(given, "metadata", "name"), _NAME),
        silent=silent_since(given),
        unready=cut_line(text_at(ready, "message")) if ready.get("status") == "False" else "",
        state=cut_line(word["state"], _WORD),
        reason=cut_line(word["reason"]),
    )


def _word(node: Object) -> Mapping[str, str]:
    """The word of the installer on it; a word that we do not know stands as its reason."""
    annotation = text_at(node, "metadata", "annotations", STATUS)
    try:
        found = json.loads(annotation or "{}")
        return {key: str(found.get(key, "")) for key in ("state", "reason")}
    except (ValueError, AttributeError, RecursionError):
        return {"state": "", "reason": annotation}


def items_of(pages: Iterable[Page]) -> Iterator[Object]:
    """One page is held at a time."""
    for page in pages:
        yield from page.items
