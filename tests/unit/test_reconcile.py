"""Whole runs on a simulated node: what happens to a node that is renamed, held, half readable."""

from __future__ import annotations

import errno
import json
import os
import posixpath
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.daemon.runtime_state import recorded_kubelet_unit
from installer.errors import (
    InvalidInputError,
    KubeletKeptError,
    RollbackFailedError,
    RolledBackError,
    SystemdError,
    UnservableHostError,
)
from installer.host.ports import KnownDigest
from installer.inputs.load import Consent, Mandate, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import hold, paths
from installer.model.containers import CgroupState, CpuResources, ReadyPod
from installer.model.event import Event, silent
from installer.model.fleet import AskFirst, PlannedWork
from installer.model.history import HistoryEntry
from installer.model.hold import CLUSTER_MEMORY, PAUSE_FILE, why_paused
from installer.model.host import FileState, Part, RunningContainer
from installer.model.names import Mode
from installer.model.result import Tally
from installer.node.history import read_history
from installer.node.inspection import assess_host
from installer.node.reconcile import inspect, preview, reconcile
from installer.node.rescue import hold_kubelet, restart_proxy
from installer.node.run import DAEMON
from tests.faults.disks.crash import Entry
from tests.faults.disks.node import CACHE, KUBELET, Node, bare_node, lay_node, program
from tests.lib.rules import rule
from tests.lib.slownode import release

