"""Bad input: every fault at once, with its place, the right exit code, and a host that is not touched."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.host.command import RELAY_FLAG, Command, Ended, execute, untouched
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import install_kubelet, running_arguments
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import difference, snapshot, walk

pytestmark = pytest.mark.long

BINARY = "opt/intel/bin/cri-resmgr"


@pytest.fixture(scope="module")
def node() -> Iterator[ThrowawayHost]:
    """One healthy kubeadm node for all: nothing here may touch it."""
    with ThrowawayHost() as booted:
        install_kubelet(booted, "kubeadm")
        yield booted


@pytest.fixture
def command(node: ThrowawayHost, tmp_path: Path) -> Command:
    return Command(node, tmp_path)


def refused(command: Command, code: int) -> str:
    """Sees `install` end with `code` and nothing touched, and returns what it says."""
    with untouched(command.host):
        ended = command("install")
    assert ended.code == code, ended.said
    assert ended.out == ""
    assert "Traceback" not in ended.err
    return ended.err


# -- exit 2: settings, configs, payload, usage ------------------------------------------------------

SETTINGS = """\
apiVersion: cri-resmgr-installer/v1
mode: instal
proxy:
  runtimeEndpiont: auto
  startTimeoutSeconds: soon
kubelet:
  guardSeconds: 0
  settle_seconds: 1
  dropInDirectory: /tmp
