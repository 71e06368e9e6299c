"""JSON of the host that somebody has damaged: nothing of it ends a run."""

from __future__ import annotations

import pytest

from installer.model.jsontext import parse_json

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["", "{", DEEP, '{"a":' * 100_000, "9" * 5000, b"\xff", b"\x00"])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