DROP_IN = paths.drop_in("/etc/systemd/system", KUBELET)
SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
THEIRS = b"policy:\n  Active: topology-aware\n"
CONFIG, CONFIGURED = (
    "/var/lib/kubelet/config.yaml",
    b"containerRuntimeEndpoint: /run/containerd/containerd.sock\n",
)
OPERATORS = "broken CPU map, ticket 4711"


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lay_node(tmp_path / "node")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Its kubelet has the endpoint in its configuration."""
    monkeypatch.setattr("tests.faults.disks.node.COMMAND", ("/usr/bin/kubelet", f"--config={CONFIG}"))
    found = {posixpath.dirname(CONFIG): Entry("d", 0o755), CONFIG: Entry("f", 0o644, CONFIGURED)}
    return lay_node(tmp_path / "configured", bare_node() | found)


ASKING = Mandate(unattended=True, ask_first=AskFirst.ALL)


def request(payload: Path, mode: Mode = Mode.INSTALL, *, unattended: bool = False) -> Request:
    return Request(mode, SETTINGS, payload, mandate=Mandate(unattended=unattended))


def install(node: Node, payload: Path, *, unattended: bool = False) -> bool:
    return reconcile(request(payload, unattended=unattended), node.fake.host, silent).changed


def remove(node: Node, payload: Path) -> None:
    reconcile(request(payload, Mode.REMOVE), node.fake.host, silent)


def rename(node: Node) -> None:
    node.fake.identity = replace(node.fake.identity, hostname="another-name")


def write(node: Node, path: str, content: bytes) -> None:
    (node.fake.root / path[1:]).write_bytes(content)


def every_file(node: Node) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in node.fake.root.rglob("*") if path.is_file()}


def edited(node: Node) -> list[bytes]:
    directory = node.fake.root / paths.OUR_STATE[1:] / "edited"
    return [path.read_bytes() for path in sorted(directory.iterdir())] if directory.is_dir() else []


def planned(ask: Request, node: Node) -> PlannedWork | None:
    """What a run that has to ask first does not begin; None if it did all there was."""
    said: list[Event] = []
    try:
        reconcile(replace(ask, mandate=ASKING), node.fake.host, said.append)
    except KubeletKeptError:
        (event,) = (event for event in said if event.kind == "planned")
        data: dict[str, Any] = dict(event.data)
        return PlannedWork(**data)
    return None


def test_what_a_fleet_has_to_be_asked_for_is_said_and_not_begun(
    node: Node, payload: Path, tmp_path: Path
) -> None:
    before = every_file(node)
    first = planned(request(payload), node)
    assert first
    assert (first.restarts_kubelet, first.begins, first.soaks, first.removes) == (True, True, True, False)
    assert every_file(node) == before
    install(node, payload)
    assert planned(request(payload), node) is None

    node.fake.files.remove(paths.GUARD)
    assert planned(request(payload), node) is None  # a repair that leaves kubelet alone
    assert node.read(paths.GUARD) is not None

    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fallback.cfg").write_text("policy:\n  Active: none\nlogger:\n  Debug: cri\n")
    other = planned(replace(request(payload), configs=tmp_path / "configs"), node)
    assert other
    assert (other.restarts_kubelet, other.begins, other.soaks) == (False, True, False)
    assert other.generation != first.generation

    release(tmp_path / "upgraded", "two")
    upgrade = planned(request(tmp_path / "upgraded"), node)
    assert upgrade
    assert (upgrade.restarts_kubelet, upgrade.begins, upgrade.soaks) == (False, True, True)

    (tmp_path / "configs/fallback.cfg").write_bytes(THEIRS)
    policy = planned(replace(request(payload), configs=tmp_path / "configs"), node)
    assert policy
    assert (policy.restarts_kubelet, policy.begins, policy.soaks) == (False, True, True)

    reconcile(replace(request(payload), configs=tmp_path / "configs"), node.fake.host, silent)
    back = planned(replace(request(payload), default_configs=True), node)
    assert back
    assert (back.restarts_kubelet, back.begins, back.soaks) == (False, True, True)
    asking = Mandate(unattended=True, ask_first=AskFirst.RESTARTS)
    restarts_only = replace(request(payload), default_configs=True, mandate=asking)
    assert reconcile(
        restarts_only, node.fake.host, silent
    ).changed  # it begins a generation, and restarts no kubelet

    reconcile(replace(request(payload), default_configs=True), node.fake.host, silent)
    sent = {"NodeName": "n", "Data": {"policy": "Active: balloons\nReservedResources:\n  CPU: 1\n"}}
    cache = {"Version": "1", "Cfg": sent, "PolicyName": "none"}
    (node.fake.root / paths.PROXY_CACHE[1:]).write_text(json.dumps(cache))
    agents = planned(replace(request(payload), default_configs=True), node)
    assert agents
    assert (agents.restarts_kubelet, agents.begins, agents.soaks) == (False, True, True)
    (node.fake.root / paths.PROXY_CACHE[1:]).write_text('{"Version": "1"}')

    removal = planned(request(payload, Mode.REMOVE), node)
    assert removal
    assert (removal.restarts_kubelet, removal.begins, removal.removes) == (True, False, True)
    assert node.on_relay


@rule("R13")
def test_a_run_that_ends_otherwise_says_what_was_asked_for(node: Node, payload: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs/fallback.cfg"
    config.write_text("policy:\n  Active: none\nlogger:\n  Debug: cri\n")
    new = replace(request(payload), configs=tmp_path / "configs", mandate=ASKING)
    done = reconcile(request(payload), node.fake.host, silent)
    assert (done.code, done.changed, done.ended, bool(done.generation)) == (0, True, True, True)
    waiting, refused = Tally(), Tally()
    with pytest.raises(KubeletKeptError) as waits:
        reconcile(new, node.fake.host, silent, waiting)
    assert waiting.result.failed(waits.value).fleet_generation not in ("", done.fleet_generation)
    assert waiting.result.failed(waits.value).planned
    config.write_text("policy: {Active: nonsense}\n")
    with pytest.raises(InvalidInputError):
        reconcile(new, node.fake.host, silent, refused)
    assert refused.result.fleet_generation == ""


def test_the_record_tells_the_daemon_which_unit_kubelet_is(node: Node, payload: Path) -> None:
    """Where the settings do not."""
    assert recorded_kubelet_unit(node.fake.files) == ""
    install(node, payload)
    assert recorded_kubelet_unit(node.fake.files) == KUBELET
    write(node, paths.RECORD, b"torn")
    assert recorded_kubelet_unit(node.fake.files) == ""


@pytest.mark.parametrize("record", [True, False], ids=["record", "no record"])
def test_a_removal_with_forgotten_settings_moves_the_kubelet_that_was_moved(
    node: Node, payload: Path, *, record: bool
) -> None:
    """Else the proxy would be gone, and kubelet still on its relay."""
    install(node, payload)
    if not record:
        node.fake.files.remove(paths.RECORD)
    others = Settings(kubelet=KubeletSettings(unit="another-kubelet.service", settle_seconds=1))
    asked = replace(request(payload, Mode.REMOVE), settings=others)
    assert inspect(asked, node.fake.host).plan.kubelet_unit == KUBELET
    with nullcontext() if record else pytest.raises(UnservableHostError, match="the record is missing"):
        reconcile(asked, node.fake.host, silent)
    assert (node.on_relay, node.proxy_runs, node.kubelet_healthy()) == (False, False, True)
    assert node.read(DROP_IN) is None


@rule("R4")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            f"containerRuntimeEndpoint: {paths.RELAY_ENDPOINT}",
            "names the relay, or our link to it, as kubelet's endpoint",
        ),
        ("containerRuntimeEndpoint: {{{", "not YAML"),
    ],
)
def test_a_removal_is_refused_while_kubelets_own_configuration_leaves_it_no_runtime(
    configured: Node, payload: Path, text: str, why: str
) -> None:
    """kubelet's healthz would stay ok for minutes after the proxy is gone."""
    install(configured, payload)
    write(configured, CONFIG, text.encode())
    before = every_file(configured)
    with pytest.raises(UnservableHostError, match=why):
        remove(configured, payload)
    assert every_file(configured) == before
    write(configured, CONFIG, CONFIGURED)
    remove(configured, payload)
    assert not configured.on_relay


@rule("R14")
def test_containers_get_their_cpus_back_also_if_kubelet_does_not_run(configured: Node, payload: Path) -> None:
    """Only its command line tells where its configuration is, and so its endpoint."""
    install(configured, payload)
    pinned = CgroupState("0", "0", "0-3", "0", shares=2)
    created = CpuResources(shares=512)
    cri = configured.fake.cri
    cri.running = (RunningContainer("aaaa", "app", "pod", "default", False, created=created, cgroup=pinned),)
    configured.systemd.stop(KUBELET, 0)
    reconcile(request(payload, Mode.REMOVE), configured.fake.host, silent)
    assert [one.cgroup for one in cri.running] == [replace(pinned, cpus="0-3", shares=512)]


@rule("R6")
def test_an_original_comes_back_although_somebody_has_deleted_its_directory(
    node: Node, payload: Path
) -> None:
    install(node, payload)
    shutil.rmtree(node.fake.root / "etc/cri-resmgr")
    remove(node, payload)
    assert node.read(paths.FALLBACK_CONFIG) == THEIRS
    assert node.read(paths.RECORD) is None


