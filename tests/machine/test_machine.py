"""The life of a node on a real machine: what a throwaway host shares with this one, it has for itself.

Its power, its clock, its kernel with cgroup v2, and its disk. The tests are one story, in this order.
"""

from collections.abc import Iterator

import pytest

from tests.host.node import FALLBACK, PROXY, STATE
from tests.lib.rules import rule
from tests.machine.node import BROKEN, NEW, REAL_CONFIGS, MachineNode, booted, difference
from tests.machine.policies import install

HOUR_BACK = 'date --set "@$(($(date +%s) - 3600))"'
DAEMON = "installer-run.service"
#: The daemon has looked and found nothing to do, by its own words.
RESTS = f'journalctl --output=cat --unit={DAEMON} | grep -q \'"phase": "converged"\''
PASS_SECONDS = 500  # on a busy machine; less than a command may be silent


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineNode]:
    with booted(tmp_path_factory.mktemp("machine")) as found:
        yield found


@pytest.fixture(scope="module")
def before(node: MachineNode) -> dict[str, str]:
    """The machine as it was before us."""
    return node.manifest()


@rule("R2")
@pytest.mark.matrix("install", "no-op", "own Python")
def test_an_installation_converges_on_cgroup_v2(node: MachineNode, before: dict[str, str]) -> None:
    assert node.machine.run("stat", "-fc", "%T", "/sys/fs/cgroup").out == "cgroup2fs\n"
    node.run("install")
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"


@rule("R8")
@pytest.mark.matrix("bad upgrade")
def test_an_upgrade_that_fails_goes_back(node: MachineNode) -> None:
    good, node.payload = node.payload, BROKEN
    kubelet = node.show("kubelet", "InvocationID")
    ended = node.run("install", code=5)
    assert "the last good generation is in place again" in ended.err
    node.payload = good
    node.expect_good()
    # On a busy machine the good proxy may start too slowly for kubelet to wait: then the run says so.
    moved = "restart kubelet" in ended.out + ended.err
    assert (node.show("kubelet", "InvocationID") != kubelet) is moved


@rule("R7", "R12")
@pytest.mark.matrix("upgrade", "kill")
def test_power_lost_in_the_middle_of_an_upgrade(node: MachineNode) -> None:
    node.payload = NEW
    assert node.cut_at(f"restart {PROXY}", "install")
    node.machine.boot()
    node.wait_healthy()
    assert node.show("kubelet", "NRestarts") == "0"
    node.run("install")
    node.expect_good()


@rule("R3", "R15")
def test_the_clock_goes_back_an_hour_while_the_daemon_lives(node: MachineNode) -> None:
    kubelet = node.show("kubelet", "InvocationID")
    node.machine.run("systemd-run", "--quiet", f"--unit={DAEMON}", *node.words("--output=json", "run"))
    wait_until(node, RESTS)
    node.machine.run("sh", "-c", HOUR_BACK)
    node.machine.run("rm", FALLBACK)
    wait_until(node, f"test -e {FALLBACK}")
    assert node.show(DAEMON, "ActiveState") == "active"
    node.machine.run("systemctl", "stop", DAEMON)
    assert node.show("kubelet", "InvocationID") == kubelet
    node.expect_good()


def wait_until(node: MachineNode, true: str) -> None:
    """Waits until a shell command succeeds."""
    loop = f"until {true}; do sleep 0.5; done"
    ended = node.machine.run("timeout", str(PASS_SECONDS), "sh", "-c", loop, check=False)
    said = node.machine.run("journalctl", "--no-pager", "--output=cat", f"--unit={DAEMON}").out
    assert ended.code == 0, said


@rule("R6")
def test_whether_a_plugin_could_follow_is_asked_of_the_runtime(node: MachineNode) -> None:
    """containerd 2.0 and later listen for NRI plugins by default."""
    version = node.machine.run("containerd", "--version").out.split()[2].removeprefix("v")
    takes_plugins = int(version.split(".")[0]) >= 2
    node.settings = "successor.yaml"
    planned = node.run("plan", "--mode=remove", code=3 if takes_plugins else 4).out
    node.settings = "settings.yaml"
    assert ("no NRI plugin could follow cri-resmgr" in planned) is not takes_plugins


@rule("R6")
@pytest.mark.matrix("remove", "exactness")
def test_a_removal_leaves_every_file_as_it_was(node: MachineNode, before: dict[str, str]) -> None:
    node.run("remove")
    node.wait_healthy()
    assert not node.on_relay()
    left = difference(before, node.manifest())
    assert not left, "\n".join(left)
    assert node.machine.run("test", "-e", STATE, check=False).code == 1


@rule("R14")
@pytest.mark.matrix("policy switch")
def test_containers_keep_their_weight_and_get_their_cpus_back_with_cgroup_v2(node: MachineNode) -> None:
    node.run_containers(pods=1, each=3)
    before = node.usage()
    install(node, REAL_CONFIGS, before)
    node.run("remove")
    assert node.usage() == before
