"""What `translate` prints does to pods what the old configuration did: cri-resmgr and the NRI plugin place
the same pods on the same made-up machine, before runtimes that are played (tests/lib/judge).

With `--real-cri-resmgr` and `--real-nri-plugin DIR` the programs are asked; without them their recorded
answers count. What the report calls exact must agree. What it calls approximate or lost may differ as its
words say: `ANNOUNCED`.
"""

from __future__ import annotations

from datetime import date

import pytest

from installer.operator.nri_table import Grade
from installer.operator.translate import Entry
from installer.rendering import template_text
from tests.lib.judge.answers import Answer, missing
from tests.lib.judge.case import Case, annotated, corpus, made_up
from tests.lib.judge.verdict import compare
from tests.lib.throwaway import real

#: Words of the report, and the aspects (tests/lib/judge/verdict.py) that they announce.
ANNOUNCED = {
    "containers without whole CPUs of their own may share other CPUs": (
        "sharing-shared",
        "exclusive-shared",
        "count-shared",
    ),
    "when CPUs run short, it gives away the last ones that are shared": ("room-short", "pinned-short"),
    "containers with whole CPUs share them, too": ("sharing", "exclusive", "count"),
    "cri-resmgr puts containers of no type on the reserved CPUs": (
        "room-short",
        "pinned-short",
        "exclusive-refusal",
        "count-refusal",
        "sharing-reserved",
        "exclusive-reserved",
        "count-reserved",
    ),
    "which of its pools a pod gets can differ": ("room",),
    "while fewer CPUs are free than maxCPUs": ("sharing-short", "exclusive-short", "count-short"),
    "of several balloons of a namespace, the plugin takes the one with the most room": (
        "sharing",
        "exclusive",
        "count",
    ),
    "the plugin does not share isolated CPUs": ("sharing-isolated", "exclusive-isolated", "count-isolated"),
    "the plugin refuses what does not fit into maxCPUs of the type default": (
        "room",
        "exclusive-refusal",
        "count-refusal",
    ),
    "the plugin refuses types of the same name": ("config",),
    "the plugin does not start without reserved CPUs": ("config",),
    "a balloon has no pod limit": ("sharing", "exclusive", "count", "room"),
    "depends on the node's CPUs": ("sharing", "exclusive", "count", "room"),
    "topology-aware places exclusive and shared CPUs by the hardware": (
        "sharing",
        "exclusive",
        "count",
        "room",
    ),
    "the plugin refuses the whole configuration where RDT cannot be set up so": ("config",),
    "pods no longer get the class of that name": ("rdt", "blockio"),
    "a pod no longer gets the group that has the name of its QoS class": ("rdt",),
    "all of a pod in the balloon of the first one": ("sharing", "count", "exclusive"),
    "only the policy balloons reads this": ("sharing", "count", "exclusive", "room"),
    "Only the policy podpools reads this": ("sharing", "count", "exclusive", "room"),
    "the plugin refuses containers where the node has no such memory": ("room",),
    "the plugin refuses containers with other values than a duration": ("room",),
    "the runtime refuses a class that does not exist": ("class", "rdt", "blockio"),
}
#: A container that is elsewhere changes these of others, too.
OF_NEIGHBOURS = ("sharing", "count", "exclusive")
#: Why cri-resmgr refuses on one machine what another can have. What it refuses anywhere, `translate` refuses.
OF_THIS_MACHINE = (
    "are also isolated",
    "insufficient CPUs",
    "failed to allocate",
    "could not allocate",
    "index out of range",
    "unreachable due to unlimited pod capacity",
)
CORPUS = corpus()
ANNOTATED = annotated()
MADE = made_up()
#: The real programs also get some that nobody has recorded: others each day.
TODAY = date.today().toordinal() * len(MADE)
_TURN = 10


def answers(case: Case) -> tuple[Answer, Answer]:
    if not (real.named("cri-resmgr") and real.named("nri-plugin")):
        try:
            return case.recall()
        except LookupError:
            pytest.fail("nobody has recorded what the programs say to this: see tests/lib/judge/case.py")
    if why := missing():
        pytest.skip(why)
    return case.ask()


def announced(entries: tuple[Entry, ...]) -> set[str]:
    words = " ".join(entry.note for entry in entries if entry.grade in (Grade.APPROXIMATE, Grade.LOST))
    return {aspect for said, aspects in ANNOUNCED.items() if said in words for aspect in aspects}


def check(case: Case) -> None:
    old, new = answers(case)
    translation = case.translation
    if translation is None or not translation.resources:
        assert old.refused or translation, f"translate refuses what cri-resmgr takes: {case}"
        return
    if old.refused:
        assert any(words in old.refused for words in OF_THIS_MACHINE), f"{case.config}: {old.refused}"
        return
    differences = compare(case.asked, case.conditions, old, new)
    _, reports = case.pods_of_plugin()
    for pod, entries in [("", translation.report), *((f"{pod}/", each) for pod, each in reports.items())]:
        words = announced(entries)
        differences = [
            each
            for each in differences
            if not each.is_announced(words) or not (each.what.startswith(pod) or each.aspect in OF_NEIGHBOURS)
        ]
    assert not differences, f"on {case.machine} with {case.pods}:\n{case.config}"


@pytest.mark.parametrize("name", CORPUS)
def test_a_configuration_means_the_same(name: str) -> None:
    for case in CORPUS[name]:
        check(case)


@pytest.mark.parametrize("name", ANNOTATED)
def test_annotations_mean_the_same(name: str) -> None:
    for case in ANNOTATED[name]:
        check(case)


@pytest.mark.parametrize("first", range(0, len(MADE), _TURN))
def test_made_up_ones_mean_the_same(first: int) -> None:
    for case in MADE[first : first + _TURN]:
        check(case)


@pytest.mark.parametrize("first", range(0, len(MADE), _TURN))
def test_others_made_up_today_mean_the_same(first: int) -> None:
    if not (real.named("cri-resmgr") and real.named("nri-plugin")):
        pytest.skip("needs --real-cri-resmgr PATH --real-nri-plugin DIR")
    for case in made_up(TODAY)[first : first + _TURN]:
        check(case)


def test_what_is_announced_is_in_the_table() -> None:
    table = " ".join(template_text("nri-plugins.yaml").split())
    assert [words for words in ANNOUNCED if words not in table] == []
