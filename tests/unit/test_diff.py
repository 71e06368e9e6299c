"""What differs, and the mildest action that mends it: R2, R3 and the derived restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.model import paths
from installer.model.host import (
    ABSENT,
    FileState,
    HostSnapshot,
    Kind,
    Part,
    ProcessState,
    UnitState,
)
from installer.model.plan import Desired, UnitAction, Verb
from installer.node.diff import diff
from installer.node.record import Owned, Record
from tests.lib.converged import (
    CONVERGED,
    DESIRED,
    DROP_IN,
    FILES,
    KUBELET,
    PROXY,
    RECORD,
    process,
    there,
    wanted,
)
from tests.lib.rules import rule
from tests.lib.snapshots import BASE, but

UNIT_OF_KUBELET = "/etc/systemd/system/kubelet.service"


def with_file(path: str, state: FileState) -> HostSnapshot:
    return but(CONVERGED, files={**CONVERGED.files, path: state})


def actions(
    snapshot: HostSnapshot, record: Record = RECORD, desired: Desired = DESIRED
) -> tuple[UnitAction, UnitAction]:
    changes = diff(desired, snapshot, record)
    found = [changes.unit(part) for part in (Part.PROXY, Part.KUBELET)]
    proxy, kubelet = (change.action if change else UnitAction.NOTHING for change in found)
    return proxy, kubelet


@rule("R2")
def test_r2_a_converged_host_has_no_difference() -> None:
    assert not diff(DESIRED, CONVERGED, RECORD)


def test_a_bare_host_needs_every_file_and_both_units() -> None:
    bare = but(
        CONVERGED,
        files={},
        proxy=UnitState(paths.PROXY_UNIT),
        proxy_process=None,
        kubelet_process=process(""),
        kubelet=replace(CONVERGED.kubelet.unit, environment=()),
        relay_answers=False,
        on_relay=False,
    )
    changes = diff(DESIRED, bare, Record())
    assert {change.verb for change in changes.files} == {Verb.CREATE}
    assert [change.path for change in changes.files] == [file.path for file in FILES]
    proxy, kubelet = changes.units
    assert (proxy.action, proxy.daemon_reload, proxy.disable) == (UnitAction.RESTART, True, False)
    assert (kubelet.action, kubelet.daemon_reload) == (UnitAction.RESTART, True)


@rule("R3")
def test_r3_a_new_fallback_restarts_only_the_proxy() -> None:
    desired = replace(
        DESIRED,
        files=(*FILES[:2], wanted(paths.FALLBACK_CONFIG, b"new", Part.PROXY), *FILES[3:]),
        proxy=replace(PROXY, generation="g1b"),
    )
    assert actions(CONVERGED, desired=desired) == (UnitAction.RESTART, UnitAction.NOTHING)
    [unit] = diff(desired, CONVERGED, RECORD).units
    assert unit.why == (f"{paths.FALLBACK_CONFIG} changed",)
    assert not unit.daemon_reload


@rule("R7")
def test_r7_a_restart_that_was_cut_off_is_derived_from_the_running_process() -> None:
    assert actions(but(CONVERGED, proxy_process=process("pending-1"))) == (
        UnitAction.RESTART,
        UnitAction.NOTHING,
    )
    assert actions(but(CONVERGED, kubelet_process=process("pending-1"))) == (
        UnitAction.NOTHING,
        UnitAction.RESTART,
    )


@rule("R3")
def test_a_unit_text_that_systemd_has_not_loaded_is_reloaded_without_a_restart() -> None:
    stale = but(CONVERGED, kubelet=replace(CONVERGED.kubelet.unit, environment=()))
    [unit] = diff(DESIRED, stale, RECORD).units
    assert (unit.part, unit.action, unit.daemon_reload) == (Part.KUBELET, UnitAction.NOTHING, True)


@pytest.mark.parametrize(
    ("path", "state", "expected"),
    [
        (paths.FALLBACK_CONFIG, there(b"edited"), UnitAction.RESTART),
        (paths.FALLBACK_CONFIG, ABSENT, UnitAction.NOTHING),
        (paths.FALLBACK_CONFIG, there(b"fallback", mode=0o600), UnitAction.NOTHING),
        (paths.FALLBACK_CONFIG, there(b"fallback", uid=1000), UnitAction.NOTHING),
        (paths.GUARD, there(b"edited"), UnitAction.NOTHING),
        (paths.PROXY_ENVIRONMENT, there(b"edited"), UnitAction.NOTHING),
        (DROP_IN, there(b"edited"), UnitAction.NOTHING),
    ],
)
def test_drift_of_a_file_restarts_the_proxy_only_if_it_may_have_read_it(
    path: str, state: FileState, expected: UnitAction
) -> None:
    snapshot = with_file(path, state)
    assert [change.path for change in diff(DESIRED, snapshot, RECORD).files] == [path]
    assert actions(snapshot) == (expected, UnitAction.NOTHING)


@rule("R7")
@pytest.mark.parametrize(
    ("edit", "environ", "expected"),
    [
        ("X=1", {"X": "1"}, UnitAction.RESTART),
        ("X=1", {}, UnitAction.NOTHING),  # edited since its start
        ("# X=1", {}, UnitAction.NOTHING),
    ],
)
def test_r7_a_proxy_that_was_started_from_an_edit_of_its_environment_is_restarted(
    edit: str, environ: dict[str, str], expected: UnitAction
) -> None:
    generation = {paths.GENERATION_VARIABLE: "g1"}
    content = f"{edit}\n{paths.GENERATION_VARIABLE}=g1\n".encode()
    running = ProcessState(7, (), generation | environ)
    snapshot = but(with_file(paths.PROXY_ENVIRONMENT, there(content)), proxy_process=running)
    assert actions(snapshot) == (expected, UnitAction.NOTHING)


@rule("R7")
def test_r7_a_restart_that_only_an_edit_made_necessary_is_owed_until_that_process_ends() -> None:
    owing = replace(RECORD, owed={paths.PROXY_UNIT: "i1"})
    assert actions(CONVERGED, owing) == (UnitAction.RESTART, UnitAction.NOTHING)
    restarted = but(CONVERGED, proxy=replace(CONVERGED.proxy.unit, invocation_id="i9"))
    assert actions(restarted, owing) == (UnitAction.NOTHING, UnitAction.NOTHING)


@rule("R7")
def test_a_new_force_config_is_signalled_once_per_invocation() -> None:
    desired = replace(DESIRED, proxy=replace(PROXY, reload_digest="f2"))
    assert actions(CONVERGED, desired=desired) == (UnitAction.RELOAD, UnitAction.NOTHING)
    assert actions(CONVERGED, replace(RECORD, signalled=("i1", "f2")), desired) == (UnitAction.NOTHING,) * 2
    assert actions(CONVERGED, replace(RECORD, signalled=("i0", "f2")), desired)[0] is UnitAction.RELOAD


def test_a_force_config_that_somebody_edited_is_signalled_again() -> None:
    """They may have signalled the proxy, too: then it runs with theirs."""
    desired = replace(
        DESIRED,
        files=(*FILES, wanted(paths.FORCE_CONFIG, b"forced", Part.PROXY)),
        proxy=replace(PROXY, reload_digest="f2"),
    )
    record = replace(RECORD, signalled=("i1", "f2"))
    assert actions(with_file(paths.FORCE_CONFIG, there(b"forced")), record, desired)[0] is UnitAction.NOTHING
    assert actions(with_file(paths.FORCE_CONFIG, there(b"theirs")), record, desired)[0] is UnitAction.RELOAD
    bare = there(b"forced", mode=0o600)
    assert actions(with_file(paths.FORCE_CONFIG, bare), record, desired)[0] is UnitAction.NOTHING


@rule("R3")
def test_a_silent_relay_restarts_the_proxy_not_kubelet() -> None:
    assert actions(but(CONVERGED, relay_answers=False)) == (UnitAction.RESTART, UnitAction.NOTHING)


def place(**other: Any) -> HostSnapshot:
    """Kubelet is on our link, which leads elsewhere than it should."""
    return replace(CONVERGED, kubelet=replace(CONVERGED.kubelet, **other))


@rule("R3")
@pytest.mark.parametrize(
    "host",
    [
        place(target=BASE),
        place(target=""),
        place(target="/run/other.sock"),
        place(target=BASE, peers=(paths.RELAY_SOCKET,)),  # somebody has moved the link, and not kubelet
        replace(place(peers=(BASE,)), may_be_unknown=True),  # and somebody back
        replace(place(peers=()), may_be_unknown=True),
    ],
)
@pytest.mark.parametrize("movable", [True, False])
def test_a_kubelet_that_is_on_our_link_is_moved_by_it(host: HostSnapshot, movable: bool) -> None:
    """It restarts only where the kernel does not let anybody end its connections."""
    host = replace(host, kubelet=replace(host.kubelet, movable=movable))
    assert actions(host)[1] is (UnitAction.MOVE if movable else UnitAction.RESTART)


@pytest.mark.parametrize(("target", "why"), [(BASE, "its link leads elsewhere"), ("", "its link is missing")])
def test_what_is_wrong_with_the_link_of_a_kubelet_on_the_relay_is_said(target: str, why: str) -> None:
    host = place(target=target, peers=(paths.RELAY_SOCKET,))
    assert diff(DESIRED, host, RECORD).units[-1].why == (why,)


@rule("R3")
@pytest.mark.parametrize(
    "peers", [None, (), (paths.RELAY_SOCKET,), (BASE, paths.RELAY_SOCKET), (BASE,), ("/run/dbus/socket",)]
)
@pytest.mark.parametrize("well", [True, False])
def test_a_kubelet_whose_link_leads_to_the_relay_is_left_alone(
    peers: tuple[str, ...] | None, well: bool
) -> None:
    """Its cadvisor has a connection to the runtime, whoever serves kubelet."""
    host = but(place(peers=peers), kubelet_healthy=well, relay_answers=well)
    assert actions(host)[1] is UnitAction.NOTHING


@pytest.mark.parametrize("part", [Part.PROXY, Part.KUBELET])
def test_a_unit_that_is_stopping_is_not_running(part: Part) -> None:
    is_proxy = part is Part.PROXY
    stopping = replace((CONVERGED.proxy if is_proxy else CONVERGED.kubelet).unit, active_state="deactivating")
    [unit] = diff(DESIRED, but(CONVERGED, **{part.value: stopping}), RECORD).units
    assert (unit.part, unit.action, unit.why) == (part, UnitAction.RESTART, ("it is not running",))


def test_a_kubelet_whose_process_has_just_ended_is_not_running() -> None:
    [unit] = diff(DESIRED, but(CONVERGED, kubelet_process=None, on_relay=False), RECORD).units
    assert (unit.part, unit.why) == (Part.KUBELET, ("it is not running",))


@pytest.mark.parametrize(
    ("kind", "why"), [(Kind.DIRECTORY, "is a directory"), (Kind.OTHER, "is a special file")]
)
def test_whatever_stands_at_the_path_of_a_file_is_named(kind: Kind, why: str) -> None:
    [change] = diff(DESIRED, with_file(paths.FALLBACK_CONFIG, FileState(kind, 0o755)), RECORD).files
    assert (change.verb, change.why) == (Verb.CHANGE, why)


def test_a_deleted_file_of_options_counts_as_read() -> None:
    """A start without it has other options; without any other file it would have failed."""
    options = wanted(paths.EXTRA_OPTIONS, b"--metrics-interval=5s", Part.PROXY)
    desired = replace(DESIRED, files=(*FILES, options))
    assert actions(with_file(paths.EXTRA_OPTIONS, there(b"--metrics-interval=5s")), desired=desired)[0] is (
        UnitAction.NOTHING
    )
    assert actions(CONVERGED, desired=desired)[0] is UnitAction.RESTART


@rule("R8")
@pytest.mark.parametrize(("generation", "expected"), [("g2", UnitAction.RESTART), ("", UnitAction.NOTHING)])
def test_r8_a_kubelet_with_our_lines_restarts_when_an_earlier_installation_returns(
    generation: str, expected: UnitAction
) -> None:
    """Its kubelet carries no generation, whatever its endpoint is."""
    unit = replace(KUBELET.unit, generation="", unit_digest="")
    desired = replace(DESIRED, kubelet=replace(KUBELET, unit=unit))
    host = but(CONVERGED, kubelet_process=process(generation), on_relay=False)
    assert actions(host, desired=desired)[1] is expected


@rule("R8")
@pytest.mark.parametrize(("generation", "restored"), [("", [Verb.RESTORE]), ("g1", [])])
def test_r8_the_links_that_enabled_an_earlier_unit_return_only_with_that_installation(
    generation: str, restored: list[Verb]
) -> None:
    link = FileState(Kind.SYMLINK, 0o777, target=paths.PROXY_UNIT_FILE)
    record = replace(RECORD, owned={**RECORD.owned, paths.PROXY_WANTED: Owned(before=link)})
    desired = replace(DESIRED, proxy=replace(PROXY, generation=generation))
    changes = diff(desired, CONVERGED, record).files
    assert [change.verb for change in changes if change.path == paths.PROXY_WANTED] == restored


@rule("R7")
@pytest.mark.parametrize(("invocation", "expected"), [("i2", UnitAction.RESTART), ("i1", UnitAction.NOTHING)])
def test_r7_a_removal_restarts_a_kubelet_that_read_a_configuration_which_was_repaired_since(
    invocation: str, expected: UnitAction
) -> None:
    owing = replace(RECORD, owed={"kubelet.service": invocation})
    assert actions(but(CONVERGED, on_relay=False), owing, Desired())[1] is expected


@rule("R2")
@pytest.mark.parametrize("needs_reload", [False, True])
def test_a_removal_reloads_for_a_repaired_unit_of_kubelet_only_if_systemd_has_not_read_it(
    needs_reload: bool,
) -> None:
    repaired = Owned(Part.KUBELET, before=there(b"repaired"), wrote=("theirs",))
    unit = replace(CONVERGED.kubelet.unit, environment=(), need_daemon_reload=needs_reload)
    left = but(removed(), kubelet=unit, files={UNIT_OF_KUBELET: repaired.before})
    change = diff(Desired(), left, Record(owned={UNIT_OF_KUBELET: repaired})).unit(Part.KUBELET)
    assert (change is not None and change.daemon_reload) is needs_reload


def test_kubelet_that_the_guard_kept_on_its_base_endpoint_is_moved_back() -> None:
    assert actions(but(CONVERGED, on_relay=False)) == (UnitAction.NOTHING, UnitAction.RESTART)


@rule("R6")
def test_removal_deletes_what_was_ours_and_restores_what_was_there() -> None:
    original = FileState(Kind.FILE, 0o640, 5, 6, 3, "d")
    record = replace(
        RECORD,
        owned={**RECORD.owned, paths.FALLBACK_CONFIG: Owned(before=original, wrote=(FILES[2].digest,))},
    )
    changes = diff(Desired(), but(CONVERGED, proxy_links=LINKS), record)
    verbs = {change.path: change.verb for change in changes.files}
    assert verbs.pop(paths.FALLBACK_CONFIG) is Verb.RESTORE
    assert set(verbs.values()) == {Verb.DELETE}
    proxy, kubelet = (changes.unit(part) for part in (Part.PROXY, Part.KUBELET))
    assert proxy is not None
    assert (proxy.action, proxy.disable) == (UnitAction.STOP, True)
    assert kubelet is not None
    assert (kubelet.action, kubelet.daemon_reload) == (UnitAction.RESTART, True)


@rule("R2")
def test_removal_of_nothing_is_empty() -> None:
    bare = but(
        CONVERGED,
        files={},
        proxy=UnitState(paths.PROXY_UNIT),
        proxy_process=None,
        kubelet=replace(CONVERGED.kubelet.unit, environment=()),
        kubelet_process=process(""),
        on_relay=False,
    )
    assert not diff(Desired(), bare, Record())


def removed(**proxy: object) -> HostSnapshot:
    """After a removal that went through, except for the state of the proxy's unit."""
    state = replace(UnitState(paths.PROXY_UNIT), **proxy)  # type: ignore[arg-type]
    bare = but(CONVERGED, files={}, proxy=state, proxy_process=None)
    return but(bare, on_relay=False)