def test_a_run_that_has_nothing_to_do_needs_nothing_that_changes_a_host(
    node: Node, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install(node, payload)
    monkeypatch.setitem(sys.modules, "installer.node.carry_out", None)
    assert not install(node, payload)
    assert not inspect(request(payload), node.fake.host).plan.steps


def test_what_has_proven_good_is_not_checked_again(node: Node, payload: Path, tmp_path: Path) -> None:
    """A machine where the check takes long repairs a deleted guard at once all the same."""
    assert install(node, payload)
    asked = len(node.fake.validator.calls)
    node.fake.files.remove(paths.GUARD)
    assert install(node, payload)
    assert node.read(paths.GUARD) is not None
    assert len(node.fake.validator.calls) == asked

    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fallback.cfg").write_text("policy:\n  Active: none\nlogger:\n  Debug: cri\n")
    node.fake.validator.complaint = lambda config: "F: no" if b"Debug" in config else ""
    with pytest.raises(InvalidInputError, match=r"fallback\.cfg: cri-resmgr refuses it: F: no"):
        reconcile(replace(request(payload), configs=tmp_path / "configs"), node.fake.host, silent)


@rule("R6")
@pytest.mark.parametrize("content", [b"# one line more\n", b""], ids=["edited", "replaced"])
def test_an_edited_drop_in_of_a_renamed_node_is_removed(node: Node, payload: Path, content: bytes) -> None:
    """Node safety decides: with the drop-in left there, kubelet would stay on a relay that goes."""
    assert install(node, payload)
    assert node.on_relay
    text = (node.read(DROP_IN) or b"") + content if content else b"[Service]\nEnvironment=SITE=1\n"
    write(node, DROP_IN, text)
    rename(node)
    remove(node, payload)
    assert node.read(DROP_IN) is None
    assert not node.on_relay
    assert edited(node) == [text]


@rule("R6")
@pytest.mark.parametrize("with_header", [True, False])
def test_an_original_outlives_a_new_name_and_an_edit(node: Node, payload: Path, with_header: bool) -> None:
    """What the operator had at our path before us is given back, or kept where people find it."""
    assert install(node, payload)
    ours = (node.read(paths.FALLBACK_CONFIG) or b"").partition(b"\n")
    write(
        node, paths.FALLBACK_CONFIG, (ours[0] + ours[1] if with_header else b"") + b"policy: {Active: none}\n"
    )
    rename(node)
    assert install(node, payload)
    remove(node, payload)
    if with_header:
        assert node.read(paths.FALLBACK_CONFIG) == THEIRS
    assert THEIRS in (*edited(node), node.read(paths.FALLBACK_CONFIG))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_host_that_cannot_be_read_is_refused(node: Node, payload: Path, mode: Mode) -> None:
    class Sick(type(node.fake.files)):  # type: ignore[misc]
        def state(self, path: str, known: KnownDigest | None = None) -> FileState:
            if path == paths.GUARD:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            state: FileState = super().state(path, known)
            return state

    node.fake.files.__class__ = Sick
    with pytest.raises(UnservableHostError, match="Input/output error") as refused:
        inspect(request(payload, mode), node.fake.host)
    assert "dmesg" in refused.value.hint


def test_a_kubelet_whose_unit_files_are_gone_is_refused(node: Node, payload: Path) -> None:
    for path in ("/etc/systemd/system/kubelet.service", f"/etc/systemd/system/{KUBELET}.d/10-kubeadm.conf"):
        (node.fake.root / path[1:]).unlink()
    plan = inspect(request(payload), node.fake.host).plan
    assert [finding.code for finding in plan.refusals] == ["kubelet-unit-unreadable"]
    with pytest.raises(UnservableHostError, match="none of its unit files can be read"):
        install(node, payload)


# -- what is good, while what is new is refused -------------------------------------------------


def broken_configs(directory: Path) -> Path:
    directory.mkdir()
    (directory / "fallback.cfg").write_text("policy: {Active: nonsense}\n")
    return directory


@rule("R13")
@pytest.mark.parametrize("what", ["configs", "payload", "binary's own check", "preflight"])
def test_an_unattended_run_repairs_what_is_good_before_it_refuses_what_is_new(
    node: Node, payload: Path, tmp_path: Path, what: str
) -> None:
    assert install(node, payload)
    asked = request(payload, unattended=True)
    if what == "configs":
        asked = replace(asked, configs=broken_configs(tmp_path / "configs"))
    elif what == "payload":
        (payload / paths.BINARY[1:]).write_bytes(b"")
    elif what == "preflight":
        arm = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 2, 183)
        (payload / paths.BINARY[1:]).write_bytes(arm.ljust(4096, b"\0"))
    else:
        (payload / paths.BINARY[1:]).write_bytes(program("another"))
        node.fake.validator.complaint = "F: it does not start"
    for path in (paths.GUARD, DROP_IN):
        node.fake.files.remove(path)
    said: list[Event] = []
    with pytest.raises((InvalidInputError, UnservableHostError)) as refused:
        reconcile(asked, node.fake.host, said.append)
    assert node.read(paths.GUARD)
    assert node.read(DROP_IN)
    assert node.on_relay
    assert "good.repaired" in [event.kind for event in said]
    assert "the last good generation was repaired" in refused.value.hint
    before = every_file(node)
    with pytest.raises((InvalidInputError, UnservableHostError)) as refused:
        reconcile(asked, node.fake.host, said.append)
    assert every_file(node) == before
    assert "was repaired" not in refused.value.hint


