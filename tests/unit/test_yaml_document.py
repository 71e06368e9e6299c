"""What YAML is refused before anything is built of it: the loader itself would not live through it."""

from __future__ import annotations

import pytest

from installer.errors import InvalidInputError
from installer.inputs.yaml_document import parse_document
from tests.faults.inputs.texts import MERGE_BOMB


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a:\n " + "[" * 1_000_000, "x.yaml:2: nested deeper than 100 levels"),
        ("- " * 300_000 + "a", "x.yaml:1: nested deeper than 100 levels"),
        ("a: 1\nb: 0x" + "f" * 5000, "x.yaml:2: number too long (5002 characters)"),
        ("a: !!bool x", "x.yaml: a value does not fit its type: 'x'"),
        ("a: !!int ''", "x.yaml: a value does not fit its type: string index out of range"),
        ("!!int {=: 0x" + "f" * 5000 + "}", "x.yaml:1: number too long (5002 characters)"),
        (MERGE_BOMB, "x.yaml: has more than 50000 values or 4 MiB, including its aliases (`*`)"),
        ("a: 2001-99-99", "x.yaml: a value does not fit its type: month must be in 1..12"),
    ],
)
def test_what_would_end_the_process_is_a_fault(text: str, fault: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_document(text.encode(), "x.yaml")
    assert caught.value.faults == (fault,)


def test_what_people_do_with_references_and_tags_stays_good() -> None:
    text = "a: &a {x: 1}\nb: {<<: *a, y: !!str 2}\nc: {<<: [*a, {z: 3}]}\nd: !!int 4\ne: !!float 5.0\n"
    assert parse_document(text.encode(), "x.yaml").data == {
        "a": {"x": 1},
        "b": {"x": 1, "y": "2"},
        "c": {"x": 1, "z": 3},
        "d": 4,
        "e": 5.0,
    }