kublet: {}
"""


def test_every_fault_of_the_settings(command: Command) -> None:
    command.config.write_text(SETTINGS)
    said = refused(command, 2)
    for path, line, help_ in (
        ("mode", 2, "'install' or 'remove'"),
        ("proxy.runtimeEndpiont", 4, "did you mean runtimeEndpoint?"),
        ("proxy.startTimeoutSeconds", 5, "must be a whole number, not 'soon'"),
        ("kubelet.guardSeconds", 7, "must be at least 3"),
        ("kubelet.settle_seconds", 8, "did you mean settleSeconds?"),
        ("kubelet.dropInDirectory", 9, "must be auto or one that systemd reads"),
        ("kublet", 10, "did you mean kubelet?"),
    ):
        fault = next(one for one in said.splitlines() if one.startswith(f"error: {path}: "))
        assert help_ in fault
        assert fault.endswith(f"({command.config}:{line})")
    assert said.count("error: ") == 7


@pytest.mark.parametrize("text", ["[install]", "mode: [", "just words", "\0"])
def test_settings_that_are_no_settings(command: Command, text: str) -> None:
    command.config.write_text(text)
    assert str(command.config) in refused(command, 2)


def test_settings_file_that_is_not_there(command: Command) -> None:
    command.config.unlink()
    assert f"{command.config}: No such file" in refused(command, 2)


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        ({"fallback.cfg": "policy:\n  Active: none\n logger: {}\n"}, ["fallback.cfg:3: not YAML"]),
        ({"fallback.cfg": "- policy\n"}, ["fallback.cfg: must be a mapping"]),
        (
            {"fallback.cfg": "policy:\n  Active: topology-awrae\n"},
            ["fallback.cfg: policy.Active: unknown policy 'topology-awrae'; did you mean topology-aware?"],
        ),
        (
            {"fallback.cfg": "policy:\npolicy:\n", "force.cfg": "policy:\n  Active: best\n"},
            [
                "policy: already given on line 1 (fallback.cfg:2)",
                "force.cfg: policy.Active: unknown policy 'best'; expected one of none, topology-aware",
            ],
        ),
        (
            {"fallback.cfg": "polcy: {}\n", "force.cfg": "logger: 3\n"},
            [
                "fallback.cfg: cri-resmgr refuses it: ",
                '"polcy"',
                "force.cfg: cri-resmgr refuses it: ",
                '"logger"',
            ],
        ),
        (
            {"fallback.cfg": "policy: {Active: none}\nlogger:\n  Debgu: x\n"},
            ["fallback.cfg: cri-resmgr refuses it: ", 'unknown field "Debgu"'],
        ),
        (
            {"force.cfg": "policy:\n  Active: none\n  ReservedResources: {Memroy: 1G}\n"},
            ["force.cfg: cri-resmgr refuses it: ", 'unknown field "Memroy"'],
        ),
    ],
)
def test_configs(command: Command, files: Mapping[str, str], faults: list[str]) -> None:
    for name, text in files.items():
        (command.configs / name).write_text(text)
    said = refused(command, 2)
    for fault in faults:
        assert fault in said
    assert "correct the configs" in said


OUR_FLAGS = (
    "--relay-socket=/x",
    "--runtime-socket /x",
    "-image-socket=/x",
    "--force-config=/x",
    "--fallback-config=/x",
    "--agent-socket=/x",
    "--reset-policy",
    "--reset-config",
    "--host-root=/x",
    "--force-config-signal=SIGUSR1",
    "--relay-dir=/x",
    "--config-socket=/x",
    "--pid-file=/x",
    "--print-config",
    "--list-policies",
)


def test_extra_options_with_every_flag_of_ours(command: Command) -> None:
    options = " ".join(["--disable-ui", *OUR_FLAGS])
    (command.configs / "EXTRA_OPTIONS.cfg").write_text(f'EXTRA_OPTIONS="{options}"\n')
    said = refused(command, 2)
    for flag in OUR_FLAGS:
        name = flag.split("=")[0].split()[0]
        assert f"EXTRA_OPTIONS.cfg: {name}: the installer sets this flag itself" in said
    assert "disable-ui" not in said


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "EXTRA_OPTIONS.cfg:1: no EXTRA_OPTIONS= line"),
        ("OPTIONS=--disable-ui\n", "EXTRA_OPTIONS.cfg:1: only one line EXTRA_OPTIONS=... is allowed"),
        ("EXTRA_OPTIONS=-a\nEXTRA_OPTIONS=-b\n", "EXTRA_OPTIONS.cfg:2: a second EXTRA_OPTIONS= line"),
        ('EXTRA_OPTIONS="--disable-ui\n', "EXTRA_OPTIONS.cfg:1: an unclosed quote"),
        ("EXTRA_OPTIONS=words\n", "EXTRA_OPTIONS.cfg:1: 'words' is not a flag"),
    ],
)
def test_extra_options_that_are_not_one_line_of_flags(command: Command, text: str, fault: str) -> None:
    (command.configs / "EXTRA_OPTIONS.cfg").write_text(text)
    assert fault in refused(command, 2)


@pytest.mark.parametrize("damage", ["no directory", "no binary", "empty", "not executable", "no program"])
def test_payload(command: Command, damage: str) -> None:
    binary = command.payload / BINARY
    said = {
        "no directory": f"{binary}: the payload directory {command.payload} does not exist",
        "no binary": f"{binary}: missing",
        "empty": f"{binary}: empty",
        "not executable": f"{binary}: not executable (mode 0644)",
        "no program": f"{binary}: not a program",
    }
    if damage == "no directory":
        shutil.rmtree(command.payload)
    elif damage == "no binary":
        binary.unlink()
    elif damage == "not executable":
        binary.chmod(0o644)
    else:
        binary.write_bytes(b"" if damage == "empty" else b"<html>not found</html>")
    found = refused(command, 2)
    assert said[damage] in found
    assert "--payload must name the unpacked archive" in found


@pytest.mark.parametrize("rest", [40, 300, 0.5])
def test_truncated_payload(command: Command, rest: float) -> None:
    """Cut within its header, which is seen; behind it and in the middle, where its private run fails."""
    binary = command.payload / BINARY
    shutil.copyfile("/usr/bin/busybox", binary)
    size = binary.stat().st_size
    with binary.open("r+b") as file:
        file.truncate(int(rest * size) if rest < 1 else int(rest))
    said = refused(command, 2)
    assert ("truncated" if rest == 40 else "does not start with any configuration") in said


def test_payload_that_is_not_what_its_digest_says(command: Command) -> None:
    (command.payload / "SHA256SUMS").write_text(f"{'0' * 64}  {BINARY}\n")
    said = refused(command, 2)
    assert "its sha256 is " in said
    assert "expected 000" in said


def test_payload_whose_binary_does_not_start(command: Command) -> None:
    (command.payload / BINARY).write_text("#!/bin/sh\necho no library >&2\nexit 127\n")
    said = refused(command, 2)
    assert "does not start with any configuration" in said
    assert "no library" in said


def test_a_misspelt_place_of_the_configs(command: Command, tmp_path: Path) -> None:
    command.configs.rename(tmp_path / "config")
    assert f"--configs {tmp_path}/configs: does not exist; did you mean {tmp_path}/config?" in refused(
        command, 2
    )
    command.configs.write_text("policy: {Active: none}\n")
    assert f"--configs {command.configs}: is not a directory" in refused(command, 2)


def test_a_name_that_cri_resmgr_does_not_read(command: Command) -> None:
    (command.configs / "fallback.yaml").write_text("policy: {Active: none}\n")
    assert "fallback.yaml: unknown name; did you mean fallback.cfg?" in refused(command, 2)


def test_a_misspelt_payload(command: Command, tmp_path: Path) -> None:
    command.payload.rename(tmp_path / "payloads")
    said = refused(command, 2)
    assert (
        f"the payload directory {tmp_path}/payload does not exist; did you mean {tmp_path}/payloads?" in said
    )
    command.payload.write_text("")
    assert "is a file, not the directory of the unpacked release" in refused(command, 2)


def test_faults_of_configs_and_payload_come_together(command: Command) -> None:
    (command.configs / "fallback.cfg").write_text("policy.Active: baloons\n")
    (command.payload / BINARY).chmod(0o644)
    said = refused(command, 2)
    assert "baloons" in said
    assert "not executable" in said


@pytest.mark.parametrize(
    "argv",
    [
        ["instal"],
        [],
        ["install", "--retri"],
        ["plan", "--mode", "maybe"],
        ["status", "--retry"],
        ["--output", "yaml", "status"],
    ],
)
def test_usage(command: Command, argv: list[str]) -> None:
    with untouched(command.host):
        ended = command(*argv)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert "see `cri-resmgr-installer" in ended.err


# -- exit 4: where it runs, and what is in our place ------------------------------------------------


def paths_below(directory: Path) -> list[str]:
    return [path for path, _entry in walk(directory, directory)]


@pytest.mark.parametrize("verb", ["plan", "install", "remove", "status"])
def test_no_system_bus_below_the_host_root(command: Command, tmp_path: Path, verb: str) -> None:
    empty = tmp_path / "host"
    (empty / "etc").mkdir(parents=True)
    before = paths_below(empty)
    ended = execute(*command.globals(), "--host-root", str(empty), verb)
    assert ended.code == 4, ended.said
    assert f"no system bus socket at {empty}/run/dbus/system_bus_socket" in ended.err
    assert f"mount the host's root at {empty} with its /run" in ended.err
    assert paths_below(empty) == before


def test_no_host_root(command: Command, tmp_path: Path) -> None:
    ended = execute(*command.globals(), "--host-root", str(tmp_path / "nowhere"), "install")
    assert ended.code == 4, ended.said
    assert "no system bus socket" in ended.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("verb", ["plan", "install", "remove", "status"])
def test_not_root(command: Command, verb: str) -> None:
    # They may read the program, as on a node: your clone can be where others do not get in, such as /root.
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    nobody = ("setpriv", "--reuid=65534", "--clear-groups", *reading, "--")
    with untouched(command.host):
        ended = execute("--host-root", str(command.host.root), verb, prefix=nobody)
    assert ended.code == 4, ended.said
    assert "must run as root" in ended.err
    assert "sudo, or a privileged container" in ended.err


@pytest.fixture
def own(host: ThrowawayHost, tmp_path: Path) -> Command:
    """The program for a node of the test's own, which it may change."""
    install_kubelet(host, "kubeadm")
    return Command(host, tmp_path)


