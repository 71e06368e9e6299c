"""cri-resmgr's own configuration: what is accepted, what is refused, and the messages."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from installer.errors import InvalidInputError
from installer.inputs.configs import (
    Configs,
    find_cpu_faults,
    load_configs,
    parse_extra_options,
    validate_with_binary,
)
from installer.inputs.load import Request, load_inputs
from installer.inputs.payload import BINARY
from installer.inputs.policy import Asked
from installer.inputs.reading import read_if_present
from installer.inputs.settings import ProxySettings, Settings
from installer.model.names import Mode

NONE = b"policy:\n  Active: none\n"
BALLOONS = b"policy:\n  Active: balloons\n  balloons: {}\n"
TOPOLOGY = b"policy: {Active: topology-aware, ReservedResources: {CPU: 750m}}\n"


def write(directory: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def faults(directory: Path) -> tuple[str, ...]:
    with pytest.raises(InvalidInputError) as caught:
        load_configs(directory)
    assert "nothing was touched" in caught.value.hint
    return caught.value.faults


def test_no_directory_or_an_empty_one_is_no_configs(tmp_path: Path) -> None:
    assert load_configs(None) == load_configs(tmp_path) == Configs()


def test_a_directory_that_is_not_there_is_a_fault_that_names_the_near_one(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    assert faults(tmp_path / "confgis") == (
        f"--configs {tmp_path}/confgis: does not exist; did you mean {tmp_path}/configs?",
    )
    assert faults(tmp_path / "cnofigs/node-1") == (
        f"--configs {tmp_path}/cnofigs/node-1: does not exist; did you mean {tmp_path}/configs?",
    )
    assert faults(tmp_path / "x") == (f"--configs {tmp_path}/x: does not exist; {tmp_path} has no x",)


def test_a_file_is_not_a_directory_of_configs(tmp_path: Path) -> None:
    write(tmp_path, {"fallback.cfg": BALLOONS})
    (fault,) = faults(tmp_path / "fallback.cfg")
    assert "is not a directory; it must name the one that has fallback.cfg" in fault


def test_a_name_that_nothing_reads_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, {"fallback.yaml": BALLOONS, "README": b"x", "force.cfg": NONE})
    assert faults(tmp_path) == (
        f"{tmp_path}/README: unknown name; expected one of fallback.cfg, force.cfg, EXTRA_OPTIONS.cfg",
        f"{tmp_path}/fallback.yaml: unknown name; did you mean fallback.cfg?",
    )


def test_hidden_names_are_left_alone(tmp_path: Path) -> None:
    """A ConfigMap volume has `..data` and a directory for each version."""
    (tmp_path / "..2024").mkdir()
    write(tmp_path / "..2024", {"fallback.cfg": BALLOONS})
    (tmp_path / "..data").symlink_to("..2024")
    (tmp_path / "fallback.cfg").symlink_to("..data/fallback.cfg")
    assert load_configs(write(tmp_path, {".fallback.cfg.swp": b""})).asked.policy == "balloons"


@pytest.mark.parametrize(
    ("files", "policy"),
    [
        ({"fallback.cfg": NONE}, "none"),
        ({"fallback.cfg": BALLOONS}, "balloons"),
        ({"fallback.cfg": NONE, "force.cfg": BALLOONS}, "balloons"),
        ({"fallback.cfg": BALLOONS, "force.cfg": b""}, "none"),
        ({"force.cfg": TOPOLOGY}, "topology-aware"),
        ({"fallback.cfg": b"policy.Active: balloons\n"}, "balloons"),
        ({"fallback.cfg": b"policy:\n  Active: null\n"}, "none"),
        ({"fallback.cfg": b"policy:\nlogger:\n"}, "none"),
        ({"fallback.cfg": b"logger.Debug: x\n"}, "none"),
        ({"fallback.cfg": b"# nothing but a comment\n"}, "none"),
        ({"EXTRA_OPTIONS.cfg": b"EXTRA_OPTIONS=--disable-ui\n"}, "none"),
    ],
)
def test_the_policy_is_that_of_the_file_which_wins(
    tmp_path: Path, files: dict[str, bytes], policy: str
) -> None:
    configs = load_configs(write(tmp_path, files))
    assert configs.asked.policy == policy
    assert configs.fallback == files.get("fallback.cfg")
    assert configs.force == files.get("force.cfg")
    assert configs.warnings == ()


def test_a_configmap_volume_is_made_of_links(tmp_path: Path) -> None:
    version = tmp_path / "..2026_01_01"
    version.mkdir()
    write(version, {"fallback.cfg": BALLOONS})
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "fallback.cfg").symlink_to("..data/fallback.cfg")
    assert load_configs(tmp_path).asked.policy == "balloons"
    (version / "fallback.cfg").unlink()
    assert faults(tmp_path) == (f"{tmp_path}/fallback.cfg: dangling symlink",)


def test_a_volume_that_is_swapped_meanwhile_is_read_again(tmp_path: Path, mocker: MockerFixture) -> None:
    """Of the old one only fallback.cfg was looked at, and of the new one only force.cfg: none was there."""
    for version, files in (("..1", {"force.cfg": BALLOONS}), ("..2", {"fallback.cfg": TOPOLOGY})):
        (tmp_path / version).mkdir()
        write(tmp_path / version, files)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "force.cfg").symlink_to("..data/force.cfg")

    def then_swapped(path: Path) -> bytes | None:
        content = read_if_present(path)
        if path.name == "fallback.cfg" and content is None:
            (tmp_path / "fallback.cfg").symlink_to("..data/fallback.cfg")
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").rename(tmp_path / "..data")
            (tmp_path / "force.cfg").unlink()
        return content

    mocker.patch("installer.inputs.configs.read_if_present", then_swapped)
    assert load_configs(tmp_path).asked.policy == "topology-aware"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"policy: [\n", "fallback.cfg:2: not YAML"),
        (b"policy:\n\tActive: none\n", "fallback.cfg:2: not YAML"),
        (b"just words\n", "fallback.cfg: must be a mapping of policy, logger"),
        (b"- policy\n", "fallback.cfg: must be a mapping of policy, logger"),
        (b"\n\xff\n", "fallback.cfg:2: not UTF-8 text"),
        (b"a: b\n\0\n", "fallback.cfg: not YAML: unacceptable character"),
        (
            b"policy:\n  Active: baloons\n",
            "fallback.cfg: policy.Active: unknown policy 'baloons'; did you mean balloons?",
        ),
        (b"policy:\n  Active: 'null'\n", "fallback.cfg: policy.Active: unknown policy 'null'"),
        (b"policy:\n  Active: ''\n", "fallback.cfg: policy.Active: unknown policy ''"),
        (b"policy.Active: zzz\n", "fallback.cfg: policy.Active: unknown policy 'zzz'; expected one of none,"),
        (b"policy:\n  Active: 5\n", "fallback.cfg: policy.Active: unknown policy '5'"),
        (b"policy:\n  Active: static\n", "fallback.cfg: policy.Active: static needs policy.ReservedRes"),
        (
            b"policy:\n  Active: static-pools\n  static-pools: {LabelNode: true, pools: {}}\n",
            "fallback.cfg: policy.Active: static-pools has no pools and would end at its start; name "
            "them in policy.static-pools.pools",
        ),
        (b"policy: {}\npolicy: {}\n", "policy: already given on line 1 (fallback.cfg:2)"),
        (b"apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "fallback.cfg: is a whole ConfigMap"),
    ],
)
def test_what_is_found_wrong_is_said_in_words(tmp_path: Path, content: bytes, fault: str) -> None:
    (only,) = faults(write(tmp_path, {"fallback.cfg": content}))
    assert only.startswith(fault)


@pytest.mark.parametrize("key", ["CPU", "cpu", "Cpu"])
@pytest.mark.parametrize("policy", ["memtier", "topology-aware", "static"])
def test_what_cri_resmgr_takes_is_taken(tmp_path: Path, policy: str, key: str) -> None:
    content = f"policy: {{Active: {policy}, ReservedResources: {{{key}: 750m}}, {policy}: {{}}}}\n".encode()
    assert load_configs(write(tmp_path, {"fallback.cfg": content})).asked.policy == policy


STATIC_POOLS = b"policy.Active: static-pools\npolicy.static-pools.pools: {one: {}}\n"


@pytest.mark.parametrize(
    "content",
    [STATIC_POOLS, b"policy: {Active: static-pools, static-pools: {ConfDirPath: /etc/cmk}}\n"],
)
def test_pools_are_pools_wherever_they_stand(tmp_path: Path, content: bytes) -> None:
    assert load_configs(write(tmp_path, {"fallback.cfg": content})).asked.policy == "static-pools"


@pytest.mark.parametrize(
    ("policy", "available", "reserved", "says"),
    [
        (
            "podpools",
            "cpuset:2-15",
            "cpuset:15",
            "AvailableResources.CPU: podpools panics on CPUs 4-15: ",
        ),
        ("podpools", "cpuset:0-4", "1", "podpools panics on CPUs 4: this node has the CPUs 0-3"),
        ("podpools", "cpuset:1-3", "1", ""),
        ("podpools", "", "99", ""),  # the binary says so
        ("static", "", "5", "policy.ReservedResources.CPU: static cannot reserve 5 of the CPUs 0-3: "),
        ("static", "", "4", ""),
        ("static", "cpuset:0-1", "2100m", "static cannot reserve 2100m of the CPUs 0-1: "),
        ("static", "cpuset:0", "cpuset:1", "static cannot reserve cpuset:1 of the CPUs 0: "),
        ("static", "cpuset:8-9", "1", "of the CPUs that are left (none): this node has the CPUs 0-3"),
        ("static", "cpuset:0-9", "cpuset:0,3", ""),
        ("static", "cpuset:x", "1", ""),  # the binary says so
        ("balloons", "cpuset:8-9", "1", ""),
    ],
)
def test_cpus_that_the_node_does_not_have(policy: str, available: str, reserved: str, says: str) -> None:
    """Which neither the schema nor the private run sees: a real start ends in a panic."""
    configs = Configs(b"", asked=Asked(policy, reserved=reserved, available=available))
    found = find_cpu_faults(configs, "0-3")
    assert len(found) == bool(says)
    assert all(fault.startswith("fallback.cfg: policy.") and says in fault for fault in found)
    assert find_cpu_faults(configs, "") == []  # the kernel does not say


@pytest.mark.parametrize("agent", ["enabled", "disabled"])
def test_static_pools_need_the_agent(tmp_path: Path, agent: Literal["enabled", "disabled"]) -> None:
    """Which neither the schema nor the private run sees: a real start refuses it."""
    binary = tmp_path / "payload" / BINARY
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    (tmp_path / "configs").mkdir()
    write(tmp_path / "configs", {"force.cfg": STATIC_POOLS})
    settings = Settings(proxy=ProxySettings(agent=agent))
    request = Request(Mode.INSTALL, settings, tmp_path / "payload", tmp_path / "configs")
    if agent == "enabled":
        assert load_inputs(request, lambda _path, _identity: None).configs.asked.policy == "static-pools"
        return
    fault = r"force\.cfg: policy\.Active: static-pools needs cri-resmgr-agent"
    with pytest.raises(InvalidInputError, match=fault):
        load_inputs(request, lambda _path, _identity: None)


def test_every_fault_of_every_file_is_said_at_once(tmp_path: Path) -> None:
    files = {
        "fallback.cfg": b"a: {}\na: {}\npolicy.Active: b\n",
        "force.cfg": b"[",
        "EXTRA_OPTIONS.cfg": b"X=1\n",
    }
    found = faults(write(tmp_path, files))
    assert [fault.split(":")[0] for fault in found] == ["a", "fallback.cfg", "force.cfg", "EXTRA_OPTIONS.cfg"]


def test_what_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "force.cfg").mkdir()
    assert faults(tmp_path) == (f"{tmp_path}/force.cfg: is a directory, not a regular file",)


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ('":8891"', True),
        ("0.0.0.0:8891", True),
        ('"[::]:8891"', True),
        ("127.0.0.1:8891", False),
        ('"[::1]:8891"', False),
        ("localhost:8891", False),
        ('""', False),
        ("5", False),
    ],
)
def test_metrics_on_all_interfaces_are_warned_of(tmp_path: Path, endpoint: str, warned: bool) -> None:
    content = f"instrumentation:\n  HTTPEndpoint: {endpoint}\n".encode()
    found = load_configs(write(tmp_path, {"force.cfg": content})).warnings
    assert [finding.code for finding in found] == ["open-metrics"] * warned


@pytest.mark.parametrize(
    ("dump", "warned"),
    [
        ("{Config: 'full:.*,off:.*List.*'}", True),
        ("{Config: 'off:.*,full:Create.*'}", True),
        ("{Config: 'verbose:.*'}", True),
        ("{Config: 'Create.*'}", True),
        ("{Config: 'off:.*,Create.*'}", False),
        ("{Config: 'full:.*', Disabled: true}", False),
        ("{Config: ''}", False),
        ("{Config: 'short:.*'}", False),
        ("{}", False),
    ],
)
def test_a_dump_of_whole_requests_is_warned_of(tmp_path: Path, dump: str, warned: bool) -> None:
    found = load_configs(write(tmp_path, {"fallback.cfg": f"dump: {dump}\n".encode()})).warnings
    assert [finding.code for finding in found] == ["full-dump"] * warned


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("EXTRA_OPTIONS=\n", ()),
        ("EXTRA_OPTIONS=--disable-ui", ("--disable-ui",)),
        ("# why\n\n; also\n EXTRA_OPTIONS = --a  -b\n", ("--a", "-b")),
        (
            'EXTRA_OPTIONS="--metrics-interval 5s --disable-ui"\n',
            ("--metrics-interval", "5s", "--disable-ui"),
        ),
        ("EXTRA_OPTIONS='--a=\"x y\" -b'\n", ("--a=x y", "-b")),
        ('EXTRA_OPTIONS="--a=\\"x y\\""\n', ("--a=x y",)),
        ("EXTRA_OPTIONS=--a=x\\\\ y\r\n", ("--a=x y",)),
        ("EXTRA_OPTIONS=--a=$HOME\n", ("--a=$HOME",)),
        ('EXTRA_OPTIONS="--runtime-socket-like=1"\n', ("--runtime-socket-like=1",)),
    ],
)
def test_extra_options_are_split_as_systemd_does(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    assert parse_extra_options(text) == words
    raw = text.encode()
    assert load_configs(write(tmp_path, {"EXTRA_OPTIONS.cfg": raw})).extra_options == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "EXTRA_OPTIONS.cfg:1: no EXTRA_OPTIONS= line"),
        (b"# only a comment\n", "EXTRA_OPTIONS.cfg:1: no EXTRA_OPTIONS= line"),
        (b"EXTRA_OPTIONS=--a\nEXTRA_OPTIONS=--b\n", "EXTRA_OPTIONS.cfg:2: a second EXTRA_OPTIONS= line"),
        (
            b"EXTRA_OPTIONS=--a\nLD_PRELOAD=/x\n",
            "EXTRA_OPTIONS.cfg:2: only one line EXTRA_OPTIONS=",
        ),
        (b"--disable-ui\n", "EXTRA_OPTIONS.cfg:1: only one line EXTRA_OPTIONS="),
        (b"export EXTRA_OPTIONS=--a\n", "EXTRA_OPTIONS.cfg:1: only one line EXTRA_OPTIONS="),
        (b'EXTRA_OPTIONS="--a\n', "EXTRA_OPTIONS.cfg:1: an unclosed quote"),
        (b"EXTRA_OPTIONS=--a \\\n --b\n", "EXTRA_OPTIONS.cfg:1: a backslash at the end"),
        (b'EXTRA_OPTIONS="--a=\'x"\n', "EXTRA_OPTIONS.cfg:1: in the value: unclosed quote '"),
        (b"# why \\\nEXTRA_OPTIONS=--a\n", "EXTRA_OPTIONS.cfg:1: a backslash at the end of a comment"),
        (b"EXTRA_OPTIONS=word\n", "EXTRA_OPTIONS.cfg:1: 'word' is not a flag"),
        (b"EXTRA_OPTIONS=--a -- b\n", "EXTRA_OPTIONS.cfg:1: a lone dash ends the flags"),
        (b"EXTRA_OPTIONS=--a\0\n", "EXTRA_OPTIONS.cfg: contains a NUL byte"),
        (b"EXTRA_OPTIONS=\xff\n", "EXTRA_OPTIONS.cfg:1: not UTF-8 text"),
    ],
)
def test_extra_options_must_be_one_line_of_flags(tmp_path: Path, text: bytes, fault: str) -> None:
    (only,) = faults(write(tmp_path, {"EXTRA_OPTIONS.cfg": text}))
    assert only.startswith(fault)


OURS = (
    "relay-socket",
    "runtime-socket",
    "image-socket",
    "force-config",
    "fallback-config",
    "agent-socket",
    "reset-policy",
    "reset-config",
    "host-root",
    "force-config-signal",
    "relay-dir",
    "config-socket",
    "pid-file",
    "print-config",
    "list-policies",
)


@pytest.mark.parametrize("flag", OURS)
@pytest.mark.parametrize(
    "line",
    [
        "EXTRA_OPTIONS=--{flag}=x",
        "EXTRA_OPTIONS=-{flag}=x",
        "EXTRA_OPTIONS=--disable-ui --{flag} x",
        'EXTRA_OPTIONS="-metrics-interval 5s -{flag}"',
        "EXTRA_OPTIONS='--\\{flag}=x'",
        "EXTRA_OPTIONS=\"--'{flag}'=x\"",
    ],
)
def test_our_own_flags_are_refused_however_they_are_written(tmp_path: Path, flag: str, line: str) -> None:
    (only,) = faults(write(tmp_path, {"EXTRA_OPTIONS.cfg": line.format(flag=flag).encode()}))
    assert "the installer sets this flag itself" in only
    assert flag in only


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1))
def test_any_words_survive_quoting(words: list[str]) -> None:
    quoted = " ".join("--x=" + "".join(f"\\{character}" for character in word) for word in words)
    escaped = "".join(f"\\{c}" if c in '"\\`$' else c for c in quoted)
    assert parse_extra_options(f'EXTRA_OPTIONS="{escaped}"\n') == tuple(f"--x={word}" for word in words)


# Not st.text() alone: the table of what UTF-8 can say is the same, and takes seconds where it is not kept.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(ANY_TEXT.map(lambda text: f"EXTRA_OPTIONS={text}") | ANY_TEXT)
def test_any_text_is_flags_or_a_reason(text: str) -> None:
    with contextlib.suppress(ValueError):
        words = parse_extra_options(text)
        assert not words or words[0].startswith("-")


class Judge:
    """A validator that refuses what contains `bad`."""

    def validate(self, binary: Path, config: bytes) -> str:
        assert binary == Path("/payload/cri-resmgr")
        return 'unknown field "bad"' if b"bad" in config else ""

    def see_containers(self, binary: Path, state_directory: Path, runtime: Path, seconds: float) -> str:
        raise AssertionError


@pytest.mark.parametrize(
    ("configs", "files"),
    [
        (Configs(), []),
        (Configs(fallback=b"good", force=b"good"), []),
        (Configs(fallback=b"bad", force=b"good"), ["fallback.cfg"]),
        (Configs(fallback=b"bad", force=b"bad"), ["fallback.cfg", "force.cfg"]),
    ],
)
def test_the_binary_judges_what_our_schema_does_not_know(configs: Configs, files: list[str]) -> None:
    found = validate_with_binary(configs, Path("/payload/cri-resmgr"), Judge())
    assert found == [f'{name}: cri-resmgr refuses it: unknown field "bad"' for name in files]
