"""The desired state: which files, what is in them, and what makes a unit restart."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from installer.inputs.configs import Configs
from installer.inputs.load import Inputs, Request
from installer.inputs.policy import Asked
from installer.inputs.settings import KubeletSettings, ProxySettings, RolloutSettings, Settings
from installer.inputs.systemd_syntax import parse_environment_file
from installer.model import paths
from installer.model.host import (
    DesiredFile,
    ExecLine,
    HostSnapshot,
    KubeletBase,
    KubeletSnapshot,
    Part,
    ProxySnapshot,
    UnitDetail,
    UnitState,
    UnitText,
)
from installer.model.names import Mode
from installer.model.plan import Desired, DesiredKubelet, Strategy
from installer.node.desired import build_desired, fleet_generation
from installer.node.header import with_generation, with_header
from installer.node.kubelet_strategy import analyse_kubelet, effective, with_drop_in_directory
from installer.rendering import template_text, unit_text
from tests.lib.rules import rule

BINARY = DesiredFile(
    paths.BINARY, 0o755, Part.PROXY, "ab" * 32, 38_000_000, content=Path("/payload/opt/intel/bin/cri-resmgr")
)
FRAGMENT = "/etc/systemd/system/kubelet.service"


@dataclass(frozen=True)
class Payload:
    binary: DesiredFile = BINARY
    version: str = "v0.9.2"


def kubelet(exec_start: str = "/usr/bin/kubelet $ARGS", timeout_start_usec: int = 0) -> HostSnapshot:
    unit = UnitState("kubelet.service", load_state="loaded", fragment_path=FRAGMENT)
    texts = (UnitText(FRAGMENT, f"[Service]\nExecStart={exec_start}\n"),)
    base = KubeletBase(UnitDetail(timeout_start_usec=timeout_start_usec), texts)
    return HostSnapshot(ProxySnapshot(UnitState(paths.PROXY_UNIT)), KubeletSnapshot(unit), base=base)


def build(
    settings: Settings | None = None,
    configs: Configs | None = None,
    *,
    host: HostSnapshot | None = None,
    binary: DesiredFile = BINARY,
) -> Desired:
    snapshot = host or kubelet()
    settings = with_drop_in_directory(settings or Settings(), snapshot.machine)
    return build_desired(
        settings,
        configs or Configs(),
        Payload(binary),  # type: ignore[arg-type]
        analyse_kubelet(snapshot, settings),
        snapshot.base.detail,
    )


def file_of(desired: Desired, path: str) -> DesiredFile:
    return next(file for file in desired.files if file.path == path)


def text_of(desired: Desired, path: str) -> str:
    content = file_of(desired, path).content
    assert isinstance(content, bytes)
    return content.decode()


def variables(desired: Desired, path: str) -> dict[str, str]:
    return parse_environment_file(text_of(desired, path))


def generations(desired: Desired) -> tuple[str, str]:
    assert desired.proxy
    assert desired.kubelet
    return desired.proxy.generation, desired.kubelet.unit.generation


DROP_IN = "/etc/systemd/system/kubelet.service.d/90-cri-resmgr.conf"


def test_files_modes_and_parts() -> None:
    configs = Configs(b"a: 1\n", b"policy:\n  Active: none\n", "EXTRA_OPTIONS=--debug\n")
    assert {
        (file.path, file.mode, file.part, file.generation_carrier) for file in build(None, configs).files
    } == {
        (paths.BINARY, 0o755, Part.PROXY, False),
        (paths.GUARD, 0o755, Part.PROXY, False),
        (paths.PROXY_UNIT_FILE, 0o644, Part.PROXY, False),
        (paths.PROXY_ENVIRONMENT, 0o644, Part.PROXY, True),
        (paths.FALLBACK_CONFIG, 0o644, Part.PROXY, False),
        (paths.FORCE_CONFIG, 0o644, Part.PROXY, False),
        (paths.EXTRA_OPTIONS, 0o644, Part.PROXY, False),
        (DROP_IN, 0o644, Part.KUBELET, False),
        (paths.KUBELET_ENVIRONMENT, 0o644, Part.KUBELET, True),
    }


def test_digest_is_of_the_content() -> None:
    for file in build(None, Configs(force=b"x: y\n")).files:
        if isinstance(file.content, bytes):
            assert file.digest == sha256(file.content).hexdigest()


def test_building_twice_gives_the_same() -> None:
    assert build() == build()


def test_every_file_says_whose_it_is() -> None:
    configs = Configs(b"\xef\xbb\xbfa: 1\n", b"b: 2", "EXTRA_OPTIONS=--debug")
    for file in build(None, configs).files:
        if isinstance(file.content, bytes):
            first_line = file.content.split(b"\n")[1 if file.path == paths.GUARD else 0]
            assert first_line.startswith(b"# Managed by cri-resmgr-installer")


def test_configs_go_out_byte_for_byte_behind_the_header() -> None:
    raw = b"policy:\r\n  Active: none # \xff @DIGEST@\n# @HEADER@\n"
    content = file_of(build(None, Configs(fallback=raw)), paths.FALLBACK_CONFIG).content
    assert isinstance(content, bytes)
    assert content.partition(b"\n")[2] == raw


def test_without_configs_the_policy_is_none() -> None:
    desired = build()
    assert text_of(desired, paths.FALLBACK_CONFIG).partition("\n")[2] == "policy:\n  Active: none\n"
    assert not any(file.path in (paths.FORCE_CONFIG, paths.EXTRA_OPTIONS) for file in desired.files)
    # Somebody else's EXTRA_OPTIONS.cfg is read before ours: it must not count.
    assert variables(desired, paths.PROXY_ENVIRONMENT)["EXTRA_OPTIONS"] == ""


def test_environment_file_of_the_proxy() -> None:
    desired = build(
        host=kubelet("/usr/bin/kubelet --container-runtime-endpoint=unix:///var/run/crio/crio.sock $A")
    )
    assert variables(desired, paths.PROXY_ENVIRONMENT) == {
        "CONFIG_OPTIONS": "--fallback-config /etc/cri-resmgr/fallback.cfg",
        "RUNTIME_OPTIONS": "--runtime-socket=/run/crio/crio.sock --image-socket=/run/crio/crio.sock",
        "AGENT_OPTIONS": "",
        "EXTRA_OPTIONS": "",
        "CRI_RESMGR_GUARD_SECONDS": "15",
        "CRI_RESMGR_INSTALLER_GENERATION": generations(desired)[0],
    }


def test_the_agents_sockets_in_a_directory_of_their_own() -> None:
    found = variables(build(Settings(proxy=ProxySettings(agent_sockets="own"))), paths.PROXY_ENVIRONMENT)
    agent, config = found["AGENT_OPTIONS"].split()
    assert agent == "--agent-socket=/var/run/cri-resmgr/agent/cri-resmgr-agent.sock"
    assert config == "--config-socket=/var/run/cri-resmgr/agent/cri-resmgr-config.sock"


def test_a_forced_configuration_and_no_agent() -> None:
    settings = Settings(proxy=ProxySettings(agent="disabled", runtime_endpoint="unix:///run/x.sock"))
    found = variables(build(settings, Configs(force=b"a: 1\n")), paths.PROXY_ENVIRONMENT)
    assert found["CONFIG_OPTIONS"] == "--force-config /etc/cri-resmgr/force.cfg"
    assert found["AGENT_OPTIONS"] == "--agent-socket=disabled"
    assert found["RUNTIME_OPTIONS"] == "--runtime-socket=/run/x.sock --image-socket=/run/x.sock"


def test_extra_options_come_from_their_own_file() -> None:
    desired = build(None, Configs(extra_options="EXTRA_OPTIONS=--debug\n"))
    assert "EXTRA_OPTIONS" not in variables(desired, paths.PROXY_ENVIRONMENT)
    assert variables(desired, paths.EXTRA_OPTIONS) == {"EXTRA_OPTIONS": "--debug"}


@rule("R12")
def test_drop_in_has_exactly_the_lines_of_the_contract() -> None:
    desired = build()
    assert desired.kubelet
    lines = [line for line in text_of(desired, DROP_IN).split("\n") if line and not line.startswith("#")]
    assert lines == [
        "[Unit]",
        "Wants=cri-resource-manager.service",
        "After=cri-resource-manager.service",
        "[Service]",
        f"Environment=CRI_RESMGR_INSTALLER_UNIT={desired.kubelet.unit.unit_digest}",
        "ExecStartPre=-+/opt/intel/bin/cri-resmgr-kubelet-guard reset",
        "ExecStartPre=-+/opt/intel/bin/cri-resmgr-kubelet-guard compose",
        "ExecStartPost=-+/opt/intel/bin/cri-resmgr-kubelet-guard retire",
        "ExecStopPost=-+/opt/intel/bin/cri-resmgr-kubelet-guard ended",
        "EnvironmentFile=-/etc/cri-resmgr/kubelet.env",
        "EnvironmentFile=-/run/cri-resmgr-installer/kubelet.env",
    ]


def test_drop_in_repeats_the_base_line_for_exec_start() -> None:
    desired = build(host=kubelet(r'/usr/bin/kubelet --a="b  %n" \; --c=$$x'))
    text = text_of(desired, DROP_IN)
    assert text.endswith(
        '\nExecStart=\nExecStart=/usr/bin/kubelet --a="b  %n" \\; --c=$$x $CRI_RESMGR_KUBELET_ARGS\n'
    )


def test_kubelet_environment_file() -> None:
    desired = build()
    assert variables(desired, paths.KUBELET_ENVIRONMENT) == {
        "CRI_RESMGR_GUARD_VARIABLE": "ARGS",
        "CRI_RESMGR_GUARD_FLAG": f"--container-runtime-endpoint=unix://{paths.endpoint_link('')}",
        "CRI_RESMGR_GUARD_BASE": "/run/containerd/containerd.sock",
        "CRI_RESMGR_GUARD_SECONDS": "15",
        "CRI_RESMGR_INSTALLER_GENERATION": generations(desired)[1],
    }


@rule("R12")
@pytest.mark.parametrize(
    ("usec", "seconds"), [(0, 15), (2**64 - 1, 15), (90_000_000, 15), (10_000_000, 8), (1_000_000, 1)]
)
def test_guard_ends_before_systemd_gives_kubelet_up(usec: int, seconds: int) -> None:
    found = variables(build(host=kubelet(timeout_start_usec=usec)), paths.KUBELET_ENVIRONMENT)
    assert found["CRI_RESMGR_GUARD_SECONDS"] == str(seconds)


BASE = Configs(fallback=b"policy:\n  Active: none\n")
FORCED = Configs(force=b"policy:\n  Active: none\n")


@rule("R3")
@pytest.mark.parametrize(
    ("before", "after", "proxy", "kubelet"),
    [
        (build(None, BASE), build(None, replace(BASE, fallback=b"other: 1\n")), True, False),
        (build(None, BASE), build(None, replace(BASE, extra_options="EXTRA_OPTIONS=-x\n")), True, False),
        (build(None, BASE), build(None, BASE, binary=replace(BINARY, digest="cd" * 32)), True, False),
        (build(None, BASE), build(None, FORCED), True, False),
        (build(None, FORCED), build(None, replace(FORCED, asked=Asked("balloons"))), True, False),
        (build(None, FORCED), build(None, replace(FORCED, force=b"# new\n")), False, False),
        (build(None, FORCED), build(None, replace(FORCED, fallback=b"unread: 1\n")), False, False),
        (build(), build(Settings(proxy=ProxySettings(agent="disabled"))), True, False),
        (build(), build(Settings(kubelet=KubeletSettings(guard_seconds=30))), False, False),
        (build(), build(Settings(proxy=ProxySettings(start_timeout_seconds=50))), False, False),
        (build(), build(Settings(kubelet=KubeletSettings(strategy="exec-start"))), False, True),
        (build(), build(host=kubelet("/usr/bin/kubelet --v=2 $OTHER")), False, True),
        (build(), build(host=kubelet("/usr/bin/kubelet --v=2 $ARGS")), False, False),
    ],
)
def test_generation_changes_with_what_needs_a_restart(
    before: Desired, after: Desired, proxy: bool, kubelet: bool
) -> None:
    changed = [one != other for one, other in zip(generations(before), generations(after), strict=True)]
    assert changed == [proxy, kubelet]


@rule("R8")
@pytest.mark.parametrize(
    "changed", [replace(FORCED, force=b"# new\n"), replace(FORCED, fallback=b"unread: 1\n")]
)
def test_r8_what_is_blamed_and_good_is_everything_that_was_put_in_place(changed: Configs) -> None:
    """A corrected force.cfg is another generation than the one that failed, though nothing restarts."""
    assert build(None, changed).generation != build(None, FORCED).generation
    assert build(None, FORCED).generation == build(None, FORCED).generation


def given(settings: Settings | None = None, configs: Configs | None = None) -> Inputs:
    request = Request(Mode.INSTALL, settings or Settings(), Path("/payload"))
    return Inputs(request, Payload(), configs or Configs())  # type: ignore[arg-type]


def test_a_fleet_begins_anew_with_another_installer_that_writes_other_files(mocker: MockerFixture) -> None:
    """Its guard, its units: each may be what fails, and canaries find it."""
    first = fleet_generation(given())
    assert fleet_generation(given()) == first
    text = unit_text("cri-resmgr-kubelet-guard")
    mocker.patch("installer.node.desired.unit_text", return_value=f"{text}# mended\n")
    assert fleet_generation(given()) != first


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        (Settings(), False),
        (Settings(kubelet=KubeletSettings(guard_seconds=15)), False),
        (Settings(kubelet=KubeletSettings(guard_seconds=14)), True),
        (Settings(kubelet=KubeletSettings(strategy="exec-start")), True),
        (Settings(proxy=ProxySettings(agent="disabled")), True),
        (Settings(rollout=RolloutSettings(soak_seconds=7)), False),
        # Nodes of Gardener have it, and all others not; to move it restarts nothing.
        (Settings(kubelet=KubeletSettings(drop_in_directory="/etc/systemd/system.control")), False),
    ],
)
def test_only_what_differs_from_a_default_makes_a_fleet_begin_anew(settings: Settings, other: bool) -> None:
    """So a setting that a new version brings makes no new generation."""
    assert (fleet_generation(given(settings)) != fleet_generation(given())) == other


@rule("R3")
def test_only_the_content_of_force_cfg_is_a_reload() -> None:
    before, after = build(None, FORCED).proxy, build(None, replace(FORCED, force=b"# new\n")).proxy
    assert before
    assert after
    assert before.generation == after.generation
    assert before.reload_digest != after.reload_digest
    assert build().proxy == replace(build().proxy or before, reload_digest="")


@pytest.mark.parametrize(
    "command",
    [
        "/bin/sh -c 'kubelet' $ARGS",
        f"/usr/bin/kubelet --container-runtime-endpoint={paths.RELAY_ENDPOINT}",
    ],
)
def test_nothing_is_desired_of_a_kubelet_that_cannot_be_served(command: str) -> None:
    assert build(host=kubelet(command)) == Desired()


@rule("R7")
def test_carriers_carry_their_units_generation_and_another_on_demand() -> None:
    desired = build()
    for carrier, generation in zip(
        (file for file in desired.files if file.generation_carrier), generations(desired), strict=True
    ):
        assert isinstance(carrier.content, bytes)
        line = f"{paths.GENERATION_VARIABLE}={generation}\n".encode()
        assert carrier.content.endswith(line)
        pending = with_generation(carrier.content, "pending-0a1b")
        assert pending == carrier.content.removesuffix(line) + b"%s=pending-0a1b\n" % (
            paths.GENERATION_VARIABLE.encode()
        )
        assert with_generation(pending, generation) == carrier.content


def test_with_generation_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="0 generation lines"):
        with_generation(b"A=1\n", "abc")
    with pytest.raises(ValueError, match="not a generation"):
        with_generation(b"CRI_RESMGR_INSTALLER_GENERATION=\n", "a\nB=1")


@drawn(st.binary(max_size=200))
def test_any_content_gets_a_header_with_its_digest_and_stays_as_it_is(raw: bytes) -> None:
    content, digest = with_header(raw)
    pattern = rb"\A(#!.*\n)?(# Managed by cri-resmgr-installer, .*\. Digest: ([0-9a-f]{16}))\n"
    found = re.match(pattern, content)
    assert found
    assert found[3].decode() == digest
    assert with_header(content.replace(found[2], b"# @HEADER@", 1)) == (content, digest)
    plain = content.replace(found[2] + b"\n", b"", 1)
    assert plain == raw.removeprefix(b"\xef\xbb\xbf") or b"# @HEADER@\n" in raw
    assert with_header(raw + b"x")[1] != digest


def loaded(desired: Desired) -> tuple[UnitDetail, UnitState, DesiredKubelet]:
    kubelet = desired.kubelet
    assert kubelet
    detail = UnitDetail(
        (ExecLine("/usr/bin/kubelet", ("/usr/bin/kubelet", f"${kubelet.variable}")),),
        (
            ExecLine("/bin/true", ("/bin/true",)),
            ExecLine(paths.GUARD, (paths.GUARD, "reset")),
            ExecLine(paths.GUARD, (paths.GUARD, "compose")),
        ),
        (("/etc/default/kubelet", True), (paths.KUBELET_ENVIRONMENT, True), (paths.KUBELET_COMPOSED, True)),
    )
    variable = f"{paths.UNIT_VARIABLE}={kubelet.unit.unit_digest}"
    return detail, UnitState("kubelet.service", load_state="loaded", environment=("A=b", variable)), kubelet


def test_effective_when_loaded_and_winning() -> None:
    assert effective(*loaded(build())) == ""


def test_not_effective_says_why() -> None:
    detail, unit, kubelet = loaded(build())
    files = detail.environment_files
    other = (("/etc/site", True),)
    cases = {
        "bad-setting": (detail, replace(unit, load_state="bad-setting")),
        "has not loaded": (detail, replace(unit, environment=())),
        "guard": (replace(detail, exec_start_pre=detail.exec_start_pre[:2]), unit),
        "comes later": (replace(detail, environment_files=files + other), unit),
        "not in effect": (replace(detail, environment_files=files[:2]), unit),
        "ends with '--v=2'": (replace(detail, exec_start=(ExecLine("k", ("k", "$ARGS", "--v=2")),)), unit),
        "0 ExecStart=": (replace(detail, exec_start=()), unit),
    }
    for words, (a_detail, a_unit) in cases.items():
        assert words in effective(a_detail, a_unit, kubelet)


def test_a_later_environment_file_cannot_hurt_exec_start() -> None:
    detail, unit, kubelet = loaded(build(Settings(kubelet=KubeletSettings(strategy="exec-start"))))
    assert kubelet.strategy is Strategy.EXEC_START
    detail = replace(detail, environment_files=(*detail.environment_files, ("/etc/site", True)))
    assert effective(detail, unit, kubelet) == ""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    unit = text_of(build(), paths.PROXY_UNIT_FILE)
    for program in (paths.GUARD, paths.BINARY):  # they are not on this machine
        unit = unit.replace(f"{program} ", "/bin/true ")
    assert unit.count("/bin/true ") == 4
    proxy = tmp_path / paths.PROXY_UNIT
    proxy.write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(proxy)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_unit_can_stand_beside_our_generation() -> None:
    """What is read last wins, and that is the file with the generation."""
    lines = template_text("cri-resource-manager.service.in").split("\n")
    files = [line for line in lines if line.startswith("EnvironmentFile=")]
    of_the_guard = "EnvironmentFile=-/run/cri-resmgr-installer/proxy.env"  # which sets CONFIG_OPTIONS alone
    extra, guards = (f"EnvironmentFile=-{path}" for path in (paths.EXTRA_OPTIONS, paths.KUBELET_ENVIRONMENT))
    assert files == [extra, guards, f"EnvironmentFile={paths.PROXY_ENVIRONMENT}", of_the_guard]
