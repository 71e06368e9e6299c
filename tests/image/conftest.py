"""Skips, with the reason, what this machine cannot run of the tests of the image; says what was measured."""

from pathlib import Path

import pytest

from tests.image.images import missing_builders
from tests.throwaway.host import missing_needs


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests here have recorded: the image's size, what the program takes of a node's memory."""
    here = f"{Path(__file__).parent.relative_to(terminalreporter.config.rootpath)}/"
    for report in terminalreporter.getreports("passed"):
        if report.nodeid.startswith(here):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{name}: {value}")
