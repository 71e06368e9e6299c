"""Configurations that are made up, one for each number, the same wherever it is asked for."""

from __future__ import annotations

from random import Random
from typing import Any

import yaml

from tests.lib.judge.machines import MACHINES
from tests.lib.judge.pods import POD_LISTS

COUNT = 200


def made(number: int) -> tuple[str, str, str]:
    """A configuration, a machine and a list of pods."""
    random = Random(number)
    active = random.choice(
        ["topology-aware"] * 3 + ["memtier", "static-plus"] + ["balloons"] * 4 + ["podpools"] * 2
    )
    policy: dict[str, Any] = {"Active": active}
    policy["ReservedResources"] = {
        "CPU": random.choice(["750m", 1, 2, "1500m", "cpuset:0", "cpuset:0-1", "1-2"])
    }
    if random.random() < 0.2:
        policy["AvailableResources"] = {"CPU": random.choice(["cpuset:0-7", "0-6", "cpuset:0,2-5,8-15"])}
    section = {"balloons": _balloons, "podpools": _podpools}.get(active, _topology)(random)
    section |= _some(random, 0.15, PinCPU=_switch, PinMemory=_switch)
    config = {"policy": {**policy, active: section} if active != "static-plus" else policy}
    if random.random() < 0.3:
        config["rdt"] = _rdt(random)
    if random.random() < 0.2:
        names = random.sample(["Guaranteed", "Burstable", "BestEffort", "gold", "slow"], random.randint(1, 5))
        config["blockio"] = {"Classes": {name: [{"Weight": random.randint(10, 500)}] for name in names}}
    if random.random() < 0.1:
        config["logger"] = {"Debug": "policy"}
    return yaml.safe_dump(config), random.choice([*MACHINES]), random.choice([*POD_LISTS])


def _switch(random: Random) -> bool:
    return random.random() < 0.5


def _some(random: Random, chance: float, **keys: Any) -> dict[str, Any]:
    return {key: make(random) for key, make in keys.items() if random.random() < chance}


def _namespaces(random: Random) -> list[str]:
    return random.sample(["team-*", "team-a", "monitoring", "*", "kube-*", "none"], random.randint(0, 2))


def _topology(random: Random) -> dict[str, Any]:
    switches = dict.fromkeys(
        ("PreferIsolatedCPUs", "PreferSharedCPUs", "ColocatePods", "ColocateNamespaces"), _switch
    )
    return _some(random, 0.3, **switches, ReservedPoolNamespaces=_namespaces)


def _balloons(random: Random) -> dict[str, Any]:
    switches = dict.fromkeys(("AllocatorTopologyBalancing", "PreferSpreadOnPhysicalCores"), _switch)
    names = random.sample(["fast", "dual", "plain", "default", "reserved"], random.randint(0, 3))
    types = [{"Name": name, **_type(random, name)} for name in names]
    return {**_some(random, 0.3, **switches, ReservedPoolNamespaces=_namespaces), "BalloonTypes": types}


def _type(random: Random, name: str) -> dict[str, Any]:
    switches = ("PreferSpreadingPods", "PreferPerNamespaceBalloon", "PreferNewBalloons")
    more = ("AllocatorTopologyBalancing", "PreferSpreadOnPhysicalCores")
    found = _some(random, 0.5, Namespaces=_namespaces)
    found |= _some(random, 0.3, **dict.fromkeys((*switches, *more), _switch))
    if name != "reserved":
        least = random.randint(0, 2)
        found |= _some(
            random, 0.5, MinCPUs=lambda _: least, MaxCPUs=lambda _: random.choice([0, least, least + 2])
        )
    if name not in ("reserved", "default"):
        found |= _some(
            random,
            0.4,
            MinBalloons=lambda _: random.randint(0, 1),
            MaxBalloons=lambda _: random.randint(0, 3),
        )
        found |= _some(random, 0.3, AllocatorPriority=lambda _: random.randint(0, 3))
        found |= _some(
            random, 0.2, ShareIdleCPUsInSame=lambda _: random.choice(["system", "package", "numa", "core"])
        )
    return found


def _podpools(random: Random) -> dict[str, Any]:
    pools = []
    for name in random.sample(["fast", "dual", "default", "plain"], random.randint(0, 2)):
        pool: dict[str, Any] = {"Name": name, "CPU": random.randint(1, 2)}
        if name != "default":
            pool |= _some(
                random, 0.6, Instances=lambda _: random.choice([1, 2, "3 CPUs", "2 cpu", "50 %", "100%"])
            )
        pool |= _some(random, 0.5, MaxPods=lambda _: random.randint(0, 3))
        pool |= _some(random, 0.3, FillOrder=lambda _: random.choice(["Balanced", "Packed", "FirstFree"]))
        pools.append(pool)
    return {"Pools": pools}


def _rdt(random: Random) -> dict[str, Any]:
    names = random.sample(["Guaranteed", "Burstable", "BestEffort", "gold"], random.randint(0, 4))
    classes: dict[str, Any] = {
        name: random.choice([{}, {"l3Allocation": "100%"}, {"l3Allocation": "50%"}]) for name in names
    }
    found: dict[str, Any] = (
        {"partitions": {"p": {"l3Allocation": "60%", "classes": classes}}} if names else {}
    )
    if random.random() < 0.3:
        found["options"] = random.choice([{"mode": "Full"}, {"mode": "Discovery"}, {"mode": "Disabled"}])
    if not found or random.random() < 0.2:
        found.setdefault("options", {}).update({"l3": {"optional": True}, "mb": {"optional": True}})
    return found
