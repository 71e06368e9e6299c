"""Skips, with the reason, what this machine cannot run."""

from pathlib import Path

import pytest

from tests.machine.parts import missing_parts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = missing_parts()
    if not missing:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no machine: {', '.join(missing)}"))
