"""Each code, exit code and phase of a message can be explained, by the page that comes with the program."""

from __future__ import annotations

import io
import json
import re
import tomllib

import pytest

from installer.cli import main
from installer.errors import BusyHostError, InstallerError, UnservableHostError
from installer.model.codes import Code
from installer.model.daemon import Phase
from installer.model.overview import NEED_A_PERSON, NodeHealth, NodeView, Overview
from installer.rendering import runbooks
from installer.report.advice import _BY_PHASE
from installer.report.events import report_error
from installer.report.explain import find_entries, normalise
from installer.report.overview import print_overview
from tests.lib.documents import ROOT, RUNBOOKS

EXITS = (1, 2, 3, 4, 5, 6, 69, 75, 130, 143)


def explain(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["explain", *words]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


@pytest.mark.parametrize("code", list(Code))
def test_every_code_is_explained_with_what_to_do(code: Code) -> None:
    entry = find_entries(RUNBOOKS)[code]
    assert "Do: " in entry or code in ("paused", "torn-cache", "refused")
    assert "|" not in entry.replace("||", "").split("`")[0]


@pytest.mark.parametrize("number", EXITS)
def test_every_exit_code_is_explained(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(capsys, "exit", str(number)) == explain(capsys, str(number))


@pytest.mark.parametrize("phase", list(_BY_PHASE))
def test_the_phases_that_need_a_person_are_explained(phase: Phase) -> None:
    name = "not-ready" if phase is Phase.UNWELL else phase.value
    assert name in find_entries(RUNBOOKS)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("[kubelet-masked]", ["kubelet-masked"]),
        ("`exit-5`", ["exit-5"]),
        ("Exit 5", ["exit-5"]),
        ("exit 4 no-space, cpus", ["exit-4", "no-space", "cpus"]),
        ("128+n", ["exit-128"]),
        ("137", ["exit-128"]),
        ("", []),
    ],
)
def test_it_takes_what_a_person_reads(typed: str, names: list[str]) -> None:
    assert normalise(typed) == names


def test_a_code_of_several_is_explained_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(capsys, "proxy-masked").splitlines() == [
        "proxy-masked",
        "",
        "The unit is masked.",
        "Do: find out who did it and why, then `systemctl unmask UNIT`",
    ]


def test_links_lead_to_what_can_be_typed_or_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(docs/policies.md#switching-to-a-policy)" in explain(capsys, "repinning")
    assert "`cri-resmgr-installer explain not-ready`" in explain(capsys, "3")
    entries = find_entries(RUNBOOKS)
    for entry in entries.values():
        for named in entry.split("`cri-resmgr-installer explain ")[1:]:
            assert named.partition("`")[0] in (*entries, "CODE")


def test_an_unknown_word_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean kubelet-masked?" in explain(capsys, "kubelet-maskd", code=2)


def test_without_a_word_it_lists_them_and_as_json_it_is_one_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(Code) < set(explain(capsys).splitlines())
    document = json.loads(explain(capsys, "held", "--output", "json"))
    assert document["entries"]["held"].startswith("Held\n\n`kubelet is held")


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (UnservableHostError("m", "h", ["m"], ["no-space", "cpus"]), "explain no-space cpus"),
        (BusyHostError("m"), "explain exit-75"),
        (InstallerError("m", "h"), "explain exit-1"),
    ],
)
def test_an_error_ends_with_where_to_read_on(error: InstallerError, more: str) -> None:
    stream = io.StringIO()
    report_error(error, "text", stream)
    assert stream.getvalue().splitlines()[-1] == f"more: `cri-resmgr-installer {more}`"


def test_the_page_comes_with_the_wheel_and_the_image() -> None:
    assert runbooks() == RUNBOOKS
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["docs/runbooks.md"].endswith("/_assets/docs/runbooks.md")
    assert "COPY docs/runbooks.md /source/docs/" in (ROOT / "image/Containerfile").read_text()
    assert "!docs/runbooks.md" in (ROOT / "image/Containerfile.dockerignore").read_text()


@pytest.mark.parametrize("health", list(NEED_A_PERSON))
@pytest.mark.parametrize("phase", ["", *Phase])
def test_what_a_report_advises_names_an_entry_that_can_be_read_there(health: NodeHealth, phase: str) -> None:
    stream = io.StringIO()
    print_overview(Overview("now", (), (NodeView("n1", health, phase=phase),), 0), "text", stream)
    advice = next(line for line in stream.getvalue().splitlines() if "-> " in line)
    entries = re.findall("`cri-resmgr-installer explain ([a-z-]+)`", advice)
    assert set(entries) < set(find_entries(RUNBOOKS))
    assert entries or "(docs/" in advice
