"""Every plan case of tests/cases/plans, and what must be true of all of them.

`python -m tests.lib.plancases` writes what is planned into `expected`: read each one then, for the code may
be wrong. A case that says `wrong` (why) expects what is right, and fails as soon as the code is right.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from installer.model.host import DesiredFile, Part
from installer.model.plan import Assessment, Plan, Step, StepKind
from tests.lib.plancases.case import CASES, Case, CaseError, as_yaml, describe, line_of, read_case
from tests.lib.plancases.node import Node
from tests.lib.plancases.state import make_node

_CHANGES = {
    StepKind.MARK_PENDING,
    StepKind.WRITE,
    StepKind.DELETE,
    StepKind.RESTORE,
    StepKind.DISABLE,
    StepKind.DAEMON_RELOAD,
}
_cut_off_before: set[tuple[str, ...]] = set()


@pytest.fixture(scope="module", params=sorted(CASES.glob("*.yaml")), ids=lambda path: path.stem)
def case(request: pytest.FixtureRequest) -> Case:
    return read_case(request.param)


@pytest.fixture(scope="module")
def made(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Assessment]:
    """The node of the case and its plan, which are made once: pytest runs all tests of a case together."""
    node = make_node(case, tmp_path_factory.mktemp(case.path.stem))
    return node, node.copy().look()


@pytest.fixture
def node(made: tuple[Node, Assessment]) -> Node:
    """Each test goes its own way from it."""
    return made[0].copy()


@pytest.fixture
def found(made: tuple[Node, Assessment]) -> Assessment:
    return made[1]


def known_wrong(case: Case, request: pytest.FixtureRequest, key: str = "wrong") -> None:
    """A case that says why the code is wrong."""
    if key in case.data:
        request.applymarker(pytest.mark.xfail(reason=case.data[key], strict=True))


def test_the_plan_is_the_expected_one(case: Case, found: Assessment, request: pytest.FixtureRequest) -> None:
    known_wrong(case, request)
    got, expected = describe(found), case.data.get("expected") or {}
    if got != expected:
        lines = as_yaml(expected).splitlines(), as_yaml(got).splitlines()
        diff = difflib.unified_diff(*lines, "expected", "planned", lineterm="")
        pytest.fail(f"{case.path}: {case.data['shows']}\n" + "\n".join(diff))


def test_r2_after_the_plan_nothing_is_left_to_do(case: Case, node: Node, found: Assessment) -> None:
    if "wrong" in case.data or found.plan.refusals:
        return
    node.run()
    again = describe(node.look())
    assert again.get("converged"), as_yaml(again)


def test_r7_cut_off_after_any_step_the_next_run_finishes(
    case: Case, node: Node, found: Assessment, request: pytest.FixtureRequest
) -> None:
    """Of several cases with the same steps the first is cut off."""
    lines = tuple(map(line_of, found.plan.steps))
    if "wrong" in case.data or found.plan.refusals or lines in _cut_off_before:
        return
    known_wrong(case, request, "wrong-cut-off")
    _cut_off_before.add(lines)
    for number in range(len(lines)):
        cut_off = node.copy()
        cut_off.run(steps=number)
        check_write_law(cut_off.run().plan)
        again = describe(cut_off.look())
        assert again.get("converged"), f"{case.path}: cut off after {number} steps: {as_yaml(again)}"


def test_r7_before_a_restart_the_carrier_with_its_generation_is_the_last_write(
    case: Case, found: Assessment
) -> None:
    if "wrong" not in case.data:
        check_write_law(found.plan)


def check_write_law(plan: Plan) -> None:
    """A process that is started at any instant of the plan says no generation it was not started from."""
    for part in Part:
        steps = [step for step in plan.steps if step.part is part]
        kinds = [step.kind for step in steps]
        if plan.refusals or plan.desired.proxy is None or StepKind.RESTART not in kinds:
            continue
        changes = [step for step in steps[: kinds.index(StepKind.RESTART)] if step.kind in _CHANGES]
        if any(isinstance(step.file, DesiredFile) and step.file.generation_carrier for step in changes):
            assert is_carrier(changes[-1]), changes


def is_carrier(step: Step) -> bool:
    return step.kind is StepKind.WRITE and isinstance(step.file, DesiredFile) and step.file.generation_carrier


def test_a_key_that_is_not_known_names_the_file(tmp_path: Path) -> None:
    for text in ("typo: 1\n", "but: {typo: 1}\n", "but: {proxy: {typo: 1}}\n", "but: {probe: {typo: 1}}\n"):
        path = tmp_path / "case.yaml"
        path.write_text("shows: A slip.\n" + text)
        with pytest.raises(CaseError, match=r"case\.yaml: unknown in .*: typo; known: "):
            make_node(read_case(path), tmp_path / text[:12].replace(":", ""))