@rule("R3")
def test_a_link_that_starts_the_proxy_without_kubelet_goes_without_a_restart() -> None:
    unit = diff(DESIRED, but(CONVERGED, proxy_links=LINKS), RECORD).unit(Part.PROXY)
    assert unit is not None
    assert (unit.disable, unit.daemon_reload, unit.action) == (True, True, UnitAction.NOTHING)


def test_an_earlier_installation_that_comes_back_keeps_its_links() -> None:
    desired = replace(DESIRED, proxy=replace(PROXY, generation=""))
    unit = diff(desired, but(CONVERGED, proxy_links=LINKS), RECORD).unit(Part.PROXY)
    assert unit is None or not unit.disable


UNIT_RECORD = Record(owned={paths.PROXY_UNIT_FILE: Owned(wrote=("d",))})
LINKS = frozenset({"/etc/systemd/system/some.target.wants/cri-resource-manager.service"})


def test_the_link_of_a_unit_whose_file_somebody_has_deleted_goes_too() -> None:
    assert diff(Desired(), removed(), UNIT_RECORD).unit(Part.PROXY) is None
    unit = diff(Desired(), but(removed(), proxy_links=LINKS), UNIT_RECORD).unit(Part.PROXY)
    assert unit is not None
    assert unit.disable


def test_a_unit_of_a_package_that_ours_has_hidden_is_none_of_ours() -> None:
    """It lies in a directory after ours, so it is there before us and after us."""
    there = removed(load_state="loaded", unit_file_state="disabled")
    assert diff(Desired(), there, UNIT_RECORD).unit(Part.PROXY) is None
    for pending in (
        removed(load_state="loaded", need_daemon_reload=True),
        removed(load_state="loaded", environment=(f"{paths.UNIT_VARIABLE}=u1",)),
    ):
        unit = diff(Desired(), pending, UNIT_RECORD).unit(Part.PROXY)
        assert unit is not None
        assert unit.daemon_reload


