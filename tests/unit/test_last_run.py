"""What a run remembers for the next: the options that named its inputs, and the good generation to repair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import InvalidInputError, RolledBackError
from installer.inputs.load import Consent, Request
from installer.inputs.reading import is_roots_own
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.names import Mode
from installer.node.reconcile import inspect, preview, reconcile
from installer.node.record import last_options
from tests.faults.disks.node import Node, lay_node
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
GUARD = paths.GUARD


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    (tmp_path / "payload/VERSION").write_text("v0.9.2\n")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lay_node(tmp_path / "node")


def run(node: Node, payload: Path | None, asked: Mapping[str, str] | None = None) -> list[Event]:
    said: list[Event] = []
    request = Request(Mode.INSTALL, SETTINGS, payload, asked=asked or {})
    reconcile(request, node.fake.host, said.append)
    return said


def kept(node: Node) -> dict[str, str]:
    return last_options(node.fake.host.files)


def test_the_options_of_the_last_run_are_in_the_record_until_the_removal(node: Node, payload: Path) -> None:
    asked = {"payload": str(payload), "default_configs": ""}
    run(node, payload, asked)
    assert kept(node) == asked
    assert dict(inspect(Request(Mode.INSTALL, SETTINGS, None, inspect=True), node.fake.host).asked) == asked
    node.fake.files.remove(GUARD)
    run(node, None)  # a repair
    assert kept(node) == asked
    reconcile(Request(Mode.REMOVE, SETTINGS, None), node.fake.host, silent)
    assert kept(node) == {}


def test_a_pass_of_the_daemon_has_none(node: Node, payload: Path) -> None:
    run(node, payload, {"payload": str(payload)})
    node.fake.files.remove(GUARD)
    run(node, payload)
    assert kept(node) == {}


def test_a_run_that_was_undone_leaves_those_of_the_good_generation(node: Node, payload: Path) -> None:
    run(node, payload, {"payload": str(payload)})
    release(payload.parent / "other", "broken", works=False)
    with pytest.raises(RolledBackError):
        run(node, payload.parent / "other", {"payload": "/root/other"})
    assert kept(node) == {"payload": str(payload)}


@pytest.mark.parametrize(
    "asked",
    [
        {"payload": "payload"},
        {"payload": "/root/../etc"},
        {"payload": "/" + "x" * 5000},
        {"payload": "/root/\x1b[2J"},
        {"payload": ""},
        {"payload": 7},
        {"host_root": "/root", "password": "/secret"},
        ["/root"],
        "/root",
        None,
    ],
)
def test_what_nobody_can_have_typed_is_left_out(node: Node, payload: Path, asked: object) -> None:
    run(node, payload, {"payload": str(payload)})
    path = node.fake.root / paths.RECORD[1:]
    record = {**json.loads(path.read_text()), "asked": asked}
    del record["checksum"]
    path.write_text(json.dumps(record))
    assert kept(node) == {}


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"[" * 100_000])
def test_a_damaged_record_remembers_nothing(node: Node, payload: Path, damage: bytes) -> None:
    run(node, payload, {"payload": str(payload)})
    (node.fake.root / paths.RECORD[1:]).write_bytes(damage)
    assert kept(node) == {}


def test_an_edit_of_one_option_makes_no_record_unusable(node: Node, payload: Path) -> None:
    run(node, payload, {"payload": str(payload)})
    path = node.fake.root / paths.RECORD[1:]
    record = {**json.loads(path.read_text()), "asked": {"payload": "relative", "configs": "/root/configs"}}
    del record["checksum"]
    path.write_text(json.dumps(record))
    seen = inspect(Request(Mode.INSTALL, SETTINGS, None, inspect=True), node.fake.host)
    assert (dict(seen.asked), seen.plan.steps, seen.installed != "") == (
        {"configs": "/root/configs"},
        (),
        True,
    )


def test_without_a_payload_the_good_generation_is_repaired(node: Node, payload: Path) -> None:
    run(node, payload)
    assert [event.message for event in run(node, None)][-1] == "nothing to do"
    node.fake.files.remove(GUARD)
    (node.fake.root / paths.FALLBACK_CONFIG[1:]).write_text("policy: {Active: balloons}\n")
    seen, error = preview(Request(Mode.INSTALL, SETTINGS, None), node.fake.host)
    assert (error, {change.path for change in seen.plan.changes.files}) == (
        None,
        {GUARD, paths.FALLBACK_CONFIG},
    )
    said = run(node, None)
    (asked,) = (event for event in said if event.kind == "good.asked")
    assert asked.message == (
        "no --payload was given, so this is about the last good generation: "
        f"cri-resmgr v0.9.2, generation {seen.installed}"
    )
    assert said[-1].message == "done"
    assert node.read(GUARD) is not None
    assert not run(node, payload)[-1].data["changed"]


def test_it_serves_the_kubelet_that_was_moved_whatever_the_settings_name(node: Node, payload: Path) -> None:
    run(node, payload)
    node.fake.files.remove(GUARD)
    other = replace(
        Request(Mode.INSTALL, Settings(kubelet=KubeletSettings(settle_seconds=1, unit="other.service")), None)
    )
    reconcile(other, node.fake.host, silent)
    assert node.read(GUARD) is not None


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"configs": Path("/root/configs")}, "--payload is missing: --configs needs one"),
        ({"default_configs": True}, "--payload is missing: --default-configs needs one"),
        ({"consent": Consent(retry=True)}, "--payload is missing: --retry needs one"),
    ],
)
def test_what_is_new_needs_a_payload(
    node: Node, payload: Path, given: dict[str, object], fault: str, tmp_path: Path
) -> None:
    run(node, payload, {"payload": str(payload)})
    (tmp_path / "configs").mkdir()
    if "configs" in given:
        given = {"configs": tmp_path / "configs"}
    with pytest.raises(InvalidInputError) as refused:
        preview(replace(Request(Mode.INSTALL, SETTINGS, None), **given), node.fake.host)  # type: ignore[arg-type]
    assert refused.value.faults == (fault,)
    assert ("the last run had --payload" in refused.value.hint) == is_roots_own(str(payload))


def test_a_first_installation_needs_one_and_says_so(node: Node) -> None:
    with pytest.raises(InvalidInputError, match="no installation was completed here") as refused:
        run(node, None)
    assert "cri-resource-manager-<version>" in refused.value.hint


def test_content_that_is_nowhere_else_needs_one(node: Node, payload: Path) -> None:
    run(node, payload)
    for path in (node.fake.root / paths.OBJECTS[1:]).iterdir():
        path.unlink()
    node.fake.files.remove(GUARD)
    with pytest.raises(InvalidInputError, match=f"nothing else has the content of {GUARD}"):
        run(node, None)


def test_a_path_that_others_may_have_replaced_is_not_repeated(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)
    trusted = is_roots_own(str(mine))
    (tmp_path / "link").symlink_to(mine)
    assert not is_roots_own(str(tmp_path / "link"))
    assert not is_roots_own(str(tmp_path / "absent"))
    mine.chmod(0o777)
    assert not is_roots_own(str(mine))
    (mine / "payload").mkdir()
    assert not is_roots_own(str(mine / "payload"))
    mine.chmod(0o1777)  # as /tmp
    assert is_roots_own(str(mine / "payload")) == trusted
