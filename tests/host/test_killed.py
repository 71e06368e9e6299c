"""R7, R12: killed at any instant, alone or with the host, the next run converges and leaves nothing behind.

Here as many instants as fit; `hack/faults killed reboots` tries all.
"""

import pickle

import pytest

from installer.model.names import Mode
from tests.faults.hosts import killed, reboots
from tests.faults.hosts.bench import Bench
from tests.faults.hosts.ways import (
    ADOPTION,
    GIVING_BACK,
    WAY_BACK_OF_CONTAINERS,
    WAYS,
    WAYS_OF_CONTAINERS,
    Way,
)
from tests.host.mortal import DieAfterStep, converge
from tests.host.workload import UNSEEN
from tests.lib.rules import rule

pytestmark = pytest.mark.long

STRIDE = 37  # odd, so that it is before one effect and after the next
SEED = 1


def test_each_way_can_be_tried_in_a_process_of_its_own() -> None:
    """As `hack/faults` does."""
    assert pickle.loads(pickle.dumps(WAYS + WAYS_OF_CONTAINERS))


@rule("R7")
@pytest.mark.parametrize("way", WAYS, ids=[way.name.replace(" ", "-").replace(",", "") for way in WAYS])
def test_r7_killed_before_or_after_an_effect_the_next_run_goes_on(bench: Bench, way: Way) -> None:
    tried = killed.at_each_instant(bench, way, STRIDE, first=WAYS.index(way) * 11 % STRIDE)
    assert not tried.bad, "\n".join(tried.bad)
    assert tried.count


@rule("R7", "R14")
@pytest.mark.skipif(bool(UNSEEN), reason=UNSEEN)
@pytest.mark.parametrize(
    "way", [ADOPTION, GIVING_BACK, WAY_BACK_OF_CONTAINERS], ids=lambda way: way.name.replace(" ", "-")
)
def test_r14_killed_in_an_adoption_or_in_giving_back_nobody_has_less_after_the_next_run(
    bench: Bench, way: Way
) -> None:
    tried = killed.at_each_instant(bench, way, STRIDE, first=19)
    assert not tried.bad, "\n".join(tried.bad)
    assert tried.count


@rule("R7", "R12")
def test_r12_after_a_power_cut_at_a_random_instant_the_node_comes_up_by_itself(bench: Bench) -> None:
    tried = reboots.at_random(bench, 4, SEED)
    assert not tried.bad, "\n".join(tried.bad)


@rule("R8")
def test_r8_a_first_install_that_was_cut_off_is_good_all_the_same_and_can_come_back(bench: Bench) -> None:
    """Killed between the last step and the record: the next run has nothing to do but to keep it."""
    node = bench.node
    events = node.run("install", "--output", "json").events
    steps = sum(event["kind"] == "step.done" for event in events)
    node.run("remove")
    assert converge(node, Mode.INSTALL, listen=DieAfterStep(steps)) == "killed"
    assert node.run("install").out == "nothing to do\n"
    node.upgrade(fault={"exitAfterSeconds": 0.5}, version="v0.9.9")
    node.run("install", code=5)
    assert node.on_relay()
    node.upgrade(version="v0.9.2")
    node.run("install")
    node.run("remove")
    node.expect_untraced()
