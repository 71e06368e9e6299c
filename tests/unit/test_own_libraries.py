"""Compiled libraries of the tests load others: those of .venv, whatever is installed besides."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def test_what_compiles_expressions_of_cel_finds_a_protobuf_that_it_works_with() -> None:
    """Debian's python3-protobuf (4.21), which comes with containerd, aborts Python."""
    pytest.importorskip("cel_expr_python")
    spec = find_spec("google")
    places = list(spec.submodule_search_locations or ()) if spec else []
    assert places and Path(places[0]).is_relative_to(sys.prefix), "run hack/setup --venv-only"  # noqa: PT018
    import google.protobuf

    assert tuple(map(int, google.protobuf.__version__.split(".")[:2])) >= (5, 27)
