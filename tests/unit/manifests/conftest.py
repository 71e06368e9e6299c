"""Values and files to render from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.manifests.gardener_files import Given
from tests.unit.manifests.rendering import Maker


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)
