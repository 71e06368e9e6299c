"""A record that is gone or damaged: what proves ours goes, the rest is named, and hints keep promises."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import UnservableHostError
from installer.inputs.load import Consent, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.host import Kind
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.disks.node import KUBELET, Node, bare_node, killed_at, lay_node, program
from tests.lib.rules import rule
from tests.lib.slownode import release

DROP_IN = paths.drop_in("/etc/systemd/system", KUBELET)
EDITED = f"{paths.OUR_STATE}/edited"
STATE_DIRECTORY = paths.PROXY_STATE[0]
THEIRS = {path: entry.content for path, entry in bare_node().items() if entry.kind == "f"}

Damage = Callable[[Node], None]


def lose(node: Node) -> None:
    node.fake.files.remove(paths.RECORD)


def lose_all(node: Node) -> None:
    shutil.rmtree(f"{node.fake.root}{paths.OUR_STATE}")


def spoil(node: Node) -> None:
    node.fake.files.write(paths.RECORD, b"{", 0o600)


def replace_by(make: Callable[[Path], object]) -> Damage:
    def damage(node: Node) -> None:
        lose(node)
        make(Path(f"{node.fake.root}{paths.RECORD}"))

    return damage


def make_directory(place: Path) -> None:
    place.mkdir()
    (place / "theirs").write_text("x")


no_files = pytest.mark.parametrize(
    "damage",
    [
        replace_by(make_directory),
        replace_by(os.mkfifo),
        replace_by(lambda place: place.symlink_to("nowhere")),
        replace_by(lambda place: place.symlink_to("/var/lib")),
        replace_by(lambda place: place.symlink_to("../" * 40 + "etc/passwd")),
    ],
    ids=["directory", "fifo", "dangling", "link to a directory", "link out"],
)
damages = pytest.mark.parametrize("damage", [lose, lose_all, spoil])


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> Node:
    """One that has been installed."""
    node = lay_node(tmp_path / "node")
    run(node, payload)
    return node


def run(node: Node, payload: Path | None, mode: Mode = Mode.INSTALL, **more: object) -> str:
    """What was said, with the hints."""
    said: list[Event] = []
    asked = Request(mode, Settings(kubelet=KubeletSettings(settle_seconds=1)), payload)
    at_last = ""
    try:
        reconcile(replace(asked, **more), node.fake.host, said.append)  # type: ignore[arg-type]
    except UnservableHostError as error:
        at_last = f"{error.message}\n{error.hint}"
    return "\n".join((*(f"{event.message}; {event.data.get('hint')}" for event in said), at_last))


def left(node: Node) -> list[str]:
    """What is there of ours, and of cri-resmgr's own."""
    ours = (*paths.OUR_FILES, *paths.PROXY_STATE, DROP_IN, paths.PROXY_WANTED, "/opt/intel", paths.OUR_STATE)
    there = (path for path in ours if node.fake.files.state(path).kind is not Kind.ABSENT)
    return [path for path in there if path not in THEIRS and path != paths.PROXY_ENVIRONMENT]


def named(said: str) -> set[str]:
    """The paths that nothing proves ours."""
    return set(re.findall(r"^  (/\S+)$", said.partition("\noriginals")[0], re.MULTILINE))


@rule("R6")
@damages
@pytest.mark.parametrize("given", [True, False])
def test_the_hint_of_a_removal_without_its_record_keeps_what_it_promises(
    node: Node, payload: Path, damage: Damage, given: bool
) -> None:
    damage(node)
    first = run(node, payload if given else None, Mode.REMOVE)
    assert not node.on_relay
    assert "`cri-resmgr-installer remove --without-record` deletes these too" in first
    assert STATE_DIRECTORY in named(first)
    assert named(first) == {path for path in left(node) if path != paths.OUR_STATE} - {"/opt/intel"}
    second = run(node, payload if given else None, Mode.REMOVE, consent=Consent(without_record=True))
    assert "done" in second
    assert not named(second)
    assert set(left(node)) <= {paths.OUR_STATE}
    for path, content in THEIRS.items():
        kept = [node.read(f"{EDITED}/{name}") for name in node.fake.files.list(EDITED)]
        assert content in (node.read(path), *kept) or damage is lose_all
    assert "nothing to do" in run(node, payload, Mode.REMOVE, consent=Consent(without_record=True))


@rule("R6")
@pytest.mark.parametrize("damage", [lose, spoil])
@pytest.mark.parametrize("version", ["one", "two"])
def test_what_an_installation_with_a_new_record_cannot_prove_is_named_at_the_removal(
    node: Node, payload: Path, damage: Damage, version: str
) -> None:
    """Also if the program has changed since, which is then restored like an original."""
    damage(node)
    release(payload, version)
    said = run(node, payload)
    assert "done" in said or "nothing to do" in said
    assert EDITED in said  # what they had at our paths before us
    contents = {node.read(f"{EDITED}/{name}") for name in node.fake.files.list(EDITED)}
    assert THEIRS[paths.FALLBACK_CONFIG] in contents
    assert program("one") not in contents
    first = run(node, payload, Mode.REMOVE)
    assert named(first) == {STATE_DIRECTORY} | ({paths.BINARY} if version == "two" else set())
    assert named(first) <= set(left(node))
    assert "`cri-resmgr-installer remove --without-record` deletes these too" in first
    second = run(node, payload, Mode.REMOVE, consent=Consent(without_record=True))
    assert EDITED in second
    assert left(node) == [paths.OUR_STATE]