def test_directories_and_the_like_in_our_place(own: Command) -> None:
    root = own.host.root
    (root / "etc/cri-resmgr/fallback.cfg").mkdir(parents=True)
    (root / "etc/cri-resmgr/fallback.cfg/theirs").write_text("theirs")
    (root / "etc/default/cri-resource-manager").mkdir()
    own.host.run("mkfifo", "/etc/systemd/system/cri-resource-manager.service")
    said = refused(own, 4)
    for path, what in (
        ("/etc/cri-resmgr/fallback.cfg", "a directory"),
        ("/etc/default/cri-resource-manager", "a directory"),
        ("/etc/systemd/system/cri-resource-manager.service", "a special file"),
    ):
        assert f"{path} cannot be installed: {what} is in the way" in said


@pytest.mark.parametrize("target", ["../../../outside", "../../../../../../etc/passwd"])
def test_link_that_leads_out_of_the_host_root(own: Command, target: str) -> None:
    link = own.host.root / "etc/default/cri-resource-manager"
    link.symlink_to(target)
    assert "/etc/default/cri-resource-manager leads out of the host root" in refused(own, 4)


RECORD = "var/lib/cri-resmgr-installer"
DIRECTORIES = ("etc/cri-resmgr", "opt/intel", "etc/systemd/system/kubelet.service.d")
LEADING_OUT = "../../../../../../tmp"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (LEADING_OUT, "leads out of the host root"),
        ("/nowhere", "is in the way: a directory is needed there"),
        ("", "is in the way: a directory is needed there"),
    ],
)
def test_directories_of_ours_that_are_something_else(own: Command, target: str, why: str) -> None:
    for name in DIRECTORIES:
        place = own.host.root / name
        if target:
            place.symlink_to(target)
        else:
            place.write_text("somebody's")
    said = refused(own, 4)
    for name in DIRECTORIES:
        assert any(f"/{name}" in line and why in line for line in said.splitlines()), said


