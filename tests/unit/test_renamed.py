"""A host that is called something else than when it was installed, and a copy of its disk in another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import InvalidInputError, RolledBackError
from installer.inputs.load import Mandate, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.disks.node import KUBELET, Node, bare_node, lay_node
from tests.lib.rules import rule
from tests.lib.slownode import release

DROP_IN = paths.drop_in("/etc/systemd/system", KUBELET)
THEIRS = b"policy:\n  Active: topology-aware\n"  # what they had in fallback.cfg before us
# What of it is new, and what `install` says of it.
BECOMES = {
    "a new name": ({"hostname": "another-name"}, ""),
    "a copy of the disk": ({"hostname": "another-name", "machine_id": "f" * 32}, "another machine"),
    "a new machine-id": ({"machine_id": "e" * 32}, "another machine"),
}


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lay_node(tmp_path / "node")


@pytest.fixture(params=BECOMES)
def become(request: pytest.FixtureRequest, node: Node) -> Callable[[], str]:
    """The installed node becomes that; returns what is said of its record."""
    changed, said = BECOMES[request.param]

    def become() -> str:
        node.fake.identity = replace(node.fake.identity, **changed)  # type: ignore[arg-type]
        return said

    return become


def run(node: Node, payload: Path, mode: Mode = Mode.INSTALL, **more: object) -> list[Event]:
    said: list[Event] = []
    asked = Request(mode, Settings(kubelet=KubeletSettings(settle_seconds=1)), payload)
    reconcile(replace(asked, **more), node.fake.host, said.append)  # type: ignore[arg-type]
    return said


def without_ours(node: Node) -> bool:
    """Whether the node is as before the installation, and the record is gone as well."""
    there = [
        path for path in (*paths.OUR_FILES, DROP_IN, paths.OUR_STATE) if node.fake.files.state(path).exists
    ]
    restored = {path for path, entry in bare_node().items() if entry.kind != "d"}
    return not set(there) - restored and node.read(paths.FALLBACK_CONFIG) == THEIRS


@rule("R8")
def test_an_upgrade_that_fails_goes_back_to_what_was_good_under_the_old_name(
    node: Node, payload: Path, become: Callable[[], str]
) -> None:
    run(node, payload)
    good = node.read(paths.BINARY)
    become()
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError) as failed:
        run(node, payload)
    assert "the last good generation is in place again" in failed.value.hint
    assert node.read(paths.BINARY) == good
    assert node.proxy_runs
    assert node.on_relay
    run(node, payload, Mode.REMOVE)
    assert without_ours(node)


@rule("R13")
@pytest.mark.parametrize("gone", [paths.FALLBACK_CONFIG, paths.PROXY_ENVIRONMENT, paths.BINARY, DROP_IN])
def test_what_is_missing_is_repaired_while_new_inputs_are_refused(
    node: Node, payload: Path, tmp_path: Path, become: Callable[[], str], gone: str
) -> None:
    """And what lay there before us is still known: the removal gives it back."""
    run(node, payload)
    content = node.read(gone)
    become()
    node.fake.files.remove(gone)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fallback.cfg").write_text("policy: {Active: nonsense}\n")
    with pytest.raises(InvalidInputError, match="nonsense"):
        run(node, payload, mandate=Mandate(unattended=True), configs=tmp_path / "configs")
    assert node.read(gone) == content
    run(node, payload, Mode.REMOVE)
    assert without_ours(node)


def test_the_next_run_notes_what_the_host_is_now_and_says_it_once(
    node: Node, payload: Path, become: Callable[[], str]
) -> None:
    run(node, payload)
    before = node.proxy_runs, node.systemd.unit(KUBELET).main_pid
    said_of_record = become()
    said = [event.message for event in run(node, payload) if event.kind == "warning"]
    assert [said_of_record in each for each in said] == ([True] if said_of_record else [])
    record = json.loads(node.read(paths.RECORD) or b"")
    identity = node.fake.identity
    assert (record["machine_id"], record["hostname"]) == (identity.machine_id, identity.hostname)
    assert record["good"]
    assert [event.message for event in run(node, payload)] == ["nothing to do"]
    assert (node.proxy_runs, node.systemd.unit(KUBELET).main_pid) == before


def test_a_generation_that_failed_here_is_not_tried_again_under_a_new_name(node: Node, payload: Path) -> None:
    run(node, payload)
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError):
        run(node, payload)
    node.fake.identity = replace(node.fake.identity, hostname="another-name")
    calls = len(node.fake.calls)
    with pytest.raises(RolledBackError) as refused:
        run(node, payload)
    assert refused.value.remembered
    assert "restart" not in str(node.fake.calls[calls:])


def test_a_record_without_any_of_its_files_proves_no_installation(node: Node, payload: Path) -> None:
    """Somebody has copied /var to another machine: a failed first installation does not put there what has
    never been there."""
    run(node, payload)
    objects = [f"{paths.OBJECTS}/{name}" for name in node.fake.files.list(paths.OBJECTS)]
    copied = {path: node.read(path) or b"" for path in (paths.RECORD, *objects)}
    run(node, payload, Mode.REMOVE)
    node.fake.identity = replace(node.fake.identity, hostname="another-name")
    node.fake.files.make_directory(paths.OBJECTS, 0o700)
    for path, content in copied.items():
        node.fake.files.write(path, content, 0o600)
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError) as failed:
        run(node, payload)
    assert "the host is as it was before" in failed.value.hint
    assert not node.on_relay
    assert node.read(paths.BINARY) is None
    reconcile  # noqa: B018
    _ = silent
