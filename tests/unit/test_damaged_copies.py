"""What is kept for a rollback may be damaged: it is kept again or named, and never ignored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from installer.errors import InvalidInputError, RollbackFailedError, RolledBackError, UnservableHostError
from installer.host.ports import Files
from installer.inputs.load import Consent, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.names import Mode
from installer.node.kept import object_path
from installer.node.reconcile import inspect, reconcile
from tests.faults.disks.node import Node, killed_at, lay_node, program
from tests.lib.rules import rule
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
THEIRS = b"policy:\n  Active: topology-aware\n"  # what the node has at our path before us
ONE = program("one")


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> Node:
    """One that has been installed."""
    node = lay_node(tmp_path / "node")
    assert run(node, payload)
    return node


def run(node: Node, payload: Path, mode: Mode = Mode.INSTALL, **more: object) -> bool:
    asked = replace(Request(mode, SETTINGS, payload), **more)  # type: ignore[arg-type]
    return reconcile(asked, node.fake.host, silent).changed


def warned(node: Node, payload: Path) -> list[str]:
    return [
        one.code for one in inspect(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host).plan.findings
    ]


def hints(node: Node, payload: Path) -> list[str]:
    findings = inspect(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host).plan.findings
    return [one.hint for one in findings if one.code == "copy-damaged"]


def offer(payload: Path, content: bytes) -> None:
    (payload / paths.BINARY[1:]).write_bytes(content)


def kept(content: bytes) -> str:
    return object_path(sha256(content).hexdigest())


def torn(files: Files, path: str) -> None:
    content = files.read(path) or b""
    files.write(path, bytes(len(content)), 0o600)


def gone(files: Files, path: str) -> None:
    files.remove(path)


damages = pytest.mark.parametrize("damage", [torn, gone])
Damage = Callable[[Files, str], None]


@rule("R2", "R8")
@damages
@pytest.mark.parametrize("path", [paths.BINARY, paths.FALLBACK_CONFIG])
def test_r8_a_run_that_has_nothing_to_do_keeps_a_damaged_copy_anew(
    node: Node, payload: Path, path: str, damage: Damage
) -> None:
    """The fallback.cfg is still known to be the default one, so nobody has to give configs."""
    content = node.read(path) or b""
    assert warned(node, payload) == []
    damage(node.fake.files, kept(content))
    assert warned(node, payload) == ["copy-damaged"]
    assert not run(node, payload)
    assert node.read(kept(content)) == content
    assert warned(node, payload) == []


def test_of_a_version_that_is_replaced_no_copy_stays(node: Node, payload: Path) -> None:
    offer(payload, program("two"))
    assert run(node, payload)
    assert node.read(kept(ONE)) is None
    assert node.read(kept(program("two"))) == program("two")


@rule("R7")
@pytest.mark.parametrize("works", [True, False])
def test_r7_of_a_version_that_is_replaced_or_undone_no_copy_stays_though_the_run_is_killed(
    node: Node, payload: Path, works: bool
) -> None:
    """When it has closed the record, and has not deleted what that does not refer to any more."""
    offer(payload, program("two", works=works))
    goes = kept(ONE if works else program("two", works=False))
    with killed_at(node, "remove", goes):
        run(node, payload)
    assert node.read(goes) is not None
    with nullcontext() if works else pytest.raises(RolledBackError):
        assert not run(node, payload)
    assert node.read(goes) is None


@rule("R8")
@damages
def test_r8_a_rollback_goes_back_though_its_copy_was_damaged_before(
    node: Node, payload: Path, damage: Damage
) -> None:
    """The host still had the good file when the change began."""
    damage(node.fake.files, kept(ONE))
    offer(payload, program("two", works=False))
    with pytest.raises(RolledBackError, match="cri-resource-manager") as failed:
        run(node, payload)
    assert "the last good generation is in place again" in failed.value.hint
    assert node.read(paths.BINARY) == ONE
    assert node.on_relay


@rule("R4", "R8", "R13")
@damages
def test_r8_where_the_good_generation_is_lost_kubelet_is_held_and_nothing_is_uninstalled(
    node: Node, payload: Path, damage: Damage
) -> None:
    """Its copy is damaged, and the host has an edit in its place."""
    damage(node.fake.files, kept(ONE))
    node.fake.files.write(paths.BINARY, b"edited\n", 0o755)
    assert hints(node, payload) == ["the next installation keeps a new copy"]
    offer(payload, program("two", works=False))
    assert "a rollback is not possible" in hints(node, payload)[0]
    assert "copy-damaged" in warned(node, payload)
    with pytest.raises(RollbackFailedError) as failed:
        run(node, payload)
    assert kept(ONE) in failed.value.message
    assert "the host is as it was before" not in failed.value.hint
    assert node.read(paths.HOLD) is not None
    assert not node.on_relay
    assert node.kubelet_healthy()
    assert node.read(paths.PROXY_UNIT_FILE) is not None, "not uninstalled"
    offer(payload, ONE)
    assert run(node, payload, consent=Consent(retry=True))
    assert node.on_relay
    assert warned(node, payload) == []


@damages
def test_a_generation_that_is_not_tried_again_is_not_replaced_by_one_that_is_lost(
    node: Node, payload: Path, damage: Damage
) -> None:
    offer(payload, program("two", works=False))
    with pytest.raises(RolledBackError):
        run(node, payload)
    damage(node.fake.files, kept(ONE))
    node.fake.files.write(paths.BINARY, b"edited\n", 0o755)
    with pytest.raises(RolledBackError, match="is not retried"):
        run(node, payload)
    assert node.read(paths.BINARY) == b"edited\n"
    assert node.on_relay


@damages
def test_configs_whose_copy_is_damaged_are_not_forgotten(
    node: Node, payload: Path, tmp_path: Path, damage: Damage
) -> None:
    """The policy would become none."""
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "fallback.cfg").write_text("policy: {Active: none}\n")
    assert run(node, payload, configs=configs)
    damage(node.fake.files, kept(node.read(paths.FALLBACK_CONFIG) or b""))
    for edit in (None, b"edited\n"):
        if edit:
            node.fake.files.write(paths.FALLBACK_CONFIG, edit, 0o644)
        with pytest.raises(InvalidInputError, match="--configs is missing"):
            run(node, payload)


@rule("R6")
@damages
def test_r6_a_removal_that_cannot_give_an_original_back_is_refused_until_a_person_gives_it_up(
    node: Node, payload: Path, damage: Damage
) -> None:
    said: list[Event] = []
    damage(node.fake.files, kept(THEIRS))
    assert warned(node, payload) == ["original-lost"]
    with pytest.raises(UnservableHostError, match=paths.FALLBACK_CONFIG) as refused:
        run(node, payload, Mode.REMOVE)
    assert "--without-record" in refused.value.message
    assert node.on_relay
    reconcile(
        Request(Mode.REMOVE, SETTINGS, payload, consent=Consent(without_record=True)),
        node.fake.host,
        said.append,
    )
    assert not node.on_relay
    assert node.read(paths.FALLBACK_CONFIG) is None
    assert node.read(paths.RECORD) is None


@rule("R6")
def test_r6_an_original_that_is_put_back_returns(node: Node, payload: Path) -> None:
    gone(node.fake.files, kept(THEIRS))
    node.fake.files.write(kept(THEIRS), THEIRS, 0o600)
    run(node, payload, Mode.REMOVE)
    assert node.read(paths.FALLBACK_CONFIG) == THEIRS
