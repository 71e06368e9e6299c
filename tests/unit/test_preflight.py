"""What is refused before the first write, what is warned of, and in which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.host.ports import Unwritable
from installer.inputs.configs import Configs
from installer.inputs.load import Consent, Inputs, Request
from installer.inputs.payload import Payload
from installer.inputs.policy import Asked
from installer.inputs.settings import KubeletSettings, ProxySettings, RemovalSettings, Settings
from installer.model import paths
from installer.model.host import (
    ABSENT,
    DesiredFile,
    FileState,
    HostSnapshot,
    Kind,
    KubeletSnapshot,
    Machine,
    Part,
    Probe,
    ProcessState,
    ProxySnapshot,
    RunningContainer,
    UnitState,
    UnitText,
)
from installer.model.names import Mode
from installer.model.plan import (
    Changes,
    Desired,
    DesiredKubelet,
    DesiredUnit,
    FileChange,
    Finding,
    Plan,
    Severity,
    Strategy,
    UnitAction,
    UnitChange,
    Verb,
)
from installer.model.proxy import CachedContainer, ProxyCache
from installer.node import preflight
from installer.node.converge import limits_of
from installer.node.facts import Facts
from installer.node.header import with_header
from installer.node.kubelet_strategy import KubeletAnalysis, with_drop_in_directory
from installer.node.preflight import check_change
from installer.node.preflight_files import check_places
from tests.lib.rules import rule

MIB = 1 << 20
SETTINGS = Settings()
KUBELET = UnitState("kubelet.service", "loaded", "active", "running", main_pid=7)
FACTS = HostSnapshot(
    ProxySnapshot(UnitState(paths.PROXY_UNIT)),
    KubeletSnapshot(KUBELET),
    machine=Machine("x86_64", "id", "node"),
    cache=ProxyCache(version="1", containers=dict.fromkeys("012", CachedContainer(512))),
)
PAYLOAD = Payload(Path("/payload"), DesiredFile(paths.BINARY, 0o755, Part.PROXY, "d", 38 * MIB), "", "x86_64")
ANALYSIS = KubeletAnalysis("", None, ("none", "None"))
PROBE = Probe(free_bytes={"/opt/intel/bin": 1 << 30, paths.OUR_STATE: 1 << 30})
DROP_IN = "/etc/systemd/system/kubelet.service.d/90-cri-resmgr.conf"
DESIRED = Desired(
    kubelet=DesiredKubelet(
        DesiredUnit("kubelet.service", DROP_IN, "digest-2", "g"), Strategy.ENVIRONMENT, "", "X", ()
    )
)


def created(path: str, part: Part) -> FileChange:
    return FileChange(path, part, Verb.CREATE, ABSENT, DesiredFile.of(path, b"", part=part), "missing")


INSTALL = Changes(
    (created(paths.BINARY, Part.PROXY), created(DROP_IN, Part.KUBELET)),
    (
        UnitChange(paths.PROXY_UNIT, Part.PROXY, UnitAction.RESTART, ("new",), daemon_reload=True),
        UnitChange("kubelet.service", Part.KUBELET, UnitAction.RESTART, ("new",), daemon_reload=True),
    ),
)
RELOAD_ONLY = Changes(units=(UnitChange(paths.PROXY_UNIT, Part.PROXY, UnitAction.RELOAD, ("force.cfg",)),))


def with_unit(unit: UnitState) -> HostSnapshot:
    return replace(FACTS, kubelet=KubeletSnapshot(unit))


def with_machine(**facts: Any) -> HostSnapshot:
    return replace(FACTS, machine=replace(FACTS.machine, **facts))


def inputs(settings: Settings, configs: Configs, payload: Payload = PAYLOAD, **request: Any) -> Inputs:
    return Inputs(Request(Mode.INSTALL, settings, Path("/payload"), **request), payload, configs)


def check_host(
    settings: Settings,
    snapshot: HostSnapshot,
    configs: Configs,
    payload: Payload,
    refusals: tuple[Finding, ...] = (),
) -> tuple[Finding, ...]:
    kubelet = replace(ANALYSIS, refusals=refusals)
    return preflight.check_host(
        Facts(inputs(settings, configs, payload), snapshot, kubelet, Desired(), Changes())
    )


def change(
    snapshot: HostSnapshot = FACTS,
    probe: Probe = PROBE,
    *,
    settings: Settings = SETTINGS,
    configs: Configs | None = None,
    policies: tuple[str, str] = ("none", "None"),
    changes: Changes = INSTALL,
    proxy: str = "not-found",
    moved: bool = False,
    rewrote: bool = False,
    **request: Any,
) -> list[Finding]:
    given = inputs(settings, configs or Configs(), **request)
    unit = UnitState(paths.PROXY_UNIT, proxy)
    seen = replace(snapshot, proxy=ProxySnapshot(unit), probe=probe)
    text = given.configs.fallback or f"policy:\n  Active: {given.configs.asked.policy}\n".encode()
    fallback = DesiredFile.of(paths.FALLBACK_CONFIG, text)
    desired = replace(DESIRED, files=(fallback,))
    kubelet = replace(ANALYSIS, policies=policies)
    return list(check_change(Facts(given, seen, kubelet, desired, changes, moved=moved, rewrote=rewrote)))


def codes(findings: list[Finding] | tuple[Finding, ...], severity: Severity = Severity.REFUSE) -> list[str]:
    for finding in findings:
        assert finding.message
        assert finding.hint or finding.severity is Severity.WARN, "a refusal says what would help"
    return [finding.code for finding in findings if finding.severity is severity]


def test_a_policy_that_would_panic_on_cpus_that_are_not_there_is_not_started() -> None:
    sample = Configs(b"", asked=Asked("podpools", reserved="cpuset:15", available="cpuset:2-15"))
    assert codes(change(with_machine(cpus="0-1"), configs=sample)) == ["cpus"]
    assert not codes(change(with_machine(cpus="0-15"), configs=sample))


def test_a_sound_host_has_no_findings() -> None:
    assert check_host(SETTINGS, FACTS, Configs(), PAYLOAD) == ()
    assert change() == []


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (UnitState("kubelet.service"), "kubelet-missing"),
        (UnitState("kubelet.service", "masked"), "kubelet-masked"),
        (UnitState("kubelet.service", "merged"), "kubelet-not-loaded"),
    ],
)
def test_a_kubelet_without_a_usable_unit_is_refused(state: UnitState, code: str) -> None:
    assert codes(check_host(SETTINGS, with_unit(state), Configs(), PAYLOAD)) == [code]


def test_how_a_mask_that_a_boot_would_end_is_taken_away_is_said() -> None:
    """`systemctl unmask` alone leaves one below /run, and says nothing."""
    masked = with_unit(UnitState("kubelet.service", "masked"))
    (finding,) = check_host(SETTINGS, masked, Configs(), PAYLOAD)
    assert "with --runtime" in finding.hint


@pytest.mark.parametrize(
    ("service", "word"),
    [("k3s.service", "k3s"), ("rke2-agent.service", "RKE2"), ("microshift.service", "MicroShift")],
)
def test_a_missing_kubelet_is_explained_by_what_embeds_it(service: str, word: str) -> None:
    facts = replace(with_machine(services=(service,)), kubelet=KubeletSnapshot(UnitState("kubelet.service")))
    (finding,) = check_host(SETTINGS, facts, Configs(), PAYLOAD)
    assert word in finding.message
    assert finding.severity is Severity.REFUSE


def test_bottlerocket_is_refused() -> None:
    facts = with_machine(services=("bottlerocket",))
    assert codes(check_host(SETTINGS, facts, Configs(), PAYLOAD)) == ["read-only-root"]


def test_the_reasons_of_others_go_out_with_ours_unless_the_unit_is_not_there() -> None:
    other = Finding(Severity.REFUSE, "kubelet-several-commands", "found", "do this")
    wrong = replace(PAYLOAD, machine="aarch64")
    found = check_host(SETTINGS, FACTS, Configs(), wrong, (other,))
    assert codes(found) == ["kubelet-several-commands", "wrong-machine"]
    masked = with_unit(UnitState("kubelet.service", "masked"))
    assert codes(check_host(SETTINGS, masked, Configs(), PAYLOAD, (other,))) == ["kubelet-masked"]


@pytest.mark.parametrize(
    ("binary", "host", "refused"),
    [
        ("x86_64", "x86_64", False),
        ("x86_64", "aarch64", True),
        ("aarch64", "x86_64", True),
        ("aarch64", "arm64", False),
        ("", "aarch64", False),
        ("x86_64", "", False),
    ],
)
def test_a_binary_for_another_machine_is_refused(binary: str, host: str, refused: bool) -> None:
    found = check_host(SETTINGS, with_machine(architecture=host), Configs(), replace(PAYLOAD, machine=binary))
    assert codes(found) == ["wrong-machine"] * refused


def test_a_cached_configuration_that_hides_fallback_cfg_is_warned_of() -> None:
    facts = replace(FACTS, cache=ProxyCache(agent={"policy": "Active: balloons"}))
    (finding,) = check_host(SETTINGS, facts, Configs(), PAYLOAD)
    assert (finding.code, finding.severity) == ("cached-configuration", Severity.WARN)
    assert "(policy balloons)" in finding.message
    assert check_host(SETTINGS, FACTS, Configs(), PAYLOAD) == ()
    assert check_host(SETTINGS, facts, Configs(force=b""), PAYLOAD) == ()


@pytest.mark.parametrize(
    ("service", "code"),
    [
        ("gardener-node-agent.service", "gardener-node-agent"),
        ("nodeadm-config.service", "nodeadm"),
        ("machine-config-daemon-pull.service", "machine-config-daemon"),
    ],
)
def test_programs_that_own_kubelets_unit_are_warned_of(service: str, code: str) -> None:
    facts = with_machine(services=(service,))
    settings = Settings(kubelet=KubeletSettings(drop_in_directory="/etc/systemd/system"))
    assert codes(check_host(settings, facts, Configs(), PAYLOAD), Severity.WARN) == [code]


@pytest.mark.parametrize(
    "directory", ["/usr/local/lib/systemd/system", "/etc/systemd/system.control", "auto"]
)
def test_another_drop_in_directory_is_safe_from_gardener(directory: str) -> None:
    facts = with_machine(services=("gardener-node-agent.service",))
    settings = with_drop_in_directory(
        Settings(kubelet=KubeletSettings(drop_in_directory=directory)), facts.machine
    )
    assert check_host(settings, facts, Configs(), PAYLOAD) == ()


def test_warnings_of_the_configs_are_passed_on() -> None:
    warning = Finding(Severity.WARN, "open-metrics", "found", "hint")
    assert check_host(SETTINGS, FACTS, Configs(warnings=(warning,)), PAYLOAD) == (warning,)


@pytest.mark.parametrize(
    ("active", "sub", "refused"),
    [
        ("active", "running", []),
        ("reloading", "reload", []),
        ("activating", "start-pre", []),  # our guard waits, in a restart whose installer has died
        ("deactivating", "stop-sigterm", []),
        ("activating", "auto-restart", ["kubelet-crash-looping"]),
        ("activating", "auto-restart-queued", ["kubelet-crash-looping"]),  # systemd 254
        ("failed", "failed", ["kubelet-crash-looping"]),
        ("inactive", "dead", ["kubelet-stopped"]),
    ],
)
def test_only_a_running_kubelet_is_moved(active: str, sub: str, refused: list[str]) -> None:
    assert codes(change(with_unit(replace(KUBELET, active_state=active, sub_state=sub)))) == refused


def test_a_kubelet_that_a_cut_off_run_of_ours_may_keep_down_is_moved() -> None:
    looping = with_unit(replace(KUBELET, active_state="activating", sub_state="auto-restart"))
    assert codes(change(looping, moved=True)) == []
    stopped = with_unit(replace(KUBELET, active_state="inactive", sub_state="dead"))
    assert codes(change(stopped, moved=True)) == ["kubelet-stopped"]


def test_a_broken_unit_is_refused() -> None:
    assert codes(change(with_unit(replace(KUBELET, load_state="bad-setting")))) == ["kubelet-not-loaded"]


def test_a_runtime_that_does_not_answer_is_refused_with_its_reason() -> None:
    (finding,) = change(probe=replace(PROBE, runtime_error="unix:///x: connection refused"))
    assert finding.code == "runtime-not-ready"
    assert "unix:///x: connection refused" in finding.message


def test_places_that_cannot_be_ours_are_all_named() -> None:
    probe = replace(
        PROBE,
        obstacles={paths.BINARY: "a directory is in the way", paths.GUARD: "leads out of the root"},
        unwritable={
            "/etc/default": "read-only file system",
            "/opt/intel/bin": Unwritable.NOEXEC,
            "/usr/lib/systemd/system/x.d": "read-only",
        },
    )
    found = change(probe=probe)
    assert codes(found) == [
        "path-blocked",
        "path-blocked",
        "directory-not-writable",
        "directory-noexec",
        "unit-directory-read-only",
    ]
    assert "kubelet.dropInDirectory" in found[4].hint


@pytest.mark.parametrize(
    ("kind", "refused"),
    [(Kind.DIRECTORY, True), (Kind.OTHER, True), (Kind.FILE, False), (Kind.SYMLINK, False)],
)
@pytest.mark.parametrize("verb", [Verb.DELETE, Verb.RESTORE])
def test_what_could_not_be_taken_away_is_refused_before_a_removal_begins(
    verb: Verb, kind: Kind, refused: bool
) -> None:
    change = FileChange(DROP_IN, Part.KUBELET, verb, FileState(kind), None, "no longer wanted")
    found = list(check_places(Changes((change,))))
    assert codes(found) == ["path-blocked"] * refused
    assert not refused or DROP_IN in found[0].message


@pytest.mark.parametrize("directory", ["/opt/intel/bin", paths.OUR_STATE])
@pytest.mark.parametrize(("free", "refused"), [(76 * MIB, True), (84 * MIB - 1, True), (84 * MIB, False)])
def test_two_copies_of_the_binary_must_fit(directory: str, free: int, refused: bool) -> None:
    probe = replace(PROBE, free_bytes={**PROBE.free_bytes, directory: free})
    found = change(probe=probe)
    assert codes(found) == ["no-space"] * refused
    assert not refused or "84 MiB" in found[0].message
    assert change(probe=probe, changes=RELOAD_ONLY) == []


@pytest.mark.parametrize(("free", "refused"), [(0, True), (MIB - 1, True), (MIB, False)])
def test_a_proxy_must_be_able_to_save_its_cache_when_it_starts(free: int, refused: bool) -> None:
    probe = replace(PROBE, free_bytes={**PROBE.free_bytes, "/var/lib/cri-resmgr": free})
    found = change(probe=probe)
    assert codes(found) == ["no-space"] * refused
    assert not refused or "exits if it cannot save its cache" in found[0].message
    assert change(probe=probe, changes=RELOAD_ONLY) == []
    process = ProcessState(1, ("kubelet", f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}"), {})
    dead = replace(FACTS, kubelet=replace(FACTS.kubelet, process=process))
    assert "exits" not in str(change(dead, probe)), "it cannot get worse"


@pytest.mark.parametrize(("free", "refused"), [(0, True), (16 * MIB - 1, True), (16 * MIB, False)])
def test_systemd_needs_room_to_reload(free: int, refused: bool) -> None:
    found = change(probe=replace(PROBE, free_bytes={**PROBE.free_bytes, "/run": free}))
    assert codes(found) == ["no-space"] * refused
    assert not refused or "/run" in found[0].hint


@pytest.mark.parametrize("directory", ["/opt/intel/bin", paths.OUR_STATE, "/var/lib/cri-resmgr", "/run"])
def test_a_file_system_that_fills_further_is_no_other_refusal(directory: str) -> None:
    """The daemon takes another message for news: it runs again at once, and reports it."""
    said = [
        change(probe=replace(PROBE, free_bytes={**PROBE.free_bytes, directory: free}))
        for free in (0, 700 << 10)
    ]
    assert said[0] == said[1]
    assert "has less than" in said[0][0].message


def test_a_kubelet_that_crashes_once_more_is_no_other_refusal() -> None:
    crashed = replace(KUBELET, active_state="activating", sub_state="auto-restart", result="exit-code")
    said = [
        change(with_unit(replace(crashed, n_restarts=restarts, sub_state=sub_state)))
        for restarts, sub_state in ((3, "auto-restart"), (4, "auto-restart-queued"))
    ]
    assert codes(said[0]) == ["kubelet-crash-looping"]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[Service]\nExecStart=\nExecStart=/bin/sleep 1\n", "ExecStart"),
        ("[Service]\nEnvironmentFile=\nExecStartPost=\n", "EnvironmentFile, ExecStartPost"),
        ("[Service]\nEnvironment=GOMAXPROCS=2\nMemoryMax=1G\n", ""),
        ("[Unit]\nAfter=\nOnFailure=mail@%n.service\nConflicts=shutdown.target\n", ""),
        (
            "[Unit]\nConditionPathExists=/run/theirs\nAssertACPower=yes\n",
            "AssertACPower, ConditionPathExists",
        ),
        ("[Unit]\nConditionPathExists=\nFailureAction=none\nRefuseManualStart=no\n", ""),
        ("[Unit]\nFailureAction=reboot\nRequisite=x.service\n", "FailureAction, Requisite"),
        ("[Service]\nExecCondition=/bin/true\nWatchdogSec=10\n", "ExecCondition, WatchdogSec"),
        ("[Service]\nRuntimeMaxSec=infinity\nWatchdogSec=0\nPIDFile=/run/x.pid\n", ""),
    ],
)
def test_a_drop_in_that_breaks_the_proxys_unit_is_refused(text: str, lost: str) -> None:
    path = f"{paths.PROXY_UNIT_FILE}.d/theirs.conf"
    found = change(probe=replace(PROBE, proxy_drop_ins=(UnitText(path, text),)))
    assert codes(found) == ["proxy-drop-in-resets"] * bool(lost)
    assert not lost or found[0].message.endswith(f": {lost}")
    assert not lost or path in found[0].message


def test_a_unit_that_names_a_missing_path_is_not_started() -> None:
    theirs = UnitText("/etc/systemd/system/service.d/theirs.conf", "[Service]\nWorkingDirectory=/srv\n")
    snapshot = replace(FACTS, base=replace(FACTS.base, texts=(theirs,)))
    probe = replace(PROBE, proxy_drop_ins=(theirs,))
    assert change(snapshot, probe) == []
    found = change(snapshot, replace(probe, missing=frozenset({"/srv"})))
    assert sorted(codes(found)) == ["kubelet-confined", "proxy-confined"]
    assert all("/srv does not exist" in each.message for each in found)


def test_a_masked_proxy_is_somebodys_decision() -> None:
    assert codes(change(proxy="masked")) == ["proxy-masked"]
    assert change(proxy="loaded") == []


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (("none", "None"), ""),
        (("", ""), ""),
        (("static", "None"), "CPU manager is"),
        (("none", "Static"), "memory manager is"),
        (("static", "Static"), "CPU and memory managers are"),
    ],
)
def test_static_managers_are_refused_unless_accepted(policies: tuple[str, str], said: str) -> None:
    found = change(policies=policies)
    assert codes(found) == ["static-managers"] * bool(said)
    assert all(said in finding.message for finding in found)
    accepting = Settings(kubelet=KubeletSettings(accept_static_managers=True))
    assert codes(change(policies=policies, settings=accepting)) == []
    warned = codes(change(policies=policies, settings=accepting), Severity.WARN)
    assert warned == ["static-managers"] * bool(said)


def containers(number: int, known: bool = False, creation: bool = False) -> tuple[RunningContainer, ...]:
    """Of which the runtime says in no known shape how they were created, unless it is `creation`. The proxy
    knows those with the numbers 0 to 2."""
    identifiers = (str(n) if known else f"other-{n}" for n in range(number))
    said = {"cpu_shares": 512} if creation else None
    return tuple(
        RunningContainer(identifier, f"c{n:02}", f"pod{n:02}", "ns", known, creation=said)
        for n, identifier in enumerate(identifiers)
    )


def test_repinning_is_refused_with_number_and_names_and_what_to_do() -> None:
    (finding,) = change(
        probe=replace(PROBE, containers=containers(2) + containers(3, True)),
        configs=Configs(asked=Asked("balloons")),
    )
    assert finding.code == "repinning"
    assert "2 running containers" in finding.message
    assert "ns/pod00/c00, ns/pod01/c01" in finding.message
    assert "recreate their pods" in finding.hint
    assert "policy none" in finding.hint


@rule("R14")
def test_the_policy_that_counts_is_the_agents() -> None:
    facts = replace(FACTS, cache=ProxyCache(agent={"policy": "Active: balloons"}))
    (finding,) = change(facts, replace(PROBE, containers=containers(1)))
    assert finding.code == "repinning"
    assert "the policy balloons (from cri-resmgr-agent)" in finding.message


def test_a_long_list_of_names_is_cut_with_a_count() -> None:
    (finding,) = change(
        probe=replace(PROBE, containers=containers(34)), configs=Configs(asked=Asked("balloons"))
    )
    assert "34 running containers" in finding.message
    assert finding.message.endswith("ns/pod09/c09 and 24 more")


@rule("R14")
@pytest.mark.parametrize(
    ("running", "policy", "changes", "refused"),
    [
        (containers(1), "balloons", INSTALL, True),
        (containers(1), "none", INSTALL, False),
        (containers(1, known=True), "balloons", INSTALL, False),
        (containers(1, creation=True), "balloons", INSTALL, False),
        ((), "balloons", INSTALL, False),
        (containers(5, known=True), "balloons", INSTALL, True),
        (containers(1), "balloons", RELOAD_ONLY, True),
        (containers(1), "none", RELOAD_ONLY, False),
    ],
)
def test_repinning_is_refused_only_when_it_would_happen(
    running: tuple[RunningContainer, ...], policy: str, changes: Changes, refused: bool
) -> None:
    probe = replace(PROBE, containers=running)
    found = change(probe=probe, configs=Configs(asked=Asked(policy)), changes=changes)
    assert codes(found) == ["repinning"] * refused


@rule("R14")
def test_who_can_be_adopted_is_refused_only_if_the_operator_wants_no_adoption() -> None:
    probe = replace(PROBE, containers=containers(2, creation=True))
    assert not change(probe=probe, configs=Configs(asked=Asked("balloons")))
    settings = Settings(proxy=ProxySettings(existing_containers="refuse"))
    (finding,) = change(probe=probe, configs=Configs(asked=Asked("balloons")), settings=settings)
    assert finding.code == "repinning"
    assert "proxy.existingContainers: adopt" in finding.hint


@pytest.mark.parametrize(
    ("policy", "pins", "takes"),
    [
        ("topology-aware", True, "and cut the CPU weight to the minimum"),
        ("memtier", True, "and cut the CPU weight to the minimum"),
        ("static-plus", True, "and cut the CPU weight to the minimum"),
        ("balloons", True, "missing from its cache until they are recreated"),
        ("static-pools", False, "missing from its cache until they are recreated"),
        ("podpools", True, "missing from its cache until they are recreated"),
        ("topology-aware", False, ""),
        ("balloons", False, ""),
        ("static", True, ""),
        ("none", True, ""),
    ],
)
def test_what_each_policy_takes_from_unknown_containers(policy: str, pins: bool, takes: str) -> None:
    text = f"policy:\n  Active: {policy}\n  {policy}:\n    PinCPU: {str(pins).lower()}\n"
    configs = Configs(fallback=text.encode(), asked=Asked(policy))
    found = change(probe=replace(PROBE, containers=containers(1)), configs=configs)
    assert codes(found) == ["repinning"] * bool(takes)
    assert all(takes in finding.message for finding in found)


PENDING = replace(KUBELET, need_daemon_reload=True)


def loaded(unit: UnitState, digest: str, directory: str = "/etc/systemd/system") -> UnitState:
    ours = paths.drop_in(directory, unit.name)
    return replace(unit, environment=(f"{paths.UNIT_VARIABLE}={digest}",), drop_in_paths=(ours,))


def drop_in_lies_there(content: bytes) -> Changes:
    before = FileState(Kind.FILE, content=content)
    file = replace(INSTALL.files[1], verb=Verb.CHANGE, before=before)
    return replace(INSTALL, files=(file,))


OLDER, OLDER_DIGEST = with_header(b"# @HEADER@\n[Service]\nEnvironment=CRI_RESMGR_INSTALLER_UNIT=@DIGEST@\n")


@pytest.mark.parametrize(
    ("policies", "said"), [(("none", "None"), ""), (("static", "Static"), "CPU and memory managers would")]
)
def test_no_plugin_follows_where_kubelet_places_containers_itself(
    policies: tuple[str, str], said: str
) -> None:
    settings = Settings(removal=RemovalSettings(successor="nri"))
    request = Request(Mode.REMOVE, settings, Path("/payload"))
    kubelet = replace(ANALYSIS, policies=policies)
    snapshot = replace(FACTS, probe=PROBE, accepts_plugins=True)
    found = preflight.check(Facts(Inputs(request, PAYLOAD, Configs()), snapshot, kubelet, Desired(), INSTALL))
    assert codes(found) == ["successor-not-ready"] * bool(said)
    assert all(said in finding.message for finding in found)


def test_a_process_that_answers_in_kubelets_place_is_named_by_its_address() -> None:
    facts = replace(FACTS, kubelet=KubeletSnapshot(KUBELET, foreign_healthz=True))
    found = change(facts)
    assert codes(found) == ["healthz-foreign"]
    assert "http://127.0.0.1:10248/healthz" in found[0].message
    assert ":10248" in found[0].hint


@pytest.mark.parametrize(
    ("age", "healthy", "flag", "refused"),
    [
        (61, False, "", ["kubelet-unhealthy"]),
        (61, True, "", []),
        (59, False, "", []),  # it may be starting
        (61, False, paths.RELAY_ENDPOINT, []),  # it may be our doing
    ],
)
def test_a_kubelet_that_is_not_healthy_without_us_is_not_moved(
    age: float, healthy: bool, flag: str, refused: list[str]
) -> None:
    process = ProcessState(7, ("kubelet", f"--container-runtime-endpoint={flag}"), {}, age=age)
    found = change(replace(FACTS, kubelet=KubeletSnapshot(KUBELET, process, healthy)))
    assert codes(found) == refused
    assert all("kubelet.healthzUrl" in finding.hint for finding in found)


@pytest.mark.parametrize(
    ("age", "healthy", "answers", "removes", "judged"),
    [
        (61, False, False, True, False),  # a removal leads out
        (61, False, True, False, False),  # an upgrade that restarts it
        (61, False, False, False, True),  # a relay that is dead may be why
        (61, True, True, True, True),
        (59, False, True, True, True),  # it may be starting
    ],
)
def test_a_kubelet_that_was_ill_before_is_not_judged_by_its_healthz(
    age: float, healthy: bool, answers: bool, removes: bool, judged: bool
) -> None:
    argv = ("kubelet", f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}")
    kubelet = KubeletSnapshot(KUBELET, ProcessState(7, argv, {}, age=age), healthy)
    proxy = ProxySnapshot(UnitState(paths.PROXY_UNIT), relay_answers=answers)
    desired = Desired(
        proxy=None if removes else DesiredUnit(paths.PROXY_UNIT, paths.PROXY_UNIT_FILE, "d", "g")
    )
    plan = Plan(Mode.REMOVE if removes else Mode.INSTALL, desired, INSTALL, KUBELET.name, ())
    limits = limits_of(plan, replace(FACTS, kubelet=kubelet, proxy=proxy), SETTINGS)
    assert bool(limits.healthz_url) is judged


def test_a_removal_that_could_not_delete_a_file_is_refused_and_kubelet_left_alone() -> None:
    why = {"/opt/intel/bin": Unwritable.READ_ONLY, paths.OUR_STATE: Unwritable.READ_ONLY}
    request = Request(Mode.REMOVE, SETTINGS, None)
    for unwritable, refused in (
        (why, ["directory-not-writable"]),
        ({"/opt/intel/bin": Unwritable.NOEXEC}, []),
    ):
        snapshot = replace(FACTS, probe=replace(PROBE, unwritable=unwritable))
        found = preflight.check(
            Facts(Inputs(request, None, Configs()), snapshot, ANALYSIS, Desired(), INSTALL)
        )
        assert codes(found) == refused


NO_FILES = replace(INSTALL, files=())


@pytest.mark.parametrize(
    ("unit", "changes", "refused"),
    [
        (KUBELET, INSTALL, False),
        (PENDING, INSTALL, True),  # a first install onto somebody's unfinished edit
        (PENDING, RELOAD_ONLY, False),  # nothing of ours makes it live
        (loaded(PENDING, "digest-2"), NO_FILES, True),  # ours is loaded: the edit is somebody's
        (loaded(PENDING, "digest-2", "/usr/local/lib/systemd/system"), NO_FILES, False),  # ours has moved
        (PENDING, NO_FILES, False),  # ours was written, and the run died before the reload
        (loaded(PENDING, "digest-1"), NO_FILES, False),
        (loaded(PENDING, "digest-2"), INSTALL, False),  # ours was loaded, and somebody removed it
        (replace(loaded(PENDING, ""), environment=()), INSTALL, False),  # so was what lay in its place
        (loaded(PENDING, OLDER_DIGEST), drop_in_lies_there(OLDER), True),  # an older one, loaded as it is
        (loaded(PENDING, OLDER_DIGEST), drop_in_lies_there(OLDER + b"# edited\n"), False),
        (loaded(PENDING, "digest-1"), drop_in_lies_there(b"edited"), False),
    ],
)
def test_somebody_elses_pending_edit_is_not_made_live(
    unit: UnitState, changes: Changes, refused: bool
) -> None:
    assert codes(change(with_unit(unit), changes=changes)) == ["pending-reload"] * refused
    accepted = change(with_unit(unit), changes=changes, consent=Consent(accept_pending=True))
    assert codes(accepted) == []
    assert codes(accepted, Severity.WARN) == ["pending-reload"] * refused


def test_a_reload_that_a_killed_run_owes_is_ours() -> None:
    """It had begun to replace an edited drop-in, whose digest systemd has loaded as well."""
    pending = with_unit(loaded(PENDING, "digest-2"))
    assert codes(change(pending, changes=NO_FILES)) == ["pending-reload"]
    assert codes(change(pending, changes=NO_FILES, rewrote=True)) == []


def test_a_takeover_makes_an_edit_live_only_where_an_interrupted_run_has_moved_kubelet() -> None:
    pending = with_unit(PENDING)
    assert codes(change(pending, consent=Consent(take_over=True))) == ["pending-reload"]
    assert codes(change(pending, consent=Consent(take_over=True), moved=True)) == []
    assert codes(change(pending, moved=True)) == ["pending-reload"]


def test_all_refusals_come_at_once() -> None:
    found = change(
        with_unit(replace(PENDING, active_state="inactive")),
        replace(PROBE, runtime_error="gone", containers=containers(1), free_bytes={"/opt/intel/bin": 0}),
        configs=Configs(asked=Asked("balloons")),
        policies=("static", "None"),
    )
    assert codes(found) == [
        "kubelet-stopped",
        "runtime-not-ready",
        "no-space",
        "static-managers",
        "repinning",
        "pending-reload",
    ]
