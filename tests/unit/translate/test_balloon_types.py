"""Balloon types: the built-in ones have their places, and what cri-resmgr refuses is refused."""

from __future__ import annotations

from typing import Any

import pytest

from installer.errors import InvalidInputError
from installer.operator.nri_table import Grade
from installer.operator.translate import translate

BALLOONS = "policy: {Active: balloons, ReservedResources: {CPU: 1}, balloons: {BalloonTypes: [%s]}}"


def types_of(policy: str, types: str, more: str = "ReservedResources: {CPU: 1}") -> dict[str, dict[str, Any]]:
    """By name, in their order."""
    key = "Pools" if policy == "podpools" else "BalloonTypes"
    found = translate({"fallback": f"policy: {{Active: {policy}, {more}, {policy}: {{{key}: [{types}]}}}}"})
    return {each["name"]: each for each in found.resources[0]["spec"]["balloonTypes"]}


def test_what_is_built_in_goes_before_all_others() -> None:
    found = types_of(
        "balloons", "{Name: any, Namespaces: ['*']}, {Name: default, Namespaces: [x]}, {Name: reserved}"
    )
    assert [*found] == ["reserved", "default", "any"]


@pytest.mark.parametrize("policy", ["balloons", "podpools"])
def test_what_is_built_in_is_there_without_a_word_of_it(policy: str) -> None:
    found = types_of(policy, "{Name: a, CPU: 1}" if policy == "podpools" else "{Name: a}")
    assert [*found] == ["reserved", "default", "a"]
    for name in ("reserved", "default"):
        limits = [found[name][key] for key in ("minBalloons", "maxBalloons", "maxCPUs", "allocatorPriority")]
        assert limits == [1, 1, 0, "none"]


@pytest.mark.parametrize(
    ("resources", "least"),
    [
        ("ReservedResources: {CPU: 1500m}", 0),  # the plugin counts these itself
        ("ReservedResources: {CPU: 'cpuset:0-2'}", 3),
        ("ReservedResources: {CPU: '0,2'}", 2),
        ("AvailableResources: {CPU: 2-7}, ReservedResources: {CPU: 0-2}", 1),
    ],
)
def test_the_reserved_balloon_has_the_reserved_cpus_from_the_start(resources: str, least: int) -> None:
    assert types_of("balloons", "", resources)["reserved"]["minCPUs"] == least


def test_the_default_pool_has_its_cpus_and_all_that_are_left_over() -> None:
    found = types_of("podpools", "{Name: default, CPU: 3, MaxPods: 0}")["default"]
    assert [found[key] for key in ("minCPUs", "maxCPUs", "shareIdleCPUsInSame")] == [3, 0, "system"]
    assert "groupBy" not in found


@pytest.mark.parametrize(
    ("instances", "cpus", "count"),
    [("3 CPUs", 1, 3), ("3 CPUs", 2, 1), ("7cpu", 3, 2), ("4 cpus ", 2, 2), ("2", 2, 2), ("", 2, 1)],
)
def test_instances_by_their_cpus_are_as_many_on_every_node(instances: str, cpus: int, count: int) -> None:
    found = types_of(
        "podpools",
        f"{{Name: a, CPU: {cpus}, Instances: '{instances}'}}" if instances else "{Name: a, CPU: 2}",
    )
    assert [found["a"][key] for key in ("minCPUs", "maxCPUs", "minBalloons", "maxBalloons")] == [
        *[cpus] * 2,
        *[count] * 2,
    ]


@pytest.mark.parametrize(
    ("policy", "types", "fault"),
    [
        ("balloons", "{Name: a, MinCPUs: 3, MaxCPUs: 2}", "a: minCPUs 3 is more than maxCPUs 2"),
        (
            "balloons",
            "{Name: a, MinBalloons: 2, MaxBalloons: 1}",
            "a: minBalloons 2 is more than maxBalloons 1",
        ),
        ("balloons", "{Name: reserved, MinCPUs: 1}", "reserved: minCPUs cannot be changed"),
        ("balloons", "{Name: default, MinBalloons: 1}", "default: minBalloons cannot be changed"),
        ("podpools", "{Name: a, CPU: 4, Instances: 3 CPUs}", "fewer CPUs than one pool has"),
        ("podpools", "{Name: a, CPU: 1, Instances: -2}", "does not start with -2"),
        ("podpools", "{Name: a, CPU: 1, Instances: 0}", "at least 1, not 0"),
        ("podpools", "{Name: a, CPU: 0}", "at least 1, not 0"),
        ("podpools", "{Name: a}", "a: needs CPU"),
        ("podpools", "{Name: a, CPU: 1, Instances: 4 cpus, FillOrder: Packed}", "all but one pool empty"),
        ("podpools", "{Name: reserved, CPU: 3}", "reserved: CPU 3 is not the"),
        (
            "podpools",
            "{Name: a, CPU: 1, Instances: 2, MaxPods: 0, fillOrder: Packed}",
            "all but one pool empty",
        ),
        (
            "balloons",
            "{Name: a, MinBalloons: -1, MaxBalloons: -2}",
            "minBalloons -1 is more than maxBalloons -2",
        ),
    ],
)
def test_what_cri_resmgr_refuses_is_refused(policy: str, types: str, fault: str) -> None:
    with pytest.raises(InvalidInputError, match=fault):
        types_of(policy, types)


@pytest.mark.parametrize("more", ["Instances: 1", "Instances: 2, MaxPods: 3", "Instances: 50%"])
def test_packed_pools_may_be_one_or_have_a_limit(more: str) -> None:
    assert (
        types_of("podpools", f"{{Name: a, CPU: 1, FillOrder: Packed, {more}}}")["a"]["preferNewBalloons"]
        is False
    )


def test_the_report_names_a_type_by_its_place_in_the_resource() -> None:
    found = translate({"fallback": BALLOONS % "{Name: a}, {Name: default}"})
    places = {each.path[-2]: each.to for each in found.report if each.path[-1:] == ("Name",)}
    assert places == {"0": ("spec.balloonTypes.2.name",), "1": ("spec.balloonTypes.1.name",)}


@pytest.mark.parametrize(("most", "said"), [(0, False), (2, True)])
def test_a_default_with_a_limit_refuses_what_is_beyond_and_that_is_said(most: int, said: bool) -> None:
    found = translate({"fallback": BALLOONS % f"{{Name: default, MaxCPUs: {most}}}"})
    notes = [each.note for each in found.report if each.grade is Grade.APPROXIMATE]
    assert any("maxCPUs of the type default" in note for note in notes) == said


def test_types_of_the_same_name_are_said_to_be_refused() -> None:
    found = translate({"fallback": BALLOONS % "{Name: a}, {Name: a, MinCPUs: 1}"})
    assert [each.note for each in found.report if each.grade is Grade.LOST] == [
        "the plugin refuses types of the same name; rename one"
    ]
