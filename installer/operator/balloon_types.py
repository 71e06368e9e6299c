"""The balloon types of a resource. cri-resmgr has two built-in ones, which go before all others whatever
their place in the list; for the plugin the list decides, and what is not in it has other CPUs.
"""

from __future__ import annotations

from typing import Any

from installer.model.containers import parse_list
from installer.model.proxy import nano_of
from installer.operator.nri_table import load_table

_RESERVED, _DEFAULT = "reserved", "default"


def complete_types(active: str, spec: dict[str, Any], packed: set[str]) -> tuple[dict[str, int], list[str]]:
    """Make a list of `balloonTypes`, which has them by their number in the configuration, with the built-in
    ones in their places. Return the place of each number, and what cri-resmgr refuses. There may be one pool
    of those that are `packed`."""
    table, given = load_table(), spec.get("balloonTypes", {})
    types, order = table["types"], {_RESERVED: 0, _DEFAULT: 1}
    complete = {
        number: types.get(f"{active} {kind['name']}", types[active]) | kind for number, kind in given.items()
    }
    missing = order.keys() - {kind["name"] for kind in given.values()}
    complete |= {name: dict(types[f"{active} {name}"]) for name in sorted(missing)}
    faults = [
        f"{kind['name']}: {key} cannot be changed"
        for kind in given.values()
        for key in table["fixed"].get(f"{active} {kind['name']}", ())
        if kind.get(key)
    ]
    reserved = spec["reservedResources"].get("cpu", "")
    for number, kind in complete.items():
        built_in, counted = kind["name"] in order, "minBalloons" in given.get(number, ())
        faults += _resolve(kind)
        if number in packed and kind["minBalloons"] > 1:
            faults.append(f"{kind['name']}: FillOrder Packed without MaxPods leaves all but one pool empty")
        if active == "podpools" and not kind["minCPUs"] and (counted or not built_in):
            faults.append(f"{kind['name']}: needs CPU, the number of a pool's CPUs")
        if active == "podpools" and built_in:
            kind["maxCPUs"] = 0  # what cri-resmgr overbooks must be able to grow
            faults += [f"{kind['name']}: Instances cannot be changed"] if kind["minBalloons"] > 1 else []
        if kind["name"] == _RESERVED:
            listed = reserved.removeprefix("cpuset:")
            count = len(parse_list(listed)) if listed != reserved else -(-(nano_of(reserved) or 0) // 10**9)
            if active == "podpools" and kind["minCPUs"] not in (0, count):
                faults.append(f"reserved: CPU {kind['minCPUs']} is not the {count} of ReservedResources")
            kind["minCPUs"] = kind["minCPUs"] or (count if listed != reserved else 0)
    # By the namespaces, `default` is the second. Without any, it takes what no other type does.
    numbers = sorted(complete, key=lambda number: order.get(complete[number]["name"], 2))
    spec["balloonTypes"] = [complete[number] for number in numbers]
    return {number: place for place, number in enumerate(numbers)}, faults


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
