"""What is known about the proxy: its cache, its log lines, its policies, and how long a start takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from installer.model.jsontext import mapping_at, parse_json, text_at

# What cri-resmgr keeps across restarts.
#
# The cache is the JSON of a snapshot with `Cfg`, null or {NodeName, Data}, `PolicyName` and `Containers`
# (pkg/cri/resource-manager/cache of cri-resmgr v0.8 - v0.9.2). It is renamed into place but never synced, so
# a power loss may leave it torn or full of zeros. cri-resmgr then exits at each start, as it does with JSON
# of any other shape. It treats an empty file as no cache. Only this module decides whether a cache is
# readable.

_CPU = re.compile(r"[0-9]{1,9}")
_QUANTITY = re.compile(r"([0-9]{1,18})([mun]?)")
_NANO = {"": 10**9, "m": 10**6, "u": 10**3, "n": 1}

CACHE_FORMAT = "1"
"""CacheVersion of cri-resmgr v0.8 - v0.9.2."""

_Shape = type | Mapping[str, "_Shape"]
_ANY = "*"  # any name
_TEXTS: _Shape = {_ANY: str}
_ENTRY: dict[str, _Shape] = {
    "ID": str,
    "PodID": str,
    "CacheID": str,
    "Name": str,
    "Namespace": str,
    "State": int,
    "CgroupParent": str,
    "Labels": _TEXTS,
    "Annotations": _TEXTS,
}
_LINUX: _Shape = {"cpu_shares": int, "cpuset_cpus": str, "cpuset_mems": str}
_CONTAINER: dict[str, _Shape] = {
    "Command": list,
    "LinuxReq": _LINUX,
    "Resources": {"requests": dict, "limits": dict},
}
_SNAPSHOT: _Shape = {
    "Version": str,
    "Pods": {_ANY: _ENTRY | {"Resources": dict}},
    "Containers": {_ANY: _ENTRY | _CONTAINER},
    "NextID": int,
    "Cfg": {"NodeName": str, "Data": _TEXTS},
    "PolicyName": str,
    "PolicyJSON": _TEXTS,
}
"""The fields that cri-resmgr reads, by the rules of Go's JSON: null and a missing field are the zero value;
another type makes the start fail (`snapshot`, `pod` and `container` in cache.go)."""


@dataclass(frozen=True, slots=True)
class CachedContainer:
    """A container as the cache knows it."""

    request: int | None = None  # CPU request in milliCPU; None if the cache has none
    # The request is the pod's own; else it is estimated from the weight that kubelet asked for, and rounded.
    annotated: bool = False
    cpus: str = ""  # those that the proxy gave it last; empty: none
    weighed: bool = False  # the proxy knows its CPU weight
    guaranteed: bool = False  # its pod is, by the name of the pod's cgroup
    # The exact cpu.shares of a request finer than milliCPU, which only an adoption writes; else 0.
    shares: int = 0
    title: str = ""  # for people


@dataclass(frozen=True, slots=True)
class ProxyCache:
    """What the cache says."""

    torn: bool = False  # no start can read it: it is truncated or has another shape
    version: str = ""  # of the format; empty: unknown
    policy: str = ""  # the one that the last start activated; empty: unknown
    # The configuration that cri-resmgr-agent sent: section -> YAML. None: none; an empty one is in force.
    agent: Mapping[str, str] | None = None
    containers: Mapping[str, CachedContainer] = field(default_factory=dict)  # by the runtime's ID
    pods: frozenset[str] = frozenset()  # the sandboxes that it knows, by the runtime's ID
    classed: tuple[int, ...] = ()  # CPUs whose frequency a class may have limited

    @property
    def foreign(self) -> bool:
        """Whether its format is unknown here: its own proxy reads it, but perhaps no other version."""
        return self.version != CACHE_FORMAT and not self.torn and self != NO_CACHE


CACHE_NEEDED = 1 << 20  # bytes to save it; 10 KiB for each container
NO_CACHE = ProxyCache()


def parse_cache(raw: bytes | None) -> ProxyCache:
    """Parse the cache file's content; None if there is no file. A cache of an unknown format version is not
    torn: its own proxy reads it, and the known fields are returned."""
    if not raw:
        return NO_CACHE
    try:
        found = parse_json(raw.decode("utf-8", "replace"))
    except ValueError:
        return ProxyCache(torn=True)
    if not _is_readable(found):
        return ProxyCache(torn=True)
    return ProxyCache(
        version=str(found.get("Version") or ""),
        policy=text_at(found, "PolicyName"),
        agent=_agent(found),
        containers=dict(_containers(found)),
        pods=frozenset(mapping_at(found, "Pods")),
        classed=_classed(mapping_at(found, "PolicyJSON").get("CPUClassAssignments")),
    )


def _agent(found: object) -> dict[str, str] | None:
    config = mapping_at(found).get("Cfg")
    return None if config is None else {str(k): str(v) for k, v in mapping_at(config, "Data").items()}


def without_agent(raw: bytes) -> bytes:
    """The cache without the agent's configuration, otherwise unchanged."""
    return json.dumps({**mapping_at(parse_json(raw)), "Cfg": None}).encode()