@rule("R3", "R13")
@pytest.mark.parametrize("how", ["deleted", "edited"])
def test_an_edit_of_kubelets_unit_that_waits_stops_no_repair_of_the_proxy(
    node: Node, payload: Path, how: str
) -> None:
    """Nothing is reloaded, which would make that edit live, and kubelet stays as it is."""
    assert install(node, payload)
    kubelet = node.process(KUBELET)
    node.systemd.units[KUBELET] = replace(node.systemd.unit(KUBELET), need_daemon_reload=True)
    good = node.read(paths.FALLBACK_CONFIG)
    node.fake.files.remove(paths.FALLBACK_CONFIG)
    if how == "edited":
        node.fake.files.write(paths.FALLBACK_CONFIG, THEIRS, 0o644)
    node.fake.calls.clear()
    with pytest.raises(UnservableHostError, match="daemon-reload is pending") as refused:
        install(node, payload, unattended=True)
    assert node.read(paths.FALLBACK_CONFIG) == good
    assert "was repaired" in refused.value.hint
    assert node.process(KUBELET) == kubelet
    did = [(call.method, call.target) for call in node.fake.calls]
    assert ("daemon_reload", "") not in did
    assert (("restart", paths.PROXY_UNIT) in did) is (how == "edited")
    with pytest.raises(UnservableHostError):
        install(node, payload)  # by hand nothing is touched


def test_a_hold_of_the_daemon_ends_also_while_new_inputs_are_refused(
    node: Node, payload: Path, tmp_path: Path
) -> None:
    assert install(node, payload)
    asked = request(payload, unattended=True)
    hold_kubelet(SETTINGS, node.fake.host, silent, f"{hold.BY_DAEMON}the relay was silent", restart=True)
    assert not node.on_relay
    asked = replace(asked, configs=broken_configs(tmp_path / "configs"))
    with pytest.raises(InvalidInputError):
        reconcile(asked, node.fake.host, silent)
    assert node.read(paths.HOLD) is None
    assert node.on_relay


def test_while_planned_work_waits_files_of_the_good_generation_are_repaired(
    node: Node, payload: Path, tmp_path: Path
) -> None:
    """A rollout may be paused or stopped for days; what restarts kubelet waits as well."""
    assert install(node, payload)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fallback.cfg").write_bytes(THEIRS)
    new = replace(request(payload), configs=tmp_path / "configs")
    asked = planned(new, node)
    assert asked
    for path in (paths.GUARD, DROP_IN):
        node.fake.files.remove(path)
    assert planned(new, node) == asked
    assert node.read(paths.GUARD)
    assert node.read(DROP_IN)
    before = every_file(node)
    assert planned(new, node) == asked
    assert every_file(node) == before

    pid = node.systemd.unit(KUBELET).main_pid
    node.systemd.stop(paths.PROXY_UNIT, 1.0)
    assert planned(new, node) == asked
    assert node.on_relay
    assert node.systemd.unit(KUBELET).main_pid == pid


def test_a_repair_that_fails_keeps_no_node_from_asking_for_its_permit(
    node: Node, payload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install(node, payload)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fallback.cfg").write_bytes(THEIRS)
    new = replace(request(payload), configs=tmp_path / "configs")
    asked = planned(new, node)
    node.fake.files.remove(paths.GUARD)

    def full(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(node.fake.files, "write", full)
    assert planned(new, node) == asked
    assert node.read(paths.GUARD) is None


def test_a_run_by_hand_that_is_refused_touches_nothing(node: Node, payload: Path, tmp_path: Path) -> None:
    assert install(node, payload)
    node.fake.files.remove(paths.GUARD)
    asked = replace(request(payload), configs=broken_configs(tmp_path / "configs"))
    with pytest.raises(InvalidInputError):
        reconcile(asked, node.fake.host, silent)
    assert node.read(paths.GUARD) is None


@pytest.mark.parametrize("why", ["pause", "hold", "nothing is good"])
def test_what_is_good_stays_as_it_is(node: Node, payload: Path, tmp_path: Path, why: str) -> None:
    if why != "nothing is good":
        assert install(node, payload)
        node.fake.files.remove(paths.GUARD)
    if why == "pause":
        node.fake.files.write(PAUSE_FILE, b"", 0o644)
    elif why == "hold":
        node.fake.files.write(paths.HOLD, OPERATORS.encode(), 0o644)
    asked = replace(request(payload, unattended=True), configs=broken_configs(tmp_path / "configs"))
    with pytest.raises((InvalidInputError, UnservableHostError)):
        reconcile(asked, node.fake.host, silent)
    assert node.read(paths.GUARD) is None


# -- the cause of a failure ----------------------------------------------------------------------


@rule("R13")
def test_the_cause_is_named_though_journald_takes_it_late(node: Node, payload: Path) -> None:
    assert install(node, payload)
    (payload / paths.BINARY[1:]).write_bytes(program("another", works=False))
    node.fake.journal.unsaid.append((paths.PROXY_UNIT, "F: failed to activate the policy"))
    with pytest.raises(RolledBackError, match="F: failed to activate the policy"):
        install(node, payload)


# -- configs that are forgotten -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fallback.cfg", "policy: {Active: none}\n"),
        ("force.cfg", "policy: {Active: none}\n"),
        ("EXTRA_OPTIONS.cfg", "EXTRA_OPTIONS=--disable-ui\n"),
    ],
)
def test_forgotten_configs_are_asked_for(
    node: Node, payload: Path, tmp_path: Path, name: str, text: str
) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / name).write_text(text)
    given = replace(request(payload), configs=configs)
    assert reconcile(given, node.fake.host, silent).changed
    for ask in (inspect, lambda asked, host: reconcile(asked, host, silent)):
        with pytest.raises(InvalidInputError, match=f"--configs is missing.*{name}") as caught:
            ask(request(payload), node.fake.host)
        assert "--default-configs" in caught.value.hint
    assert reconcile(replace(request(payload), default_configs=True), node.fake.host, silent)
    assert not install(node, payload)