@rule("R2")
def test_files_that_a_removal_has_left_need_no_reload_of_a_unit_that_is_gone() -> None:
    left = replace(removed(), files={paths.BINARY: there(b"program")})
    record = Record(owned={**UNIT_RECORD.owned, paths.BINARY: Owned(wrote=("b",))})
    changes = diff(Desired(), left, record)
    assert [change.path for change in changes.files] == [paths.BINARY]
    assert changes.unit(Part.PROXY) is None


@rule("R7")
def test_r7_a_unit_that_was_enabled_before_us_is_enabled_again_by_the_next_run() -> None:
    """Killed after its file was given back and before its link was."""
    original = there(b"somebody's")
    link = FileState(Kind.SYMLINK, 0o777, target=paths.PROXY_UNIT_FILE)
    record = Record(
        owned={
            paths.PROXY_UNIT_FILE: Owned(before=original, wrote=("d",)),
            paths.PROXY_WANTED: Owned(before=link),
        },
    )
    given_back = replace(removed(load_state="loaded"), files={paths.PROXY_UNIT_FILE: original})
    [change] = diff(Desired(), given_back, record).files
    assert (change.path, change.verb) == (paths.PROXY_WANTED, Verb.RESTORE)
    enabled = but(given_back, proxy=replace(given_back.proxy.unit, unit_file_state="enabled"))
    enabled = replace(enabled, files={**enabled.files, paths.PROXY_WANTED: link})
    changes = diff(Desired(), enabled, record)
    assert (changes.files, changes.unit(Part.PROXY)) == ((), None)