def _classed(text: object) -> tuple[int, ...]:
    """Parse the JSON: class -> CPUs, `0,1,2`. The empty class (balloons without a class) sets nothing and
    leaves what an earlier class has set. If it is the only one, there was no earlier class."""
    try:
        assigned = mapping_at(parse_json(text)) if isinstance(text, str) else {}
    except ValueError:
        return ()
    lists = [cpus.split(",") for cpus in assigned.values() if isinstance(cpus, str)] if any(assigned) else []
    return tuple(sorted({int(cpu) for cpus in lists for cpu in cpus if _CPU.fullmatch(cpu)}))


def _is_readable(found: object) -> bool:
    """Whether a start of cri-resmgr accepts this snapshot. A null pod or container makes it panic."""
    if not (isinstance(found, dict) and found.get("Version") and _fits(found, _SNAPSHOT)):
        return False
    return all(None not in mapping_at(found, name).values() for name in ("Pods", "Containers"))


def _fits(found: object, shape: _Shape) -> bool:
    """Whether it has this type, or is an object whose fields have theirs. A bool is not a number."""
    if isinstance(shape, type):
        return isinstance(found, shape) and not isinstance(found, bool)
    return isinstance(found, dict) and all(
        value is None or _fits(value, kind)
        for name, value in found.items()
        if (kind := shape.get(name) or shape.get(_ANY))
    )


