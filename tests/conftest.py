"""For all levels: what tests have measured is said at the end, `--rules` lists rules with their tests, and
`--real-cri-resmgr` runs the contract of the stand-in on the real program, too.

No test is about how fast something is.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import rules

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


# What is run on it; a stand-in plays it everywhere else.
_REAL = {
    "cri-resmgr": "tests/contract/test_cri_resmgr.py runs on it, too",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rules", action="store_true", help="print each rule with its tests, and run none")
    for program, what in _REAL.items():
        parser.addoption(f"--real-{program}", type=Path, metavar="PATH", help=f"the real {program}: {what}")


def pytest_configure(config: pytest.Config) -> None:
    """A binary that was named and is not there must not look like one that was not named."""
    for program in _REAL:
        path = config.getoption(f"--real-{program}")
        if path is not None and not path.is_file():
            raise pytest.UsageError(f"--real-{program}: {path} is not a file; name the program itself")


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
    """What tests have recorded (the image's size, what the program takes of a node's memory), and which real
    programs no test has seen."""
    config = terminalreporter.config
    contract = any(
        "tests/contract" in str(argument) for argument in (*config.args, config.invocation_params.dir)
    )
    for program, what in _REAL.items() if contract else ():
        if config.getoption(f"--real-{program}") is None:
            terminalreporter.write_line(f"skipped: the real {program} (--real-{program} PATH: {what})")
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
