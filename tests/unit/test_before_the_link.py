"""A node that an earlier version of ours serves: kubelet's flag names the relay itself, and no link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import KubeletKeptError, RolledBackError
from installer.inputs.load import Mandate, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import silent
from installer.model.fleet import AskFirst
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.kept import keep_object
from installer.node.reconcile import reconcile
from installer.node.record import dump_record, load_record
from installer.node.snapshot import read_machine
from tests.faults.disks.node import KUBELET, RUNTIME, Node, lay_node, program
from tests.lib.fakes import failed
from tests.lib.rules import rule
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    release(tmp_path / "payload", "one")
    node = lay_node(tmp_path / "node")
    install(node, tmp_path)
    _name_relay(node)
    assert kubelet(node)[-1].endswith(paths.RELAY_SOCKET)
    return node


def install(node: Node, tmp_path: Path, mandate: Mandate | None = None) -> None:
    request = Request(Mode.INSTALL, SETTINGS, tmp_path / "payload", mandate=mandate or Mandate())
    reconcile(request, node.fake.host, silent)


def kubelet(node: Node) -> tuple[str, ...]:
    process = node.process(KUBELET)
    assert process is not None
    return process.argv


def _name_relay(node: Node) -> None:
    """As that version has left the node."""
    files, machine = node.fake.files, read_machine(node.fake.host)
    record = load_record(files, machine.machine_id, machine.hostname).record
    assert record.good is not None
    text = node.read(paths.KUBELET_ENVIRONMENT) or b""
    text = text.replace(paths.endpoint_link(RUNTIME).encode(), paths.RELAY_SOCKET.encode())
    files.write(paths.KUBELET_ENVIRONMENT, text, 0o644)
    theirs = tuple(
        file.with_content(text) if file.path == paths.KUBELET_ENVIRONMENT else file
        for file in record.good.files
    )
    digests = {file.path: (file.digest,) for file in theirs}
    keep_object(files, digests[paths.KUBELET_ENVIRONMENT][0], text)
    owned = {path: replace(one, wrote=digests.get(path, one.wrote)) for path, one in record.owned.items()}
    earlier = replace(record, good=replace(record.good, files=theirs), owned=owned)
    files.write(paths.RECORD, dump_record(earlier), 0o600)
    files.remove_tree(paths.OUR_RUNTIME)
    node.systemd.restart(KUBELET, 1.0)


@rule("R8")
@pytest.mark.parametrize("works", [True, False])
def test_an_upgrade_that_fails_brings_back_what_was_good(node: Node, tmp_path: Path, works: bool) -> None:
    """At the proxy, or when kubelet comes up."""
    release(tmp_path / "payload", "two", works=works)
    job, starts = node.systemd.on_job[KUBELET], list[str]()

    def fail_once(method: str, unit: UnitState) -> tuple[str, UnitState]:
        starts.append(method)
        done = job(method, unit)
        return ("failed", failed(unit)) if len(starts) == 1 else done

    node.systemd.on_job[KUBELET] = fail_once
    with pytest.raises(RolledBackError):
        install(node, tmp_path)
    assert kubelet(node)[-1].endswith(paths.RELAY_SOCKET)
    assert len(starts) == (2 if works else 0)
    assert node.read(paths.HOLD) is None


@rule("R2", "R3")
@pytest.mark.parametrize("damage", [lambda _node: None, lambda node: node.fake.files.remove(paths.BINARY)])
def test_while_the_upgrade_waits_for_its_permit_the_good_one_is_repaired_under_kubelet(
    node: Node, tmp_path: Path, damage: Callable[[Node], None]
) -> None:
    release(tmp_path / "payload", "two")
    damage(node)
    before = node.systemd.unit(KUBELET)
    with pytest.raises(KubeletKeptError):
        install(node, tmp_path, Mandate(unattended=True, ask_first=AskFirst.ALL, begins=""))
    assert node.read(paths.BINARY) == program("one")
    assert node.systemd.unit(KUBELET) == before


@rule("R3")
def test_what_is_not_tried_again_restarts_no_kubelet(node: Node, tmp_path: Path) -> None:
    release(tmp_path / "payload", "two", works=False)
    before = node.systemd.unit(KUBELET)
    for _ in range(2):
        with pytest.raises(RolledBackError):
            install(node, tmp_path)
    assert node.systemd.unit(KUBELET) == before


@rule("R3")
def test_an_upgrade_restarts_kubelet_once_onto_the_link(node: Node, tmp_path: Path) -> None:
    before = node.systemd.unit(KUBELET)
    install(node, tmp_path)
    assert kubelet(node)[-1].endswith(paths.endpoint_link(RUNTIME))
    assert node.on_relay
    after = node.systemd.unit(KUBELET)
    assert after != before
    install(node, tmp_path)
    assert node.systemd.unit(KUBELET) == after
