"""For all levels: what tests have measured is printed at the end, `--rules` lists rules with their tests, and
`--real-PROGRAM` puts a real program into its stand-in's place: in its contract, and on throwaway hosts.

No test is about how fast something is.
"""

import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from installer.model.paths import PROXY_PID_FILE
from tests.lib import bootstrap, extras, nri, rules
from tests.lib.throwaway import real
from tests.lib.throwaway.controlplane import CLUSTER_PROGRAMS, PROGRAMS, find_programs
from tests.lib.throwaway.resource_manager import PROGRAM as MANAGER
from tests.lib.throwaway.resource_manager import find_manager

MATRIX = "matrix"

_ON_IT = "tests/contract/kubeserver, test_stolen_token and test_applied_again run on it"
_KUBERNETES = f"{_ON_IT}; DIR has {', '.join(PROGRAMS)}"
_GARDENER = "tests/contract/gardener runs on it, with --kubernetes"

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
extras.use_extension()
pytest.register_assert_rewrite("tests.lib.attacks")
# Ignored under nohup and in the background of a script, and then by all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rules", action="store_true", help="print each rule with its tests, and run none")
    real.add_options(parser.addoption)
    parser.addoption("--kubernetes", type=Path, metavar="DIR", help=f"a real API server: {_KUBERNETES}")
    parser.addoption("--gardener", type=Path, metavar="DIR", help=f"the real {MANAGER}: {_GARDENER}")
    parser.addoption("--gardener-schemas", type=Path, metavar="DIR", help="Gardener's resource definitions")
    bootstrap.add_option(parser.addoption)
    nri.add_option(parser.addoption)
    parser.addoption("--nodes", type=int, default=3, metavar="N", help="of the cluster in tests/cluster")


def pytest_configure(config: pytest.Config) -> None:
    """A binary that was named and is not there must not look like one that was not named."""
    bootstrap.take_option(vars(config.option))
    try:
        real.take_options(vars(config.option))
        if directory := config.getoption("--kubernetes"):
            find_programs(directory, {*PROGRAMS} - {"etcd"})  # a cluster brings its own
        if directory := config.getoption("--gardener"):
            find_manager(directory)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_sessionfinish() -> None:
    """The installer runs the proxy's program alone where it runs itself, which is here, and that one writes
    its pid file to one place, whatever its options. What names no proxy of this machine is such a file."""
    with suppress(OSError):
        pid = Path(PROXY_PID_FILE).read_text().strip()
        comm = Path("/proc", pid, "comm")
        if not (comm.exists() and comm.read_text() == "cri-resmgr\n"):
            Path(PROXY_PID_FILE).unlink()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The results of a run say of which checks of the matrix a test is."""
    for item in items:
        for marker in item.iter_markers(MATRIX):
            item.user_properties += [(MATRIX, check) for check in marker.args]


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
    for program, what in real.PROGRAMS.items() if contract else ():
        if "tests/contract" in what and real.named(program) is None:
            terminalreporter.write_line(f"skipped: the real {program} (--real-{program} PATH: {what})")
    paths = " ".join(map(str, config.args))
    if "tests/cluster" in paths and not config.getoption("--kubernetes"):
        programs = ", ".join(CLUSTER_PROGRAMS)
        terminalreporter.write_line(f"skipped: a cluster (--kubernetes DIR: it has {programs})")
    if contract and not config.getoption("--kubernetes"):
        terminalreporter.write_line(f"skipped: a real API server (--kubernetes DIR: {_KUBERNETES})")
    if contract and not config.getoption("--gardener"):
        terminalreporter.write_line(f"skipped: the real {MANAGER} (--gardener DIR: {_GARDENER})")
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name != MATRIX:
                terminalreporter.write_line(f"{name}: {value}")
