"""The page of what was seen on which systems, and how a run's report becomes a part of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack.compatibility import CHECKS, Cell, System, cells_of, dump, load, merged, render

TOP = Path(__file__).parents[2]
DAY, LATER = "2026-11-23", "2026-12-01"
OLD = {"systemd": "252", "containerd": "1.6.20", "runc": "1.1.5", "python3": "3.11.2"}
REPORT = """<testsuites><testsuite>
<testcase name="test_a"><properties><property name="matrix" value="install"/>
<property name="matrix" value="no-op"/></properties></testcase>
<testcase name="test_b[x]"><properties><property name="matrix" value="no-op"/></properties>
<failure message="assert 1 == 2&#10;more">long</failure></testcase>
<testcase name="test_c"><properties><property name="matrix" value="kill"/></properties>
<skipped message="no throwaway host: not root">where</skipped></testcase>
<testcase name="test_d"><properties><property name="matrix" value="words"/></properties>
<skipped message="needs the stand-in">where</skipped></testcase>
<testcase name="test_e"><properties><property name="matrix" value="words"/></properties></testcase>
<testcase name="test_f"><properties><property name="matrix" value="remove"/></properties>
<error message="it does not boot">long</error></testcase>
<testcase name="test_g"><properties><property name="bytes" value="5"/></properties></testcase>
</testsuite></testsuites>"""


def system(**cells: Cell) -> System:
    return System(
        "Debian 12", "v1", "stand-in", "0.9.2", OLD, {name.replace("_", "-"): c for name, c in cells.items()}
    )


def test_a_report_becomes_cells_one_failure_is_a_no_and_skips_alone_are_not_tried() -> None:
    assert cells_of(REPORT, DAY) == {
        "install": Cell("yes", DAY),
        "no-op": Cell("no", DAY, "test_b[x]: assert 1 == 2"),
        "kill": Cell("not tried", DAY, "no throwaway host: not root"),
        "words": Cell("yes", DAY),
        "remove": Cell("no", DAY, "test_f: it does not boot"),
    }


def test_what_was_just_seen_takes_the_place_of_what_was_seen_before_but_for_what_others_tried() -> None:
    others, other = (
        Cell("yes", DAY, "20 containers", "by hand"),
        System("Debian sid", "v2", "1.36.2", "0.9.2"),
    )
    before = [
        other,
        system(install=Cell("no", DAY, "why"), kill=others, words=others, remove=Cell("yes", DAY)),
    ]
    seen = system(install=Cell("yes", LATER), kill=Cell("not tried", LATER), words=Cell("yes", LATER))
    now = merged(before, seen)
    assert now == [system(install=Cell("yes", LATER), kill=others, words=Cell("yes", LATER)), other]
    assert merged([], seen) == [seen]


def test_the_page_names_the_systems_of_each_check_with_a_note_where_that_needs_words() -> None:
    first = system(
        install=Cell("yes", DAY),
        no_op=Cell("no", DAY, "test_b: assert a | b"),
        kill=Cell("not tried", DAY, "needs the stand-in"),
    )
    second = System(
        "Debian sid",
        "v2",
        "1.36.2",
        "stand-in",
        {"containerd": "2.1.9"},
        {"install": Cell("yes", LATER, by="by hand")},
    )
    lines = render([first, second]).splitlines()
    assert [line for line in lines if line.startswith(("| A", "| B"))] == [
        "| A | Debian 12 | v1 | 252 | 1.6.20 | 1.1.5 | 3.11.2 | stand-in | 0.9.2 | 2026-11-23 |",
        "| B | Debian sid | v2 |  | 2.1.9 |  |  | 1.36.2 | stand-in | 2026-12-01 |",
    ]
    assert "| check | held on | failed on |" in lines
    assert f"| install: {CHECKS['install']} | A, B (1) |  |" in lines
    assert f"| no-op: {CHECKS['no-op']} |  | A (2) |" in lines
    assert f"| kill: {CHECKS['kill']} |  |  |" in lines
    assert f"| words: {CHECKS['words']} |  |  |" in lines
    assert lines[-3:] == [
        "1. B, install: yes (by hand, 2026-12-01)",
        "2. A, no-op: no: test_b: assert a | b",
        "3. A, kill: not tried: needs the stand-in",
    ]


def test_what_was_seen_is_kept_as_it_is_and_an_unknown_check_is_an_error() -> None:
    systems = [system(install=Cell("yes", DAY), kill=Cell("no", DAY, "why: it is so", "by hand"))]
    assert load(dump(systems)) == systems
    with pytest.raises(ValueError, match=r"there is no check instal$"):
        load(dump(systems).replace(" install:", " instal:"))


def test_the_page_is_that_of_what_was_seen() -> None:
    data, page = TOP / "docs/compatibility.yaml", TOP / "docs/compatibility.md"
    assert page.read_text() == render(load(data.read_text())), "hack/matrix --hosts --machines writes it"


def test_each_check_has_a_test_and_each_marker_a_check() -> None:
    found = set[str]()
    for level in ("host", "machine"):
        for file in (TOP / "tests" / level).rglob("test_*.py"):
            for names in re.findall(r"\bpytest\.mark\.matrix\((.*?)\)", file.read_text()):
                found |= set(re.findall(r'"([^"]+)"', names))
    assert found == {*CHECKS}