@rule("R6")
def test_removal_says_that_somebody_edited_a_file_of_ours() -> None:
    changes = diff(Desired(), with_file(paths.FALLBACK_CONFIG, there(b"mine")), RECORD)
    why = {change.path: change.why for change in changes.files}
    assert "edited" in why[paths.FALLBACK_CONFIG]
    assert "edited" not in why[paths.GUARD]


@pytest.mark.parametrize(
    ("generation", "claimed", "expected"),
    [
        ("k1", False, UnitAction.RESTART),
        ("", True, UnitAction.RESTART),
        ("", False, UnitAction.NOTHING),  # another installer put it there
    ],
)
def test_a_removal_moves_kubelet_only_off_a_relay_that_our_lines_or_files_put_it_on(
    generation: str, claimed: bool, expected: UnitAction
) -> None:
    unit = replace(CONVERGED.kubelet.unit, environment=())
    argv = ("kubelet", f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}")
    host = but(CONVERGED, kubelet=unit, kubelet_process=process(generation, *argv))
    owned = {path: one for path, one in RECORD.owned.items() if claimed or one.part is Part.PROXY}
    assert actions(host, Record(owned=owned), Desired())[1] is expected


@rule("R3")
def test_kubelet_on_its_base_endpoint_is_not_restarted_by_a_removal() -> None:
    assert actions(but(CONVERGED, on_relay=False), desired=Desired())[1] is UnitAction.NOTHING


def test_an_enabled_unit_of_somebody_else_is_disabled_before_its_file_is_replaced() -> None:
    foreign = but(CONVERGED, proxy_process=process(""), proxy_links=LINKS)
    [unit] = [u for u in diff(DESIRED, foreign, Record()).units if u.part is Part.PROXY]
    assert unit.disable
