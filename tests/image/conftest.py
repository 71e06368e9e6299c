"""Skips, with the reason, what this machine cannot run of the tests of the image."""

from pathlib import Path

import pytest

from tests.image.images import missing_builders
from tests.lib.throwaway.host import missing_needs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Building needs root as well."""
    missing = [*missing_needs(), *missing_builders()]
    if not missing:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(
                pytest.mark.skip(reason=f"no image: {', '.join(missing)}: run hack/setup --image")
            )