@pytest.mark.parametrize("verb", ["install", "remove", "plan"])
def test_record_that_leads_out_of_the_host_root(own: Command, verb: str) -> None:
    (own.host.root / RECORD).symlink_to(LEADING_OUT)
    with untouched(own.host):
        ended = own(verb)
    assert ended.code == 4, ended.said
    assert re.search(f"/{RECORD}/[a-z.]+ leads out of the host root", ended.err)


@pytest.mark.parametrize("target", ["/nowhere", ""])
def test_record_that_is_something_else(own: Command, target: str) -> None:
    place = own.host.root / RECORD
    if target:
        place.symlink_to(target)
    else:
        place.write_text("somebody's")
    assert f"/{RECORD} is in the way: a directory is needed there" in refused(own, 4)


@rule("R6")
def test_files_of_somebody_else_are_kept_and_given_back(own: Command) -> None:
    root = own.host.root
    for path, mode in {
        "opt/intel/bin/cri-resmgr": 0o700,
        "etc/default/cri-resource-manager": 0o640,
        "etc/systemd/system/cri-resource-manager.service": 0o664,
        "etc/systemd/system/kubelet.service.d/90-cri-resmgr.conf": 0o600,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"# somebody's\xff own, without a newline at the end")
        (root / path).chmod(mode)
        own.host.run("chown", "1000:1001", f"/{path}")
    own.host.run("mkdir", "-m", "750", "/etc/cri-resmgr")
    (root / "etc/cri-resmgr/fallback.cfg").symlink_to("/etc/theirs.cfg")
    (root / "etc/theirs.cfg").write_text("theirs")
    own.host.systemctl("daemon-reload")
    before = snapshot(own.host)

    planned = own("plan", "--diff")
    assert planned.code == 3
    assert planned.out.count("its original is kept") + planned.out.count("somebody") >= 1
    ended = own("install", "--accept-pending")
    assert ended.code == 0, ended.said
    assert running_arguments(own.host)[-1] == RELAY_FLAG
    assert (root / "etc/theirs.cfg").read_text() == "theirs"
    ended = own("remove")
    assert ended.code == 0, ended.said
    assert difference(before, snapshot(own.host)) == []


# -- options, environment, JSON ----------------------------------------------------------------------


def test_global_options_before_and_after_the_command(command: Command) -> None:
    words = command.globals()
    before = execute(*words, "--output", "json", "plan")
    after = execute("plan", *words, "--output=json", "-v")
    around = execute(*words[:4], "plan", *words[4:], "--output", "json")
    assert before.code == after.code == around.code == 3
    assert without_chance(before) == without_chance(after) == without_chance(around)


def without_chance(ended: Ended) -> str:
    return json.dumps(ended.document, sort_keys=True)