def said_of_configs(asked: Request, node: Node) -> list[str]:
    return [f.message for f in inspect(asked, node.fake.host).plan.warnings if f.code == "configs-empty"]


@pytest.mark.parametrize("unattended", [False, True])
def test_an_empty_directory_of_configs_is_no_configs_and_says_so(
    node: Node, payload: Path, tmp_path: Path, unattended: bool
) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    given = replace(request(payload, unattended=unattended), configs=configs)
    (node.fake.root / paths.FALLBACK_CONFIG[1:]).unlink(missing_ok=True)
    what = f"--configs {configs} is empty, which means no configs: the policy none"
    assert said_of_configs(given, node) == []
    (configs / "fallback.cfg").write_text("policy: {Active: none}\nlogger: {Debug: cri}\n")
    assert reconcile(given, node.fake.host, silent).changed
    assert said_of_configs(given, node) == []
    (configs / "fallback.cfg").unlink()
    assert said_of_configs(given, node) == [f"{what}. This node had others: {paths.FALLBACK_CONFIG}"]
    assert reconcile(given, node.fake.host, silent).changed
    assert said_of_configs(given, node) == []


def test_whoever_never_gave_configs_is_not_asked_for_them(node: Node, payload: Path) -> None:
    assert install(node, payload)
    assert not install(node, payload)


def test_a_removal_needs_no_configs(node: Node, payload: Path, tmp_path: Path) -> None:
    (tmp_path / "fallback.cfg").write_text("policy: {Active: balloons}\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "fallback.cfg").rename(tmp_path / "configs/fallback.cfg")
    assert reconcile(replace(request(payload), configs=tmp_path / "configs"), node.fake.host, silent)
    remove(node, payload)
    assert not node.on_relay


# -- an operator's hold ------------------------------------------------------------------------


@pytest.fixture
def held(node: Node, payload: Path) -> Node:
    """Installed, then held by an operator: kubelet is on its base endpoint."""
    assert install(node, payload)
    write(node, paths.HOLD, OPERATORS.encode() + b"\n")
    node.systemd.restart(KUBELET, 0)
    assert not node.on_relay
    return node


@pytest.mark.parametrize("place", paths.HOLDS)
def test_nobody_but_a_person_ends_a_persons_hold(held: Node, payload: Path, place: str) -> None:
    """Also one that is in /run, because the disk takes no file."""
    held.fake.files.remove(paths.HOLD)
    held.fake.files.make_directory(paths.OUR_RUNTIME)
    held.fake.files.write(place, OPERATORS.encode() + b"\n", 0o644)
    with pytest.raises(KubeletKeptError, match=OPERATORS) as kept:
        install(held, payload, unattended=True)
    assert place in kept.value.hint
    assert (held.read(place), held.on_relay) == (OPERATORS.encode() + b"\n", False)
    assert install(held, payload)
    assert (held.read(place), held.on_relay) == (None, True)


def test_a_persons_hold_that_kubelet_has_not_met_yet_stays_and_files_are_repaired(
    node: Node, payload: Path
) -> None:
    """It counts from kubelet's next start on."""
    assert install(node, payload)
    write(node, paths.HOLD, OPERATORS.encode() + b"\n")
    node.fake.files.remove(paths.GUARD)
    assert install(node, payload, unattended=True)
    assert (node.read(paths.HOLD), node.on_relay) == (OPERATORS.encode() + b"\n", True)
    assert node.read(paths.GUARD) is not None


@rule("R8")
def test_a_bug_in_the_middle_of_a_plan_is_rolled_back_like_any_failure(node: Node, payload: Path) -> None:
    before = every_file(node)
    node.systemd.errors["restart", paths.PROXY_UNIT] = KeyError("a bug")
    with pytest.raises(RolledBackError, match=r"KeyError: 'a bug' \(.*py:.* please report it\)"):
        install(node, payload)
    left = {path for path in every_file(node) if paths.OUR_STATE not in str(path)}
    assert left == set(before)


@rule("R8")
def test_a_persons_hold_stays_if_an_install_fails_before_it_would_end_it(held: Node, payload: Path) -> None:
    held.fake.files.remove(DROP_IN)
    kept, full = held.fake.files.fail, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), DROP_IN)

    def fail_once(method: str, path: str) -> None:
        if (method, path) == ("write", DROP_IN):
            held.fake.files.fail = kept
            raise full

    held.fake.files.fail = fail_once
    with pytest.raises(RolledBackError) as failure:
        install(held, payload)
    assert f"is in place again, but an operator still holds kubelet on its base endpoint: {OPERATORS}" in (
        failure.value.hint
    )
    assert (held.read(paths.HOLD), held.on_relay) == (OPERATORS.encode() + b"\n", False)
    assert install(held, payload)
    assert (held.read(paths.HOLD), held.on_relay) == (None, True)


def test_a_hold_of_our_own_is_ended_unattended(held: Node, payload: Path) -> None:
    write(held, paths.HOLD, hold.BY_DAEMON.encode() + b"the relay has been silent for 20 s\n")
    assert install(held, payload, unattended=True)
    assert held.on_relay


