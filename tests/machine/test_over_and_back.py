"""The way of a node from cri-resmgr to a plugin of the runtime, and back: one story, in this order.

The plugin is one of the tests' own (tests/lib/nri_plugin.py), or with --real-nri-plugin that of nri-plugins,
with the resource that `translate` makes of cri-resmgr's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lib.cache import run
from tests.lib.program import KIT, PYTHON
from tests.lib.rules import rule
from tests.lib.throwaway import real
from tests.lib.tree import tree
from tests.machine.containers import shares_of
from tests.machine.node import REAL_CONFIGS, MachineNode, Usage, booted
from tests.machine.policies import but_cpus, cpus_of, install

PODS, EACH = 10, 3
ALL_CPUS, PLUGINS_CPUS = "0-1", "1"
OWN_PLUGIN = (PYTHON, "-m", "tests.lib.nri_plugin")
RESOURCE = "/run/resource.yaml"
#: SD_MESSAGE_UNIT_STARTED: systemd says this of every start of a unit.
STARTED = "39f53479d3a045ac8e11786248231fbf"
SECONDS = 300  # for a runtime and a plugin, on a busy machine


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
    assert cpus_of(usage) == {ALL_CPUS}
    return usage


@rule("R14")
def test_a_plugin_finds_each_container_as_it_was_created(node: MachineNode, before: Usage) -> None:
    with one_restart_of_kubelet(node):
        install(node, policy(), before)
    with one_restart_of_kubelet(node):
        node.settings = "successor.yaml"
        node.run("remove")
    node.wait_healthy()
    assert not node.on_relay()
    assert node.usage() == before
    shown = shown_to_a_plugin(node)
    created = {identity: shares_of(number) for number, identity in enumerate(node.containers.values())}
    assert {each["id"]: each["shares"] for each in shown} == created
    assert {each["cpus"] for each in shown} <= {"", ALL_CPUS}


@rule("R14")
def test_it_pins_them_and_takes_nothing_else(
    node: MachineNode, before: Usage, record_property: Callable[[str, object], None]
) -> None:
    words: tuple[str, ...] = (*OWN_PLUGIN, "--cpus", PLUGINS_CPUS)
    if real.named("nri-plugin"):
        node.machine.run("sh", "-c", f"cat > {RESOURCE}", input=node.run("translate").out)
        words = (f"{KIT}/nri-plugin", "--config-file", RESOURCE)
    node.machine.run("systemd-run", "--quiet", "--unit=pinning-plugin", *words)
    usage = wait_until_pinned(node)
    assert but_cpus(usage) == but_cpus(before)
    pinned = [name for name, one in usage.items() if one != before[name]]
    record_property("containers that the plugin pins", f"{len(pinned)} of {len(usage)}")
    node.machine.run("systemctl", "stop", "pinning-plugin")
    assert node.usage() == usage, "a plugin that stops restores nothing"


@rule("R14")
def test_cri_resmgr_comes_back_to_what_a_plugin_has_left_pinned(node: MachineNode, before: Usage) -> None:
    with one_restart_of_kubelet(node):
        install(node, policy(), before)
    node.expect_good()


@rule("R14")
def test_a_removal_also_gives_back_what_the_plugin_had_taken(node: MachineNode, before: Usage) -> None:
    with one_restart_of_kubelet(node):
        node.run("remove")
    assert node.usage() == before


def policy() -> str:
    """Whose configuration there is: the one of the plugin's name."""
    plugin = real.named("nri-plugin")
    return plugin.name if plugin else REAL_CONFIGS


def shown_to_a_plugin(node: MachineNode) -> list[dict[str, Any]]:
    """What the runtime shows a plugin of each container, by the word of one that pins nobody."""
    node.machine.run("systemd-run", "--quiet", "--unit=looking-plugin", *OWN_PLUGIN)
    wait_for(node, f"{journal('looking-plugin')} | grep -q synchronized")
    node.machine.run("systemctl", "stop", "looking-plugin")
    said = node.machine.run(*journal("looking-plugin").split()).out
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {"registered": "test"} in lines, said
    assert {"synchronized": PODS * EACH} in lines, said
    return [line for line in lines if "id" in line]


def wait_until_pinned(node: MachineNode) -> Usage:
    """Until every container is; the real plugin leaves out those for whose requests it has no room, and is
    done when nothing changes any more."""
    usage: Usage = {}
    for _ in range(SECONDS // 5):
        last, usage = usage, node.usage()
        cpus = cpus_of(usage)
        if cpus == {PLUGINS_CPUS} or (real.named("nri-plugin") and cpus != {ALL_CPUS} and usage == last):
            return usage
        node.machine.run("sleep", "5")
    said = node.machine.run(*journal("pinning-plugin").split()).out
    pytest.fail(f"not within {SECONDS} s: {cpus}\n{said}")


def journal(unit: str) -> str:
    return f"journalctl --no-pager --output=cat --unit={unit}"


def wait_for(node: MachineNode, true: str) -> None:
    """Waits until a shell command succeeds, or the time is over."""
    loop = f"until {true}; do sleep 0.5; done"
    node.machine.run("timeout", str(SECONDS), "sh", "-c", loop, check=False)


@contextmanager
def one_restart_of_kubelet(node: MachineNode) -> Iterator[None]:
    """In the block kubelet is started once, by systemd's word."""
    before = starts_of_kubelet(node)
    yield
    assert starts_of_kubelet(node) == before + 1


def starts_of_kubelet(node: MachineNode) -> int:
    words = ("journalctl", "--no-pager", "--output=cat", f"MESSAGE_ID={STARTED}", "UNIT=kubelet.service")
    return len(node.machine.run(*words).out.splitlines())