def _containers(found: object) -> Iterator[tuple[str, CachedContainer]]:
    """By the runtime's ID; the cache uses keys of its own."""
    for entry in mapping_at(found, "Containers").values():
        given = mapping_at(entry, "LinuxReq")
        pod = mapping_at(found, "Pods", str(entry.get("PodID")))
        nano = nano_of(mapping_at(entry, "Resources", "requests").get("cpu"))
        yield (
            str(entry.get("Id") or entry.get("ID")),
            CachedContainer(
                request=None if nano is None else -(-nano // 10**6),
                annotated=bool(pod.get("Resources")),
                shares=(nano * 1024 + 5 * 10**8) // 10**9 if nano and nano % 10**6 else 0,
                cpus=text_at(given, "cpuset_cpus"),
                weighed=bool(given.get("cpu_shares")),
                guaranteed=_is_guaranteed(pod.get("CgroupParent")),
                title=_title(pod.get("Namespace"), pod.get("Name"), entry.get("Name")),
            ),
        )


def _title(*words: object) -> str:
    return "/".join(word for word in words if isinstance(word, str) and word)


def _is_guaranteed(parent: object) -> bool:
    """As cri-resmgr infers it from the pod's cgroup (cgroupParentToQOS)."""
    names = parent.strip("/").split("/") if isinstance(parent, str) else []
    return len(names) > 1 and not any(word in names[1] for word in ("burstable", "besteffort"))


def quantity_of(shares: int) -> str:
    """The CPU request that gives exactly these cpu.shares, as Kubernetes writes it: in milliCPU if possible,
    else in nanoCPU, which cri-resmgr keeps, but rounds up to milliCPU when it computes shares."""
    nano = -(-shares * 10**9 // 1024)
    return f"{nano}n" if nano % 10**6 else f"{nano // 10**6}m"


def nano_of(quantity: object) -> int | None:
    """Parse a CPU quantity as Kubernetes writes it: whole CPUs, or `m`, `u`, `n`. None for anything else."""
    found = _QUANTITY.fullmatch(quantity) if isinstance(quantity, str) else None
    return int(found[1]) * _NANO[found[2]] if found else None


# How the fatal lines of cri-resmgr begin: from its own logger (in the journal, and elsewhere), the Go runtime
# and Go's flag package. And kubelet's, so that a failed start of either is reported with its cause.
_FATAL = re.compile(
    r"(?:^|: )((?:\?\?\? )?F(?:: |\d{4} ).*|panic: .*|fatal error: .*|flag provided but .*|"
    r'E\d{4} .*"command failed" err=.*)'
)


def fatal_lines(lines: Iterable[str]) -> list[str]:
    """Why a process ended, in its own words, without the journal's prefix."""
    return [found[1] for line in lines if (found := _FATAL.search(line.strip()))]


class PolicySource(StrEnum):
    FORCE = "force.cfg"
    AGENT = "cri-resmgr-agent"
    FALLBACK = "fallback.cfg"
    BUILT_IN = "built-in defaults"
    GUARD = "the guard, which protects containers that the proxy does not know"


class Repinning(StrEnum):
    """What a start with a policy takes from running containers that the proxy does not know (seen with the
    real v0.9.2)."""

    NOTHING = "nothing"
    CPUS = "cpus"
    CPUS_AND_WEIGHT = "cpus and weight"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of cri-resmgr."""

    # What a start takes from running containers that the proxy does not know.
    takes: Repinning = Repinning.CPUS
    may_leave_cpus: bool = False  # with PinCPU: false it takes nothing
    whole_cpus: bool = False  # reserved CPUs are taken as whole CPUs


NO_POLICY = "none"
DEFAULT_FALLBACK = b"policy:\n  Active: none\n"
"""Installed if no fallback.cfg is given: a policy that was not chosen is never active."""
POLICIES = {
    NO_POLICY: Policy(Repinning.NOTHING),
    "topology-aware": Policy(Repinning.CPUS_AND_WEIGHT, may_leave_cpus=True, whole_cpus=True),
    "memtier": Policy(Repinning.CPUS_AND_WEIGHT, whole_cpus=True),  # its alias
    "balloons": Policy(may_leave_cpus=True),
    "static-pools": Policy(),
    "podpools": Policy(),
    "static": Policy(Repinning.NOTHING),
    "static-plus": Policy(Repinning.CPUS_AND_WEIGHT),
    "dynamic-pools": Policy(),
}
"""The policies of cri-resmgr v0.8 - v0.9.2. An unknown policy of another version is assumed to pin CPUs."""
_UNKNOWN = Policy()


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """The active policy."""

    name: str  # as in policy.Active
    source: PolicySource  # whose configuration selects it
    pending: str = ""  # the policy that the next start would activate instead; empty: the same
    pins: bool = True  # PinCPU is not false

    @property
    def repins(self) -> Repinning:
        """What a start with it takes from containers that the proxy does not know."""
        policy = POLICIES.get(self.name, _UNKNOWN)
        return Repinning.NOTHING if policy.may_leave_cpus and not self.pins else policy.takes

    @property
    def describe(self) -> str:
        """For people: `balloons, from fallback.cfg`."""
        pending = f" (the next start activates {self.pending})" if self.pending else ""
        return f"{self.name}, from {self.source}{pending}"


# How long a start of cri-resmgr takes, in seconds.
#
# It places every container before it answers. Seen with the real 0.9.2: topology-aware and balloons take 14
# to 20 ms per container, up to 40 ms on a busy machine; none and static take 1 to 3 ms, and so does
# static-pools unless it follows another policy. A slow machine takes longer; its last start tells how long.

WHILE_HANGING = 11.0
"""What a start may take while kubelet hangs on the relay. The node goes NotReady after ~31 s, so 30 s have to
be enough for the attempt, the rollback and, if that fails too, kubelet's move to its base endpoint (R8)."""

WHILE_LINKED = 3.0
"""The same for a kubelet that can leave the relay without a restart."""

BELIEVED = 300.0
"""A start that seems to have taken longer is not believed: the clock was set, or someone else wrote the pid
file."""

_BASE, _EACH = 1.0, 0.05


def longest_start(containers: int) -> float:
    """What a start with this many containers may take on a busy machine."""
    return _BASE + containers * _EACH


def patience(timeout: float, containers: int, last_start: float = 0.0) -> float:
    """After how many seconds a start has failed that kubelet does not hang on: proxy.startTimeoutSeconds of
    the settings, plus what the containers need on a busy machine or on this one."""
    return timeout + max(containers * _EACH, last_start)
