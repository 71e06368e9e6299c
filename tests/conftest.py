"""For all levels: what tests have measured is said at the end, and `--rules` lists rules with their tests.

No test is about how fast something is.
"""

import pytest
from hypothesis import HealthCheck, settings

from tests import rules

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rules", action="store_true", help="print each rule with its tests, and run none")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With --rules nothing runs: what was collected is printed."""
    if not session.config.getoption("--rules"):
        return None
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.write(rules.render(session.items))
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have recorded: the image's size, what the program takes of a node's memory."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
