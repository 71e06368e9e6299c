"""The codes of findings: the enum, the program and the runbooks have the same, and people see them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.errors import UnservableHostError
from installer.model.codes import Code
from installer.model.event import Event
from installer.model.plan import refusal, warning
from installer.node.preconditions import refuse
from installer.report.events import TextReporter
from installer.report.planned import finding_lines, render_plan
from tests.lib.reported import plan

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in (ROOT / "installer").rglob("*.py") if path.name != "codes.py"]
_GIVE = ("refusal", "warning", "finding", "_warn")  # what is called with a code first
_NO_CODE = re.compile(r"[^a-z-]")


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def given() -> Iterator[tuple[str, str]]:
    """Every code that a call or an event spells out, and where."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            found = ""
            if isinstance(node, ast.Call):
                called = node.func
                name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                found = _text(node.args[0]) if name in _GIVE and node.args else ""
                yield from ((_text(each.value), path.name) for each in node.keywords if each.arg == "code")
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                yield from ((_text(value), path.name) for key, value in pairs if _text(key) == "code")
            yield found, path.name


def documented() -> list[str]:
    text = (ROOT / "docs/runbooks.md").read_text()
    section = text[text.index("The codes, in brackets") : text.index("### Kubelets that a script starts")]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [code for row in rows for code in re.findall(r"`([a-z-]+)`", row)]


def test_every_code_that_the_program_gives_is_in_the_enum() -> None:
    found = {(code, where) for code, where in given() if code}
    assert len(found) > 50
    assert [each for each in sorted(found) if each[0] not in set(Code)] == []


def test_every_code_of_the_enum_is_given_somewhere() -> None:
    literals = {_text(node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))}
    assert [code for code in Code if code not in literals] == []


def test_the_runbooks_have_every_code_once_and_no_other() -> None:
    assert sorted(documented()) == sorted(Code)


@pytest.mark.parametrize("code", list(Code))
def test_a_code_is_a_word_to_search_for(code: Code) -> None:
    assert not _NO_CODE.search(code)
    assert code.name == code.upper().replace("-", "_")


def test_people_see_the_code() -> None:
    found = refusal(Code.PROXY_MASKED, "it is masked", "unmask it")
    assert list(finding_lines(found, "refused:")) == [
        "refused: it is masked [proxy-masked]",
        "    hint: unmask it",
        "    more: `cri-resmgr-installer explain proxy-masked`",
    ]
    assert "[proxy-masked]" in render_plan(plan(findings=(found, warning(Code.PAUSED, "paused"))))
    with pytest.raises(UnservableHostError) as refused:
        refuse(plan(findings=(found,)))
    assert refused.value.faults == ("it is masked [proxy-masked] (unmask it)",)
    assert refused.value.codes == ("proxy-masked",)


def test_people_see_the_code_of_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    TextReporter(sys.stdout)(Event("warning", "it is late", {"code": "slow-start", "hint": "wait"}))
    TextReporter(sys.stdout)(Event("warning", "it is early", {"hint": ""}))
    assert capsys.readouterr().out == "warning: it is late [slow-start] (wait)\nwarning: it is early\n"
