"""JSON of the host that somebody has damaged: nothing of it ends a run."""

from __future__ import annotations

import json

import pytest

from installer.model.jsontext import parse_json
from installer.preflight.check import cached_configuration

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["", "{", DEEP, '{"a":' * 100_000, "9" * 5000, b"\xff", b"\x00"])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)


@pytest.mark.parametrize("cache", [DEEP, "[]", "null", '{"Cfg": []}', '{"Cfg": {"Data": null}}', "\0"])
def test_a_damaged_cache_holds_no_configuration(cache: str) -> None:
    assert not cached_configuration(cache)
    full = json.dumps({"Cfg": {"Data": {"policy": "x"}}})
    assert cached_configuration(full)
