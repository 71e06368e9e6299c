"""Every plan case of tests/cases/plans, and what must be true of all of them.

`python -m tests.plancases` writes what is planned into `expected`: read each of them then, for the code may
be wrong. A case that says `wrong` (why) expects what is right, and fails as soon as the code is, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.model.plan import Plan, Step, StepKind
from installer.model.resource import DesiredFile, Part
from tests.plancases.case import CASES, Case, CaseError, as_yaml, describe, line_of, read_case
from tests.plancases.node import Node
from tests.plancases.state import make_node

_CHANGES = {
    StepKind.MARK_PENDING,
    StepKind.WRITE,
    StepKind.DELETE,
    StepKind.RESTORE,
    StepKind.ENABLE,
    StepKind.DAEMON_RELOAD,
}
EVERY = tuple(read_case(path) for path in sorted(CASES.glob("*.yaml")))


def known(case: Case, *keys: str) -> list[pytest.MarkDecorator]:
    """The marks of a case that says why the code is wrong."""
    return [pytest.mark.xfail(reason=case.data[key], strict=True) for key in keys if key in case.data]


RIGHT = [pytest.param(case, id=case.path.stem) for case in EVERY if "wrong" not in case.data]
TO_CUT_OFF = [
    pytest.param(case, id=case.path.stem, marks=known(case, "wrong-cut-off"))
    for case in EVERY
    if "wrong" not in case.data
]
_cut_off_before: set[tuple[str, ...]] = set()


Prepare = Callable[[Case], Node]


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """The node of a case, which is made once: each test goes its own way from it."""
    made: dict[Path, Node] = {}

    def fresh(case: Case) -> Node:
        if case.path not in made:
            made[case.path] = make_node(case, tmp_path_factory.mktemp(case.path.stem))
        return made[case.path].copy()

    return fresh


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.path.stem, marks=known(case, "wrong")) for case in EVERY]
)
def test_the_plan_is_the_expected_one(case: Case, prepare: Prepare) -> None:
    found = prepare(case).look()
    got, expected = as_yaml(describe(found)), as_yaml(case.data.get("expected") or {})
    diff = difflib.unified_diff(expected.splitlines(), got.splitlines(), "expected", "planned", lineterm="")
    assert got == expected, f"{case.path}: {case.data['shows']}\n" + "\n".join(diff)


@pytest.mark.parametrize("case", RIGHT)
def test_r2_after_the_plan_nothing_is_left_to_do(case: Case, prepare: Prepare) -> None:
    node = prepare(case)
    if node.look().plan.refusals:
        return
    node.run()
    assert describe(node.look()).get("converged"), as_yaml(describe(node.look()))


@pytest.mark.parametrize("case", TO_CUT_OFF)
def test_r7_cut_off_after_any_step_the_next_run_finishes(case: Case, prepare: Prepare) -> None:
    """Of several cases with the same steps the first is cut off."""
    start = prepare(case)
    plan = start.look().plan
    lines = tuple(map(line_of, plan.steps))
    if plan.refusals or lines in _cut_off_before:
        return
    _cut_off_before.add(lines)
    for number in range(len(lines)):
        node = start.copy()
        node.run(steps=number)
        check_write_law(node.run().plan)
        again = describe(node.look())
        assert again.get("converged"), f"{case.path}: cut off after {number} steps: {as_yaml(again)}"


@pytest.mark.parametrize("case", RIGHT)
def test_r7_before_a_restart_the_carrier_with_its_generation_is_the_last_write(
    case: Case, prepare: Prepare
) -> None:
    check_write_law(prepare(case).look().plan)


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
