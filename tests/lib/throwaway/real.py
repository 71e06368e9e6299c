"""Real programs in the stand-ins' place, on throwaway hosts of whoever has them.

They are named in the environment, so that every process of a run knows them. What only a stand-in can do
(its faults are parameters) is skipped by name: `require_stand_in`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from _pytest.outcomes import Skipped

#: What each is for, as `--help` says it.
PROGRAMS = {
    "cri-resmgr": "tests/contract/test_cri_resmgr.py runs on it, and hosts have it as each good payload",
    "kubelet": "tests/contract/test_kubelet.py runs on it, and hosts have it as their kubelet",
    "agent": "cri-resmgr-agent; tests/contract/test_agent.py runs on it",
    "containerd": "with ctr, runc and its shim, where they lie beside it; hosts have it as their runtime",
    "nri-plugin": "topology-aware or balloons, or a directory with both; tests/contract/test_nri_plugin.py "
    "runs on it, tests/contract/test_translated.py on both and --real-cri-resmgr, and "
    "tests/machine/test_over_and_back.py goes over to it",
}

#: Those that hosts can have in a stand-in's place, and those in place of the distribution's as well.
FOR_STAND_INS = ("cri-resmgr", "kubelet")
ON_HOSTS = (*FOR_STAND_INS, "containerd")


class NeedsStandInError(Skipped):
    """This cannot be tried with the real program. A test that raises it is skipped, with its words."""


def _variable(program: str) -> str:
    return f"TESTS_REAL_{program.upper().replace('-', '_')}"


def name(program: str, path: Path | None) -> None:
    """From now on this process, and those that it starts, use the real program at `path`; None: the stand-in.

    Raises ValueError, in words for whoever has named it, when there is no such file.
    """
    if path is not None and path.is_dir() and program == "nri-plugin":
        path = path / "topology-aware"
    if path is None:
        os.environ.pop(_variable(program), None)
    elif not path.is_file():
        raise ValueError(f"--real-{program}: {path} is not a file; name the program itself")
    else:
        os.environ[_variable(program)] = str(path.absolute() if program == "nri-plugin" else path.resolve())


def named(program: str) -> Path | None:
    """The real program, if one was named."""
    path = os.environ.get(_variable(program))
    return Path(path) if path else None


def nri_plugin(policy: str) -> Path | None:
    """The plugin of that name, where one was named: that one, or what lies beside it."""
    path = named("nri-plugin")
    beside = path.with_name(policy) if path else None
    return beside if beside and beside.is_file() else None


def identity() -> bytes:
    """By this a cache of what is built from these programs tells them apart."""
    paths = [path for path in map(named, ON_HOSTS) if path]
    return repr([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]).encode()


def require_stand_in(program: str, what: str) -> None:
    """Skips what is being tried if the real program is there: only its stand-in can do `what`."""
    if named(program):
        raise NeedsStandInError(f"the real {program} cannot be told to do this: {what}")


def add_options(add: Callable[..., Any], programs: Iterable[str] = PROGRAMS) -> None:
    """`--real-PROGRAM PATH` for each; `add` is a parser's."""
    for program in programs:
        add(f"--real-{program}", type=Path, metavar="PATH", help=f"the real {program}: {PROGRAMS[program]}")


def take_options(given: Mapping[str, Any]) -> None:
    """Names the programs that a parser has found, by the options' attributes. Raises ValueError as `name`."""
    for program in PROGRAMS:
        name(program, given.get(f"real_{program.replace('-', '_')}"))


def take_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """`take_options` of a command line; a wrong one ends it as any wrong option does."""
    try:
        take_options(vars(arguments))
    except ValueError as error:
        parser.error(str(error))
