"""The certificate of the node in the size of a test run; `hack/certify node` tries all of it."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest

from installer.model import paths
from installer.node.adoption import OLD_CACHE
from tests.certify.branches import Branches
from tests.certify.node.certify import Job, all_jobs, all_of, carry_out, memory, modules
from tests.certify.node.defects import DEFECTS, Defect, find, why_lost
from tests.certify.node.engine import attempt, certify, watch
from tests.certify.node.starts import FACTORS, Ground, cover
from tests.certify.node.targets import BAD, INSTALL
from tests.certify.node.troubles import TROUBLES, Turn, turned
from tests.certify.node.unreached import unlisted
from tests.certify.node.world import World, lay
from tests.faults.disks.crash import read_tree
from tests.faults.disks.node import DROP_IN, KUBELET, bare_node
from tests.lib.rules import rule

EVERY = 23  # cuts of a run; a prime, so that no two runs are cut at the same steps
PARTS = 4


@rule("R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R14")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_start_ends_as_an_uncut_run_of_it_wherever_it_is_cut(part: int) -> None:
    faults, states = list[str](), 0
    with tempfile.TemporaryDirectory(prefix="certify-", dir=memory()) as directory:
        ground = Ground(Path(directory))
        for job in all_jobs(1)[part::PARTS]:
            found = carry_out(job, ground, EVERY)
            faults += found.faults
            states += found.states
    assert states > 300
    assert not faults, "\n".join(faults[:10])


def test_a_rollback_leaves_no_copy_of_a_cache_behind_that_an_adoption_was_cut_after(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    world = ground.world(ground.begin((("containers", "two"),))[0])
    world.put(OLD_CACHE, world.read(paths.PROXY_CACHE))
    world.refresh()
    assert attempt(world, BAD.request(tmp_path)) == "rolled back"
    assert OLD_CACHE not in world.tree


def test_a_kubelet_that_a_killed_installation_has_left_ill_behind_the_relay_is_taken_off_it(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path)
    start = (("former", "nothing"), ("nature", "ill behind it"))
    moment, _ = ground.begin(start)
    request = INSTALL.request(tmp_path)
    uncut = watch(ground.world(moment), request, INSTALL, None)
    world = ground.world(uncut.jobs("restart", KUBELET)[0].after)
    assert world.on_relay
    assert not world.kubelet_healthy()
    assert attempt(world, request) == "rolled back"
    assert world.kubelet_healthy()
    assert not world.on_relay
    assert DROP_IN not in world.tree


def test_each_seeded_defect_still_has_its_place_in_the_program_and_ways_to_find_it() -> None:
    assert [lost for defect in DEFECTS if (lost := why_lost(defect))] == []


@pytest.mark.long
@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name for defect in DEFECTS])
def test_each_seeded_defect_is_found(defect: Defect, tmp_path: Path) -> None:
    said = find(defect, tmp_path)
    assert ": R" in said or "it ends" in said, "nothing was found"


@pytest.mark.long
def test_every_branch_that_is_not_reached_has_a_reason() -> None:
    branches = Branches(modules())
    for found, ways in all_of(all_jobs(1), 60, covers=True):
        assert not found.faults
        branches.add(ways)
    assert not unlisted(list(branches.missed()))


@pytest.mark.parametrize("strength", [1, 2])
def test_a_covering_array_has_every_combination(strength: int) -> None:
    rows = [dict(start) for start in cover(FACTORS, strength)]
    for names in itertools.combinations(FACTORS, strength):
        wanted = set(itertools.product(*(FACTORS[name] for name in names)))
        assert {tuple(row.get(name, FACTORS[name][0]) for name in names) for row in rows} == wanted


def test_what_the_world_reads_of_its_tree_is_what_lies_there(tmp_path: Path) -> None:
    """It answers from memory: the real adapter has to see the same."""
    ground = Ground(tmp_path)
    root = tmp_path / "one"
    lay(bare_node(), root)
    world = World(root, containers=2)
    for target in (INSTALL, *(job.target for job in all_jobs(1)[:6])):
        carry_out(Job((), target), ground, 1000)
    ground.run(world, INSTALL)
    assert world.tree == read_tree(root)
    known = world.fake.files
    places = [*world.tree, "/etc/nothing", "/var/run/cri-resmgr.pid", "/etc/default/kubelet/below"]
    seen = {path: (known.state(path).digest, known.state(path).mode, known.read(path)) for path in places}
    listed = {path: known.list(path) for path in places}
    world.depth = 1  # within a job of systemd the real adapter reads
    assert {
        path: (known.state(path).digest, known.state(path).mode, known.read(path)) for path in places
    } == seen
    directories = [path for path in places if path not in world.tree or world.tree[path].kind == "d"]
    assert {path: known.list(path) for path in directories} == {path: listed[path] for path in directories}


@pytest.mark.parametrize(
    ("trouble", "question", "number"),
    [
        ("proxy stopped", "connections.may_cut", 4),  # its unit has been read, its relay not yet
        ("kubelet stopped", "connections.may_cut", 4),
        ("proxy restarted", f"files.remove {OLD_CACHE}", 2),  # kubelet is healthy on it
    ],
)
def test_a_generation_is_not_blamed_for_what_somebody_does_at_the_end_of_its_installation(
    trouble: str, question: str, number: int, tmp_path: Path
) -> None:
    found = next(each for each in TROUBLES if each.name == trouble)
    start = (("former", "nothing"), ("containers", "two"))
    assert not turned(Ground(tmp_path), start, INSTALL, [Turn(found, question, number)]).faults


def test_a_relay_that_falls_silent_once_it_has_answered_gets_no_kubelet(tmp_path: Path) -> None:
    silent = next(each for each in TROUBLES if each.name == "relay")
    turn = Turn(silent, f"cri.empty_pods {paths.RELAY_ENDPOINT}")
    start = (("former", "nothing"), ("containers", "two"))
    ground = Ground(tmp_path)
    assert not turned(ground, start, INSTALL, [turn]).faults
    world = ground.world(ground.begin(start)[0])
    world.on_question = turn.strikes(world)
    kubelet = world.process(KUBELET)
    assert attempt(world, INSTALL.request(tmp_path), asks=True) == "rolled back"
    assert world.process(KUBELET) == kubelet


def test_a_rollback_that_brings_kubelet_back_ends_the_hold_of_one_that_could_not(tmp_path: Path) -> None:
    silent = next(each for each in TROUBLES if each.name == "relay")
    start = (("containers", "two"),)
    assert not turned(
        Ground(tmp_path), start, BAD, [Turn(silent, "systemd.reset_failed " + paths.PROXY_UNIT)]
    ).faults


def test_a_run_that_lets_kubelet_leave_a_proxy_that_is_starting_compares_the_pods(tmp_path: Path) -> None:
    start = (("proxy", "starting slowly"), ("containers", "two"))
    assert not certify(Ground(tmp_path), start, INSTALL, every=0).faults
