"""JSON of the host that somebody has damaged: nothing of it ends a run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from installer.cluster.member import Held, Kept
from installer.model.fleet import PlannedWork, WorkResult
from installer.model.jsontext import from_json, parse_json, to_json

DEEP = "[" * 100_000
NOT_FINITE = ("1" + "0" * 400, "-1" + "0" * 400, "1e400", "NaN", "Infinity", "true")


@pytest.mark.parametrize("text", ["", "{", DEEP, '{"a":' * 100_000, "9" * 5000, b"\xff", b"\x00"])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)


@settings(max_examples=60)
@given(
    st.builds(
        Kept,
        held=st.none() | st.builds(Held, st.text(), st.text(), st.floats(0, 1e9)),
        canary_of=st.none() | st.text(),
        begun=st.none() | st.builds(PlannedWork, st.text(), st.booleans()),
        results=st.lists(
            st.builds(WorkResult, st.builds(PlannedWork, st.text()), st.none() | st.booleans())
        ).map(tuple),
        watched=st.none() | st.tuples(st.builds(PlannedWork, st.text()), st.floats(0, 1e9)),
    )
)
def test_what_is_written_is_read_as_it_was(memory: Kept) -> None:
    assert from_json(Kept, to_json(memory)) == memory


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "null", '{"failed": 1}', '{"begun": {}}', '{"begun": []}', '{"results": {}}'),
        *('{"results": [1]}', '{"watched": [{"generation": "a"}]}', '{"watched": [{}, "soon"]}'),
        *(f'{{"watched": [{{"generation": "a"}}, {until}]}}' for until in NOT_FINITE),
    ],
)
def test_what_is_of_another_shape_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_json(Kept, text)


def test_what_a_later_version_has_added_is_passed_over() -> None:
    assert from_json(Kept, '{"failed": "one", "more": [1]}') == Kept(failed="one")


# -- hashlib without OpenSSL ----------------------------------------------------------

_HASHES = """
import importlib.machinery, sys
lacking = set(sys.argv[1:])
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *more: None if name in lacking else find(name, *more)
find_built_in = importlib.machinery.BuiltinImporter.find_spec
importlib.machinery.BuiltinImporter.find_spec = (
    lambda name, *more: None if name in lacking else find_built_in(name, *more)
)
from installer.model.jsontext import spare_openssl
spare_openssl()
import hashlib
print(hashlib.md5(b"").hexdigest()[:4], hashlib.sha256(b"").hexdigest()[:4], "_ssl" in sys.modules)
print(bool(sys.modules.get("_hashlib")))
"""


@pytest.mark.parametrize(
    ("lacking", "keeps_openssl"),
    [
        ((), False),
        (("_md5",), True),
        (("_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3"), True),  # as Fedora and RHEL build it
    ],
)
def test_a_python_without_hashes_of_its_own_keeps_those_of_openssl(
    lacking: tuple[str, ...], keeps_openssl: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HASHES, *lacking], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"d41d e3b0 False\n{keeps_openssl}\n", "")