@rule("R6", "R7")
@pytest.mark.parametrize("damage", [lose, spoil])
def test_r7_what_a_killed_installation_with_a_new_record_cannot_prove_is_named_at_the_removal(
    node: Node, payload: Path, damage: Damage
) -> None:
    damage(node)
    release(payload, "two")
    with killed_at(node, "write", paths.BINARY):
        run(node, payload)
    assert "done" in run(node, payload)
    assert named(run(node, payload, Mode.REMOVE)) == {STATE_DIRECTORY, paths.BINARY}


@rule("R7")
def test_r7_a_program_that_a_killed_installation_has_kept_is_nobodys_original(
    node: Node, payload: Path
) -> None:
    """The unit at our path is somebody else's, so that nothing proves which programs are ours."""
    lose(node)
    (node.fake.root / paths.PROXY_UNIT_FILE[1:]).write_text("[Service]\nExecStart=/bin/true\n")
    release(payload, "two")
    with killed_at(node, "write", paths.RECORD):
        run(node, payload)
    said = run(node, payload)
    kept = {node.read(f"{EDITED}/{name}") for name in node.fake.files.list(EDITED)}
    assert "done" in said
    assert THEIRS[paths.FALLBACK_CONFIG] in kept
    assert program("two") not in kept


def test_a_person_may_insist_at_once_also_with_a_new_record(node: Node, payload: Path) -> None:
    spoil(node)
    run(node, payload)
    said = run(node, payload, Mode.REMOVE, consent=Consent(without_record=True))
    assert not named(said)
    assert left(node) == [paths.OUR_STATE]


@rule("R6")
def test_what_was_set_aside_is_named_by_the_removal_that_leaves_it(node: Node, payload: Path) -> None:
    """Of an edit of theirs, long ago."""
    node.fake.files.write(paths.GUARD, b"#!/bin/sh\n# better\n", 0o755)
    run(node, payload)
    said = run(node, payload, Mode.REMOVE)
    (name,) = node.fake.files.list(EDITED)
    assert f"{EDITED}/{name}" in said
    assert "nothing to do" in run(node, payload, Mode.REMOVE)


@rule("R6")
def test_what_cri_resmgr_had_before_us_is_nobodys_to_name(tmp_path: Path, payload: Path) -> None:
    node = lay_node(tmp_path / "other")
    node.fake.files.make_directory(STATE_DIRECTORY, 0o755)
    node.fake.files.write(f"{STATE_DIRECTORY}/theirs", b"x", 0o644)
    run(node, payload)
    assert not named(run(node, payload, Mode.REMOVE))
    assert node.read(f"{STATE_DIRECTORY}/theirs") == b"x"


def test_on_a_node_that_was_never_ours_nothing_is_found(tmp_path: Path, payload: Path) -> None:
    node = lay_node(tmp_path / "other")
    node.fake.files.make_directory("/opt/intel", 0o755)
    assert "nothing to do" in run(node, payload, Mode.REMOVE)
    assert node.fake.files.state("/opt/intel").exists


@rule("R6")
@no_files
@pytest.mark.parametrize("mode", [Mode.INSTALL, Mode.REMOVE])
def test_what_lies_at_the_records_place_and_is_no_record_is_kept_aside(
    node: Node, payload: Path, damage: Damage, mode: Mode
) -> None:
    damage(node)
    was_directory = node.fake.files.state(paths.RECORD).kind is Kind.DIRECTORY
    said = run(node, payload, mode)
    assert f"the record ({paths.RECORD}) is corrupt: " in said
    assert node.on_relay == (mode is Mode.INSTALL)
    if was_directory:
        assert f"{EDITED}/record.json.1" in said
        assert node.read(f"{EDITED}/record.json.1/theirs") == b"x"
    if mode is Mode.INSTALL:
        assert "nothing to do" in run(node, payload)
        run(node, payload, Mode.REMOVE)
    assert STATE_DIRECTORY in left(node), "nothing proves it ours"
    run(node, payload, Mode.REMOVE, consent=Consent(without_record=True))
    assert set(left(node)) <= {paths.OUR_STATE}
    assert "nothing to do" in run(node, payload, Mode.REMOVE)


@no_files
def test_on_a_node_that_was_never_ours_it_is_left_alone(
    tmp_path: Path, payload: Path, damage: Damage
) -> None:
    node = lay_node(tmp_path / "other")
    node.fake.files.make_directory(paths.OUR_STATE)
    damage(node)
    run(node, payload, Mode.REMOVE)
    run(node, payload)
    assert node.on_relay


@rule("R6")
@pytest.mark.parametrize("target", [paths.OUR_RUNTIME, "../" * 40 + "etc", "nowhere"])
def test_a_link_in_place_of_the_runtime_directory_keeps_no_kubelet_on_the_relay(
    node: Node, payload: Path, target: str
) -> None:
    node.fake.files.remove_tree(paths.OUR_RUNTIME)
    Path(f"{node.fake.root}{paths.OUR_RUNTIME}").symlink_to(target)
    assert "done" in run(node, payload, Mode.REMOVE)
    assert not node.on_relay
    assert left(node) == []
    assert not node.fake.files.state(paths.OUR_RUNTIME).exists
