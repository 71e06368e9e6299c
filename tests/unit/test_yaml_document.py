"""What YAML is refused before anything is built of it: the loader itself would not live through it."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00Z"),
        ("!!timestamp 2020-01-01", "2020-01-01"),
        ("22:00", "22:00"),
        ("1:30:20.5", "1:30:20.5"),
        ("017", 15),
        ("0x1f", 31),
        ("1_000", 1000),
        ("-1.5", -1.5),
    ],
)
def test_a_value_has_a_type_of_json(text: str, value: object) -> None:
    """As Kubernetes reads YAML: a date or a time of the day is text."""
    assert parse_document(f"a: {text}\n".encode(), "x").data == {"a": value}
    json.dumps(parse_document(f"{text}: a\n".encode(), "x").data)


@pytest.mark.parametrize("text", ["!!binary aGk=", "!!set {b}", "!!omap [b: c]", ".inf", ".nan"])
def test_what_json_has_no_type_for_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^x"):
        parse_document(f"a: {text}\n".encode(), "x")
