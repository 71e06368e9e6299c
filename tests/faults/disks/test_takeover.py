"""A takeover of another installer's work that fails, is killed or loses power, on a node of values."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import InvalidInputError, RollbackFailedError, RolledBackError, UnservableHostError
from installer.host.ports import RuntimeStatus
from installer.inputs.load import Consent, Mandate, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.reconcile import preview, reconcile
from tests.faults.disks.crash import Entry, Tree
from tests.faults.disks.node import (
    KUBELET,
    Killed,
    Node,
    bare_node,
    earlier_node,
    lay_node,
    packaged_node,
    program,
)
from tests.lib.fakes import CONTAINERD, failed
from tests.lib.rules import rule
from tests.lib.slownode import last_start_took
from tests.lib.throwaway.payload import UNIT

RUNTIME = "unix:///run/containerd/containerd.sock"
UNIT_FILE = "/etc/systemd/system/kubelet.service"
EXTRA_ARGS = "/etc/default/kubelet"


def unused_node() -> Tree:
    """Upstream's release, and a kubelet that does not use it."""
    return {**earlier_node(), EXTRA_ARGS: bare_node()[EXTRA_ARGS]}


NODES = {"by hand": earlier_node, "packaged": packaged_node, "unused": unused_node}
#: How an earlier installation was enabled.
WANTED_BY = (
    ("multi-user.target",),
    ("graphical.target", KUBELET),
    ("multi-user.target", "graphical.target"),
)
KUBELETS = {EXTRA_ARGS, UNIT_FILE, f"{UNIT_FILE}.d/10-kubeadm.conf"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lay_node(tmp_path / "node", earlier_node())


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    binary = tmp_path / "payload" / paths.BINARY[1:]
    binary.parent.mkdir(parents=True)
    binary.write_bytes(program("ours"))
    binary.chmod(0o755)
    (tmp_path / "configs").mkdir()
    settings = Settings(kubelet=KubeletSettings(settle_seconds=1))
    return Request(
        Mode.INSTALL, settings, tmp_path / "payload", tmp_path / "configs", consent=Consent(take_over=True)
    )


def picture(node: Node) -> dict[str, tuple[int, bytes]]:
    """Every file that outlives a boot, but for the record and cri-resmgr's own state."""
    root = node.fake.root
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    named = {f"/{path.relative_to(root)}": path for path in found}
    return {
        name: (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for name, path in named.items()
        if not name.startswith(("/run/", "/var/lib/cri-resmgr"))
    }


def placed(node: Node) -> dict[str, tuple[int, str]]:
    """Every link and directory that outlives a boot, but for the record's."""
    root = node.fake.root
    found = (path for path in root.rglob("*") if path.is_symlink() or path.is_dir())
    named = {f"/{path.relative_to(root)}": path for path in found}
    return {
        name: (stat.S_IMODE(path.lstat().st_mode), str(path.readlink()) if path.is_symlink() else "")
        for name, path in named.items()
        if not name.startswith(("/run", "/var/lib/cri-resmgr"))
    }


def wanted(tree: Tree, by: tuple[str, ...]) -> Tree:
    """That disk, with the proxy's unit enabled for these units."""
    tree = dict(tree)
    link = tree.pop(paths.PROXY_WANTED)
    del tree[paths.WANTS]
    for unit in by:
        tree[f"{paths.LINKS}/{unit}.wants"] = Entry("d", 0o755)
        tree[f"{paths.LINKS}/{unit}.wants/{paths.PROXY_UNIT}"] = link
    return tree


def break_payload(asked: Request) -> None:
    assert asked.payload is not None
    (asked.payload / paths.BINARY[1:]).write_bytes(program("ours", works=False))


def fails_once(node: Node, unit: str) -> None:
    """The next start of the unit fails."""
    right = node.systemd.on_job[unit]

    def job(method: str, state: UnitState) -> tuple[str, UnitState]:
        node.systemd.on_job[unit] = right
        return "failed", failed(state)

    node.systemd.on_job[unit] = job


def test_refused_until_it_is_asked_for(node: Node, asked: Request) -> None:
    before = picture(node)
    with pytest.raises(UnservableHostError, match="--take-over"):
        reconcile(replace(asked, consent=Consent()), node.fake.host, silent)
    assert picture(node) == before


def test_configs_are_not_lost_by_a_forgotten_option(node: Node, asked: Request) -> None:
    with pytest.raises(InvalidInputError, match=r"--configs is missing.*fallback\.cfg"):
        reconcile(replace(asked, configs=None), node.fake.host, silent)
    assert reconcile(replace(asked, configs=None, default_configs=True), node.fake.host, silent).changed


def test_what_is_a_link_is_left_to_people(node: Node, asked: Request) -> None:
    place = node.fake.root / paths.BINARY[1:]
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")
    with pytest.raises(UnservableHostError, match="is a symlink, not a file"):
        reconcile(asked, node.fake.host, silent)


@rule("R6")
@pytest.mark.parametrize("wanted_by", WANTED_BY)
@pytest.mark.parametrize("kind", NODES)
def test_however_it_was_enabled_nothing_of_it_is_left(
    tmp_path: Path, asked: Request, wanted_by: tuple[str, ...], kind: str
) -> None:
    node = lay_node(tmp_path / "node", wanted(NODES[kind](), wanted_by))
    reconcile(asked, node.fake.host, silent)
    reconcile(replace(asked, mode=Mode.REMOVE, configs=None), node.fake.host, silent)
    assert node.kubelet_healthy()
    assert not [name for name in placed(node) if name.endswith(paths.PROXY_UNIT)]


@rule("R6", "R8")
@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("wanted_by", WANTED_BY)
def test_a_release_that_kubelet_does_not_use_is_enabled_again_as_it_was(
    tmp_path: Path, asked: Request, wanted_by: tuple[str, ...], works: bool
) -> None:
    """When ours has gone, or has failed."""
    node = lay_node(tmp_path / "node", wanted(unused_node(), wanted_by))
    before = picture(node), placed(node)
    if works:
        assert reconcile(replace(asked, consent=Consent()), node.fake.host, silent).changed
        assert not reconcile(replace(asked, consent=Consent()), node.fake.host, silent).changed
        assert not [name for name in placed(node) if name.endswith(f"wants/{paths.PROXY_UNIT}")]
        reconcile(replace(asked, mode=Mode.REMOVE, configs=None), node.fake.host, silent)
    else:
        break_payload(asked)
        with pytest.raises(RolledBackError):
            reconcile(replace(asked, consent=Consent()), node.fake.host, silent)
    assert (picture(node), placed(node)) == before


@rule("R2", "R6")
def test_taken_over_it_is_ours_and_goes_with_us(node: Node, asked: Request) -> None:
    assert reconcile(asked, node.fake.host, silent).changed
    assert node.on_relay
    assert RUNTIME in (node.read(EXTRA_ARGS) or b"").decode()
    assert not reconcile(asked, node.fake.host, silent).changed
    assert not reconcile(replace(asked, consent=Consent()), node.fake.host, silent).changed
    reconcile(replace(asked, mode=Mode.REMOVE, configs=None), node.fake.host, silent)
    assert not node.on_relay
    assert node.kubelet_healthy()
    assert set(picture(node)) == KUBELETS


@rule("R8")
@pytest.mark.parametrize("fault", ["proxy", "kubelet"])
def test_r8_the_earlier_installation_comes_back(node: Node, asked: Request, fault: str) -> None:
    before = picture(node)
    if fault == "proxy":
        break_payload(asked)
    else:
        fails_once(node, KUBELET)
    with pytest.raises(RolledBackError) as failure:
        reconcile(asked, node.fake.host, silent)
    assert "the earlier installation is in place again" in failure.value.hint
    assert picture(node) == before
    assert node.on_relay
    assert node.proxy_runs
    assert node.read(paths.PROXY_UNIT_FILE) == UNIT.encode()
    assert node.fake.files.state(paths.PROXY_WANTED).target == paths.PROXY_UNIT_FILE
    if fault == "proxy":
        assert "is not retried" in str(preview(asked, node.fake.host)[1])


@rule("R8")
def test_r8_if_not_even_that_comes_back_kubelet_is_on_the_runtime(node: Node, asked: Request) -> None:
    break_payload(asked)
    before = node.systemd.on_job[paths.PROXY_UNIT]

    def down(method: str, state: UnitState) -> tuple[str, UnitState]:
        return before(method, state) if method == "stop" else ("failed", failed(state))

    node.systemd.on_job[paths.PROXY_UNIT] = down
    with pytest.raises(RollbackFailedError):
        reconcile(asked, node.fake.host, silent)
    assert node.kubelet_healthy()
    assert not node.on_relay
    node.systemd.on_job[paths.PROXY_UNIT] = before
    assert asked.payload is not None
    (asked.payload / paths.BINARY[1:]).write_bytes(program("ours"))
    assert reconcile(asked, node.fake.host, silent).changed
    assert node.on_relay


@rule("R8")
@pytest.mark.parametrize("wanted_by", WANTED_BY)
@pytest.mark.parametrize("kind", ["packaged", "unused"])
def test_r8_the_way_back_is_exact(
    tmp_path: Path, asked: Request, wanted_by: tuple[str, ...], kind: str
) -> None:
    """The links that enable its unit, and a directory of its that is empty, included."""
    node = lay_node(tmp_path / "node", wanted(NODES[kind](), wanted_by))
    before, uses = (picture(node), placed(node)), node.on_relay
    break_payload(asked)
    with pytest.raises(RolledBackError):
        reconcile(asked, node.fake.host, silent)
    assert (picture(node), placed(node)) == before
    assert node.on_relay is uses
    assert node.kubelet_healthy()


@rule("R8")
def test_r8_a_kubelet_that_cannot_be_moved_hangs_on_no_start_for_long(node: Node, asked: Request) -> None:
    """On a slow machine ours serves after 14 s. The earlier one, which is quick, comes back before, and
    nothing is blamed."""
    (node.fake.root / paths.FALLBACK_CONFIG[1:]).write_text("policy:\n  Active: none\n")
    before, began = picture(node), 0.0
    last_start_took(node, 14.0)
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
        nonlocal began
        began = node.fake.clock.time
        return start(method, unit)

    def relay() -> RuntimeStatus | str:
        serves = began + (14.0 if node.read(paths.BINARY) == program("ours") else 0.0)
        return CONTAINERD if node.proxy_runs and node.fake.clock.time >= serves else "no answer"

    node.systemd.on_job[paths.PROXY_UNIT] = begin
    node.fake.cri.sockets[paths.RELAY_ENDPOINT] = relay
    for _again in range(2):
        with pytest.raises(RolledBackError) as failed:
            reconcile(asked, node.fake.host, silent)
        assert "take kubelet off the proxy (restart it with" in failed.value.hint
        assert picture(node) == before
        assert node.on_relay
        assert node.kubelet_healthy()


@pytest.mark.parametrize(
    ("unit", "wanted"),
    [
        ("[Unit]\nBindsTo=x.service \\\n  cri-resource-manager.service\n", "BindsTo=.* in .*20-tie.conf"),
        ("", r"the link .*/kubelet\.service\.requires/cri-resource-manager\.service"),
    ],
)
def test_what_would_stop_kubelet_with_the_proxy_is_refused_with_its_place(
    node: Node, asked: Request, unit: str, wanted: str
) -> None:
    if unit:
        node.add_drop_in("20-tie.conf", unit)
    else:
        link = node.fake.root / f"etc/systemd/system/{KUBELET}.requires/{paths.PROXY_UNIT}"
        link.parent.mkdir()
        link.symlink_to(paths.PROXY_UNIT_FILE)
    before = picture(node)
    with pytest.raises(UnservableHostError, match=wanted):
        reconcile(asked, node.fake.host, silent)
    assert picture(node) == before


def kill_after(node: Node, asked: Request, steps: int) -> bool:
    """Whether the run was killed after so many steps; one that has fewer ends well."""
    done = 0

    def listen(event: Event) -> None:
        nonlocal done
        done += event.kind == "step.done"
        if done == steps:
            raise Killed

    try:
        reconcile(asked, node.fake.host, listen)
    except Killed:
        return True
    return False


@rule("R7")
@pytest.mark.parametrize("kind", NODES)
def test_r7_killed_and_then_refused_the_node_has_a_kubelet_and_the_way_back_is_open(
    tmp_path: Path, asked: Request, kind: str
) -> None:
    """Nobody watches the run that is refused: it repairs what is good, the other installer's work."""
    node = lay_node(tmp_path / "node", wanted(NODES[kind](), ("graphical.target",)))
    before, uses = (picture(node), placed(node)), node.on_relay
    assert kill_after(node, asked, 12)
    assert asked.configs is not None
    (asked.configs / "fallback.cfg").write_text("policy: [\n")
    with pytest.raises(InvalidInputError):
        reconcile(replace(asked, consent=Consent(), mandate=Mandate(unattended=True)), node.fake.host, silent)
    assert node.kubelet_healthy()
    assert node.on_relay is uses
    (asked.configs / "fallback.cfg").unlink()
    break_payload(asked)
    with pytest.raises(RolledBackError):
        reconcile(asked, node.fake.host, silent)
    assert (picture(node), placed(node)) == before
    assert node.kubelet_healthy()
    assert node.on_relay is uses


@rule("R7")
def test_r7_a_file_that_its_owner_has_written_meanwhile_is_theirs(node: Node, asked: Request) -> None:
    """Between a takeover that was cut off and the next run."""
    assert kill_after(node, asked, 12)
    owners = f"KUBELET_EXTRA_ARGS=--v=4 --container-runtime-endpoint={RUNTIME}\n".encode()
    (node.fake.root / EXTRA_ARGS[1:]).write_bytes(owners)
    assert reconcile(asked, node.fake.host, silent).changed
    assert node.read(EXTRA_ARGS) == owners


@rule("R7")
def test_r7_what_a_killed_takeover_repaired_in_kubelets_unit_is_no_edit_of_somebody_else(
    tmp_path: Path, asked: Request
) -> None:
    """systemd has not read it yet. The takeover goes on without being asked for again."""
    tree = earlier_node()
    ordered = f"[Unit]\nAfter={paths.PROXY_UNIT}\n".encode() + tree[UNIT_FILE].content
    node = lay_node(tmp_path / "node", {**tree, UNIT_FILE: replace(tree[UNIT_FILE], content=ordered)})
    steps = [step.target for step in preview(asked, node.fake.host)[0].plan.steps]
    assert kill_after(node, asked, steps.index(UNIT_FILE) + 1)
    assert node.read(UNIT_FILE) != ordered
    node.systemd.units[KUBELET] = replace(node.systemd.unit(KUBELET), need_daemon_reload=True)
    assert reconcile(replace(asked, consent=Consent()), node.fake.host, silent)
    assert not node.systemd.unit(KUBELET).need_daemon_reload
    assert node.on_relay
