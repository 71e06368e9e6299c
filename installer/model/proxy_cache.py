"""What cri-resmgr keeps over its restarts, as far as it matters to us.

The cache is the JSON of a snapshot with `Cfg`, null or {NodeName, Data}, `PolicyName` and `Containers`
(pkg/cri/resource-manager/cache of cri-resmgr v0.8 - v0.9.2). It is renamed into place but never synced, so a
power loss may leave it torn or full of zeros: cri-resmgr then exits at each start. An empty one it takes for
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from installer.model.jsontext import parse_json


@dataclass(frozen=True, slots=True)
class ProxyCache:
    """`torn`: no start can read it. `policy` is the one that the last start activated, empty if unknown.
    `agent` is the configuration that cri-resmgr-agent has sent, YAML by section, empty if there is none.
    `containers` are the IDs of those it knows."""

    torn: bool = False
    policy: str = ""
    agent: Mapping[str, str] = field(default_factory=dict)
    containers: frozenset[str] = frozenset()


NO_CACHE = ProxyCache()


def parse_cache(raw: bytes | None) -> ProxyCache:
    """The cache from its file's content, None if there is no file. A field of another type than cri-resmgr
    writes counts as missing."""
    if not raw:
        return NO_CACHE
    try:
        found = parse_json(raw.decode("utf-8", "replace"))
    except ValueError:
        return ProxyCache(torn=True)
    if not isinstance(found, dict):
        return ProxyCache(torn=True)
    config, policy, containers = found.get("Cfg"), found.get("PolicyName"), found.get("Containers")
    data = config.get("Data") if isinstance(config, dict) else None
    return ProxyCache(
        policy=policy if isinstance(policy, str) else "",
        agent={str(key): str(text) for key, text in data.items()} if isinstance(data, dict) else {},
        containers=frozenset(_ids(containers)) if isinstance(containers, dict) else frozenset(),
    )


def _ids(containers: Mapping[str, object]) -> list[str]:
    """The runtime's IDs: the keys are the cache's own."""
    entries = (entry for entry in containers.values() if isinstance(entry, dict))
    return [str(entry.get("Id") or entry.get("ID")) for entry in entries]
