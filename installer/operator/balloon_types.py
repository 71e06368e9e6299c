"""The balloon types of a resource. cri-resmgr has two built-in ones, which go before all others whatever
their place in the list; for the plugin the list decides, and what is not in it has other CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from installer.model.containers import parse_list
from installer.operator.nri_table import load_table

_RESERVED, _DEFAULT = "reserved", "default"


def complete_types(active: str, spec: dict[str, Any], packed: set[str]) -> tuple[dict[str, int], list[str]]:
    """Make a list of `balloonTypes`, which has them by their number in the configuration, with the built-in
    ones in their places. Return the place of each number, and what cri-resmgr refuses. There may be one pool
    of those that are `packed`."""
    types, given = load_table()["types"], spec.get("balloonTypes", {})
    found = {number: types[_kind(active, each)] | each for number, each in given.items()}
    fixed = {_RESERVED: ("minCPUs", "maxCPUs", "minBalloons"), _DEFAULT: ("minBalloons",)}
    faults = [
        f"{each['name']}: {key} cannot be changed"
        for each in given.values()
        for key in (fixed.get(each["name"], ()) if active == "balloons" else ())
        if each.get(key)
    ]
    names = {each["name"] for each in found.values()}
    if _RESERVED not in names:
        found["reserved"] = dict(types[_RESERVED])
    if _DEFAULT not in names:
        found["default"] = dict(types[_kind(active, {"name": _DEFAULT})])
    reserved = spec["reservedResources"].get("cpu", "")
    for number, each in found.items():
        faults += _resolve(each)
        if number in packed and each["minBalloons"] > 1:
            faults.append(f"{each['name']}: FillOrder Packed without MaxPods leaves all but one pool empty")
        if active == "podpools" and each["name"] in (_RESERVED, _DEFAULT):
            each["maxCPUs"] = 0  # what cri-resmgr overbooks must be able to grow
        elif active == "podpools" and not each["minCPUs"]:
            faults.append(f"{each['name']}: needs CPU, the number of a pool's CPUs")
        if each["name"] == _RESERVED:
            listed = reserved.removeprefix("cpuset:")
            each["minCPUs"] = each["minCPUs"] or (len(parse_list(listed)) if listed != reserved else 0)
    # By the namespaces, `default` is the second. Without any, it takes what no other type does.
    order = {_RESERVED: 0, _DEFAULT: 1}
    numbers = sorted(found, key=lambda number: order.get(found[number]["name"], 2))
    spec["balloonTypes"] = [found[number] for number in numbers]
    return {number: place for place, number in enumerate(numbers)}, faults


def _kind(active: str, given: Mapping[str, Any]) -> str:
    """Which defaults a type has."""
    name = given.get("name")
    if name == _RESERVED:
        return _RESERVED
    return f"{active} default" if name == _DEFAULT else active


def _resolve(found: dict[str, Any]) -> list[str]:
    """Turn `3 CPUs` into the number of pools that have so many, and return what is impossible."""
    name, faults = found["name"], []
    if isinstance(cpus := found["minBalloons"], str):
        found["minBalloons"] = found["maxBalloons"] = int(cpus) // (found["minCPUs"] or 1)
        faults += [] if found["minBalloons"] else [f"{name}: Instances are fewer CPUs than one pool has"]
    for least, most in (("minCPUs", "maxCPUs"), ("minBalloons", "maxBalloons")):
        if found[most] and found[least] > found[most]:
            faults.append(f"{name}: {least} {found[least]} is more than {most} {found[most]}")
    return faults
