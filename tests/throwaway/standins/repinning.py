"""What cri-resmgr does to containers that run when it starts with a policy that pins.

One that its cache does not know is taken for a container without requests: it goes to the shared CPUs, and
topology-aware, memtier and static-plus give it the lowest weight. One that it knows gets what the cache says.
"""

from contextlib import suppress
from typing import Any

from tests.throwaway.standins.http2 import CallError, field, fields, strings, unary

SERVICE = "/runtime.v1.RuntimeService/"
RUNNING = 1
TOUCH_NOBODY = ("none", "static")
CUT_WEIGHTS = ("topology-aware", "memtier", "static-plus")
LOWEST = 2

#: The CPU that is shared; on a real machine all that no container has to itself.
SHARED = "0"


def repin(cached: dict[str, dict[str, Any]], config: dict[str, Any], policy: str, runtime: str) -> None:
    """Pins every running container and remembers it in `cached`, the cache's `Containers`."""
    pins = (config.get("policy") or {}).get(policy) or {}
    if policy in TOUCH_NOBODY or pins.get("PinCPU") is False:
        return
    known = {entry["ID"]: entry for entry in cached.values()}
    for container in running(runtime):
        entry = known.get(container["ID"])
        if entry is None:
            weight = {"cpu_shares": LOWEST} if policy in CUT_WEIGHTS else {}
            entry = {**container, "Resources": {}, "LinuxReq": {"cpuset_cpus": SHARED, **weight}}
            cached[container["CacheID"]] = entry
        apply(entry, runtime)


def running(runtime: str) -> list[dict[str, Any]]:
    """The running containers, as far as the cache has them from a list."""
    listed = unary(runtime, SERVICE + "ListContainers", field(1, field(2, field(1, RUNNING))))
    found = []
    for number, message in fields(listed):
        if number == 1:
            words = strings(message)
            found.append(
                {"ID": words[1], "PodID": words[2], "CacheID": f"cache:{words[1]}", "State": RUNNING}
            )
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
            unary(runtime, SERVICE + "UpdateContainerResources", field(1, entry["ID"]) + field(2, linux))
