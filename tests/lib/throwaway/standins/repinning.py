"""What cri-resmgr does to containers that run when it starts with a policy that pins.

One that its cache does not know is put there without a word about its requests, under any policy. It goes to
the shared CPUs, and topology-aware, memtier and static-plus give it the lowest weight. One whose requests the
cache knows gets the weight that they say, unless its pod is taken for one of best effort: cri-resmgr reads
the QoS class from the cgroup that kubelet has given the pod, and a pod without one is of best effort. Where
the policy is the one of the start before, those that the cache knows keep what they were given then, whatever
the cache says of their requests meanwhile.
"""

import json
from contextlib import suppress
from typing import Any

from tests.lib.throwaway.standins.http2 import CallError, field, fields, numbers, strings, unary

SERVICE = "/runtime.v1.RuntimeService/"
CREATED, RUNNING = 0, 1
CALL_SECONDS = 60.0
TOUCH_NOBODY = ("none", "static")
CUT_WEIGHTS = ("topology-aware", "memtier", "static-plus")
LOWEST = 2
BEST_EFFORT = "besteffort"
ROOTS = ("kubepods", "kubepods.slice")

#: The CPU that is shared; on a real machine all that no container has to itself.
SHARED = "0"


def repin(
    cached: dict[str, dict[str, Any]], config: dict[str, Any], policy: str, runtime: str, *, switched: bool
) -> None:
    """Remembers what runs in `cached`, the cache's `Containers`, and pins it as the policy does. `switched`:
    the start before had another policy."""
    pins = (config.get("policy") or {}).get(policy) or {}
    touches = policy not in TOUCH_NOBODY and pins.get("PinCPU") is not False
    known = {entry.get("ID"): entry for entry in cached.values()}
    classes: dict[str, str] = {}
    for container in listed(runtime):
        entry = known.get(container["ID"])
        if entry is not None and not switched:
            if touches:
                apply(entry, runtime)
            continue
        if entry is None:
            entry = cached[container["CacheID"]] = {**container, "Resources": {}, "LinuxReq": None}
        if touches:
            best_effort = class_of_pod(container["PodID"], runtime, classes) == BEST_EFFORT
            shares = LOWEST if best_effort else weight_of(entry)
            weight = {"cpu_shares": shares} if policy in CUT_WEIGHTS else {}
            entry["LinuxReq"] = {**(entry.get("LinuxReq") or {}), "cpuset_cpus": SHARED, **weight}
            apply(entry, runtime)


def class_of_pod(pod: str, runtime: str, classes: dict[str, str]) -> str:
    """The QoS class of a pod; what was asked is kept in `classes`. One that has gone meanwhile has none."""
    if pod not in classes:
        try:
            status = unary(
                runtime, SERVICE + "PodSandboxStatus", field(1, pod) + field(2, True), CALL_SECONDS
            )
        except (OSError, CallError):
            return BEST_EFFORT
        entries = [strings(value) for number, value in fields(status) if number == 2]
        info = json.loads(next(entry[2] for entry in entries if entry[1] == "info"))
        classes[pod] = class_of(info["config"].get("linux", {}).get("cgroup_parent") or "")
    return classes[pod]


def class_of(parent: str) -> str:
    """As cri-resmgr reads it (discoverQOSClass in pod.go): with or without a --cgroup-root before it, of
    either cgroup driver. What it cannot read is of no class, and treated as guaranteed."""
    names = parent[1:].split("/")
    if names[0] not in ROOTS:
        names = names[1:]
    name = next(iter(names[1:] if names[:1] and names[0] in ROOTS else names), "")
    if not parent or name in ("besteffort", "kubepods-besteffort.slice"):
        return BEST_EFFORT
    return "burstable" if name in ("burstable", "kubepods-burstable.slice") else "guaranteed"


def weight_of(entry: dict[str, Any]) -> int:
    """By its request; one of which none is known gets the lowest weight."""
    request = ((entry.get("Resources") or {}).get("requests") or {}).get("cpu", "0")
    nano = int(request.rstrip("mn")) * {"m": 10**6, "n": 1}.get(request[-1], 10**9)
    milli = -(-nano // 10**6)
    return max(LOWEST, milli * 1024 // 1000)


def listed(runtime: str) -> list[dict[str, Any]]:
    """The containers that have not ended, as far as the cache has them from a list. It has one entry for all
    of a pod that have the same name: the last one's."""
    found = []
    for number, message in fields(unary(runtime, SERVICE + "ListContainers", b"", CALL_SECONDS)):
        if number == 1 and (state := numbers(message).get(6, CREATED)) in (CREATED, RUNNING):
            words, pairs = strings(message), [strings(each) for at, each in fields(message) if at == 8]
            labels = {pair[1]: pair[2] for pair in pairs if len(pair) == 2}
            named = [labels.get(f"io.kubernetes.{what}") for what in ("pod.uid", "container.name")]
            key = ":".join(name for name in named if name) or words[1]
            found.append({"ID": words[1], "PodID": words[2], "CacheID": key, "State": state})
    return found


def apply(entry: dict[str, Any], runtime: str) -> None:
    given = entry.get("LinuxReq") or {}
    linux = b""
    if given.get("cpu_shares"):
        linux += field(3, given["cpu_shares"])
    if given.get("cpuset_cpus"):
        linux += field(6, given["cpuset_cpus"])
    if linux:
        with suppress(OSError, CallError):  # it has ended meanwhile
            unary(
                runtime,
                SERVICE + "UpdateContainerResources",
                field(1, entry["ID"]) + field(2, linux),
                CALL_SECONDS,
            )
