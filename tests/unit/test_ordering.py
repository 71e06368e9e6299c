"""Which orders of a host's units ours would close to a cycle."""

from collections.abc import Collection

import pytest

from installer.model import paths
from installer.model.host import UnitState, UnitText
from installer.node.ordering import find_cycle
from tests.lib.fakes import FakeSystemd

KUBELET = "kubelet.service"
RUNTIME = "containerd.service"
BASIC, CRIO, LATE = "basic.target", "crio.service", "late.service"
LINK = f"{paths.LINKS}/multi-user.target.wants/{paths.PROXY_UNIT}"
ABSENT = "absent.target"  # has no unit file
Relations = dict[tuple[str, str], tuple[str, ...]]
BOOT: Relations = {
    ("default.target", "Wants"): (RUNTIME, KUBELET, LATE, "multi-user.target"),
    (KUBELET, "Wants"): (paths.PROXY_UNIT,),
}


def cycle(more: Relations, *links: str, drop_in: str = "") -> tuple[str, ...]:
    drop_ins = (UnitText("x.conf", drop_in),) if drop_in else ()
    relations: dict[tuple[str, str], Collection[str]] = {**BOOT, **more}
    names = {name for (unit, _kind), others in relations.items() for name in (unit, *others)}
    units = {name: UnitState(name, load_state="loaded") for name in names if name != ABSENT}
    return find_cycle(FakeSystemd(units=units, relations=relations), KUBELET, drop_ins, links)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, ()),
        ({(RUNTIME, "After"): (LATE,), (LATE, "After"): ("multi-user.target",)}, ()),
        ({(RUNTIME, "After"): (KUBELET,)}, (RUNTIME,)),
        ({(RUNTIME, "After"): (LATE,), (LATE, "After"): (KUBELET,)}, (RUNTIME, LATE)),
        ({(RUNTIME, "After"): ("never.service",), ("never.service", "After"): (KUBELET,)}, ()),
        ({(RUNTIME, "After"): ("mine.service",), (KUBELET, "Names"): ("mine.service", KUBELET)}, (RUNTIME,)),
        ({(RUNTIME, "After"): (RUNTIME, LATE), (LATE, "After"): (RUNTIME,)}, ()),
        ({(BASIC, "After"): (KUBELET,), (RUNTIME, "Requires"): (BASIC,)}, (BASIC,)),
        ({(CRIO, "After"): (KUBELET,)}, ()),
        ({("default.target", "Requires"): (CRIO,), (CRIO, "After"): (KUBELET,)}, (CRIO,)),
    ],
)  # fmt: skip
def test_a_cycle_has_the_runtime_behind_kubelet_in_one_boot(more: Relations, found: tuple[str, ...]) -> None:
    assert cycle(more) == found


def test_a_unit_that_does_not_exist_orders_nothing() -> None:
    """Whatever other units say of it."""
    absent: Relations = {
        (RUNTIME, "After"): (ABSENT,),
        (RUNTIME, "Wants"): (ABSENT,),
        (ABSENT, "After"): (KUBELET,),
    }
    assert cycle(absent) == ()
    another: Relations = {(RUNTIME, "After"): (ABSENT, LATE), (LATE, "After"): (KUBELET,)}
    assert cycle({**absent, **another}) == (RUNTIME, LATE)


def test_what_only_a_link_that_goes_orders_is_no_cycle() -> None:
    late: Relations = {
        (RUNTIME, "After"): ("multi-user.target",),
        ("multi-user.target", "After"): (paths.PROXY_UNIT,),
    }
    assert cycle(late) == (RUNTIME, "multi-user.target")
    assert cycle(late, LINK) == ()


@pytest.mark.parametrize("drop_in", ["[Unit]\nAfter=late.service\n", "[Unit]\nBefore=late.service\n"])
def test_a_drop_in_of_others_may_close_it_as_well(drop_in: str) -> None:
    more: Relations = {(LATE, "After"): (KUBELET,), (RUNTIME, "After"): (LATE,)}
    assert cycle(more, drop_in=drop_in)
    assert not cycle({(LATE, "After"): ()}, drop_in="[Unit]\nAfter=late.service\n")
