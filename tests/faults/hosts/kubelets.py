"""R12: the kubelets of tests/cases/kubelets that systemd can start, booted.

A node becomes each of them in turn, installed as it is: each is an upgrade of the base under an installation.
Those that are a bootable flavour as they are have tests of their own (tests/host/test_kubelets.py).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any

import yaml

from installer.model.names import Mode
from tests.faults import Report
from tests.faults.hosts.abreast import Share, try_abreast
from tests.faults.hosts.bench import Tried
from tests.host.command import RELAY_FLAG
from tests.host.mortal import Ended, run_apart
from tests.host.node import DROP_IN, STATE, Node
from tests.lib.kubelet_trees import CASES, load_base, next_start
from tests.lib.throwaway.furnish import UNIT_DIRECTORIES, remove
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import TREES, UNIT, executable, running_arguments, wait_healthy

_PROGRAMS = (
    *("/usr/local/bin/kubelet", "/opt/k8s/bin/kubelet"),
    *("/usr/bin/hyperkube", "/opt/bin/node-agent-v7"),
)
#: Where these kubelets look for the runtime, below /run: links to it.
_SOCKETS = ("by-file", "by-script", "first", "last", "one", "other", "second", "x")
#: systemd starts none of them, or there is no docker.
_CANNOT_START = {"container", "no-exec-start", "several-commands", "two-exec-starts"}
_OURS = (DROP_IN, "/etc/cri-resmgr", "/opt/intel", STATE)


@dataclass(frozen=True, slots=True)
class Case:
    """A directory of tests/cases/kubelets; `expected` is as the head of test_desired_kubelets says."""

    name: str
    expected: dict[str, Any]

    @property
    def is_served(self) -> bool:
        return "strategy" in self.expected


def bootable(*names: str) -> tuple[Case, ...]:
    """The cases that start, and are more than a flavour as it is; those of the `names`, in their order."""
    found = []
    for directory in sorted(CASES.iterdir()):
        expected = yaml.safe_load((directory / "expected.yaml").read_text())
        of_its_own = (directory / "tree").is_dir() or "settings" in expected or "names" in expected
        if of_its_own and directory.name not in _CANNOT_START and not _without_runtime(expected):
            found.append(Case(directory.name, expected))
    return tuple(case for name in names for case in found if case.name == name) if names else tuple(found)


def _without_runtime(expected: dict[str, Any]) -> bool:
    """Whether its kubelet finds no runtime, or the relay only (tests/host/test_takeover.py has that)."""
    return "strategy" in expected and "endpoint_refusal" in expected


class Changing(Node):
    """A node, kubeadm's at first, that becomes one kubelet after the other."""

    def __init__(self, host: ThrowawayHost, scratch: Path) -> None:
        super().__init__(host, scratch)
        self._laid: set[Path] = set()
        for program in _PROGRAMS:
            place = self.path(program)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(executable())
            place.chmod(0o755)
        for name in _SOCKETS:
            self.path(f"/run/{name}.sock").symlink_to(host.runtime_socket)

    def try_case(self, case: Case) -> None:
        """Raises AssertionError or HostError where something does not hold."""
        before, arguments = self._become(case)
        if case.is_served:
            self._expect_served(case, arguments)
        else:
            self._expect_refused(case, arguments)
        for path in before:  # the kubelet that runs now has not read it
            if not self.path(f"/{path}").is_dir():
                remove(self.path(f"/{path}"))
        if case.is_served:
            ended = self._converge(Mode.INSTALL)
            # The runtime of the kubelet that runs now may be at another place.
            assert ended.how in ("changed", "nothing"), ended
            ended = self._converge(Mode.INSTALL)
            assert ended.how == "nothing", ended
            assert running_arguments(self.host) == [*arguments, RELAY_FLAG]

    def _become(self, case: Case) -> tuple[set[Path], list[str]]:
        """Lays the case's base in the last one's place, and reloads systemd. Returns the files that only the
        last one has, and what kubelet's arguments are now without us."""
        tree = self.scratch / case.name
        for source in (TREES / case.expected.get("flavour", "none"), CASES / case.name / "tree"):
            if source.is_dir():
                shutil.copytree(source, tree, symlinks=True, dirs_exist_ok=True)
        for directory in UNIT_DIRECTORIES:
            below = self.path(f"/{directory}")
            for path in (below / UNIT, *(below / f"{UNIT}.d").glob("*.conf")):
                if path != self.path(DROP_IN):
                    remove(path)
        last, self._laid = self._laid, {path.relative_to(tree) for path in tree.rglob("*")}
        shutil.copytree(tree, self.host.root, symlinks=True, dirs_exist_ok=True)
        self.host.systemctl("daemon-reload")
        strategy, variable = case.expected.get("settings", "auto"), case.expected.get("names", "")
        self.command.set(kubelet={"strategy": strategy, "variable": variable, "acceptStaticManagers": True})
        words = case.expected.get("running") or next_start(load_base(tree))
        shutil.rmtree(tree)
        return last - self._laid, [*dropwhile(lambda word: not word.startswith("-"), words)]

    def _expect_served(self, case: Case, arguments: list[str]) -> None:
        ended = self._converge(Mode.INSTALL)
        configured = any(word.startswith("--config") for word in arguments)
        if ("running" in case.expected or configured) and ended.how == "UnservableHostError":
            # Only its running process shows what becomes of its arguments: that of the last kubelet cannot.
            # Nor does one behind a shell show its configuration.
            assert self._converge(Mode.REMOVE).how in ("changed", "nothing")
            assert self._restart() == arguments
            ended = self._converge(Mode.INSTALL)
        assert ended.how in ("changed", "nothing"), ended  # two that are served by the same variable
        assert self._restart() == [*arguments, RELAY_FLAG]

    def _expect_refused(self, case: Case, arguments: list[str]) -> None:
        """Before anything is touched."""
        if self.path(STATE).exists():
            assert self._converge(Mode.REMOVE).how == "changed"
        started, invocation = self._restart(), self.host.show(UNIT, "InvocationID")
        assert started == arguments or case.expected["refusal"] == "kubelet-behind-shell"
        ended = self._converge(Mode.INSTALL)
        assert ended.how == "UnservableHostError", ended
        assert case.expected.get("message", "") in ended.message
        assert self.host.show(UNIT, "InvocationID") == invocation
        assert not [path for path in _OURS if self.path(path).exists()]

    def _restart(self) -> list[str]:
        """Somebody restarts kubelet. Returns its arguments, once it is healthy."""
        self.host.systemctl("restart", UNIT)
        wait_healthy(self.host)
        return running_arguments(self.host)

    def _converge(self, mode: Mode) -> Ended:
        return run_apart(self, mode)


def try_cases(scratch: Path, cases: Iterable[Case]) -> Tried:
    """One after the other on one node; a new node after one that did not hold."""
    tried, left = Tried(), [*cases]
    while left:
        below = scratch / f"node-{len(left)}"
        below.mkdir()
        with ThrowawayHost() as host:
            node = Changing(host, below)
            while left:
                case, tried.count = left.pop(0), tried.count + 1
                try:
                    node.try_case(case)
                except (AssertionError, HostError, OSError) as error:
                    tried.bad.append(f"{case.name}: {type(error).__name__}: {error}")
                    break
    return tried


def run(report: Report, amount: int) -> None:
    """All of them, in `amount` orders."""
    shares = []
    for _ in range(amount):
        order = random.sample(bootable(), len(bootable()))
        shares.append(Share("kubelets of the cases, booted", partial(try_cases, cases=order)))
    try_abreast(report, shares)