def test_environment_stands_for_options_and_a_flag_beats_it(command: Command, tmp_path: Path) -> None:
    environment = {
        "CRI_RESMGR_INSTALLER_HOST_ROOT": str(command.host.root),
        "CRI_RESMGR_INSTALLER_PAYLOAD": str(command.payload),
        "CRI_RESMGR_INSTALLER_CONFIGS": str(command.configs),
        "CRI_RESMGR_INSTALLER_CONFIG": str(command.config),
        "CRI_RESMGR_INSTALLER_OUTPUT": "json",
    }
    fallback = "policy:\n  Active: balloons\n  ReservedResources: {CPU: 750m}\n"
    (command.configs / "fallback.cfg").write_text(fallback)
    ended = execute("plan", environment=environment)
    assert ended.code == 3, ended.said
    diff = next(f["diff"] for f in ended.document["files"] if f["path"] == "/etc/cri-resmgr/fallback.cfg")
    assert "+  Active: balloons" in diff

    assert execute("plan", "--output", "text", environment=environment).out.startswith("7 to create")
    ended = execute("plan", "--payload", str(tmp_path / "none"), environment=environment)
    assert ended.code == 2
    assert f"{tmp_path}/none" in ended.events[0]["data"]["faults"][0]
    ended = execute("plan", environment=environment | {"CRI_RESMGR_INSTALLER_OUTPUT": "xml"})
    assert ended.code == 2
    assert "CRI_RESMGR_INSTALLER_OUTPUT: must be text or json" in ended.err


def test_settings_say_the_mode_of_a_plan_unless_a_flag_does(command: Command) -> None:
    command.config.write_text("mode: remove\n")
    assert command("plan").code == 0
    assert command("plan", "--output", "json").document["mode"] == "remove"
    assert command("plan", "--mode", "install").code == 3


def test_errors_as_json(command: Command) -> None:
    command.config.write_text("mode: instal\nkublet: {}\n")
    for verb in ("plan", "install", "remove", "status"):
        ended = command("--output", "json", verb)
        assert ended.code == 2
        assert ended.err == ""
        (event,) = ended.events
        assert event["kind"] == "error"
        assert event["time"].endswith("Z")
        assert event["data"]["error"] == "InvalidInputError"
        assert event["data"]["exitCode"] == 2
        assert [fault.split(":")[0] for fault in event["data"]["faults"]] == ["mode", "kublet"]
        assert "nothing was touched" in event["data"]["hint"]


def test_refusal_as_json(command: Command) -> None:
    build_payload(command.payload, machine="aarch64")
    with untouched(command.host):
        ended = command("install", "--output", "json")
    assert ended.code == 4
    assert ended.err == ""
    assert ended.events[-1]["data"]["exitCode"] == 4
    assert "aarch64" in ended.events[-1]["message"]


def test_status_and_plan_as_json(command: Command) -> None:
    status = command("status", "--output", "json")
    assert status.code == 3
    assert set(status.document) >= {
        *("schema", "converged", "healthy", "complaints", "summary", "relayAnswers", "kubeletOnRelay"),
        *("kubeletHealthy", "units", "differences", "findings"),
    }
    assert status.document["kubeletHealthy"] is True
    assert status.document["kubeletOnRelay"] is False
    assert [unit["name"] for unit in status.document["units"]] == [
        "cri-resource-manager.service",
        "kubelet.service",
    ]
    plan = command("plan", "--output", "json")
    assert plan.code == 3
    assert set(plan.document) >= {
        *("schema", "mode", "converged", "summary", "kubelet", "files", "units", "steps", "findings"),
    }
    assert {f["path"] for f in plan.document["files"]} == {d["path"] for d in status.document["differences"]}


def test_install_and_remove_as_json_lines(own: Command) -> None:
    for verb in ("install", "remove"):
        for changed in (True, False):
            ended = own(verb, "--output", "json")
            assert ended.code == 0, ended.said
            assert ended.err == ""
            assert all(set(event) == {"time", "kind", "message", "data"} for event in ended.events)
            assert ended.events[-1]["kind"] == "converged"
            assert ended.events[-1]["data"]["changed"] == changed
            assert ("step.done" in {event["kind"] for event in ended.events}) == changed
        status = own("status", "--output", "json")
        assert status.code == (0 if verb == "install" else 3)
        assert status.document["converged"] == (verb == "install")
