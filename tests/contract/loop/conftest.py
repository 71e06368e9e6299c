"""A scene for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.own_process import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)