BY_FILE = (
    PAUSE_FILE,
    b"Kim replaces the disk\nand more\n",
    "/etc/cri-resmgr/pause exists (Kim replaces the disk)",
)
BY_ANNOTATION = (CLUSTER_MEMORY, b'{"paused": true, "uid": "u"}', "it has the annotation")


@pytest.mark.parametrize(("path", "content", "why"), [BY_FILE, BY_ANNOTATION])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("installed", [True, False])
def test_a_pause_counts_for_people_too(
    node: Node, payload: Path, installed: bool, mode: Mode, path: str, content: bytes, why: str
) -> None:
    """Also where there is nothing to do: whoever asks has to know."""
    if installed:
        install(node, payload)
    host = node.fake.host
    (node.fake.root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    write(node, path, content)
    before = every_file(node)
    with pytest.raises(UnservableHostError, match="this node is paused") as refused:
        reconcile(request(payload, mode), host, silent)
    assert why in str(refused.value)
    assert "--despite-pause" in refused.value.hint
    assert every_file(node) == before
    seen = inspect(request(payload, mode), host)  # `plan` and `status` say it, and show what would be done
    assert [finding.code for finding in seen.plan.warnings] == ["paused"]
    assert bool(seen.plan.steps) is (installed is (mode is Mode.REMOVE))
    reconcile(replace(request(payload, mode), consent=Consent(despite_pause=True)), host, silent)
    assert not inspect(request(payload, mode), host).plan.steps


@pytest.mark.parametrize("memory", [b"", b"{torn", b"[]", b'{"paused": false}', b'{"paused": "yes"}'])
def test_what_the_api_server_has_not_said_is_no_pause(memory: bytes) -> None:
    assert not why_paused(None, memory)


@pytest.mark.parametrize("place", paths.HOLDS)
def test_whatever_is_at_the_path_of_a_hold_holds(node: Node, payload: Path, place: str) -> None:
    """A directory, as for the guard, though no run would make one."""
    assert install(node, payload)
    odd = node.fake.root / place[1:]
    (odd / "in it").mkdir(parents=True)
    node.systemd.restart(KUBELET, 0)
    with pytest.raises(KubeletKeptError, match="no reason given"):
        install(node, payload, unattended=True)
    assert install(node, payload)
    assert (odd.exists(), node.on_relay) == (False, True)
    odd.mkdir(parents=True)
    remove(node, payload)
    assert not odd.exists()


@rule("R4")
def test_neither_a_broken_disk_nor_what_is_in_the_way_keep_a_rescue_from_its_work(
    node: Node, payload: Path, mocker: Any
) -> None:
    assert install(node, payload)
    (node.fake.root / paths.RELAY_FAILURES[1:]).mkdir(parents=True)
    status, read = node.fake.files.status, node.fake.files.read
    broken = OSError(errno.EIO, os.strerror(errno.EIO))

    def sick(right: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: str, *more: Any, **named: Any) -> Any:
            if path == paths.HOLD:
                raise broken
            return right(path, *more, **named)

        return look

    mocker.patch.object(node.fake.files, "status", sick(status))
    mocker.patch.object(node.fake.files, "read", sick(read))
    hold_kubelet(SETTINGS, node.fake.host, silent, f"{hold.BY_DAEMON}the relay is silent", restart=True)
    assert not node.on_relay


def test_a_rescue_keeps_the_reason_of_a_person(held: Node) -> None:
    hold_kubelet(SETTINGS, held.fake.host, silent, f"{hold.BY_DAEMON}the relay is silent", restart=True)
    assert held.read(paths.HOLD) == OPERATORS.encode() + b"\n"


@rule("R4")
def test_a_rescue_holds_kubelet_and_takes_it_off_the_relay(node: Node, payload: Path) -> None:
    assert install(node, payload)
    reason, record = f"{hold.BY_DAEMON}the relay is silent", node.read(paths.RECORD)
    hold_kubelet(SETTINGS, node.fake.host, silent, reason, restart=True)
    assert (node.read(paths.HOLD), node.on_relay) == (reason.encode() + b"\n", False)
    assert node.read(paths.RECORD) == record


@rule("R4")
@pytest.mark.parametrize("taken", [paths.HOLDS[1:], ()], ids=["below /run", "nowhere"])
def test_a_disk_that_takes_no_hold_does_not_keep_kubelet_on_a_dead_relay(
    node: Node, payload: Path, taken: tuple[str, ...]
) -> None:
    assert install(node, payload)

    def full(method: str, path: str) -> None:
        if method == "write" and path in paths.HOLDS and path not in taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    node.fake.files.fail = full
    proxy = node.systemd.units[paths.PROXY_UNIT]
    node.systemd.units[paths.PROXY_UNIT] = replace(proxy, main_pid=0, active_state="failed")
    said: list[Event] = []
    hold_kubelet(SETTINGS, node.fake.host, said.append, "run: the relay is silent", restart=True)
    assert not node.on_relay
    assert [event.data["code"] for event in said if event.kind == "warning"] == ["hold-unwritten"]
    assert node.read(paths.HOLDS[1]) == (b"run: the relay is silent\n" if taken else None)
    assert ("hold.set" in [event.kind for event in said]) is bool(taken)
    with pytest.raises(RollbackFailedError, match="No space left"):
        hold_kubelet(SETTINGS, node.fake.host, silent, "run: not now", restart=False)


@rule("R4")
def test_a_rescue_does_not_need_the_disk_that_our_directory_was_moved_to(node: Node, payload: Path) -> None:
    """It is not mounted."""
    assert install(node, payload)
    ours = node.fake.root / paths.OUR_STATE[1:]
    ours.rename(node.fake.root / "moved")
    ours.symlink_to("/data/ours")
    hold_kubelet(SETTINGS, node.fake.host, silent, "run: the relay is silent", restart=True)
    assert not node.on_relay
    assert node.read(paths.HOLDS[1]) is not None


def test_a_proxy_restart_that_failed_is_not_called_one(node: Node, payload: Path) -> None:
    assert install(node, payload)
    said: list[Event] = []
    restart_proxy(SETTINGS, node.fake.host, said.append)
    node.fake.systemd.errors["restart", paths.PROXY_UNIT] = SystemdError("not done after 10 s")
    restart_proxy(SETTINGS, node.fake.host, said.append)
    assert [event.kind for event in said] == ["proxy.restarted", "proxy.restart.failed"]
    assert "not done after 10 s" in said[1].message


def test_a_proxy_that_cannot_be_restarted_for_lack_of_descriptors_has_no_cache_to_blame(node: Node) -> None:
    def lack(name: str) -> None:
        assert name == paths.PROXY_UNIT
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    node.fake.systemd.reset_failed = lack  # type: ignore[method-assign]
    said: list[Event] = []
    restart_proxy(SETTINGS, node.fake.host, said.append)
    assert [event.kind for event in said] == ["proxy.restart.failed"]
    assert "Too many open files" in said[0].message
    assert "cache" not in said[0].message


@rule("R12")
@pytest.mark.parametrize("refused", [False, True])
def test_r12_a_restart_of_a_proxy_that_no_torn_cache_lets_start_sets_that_aside(
    node: Node, payload: Path, refused: bool
) -> None:
    assert install(node, payload)
    cache = node.fake.root / paths.PROXY_CACHE[1:]
    said: list[Event] = []
    restart_proxy(SETTINGS, node.fake.host, said.append)
    cache.write_bytes(CACHE[:-1])

    def fail(method: str, path: str) -> None:
        if refused and (method, path) == ("write", paths.TORN_CACHE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    node.fake.files.fail = fail
    restart_proxy(SETTINGS, node.fake.host, said.append)
    kinds = ["proxy.restarted", *(["proxy.restart.failed"] if refused else ["cache.kept", "proxy.restarted"])]
    assert [event.kind for event in said] == kinds
    assert (node.read(paths.TORN_CACHE) == CACHE[:-1]) is not refused
    assert (node.read(paths.PROXY_CACHE) == CACHE[:-1]) is refused


def test_a_run_knows_where_kubelet_keeps_its_state(node: Node, payload: Path) -> None:
    process = node.process(KUBELET)
    assert process is not None
    moved = replace(process, argv=(*process.argv, "--root-dir=/data/kubelet"))
    node.fake.processes.processes[process.pid] = moved
    found = assess_host(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host)
    assert found.run.host.kubelet_root == "/data/kubelet"


# -- what failed once --------------------------------------------------------------------


def test_a_generation_that_failed_stays_out_and_the_good_one_is_repaired(node: Node, payload: Path) -> None:
    assert install(node, payload)
    binary = payload / paths.BINARY[1:]
    binary.write_bytes(program("two", works=False))
    with pytest.raises(RolledBackError, match=paths.PROXY_UNIT):
        install(node, payload)
    write(node, paths.FALLBACK_CONFIG, b"edited")
    with pytest.raises(RolledBackError, match="is not retried") as again:
        install(node, payload)
    assert again.value.fleet_generation  # so that the fleet can be told of it
    assert node.read(paths.FALLBACK_CONFIG) != b"edited"
    assert b"one" in (node.read(paths.BINARY) or b"")
    assert node.on_relay


def test_what_got_no_selinux_label_is_said(node: Node, payload: Path) -> None:
    node.fake.host.files.unlabelled.append("/opt/intel: Operation not permitted")
    said: list[Event] = []
    reconcile(request(payload), node.fake.host, said.append)
    (warning,) = (event for event in said if event.data.get("code") == "selinux-label")
    assert "/opt/intel: Operation not permitted" in warning.message


def test_a_rehearsal_ends_as_the_run_would(node: Node, payload: Path) -> None:
    """Remembered failures and the binary's own check: what decides in a run decides in its plan."""
    assert install(node, payload)
    assert preview(request(payload), node.fake.host)[1] is None
    (payload / paths.BINARY[1:]).write_bytes(program("two", works=False))
    with pytest.raises(RolledBackError):
        install(node, payload)
    write(node, paths.FALLBACK_CONFIG, b"edited")
    planned, error = preview(request(payload), node.fake.host)
    with pytest.raises(RolledBackError) as ended:
        install(node, payload)
    assert error is not None
    assert (error.message, error.hint) == (ended.value.message, ended.value.hint)
    assert {change.path for change in planned.plan.changes.files} == {
        paths.FALLBACK_CONFIG
    }  # of the good generation, not of the one that failed
    again, error = preview(replace(request(payload), consent=Consent(retry=True)), node.fake.host)
    assert (error, again.plan.changes.unit(Part.PROXY) is not None) == (None, True)


def test_a_rehearsal_asks_the_binary_about_the_configs(node: Node, payload: Path) -> None:
    node.fake.validator.complaint = lambda config: "F: unknown field" if config else ""
    asked = replace(request(payload), configs=payload.parent / "configs")
    assert asked.configs is not None
    asked.configs.mkdir()
    (asked.configs / "fallback.cfg").write_text("policy: {Active: none}\n")
    planned, error = preview(asked, node.fake.host)
    assert planned.plan.steps
    assert isinstance(error, InvalidInputError)
    with pytest.raises(InvalidInputError) as ended:
        reconcile(asked, node.fake.host, silent)
    assert error.faults == ended.value.faults


# -- the history -------------------------------------------------------------------------


def history(node: Node) -> tuple[HistoryEntry, ...]:
    return read_history(node.fake.journal, 20).entries


def test_a_run_that_changed_something_is_remembered_and_no_other(node: Node, payload: Path) -> None:
    asked = replace(request(payload), mandate=Mandate("alice"))
    assert reconcile(asked, node.fake.host, silent).changed
    assert not reconcile(asked, node.fake.host, silent).changed
    (entry,) = history(node)
    assert (entry.who, entry.action, entry.outcome) == ("alice", "install", "done")
    assert "cri-resource-manager started, kubelet restarted" in entry.summary
    assert f"{KUBELET}: it runs on its base endpoint, not on the relay" in entry.why
    assert entry.generation == inspect(asked, node.fake.host).plan.desired.generation
    remove(node, payload)
    assert [(each.action, each.generation != "") for each in history(node)] == [
        ("install", True),
        ("remove", False),
    ]


def test_a_failed_run_is_remembered_with_its_end(node: Node, payload: Path) -> None:
    assert install(node, payload)
    (payload / paths.BINARY[1:]).write_bytes(program("two", works=False))
    with pytest.raises(RolledBackError) as failed:
        install(node, payload)
    entry = history(node)[-1]
    assert entry.outcome == f"exit 5: {failed.value.message.splitlines()[0]}"


def test_what_the_daemon_did_says_what_for(node: Node, payload: Path) -> None:
    asked = replace(request(payload), mandate=Mandate(DAEMON, "a file has changed", unattended=True))
    assert reconcile(asked, node.fake.host, silent).changed
    assert (history(node)[-1].who, history(node)[-1].why[0]) == (DAEMON, "a file has changed")
    hold_kubelet(SETTINGS, node.fake.host, silent, "run: the relay is silent", restart=True)
    entry = history(node)[-1]
    assert (entry.action, entry.who, entry.why) == ("hold", DAEMON, ("run: the relay is silent",))
    assert "kubelet restarts" in entry.summary


def test_entries_of_another_user_are_not_believed_and_hide_none_of_ours(node: Node, payload: Path) -> None:
    assert install(node, payload)
    node.fake.journal.uid = 1000
    for _ in range(1000):
        node.fake.journal.write(node.fake.journal.written[0])
    assert len(history(node)) == 1


# -- looking without inputs ----------------------------------------------------------------


def test_a_look_without_inputs_compares_with_what_was_installed(
    node: Node, payload: Path, tmp_path: Path
) -> None:
    """An operator at the node has neither the payload nor the configs at hand."""
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "fallback.cfg").write_text("policy: {Active: none}\nlogger: {Debug: x}\n")
    given = replace(request(payload), configs=configs)
    bare = replace(request(payload), payload=None, inspect=True)
    seen = inspect(bare, node.fake.host)
    assert (seen.as_installed, seen.plan.steps, seen.plan.desired.files) == (True, (), ())
    assert reconcile(given, node.fake.host, silent).changed
    for asked in (bare, replace(request(payload), inspect=True)):  # the configs are forgotten
        seen = inspect(asked, node.fake.host)
        assert (seen.as_installed, seen.plan.steps) == (True, ())
        assert seen.plan.desired.generation == inspect(given, node.fake.host).plan.desired.generation
    write(node, paths.FALLBACK_CONFIG, b"edited")
    assert [change.path for change in inspect(bare, node.fake.host).plan.changes.files] == [
        paths.FALLBACK_CONFIG
    ]
    assert not inspect(replace(given, inspect=True), node.fake.host).as_installed


def test_a_plan_names_the_pods_whose_requests_an_autoscaler_sets(node: Node, payload: Path) -> None:
    node.fake.kubelets = dict.fromkeys(("/usr/bin/kubelet", "/opt/bin/kubelet"), "1.36.2")
    node.fake.cri.ready_pods = {
        "1": ReadyPod("default/scaled", 0.0, autoscaled=True),
        "2": ReadyPod("default/other", 0.0),
    }
    found = {each.code: each.message for each in inspect(request(payload), node.fake.host).plan.findings}
    assert "sets the requests of default/scaled" in found["in-place-resize"]
    assert "default/other" not in found["in-place-resize"]


def test_what_versions_mean_is_said_when_kubelet_moves(node: Node, payload: Path) -> None:
    """And what upstream says of its own end, once."""
    node.fake.kubelets = dict.fromkeys(("/usr/bin/kubelet", "/opt/bin/kubelet"), "1.38.1")
    (payload / "VERSION").write_text("v0.8.4\n")
    with pytest.raises(UnservableHostError, match="RuntimeConfig"):
        install(node, payload)

    (payload / "VERSION").write_text("v0.9.2\n")
    said: list[Event] = []
    assert reconcile(request(payload), node.fake.host, said.append).changed
    codes = [event.data["code"] for event in said if event.kind == "warning"]
    assert codes == ["in-place-resize", "newer-cri", "upstream-unmaintained"]
    said.clear()
    assert not reconcile(request(payload), node.fake.host, said.append).changed
    node.fake.files.remove(paths.GUARD)
    assert reconcile(request(payload), node.fake.host, said.append).changed
    assert not [event for event in said if event.kind == "warning"]
