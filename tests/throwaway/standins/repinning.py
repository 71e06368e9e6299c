"""What cri-resmgr does to containers that run when it starts with a policy that pins.

One that its cache does not know is put there without a word about its requests, under any policy. It goes to
the shared CPUs, and topology-aware, memtier and static-plus give it the lowest weight. One whose requests the
cache knows gets the weight that they say, if its pod has a cgroup of its own: from that cri-resmgr reads the
QoS class, and one without gets the lowest weight, whatever its requests. Where the policy is the one of the
start before, those that the cache knows keep what they were given then, whatever the cache says of their
requests meanwhile.
"""

import json
from contextlib import suppress
from typing import Any

from tests.throwaway.standins.http2 import CallError, field, fields, numbers, strings, unary

SERVICE = "/runtime.v1.RuntimeService/"
CREATED, RUNNING = 0, 1
CALL_SECONDS = 60.0
TOUCH_NOBODY = ("none", "static")
CUT_WEIGHTS = ("topology-aware", "memtier", "static-plus")
LOWEST = 2

#: The CPU that is shared; on a real machine all that no container has to itself.
SHARED = "0"


def repin(
    cached: dict[str, dict[str, Any]], config: dict[str, Any], policy: str, runtime: str, *, switched: bool
) -> None:
    """Remembers what runs in `cached`, the cache's `Containers`, and pins it as the policy does. `switched`:
    the start before had another policy."""
    pins = (config.get("policy") or {}).get(policy) or {}
    touches = policy not in TOUCH_NOBODY and pins.get("PinCPU") is not False
    known = {entry["ID"]: entry for entry in cached.values()}
    parents: dict[str, bool] = {}
    for container in listed(runtime):
        entry = known.get(container["ID"])
        if entry is not None and not switched:
            if touches:
                apply(entry, runtime)
            continue
        if entry is None:
            entry = cached[container["CacheID"]] = {**container, "Resources": {}, "LinuxReq": None}
        if touches:
            shares = weight_of(entry) if has_cgroup(container["PodID"], runtime, parents) else LOWEST
            weight = {"cpu_shares": shares} if policy in CUT_WEIGHTS else {}
            entry["LinuxReq"] = {**(entry.get("LinuxReq") or {}), "cpuset_cpus": SHARED, **weight}
            apply(entry, runtime)


def has_cgroup(pod: str, runtime: str, parents: dict[str, bool]) -> bool:
    """Whether kubelet has given a pod a cgroup of its own; what was asked is kept in `parents`. One that has
    gone meanwhile has none."""
    if pod not in parents:
        try:
            status = unary(
                runtime, SERVICE + "PodSandboxStatus", field(1, pod) + field(2, True), CALL_SECONDS
            )
        except (OSError, CallError):
            return False
        entries = [strings(value) for number, value in fields(status) if number == 2]
        info = json.loads(next(entry[2] for entry in entries if entry[1] == "info"))
        parents[pod] = bool(info["config"].get("linux", {}).get("cgroup_parent"))
    return parents[pod]


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
