"""The way of a node from cri-resmgr to a plugin of the runtime, and back: one story, in this order.

The plugin is one of the tests' own (tests/lib/nri_plugin.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lib.cache import run
from tests.lib.program import PYTHON
from tests.lib.rules import rule
from tests.lib.tree import tree
from tests.machine.containers import shares_of
from tests.machine.node import REAL_CONFIGS, MachineNode, Usage, booted
from tests.machine.policies import but_cpus, install

PODS, EACH = 10, 3
ALL_CPUS, PLUGINS_CPUS = "0-1", "1"
PLUGIN = "nri-plugin"
#: SD_MESSAGE_UNIT_STARTED: systemd says this of every start of a unit.
STARTED = "39f53479d3a045ac8e11786248231fbf"
SECONDS = 300  # for a runtime to do what a plugin asks, on a busy machine


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineNode]:
    version = run("chroot", tree(), "containerd", "--version").split()[2].removeprefix("v")
    if int(version.split(".")[0]) < 2:
        pytest.skip(f"containerd {version} does not listen for NRI plugins: needs 2.0 (--release sid)")
    with booted(tmp_path_factory.mktemp("machine")) as found:
        found.run_containers(PODS, EACH)
        yield found


@pytest.fixture(scope="module")
def before(node: MachineNode) -> Usage:
    """What the kernel enforced on each container without anybody: all CPUs."""
    usage = node.usage()
    assert len(usage) == PODS * EACH
    assert cpus_in(usage) == {ALL_CPUS}
    return usage


@rule("R14")
def test_a_plugin_finds_each_container_as_it_was_created(node: MachineNode, before: Usage) -> None:
    install(node, REAL_CONFIGS, before)
    with one_restart_of_kubelet(node):
        node.settings = "successor.yaml"
        node.run("remove")
    node.wait_healthy()
    assert not node.on_relay()
    assert node.usage() == before
    shown = start_plugin(node, PLUGINS_CPUS)
    created = {identity: shares_of(number) for number, identity in enumerate(node.containers.values())}
    assert {each["id"]: each["shares"] for each in shown} == created
    assert {each["cpus"] for each in shown} <= {"", ALL_CPUS}


@rule("R14")
def test_it_pins_them_and_takes_nothing_else(node: MachineNode, before: Usage) -> None:
    wait_until(node, lambda usage: cpus_in(usage) == {PLUGINS_CPUS})
    assert but_cpus(node.usage()) == but_cpus(before)


@rule("R14")
def test_cri_resmgr_comes_back_to_what_a_plugin_has_left_pinned(node: MachineNode, before: Usage) -> None:
    node.machine.run("systemctl", "stop", PLUGIN)
    assert cpus_in(node.usage()) == {PLUGINS_CPUS}
    with one_restart_of_kubelet(node):
        install(node, REAL_CONFIGS, before)
    node.expect_good()


@rule("R14")
def test_a_removal_also_gives_back_what_the_plugin_had_taken(node: MachineNode, before: Usage) -> None:
    with one_restart_of_kubelet(node):
        node.run("remove")
    assert node.usage() == before


def start_plugin(node: MachineNode, cpus: str) -> list[dict[str, Any]]:
    """Starts it, and tells what it says of each container when the runtime has shown it all of them."""
    words = (PYTHON, "-m", "tests.lib.nri_plugin", "--cpus", cpus)
    node.machine.run("systemd-run", "--quiet", f"--unit={PLUGIN}", *words)
    journal = f"journalctl --no-pager --output=cat --unit={PLUGIN}"
    seen = f"until {journal} | grep -q synchronized; do sleep 0.5; done"
    node.machine.run("timeout", str(SECONDS), "sh", "-c", seen, check=False)
    said = node.machine.run(*journal.split()).out
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {"registered": "test"} in lines, said
    assert {"synchronized": PODS * EACH} in lines, said
    return [line for line in lines if "id" in line]


def wait_until(node: MachineNode, true: Callable[[Usage], bool]) -> None:
    for _ in range(SECONDS // 5):
        if true(usage := node.usage()):
            return
        node.machine.run("sleep", "5")
    pytest.fail(f"not within {SECONDS} s: {usage}")


def cpus_in(usage: Usage) -> set[str]:
    return {one["cpuset.cpus.effective"] for one in usage.values()}


@contextmanager
def one_restart_of_kubelet(node: MachineNode) -> Iterator[None]:
    """In the block kubelet is started once, by systemd's word."""
    before = starts_of_kubelet(node)
    yield
    assert starts_of_kubelet(node) == before + 1


def starts_of_kubelet(node: MachineNode) -> int:
    words = ("journalctl", "--no-pager", "--output=cat", f"MESSAGE_ID={STARTED}", "UNIT=kubelet.service")
    return len(node.machine.run(*words).out.splitlines())
