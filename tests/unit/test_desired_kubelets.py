"""Kubelets as cases: tests/cases/kubelets/<name>/expected.yaml, on a tree of unit files.

`flavour` names a bootable tree of tests/lib/throwaway/kubelets; the case's own tree/
lies over it, `without` takes files away. `running` is the command line of the running
kubelet, where it is not the unit's; `names` is kubelet.variable, `settings` is
kubelet.strategy. Expected is either a strategy with its variable or the code of a
refusal, and the base endpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from installer.host.files import RootedFiles
from installer.host.kubelet_files import configuration_files
from installer.inputs.settings import KubeletSettings, Settings
from installer.inputs.systemd_syntax import quote
from installer.model import paths
from installer.model.host import (
    ExecLine,
    HostSnapshot,
    KubeletBase,
    KubeletSnapshot,
    ProcessState,
    ProxySnapshot,
    UnitDetail,
    UnitState,
    UnitText,
)
from installer.model.plan import Finding
from installer.node.desired import desired_kubelet
from installer.node.kubelet_command import parse_base
from installer.node.kubelet_endpoint import base_endpoint
from installer.node.kubelet_strategy import Choice, KubeletAnalysis, analyse_kubelet, choose_strategy
from tests.lib import yamltext
from tests.lib.kubelet_trees import CASES, FLAVOURS, UNIT, load_base, next_start

OUR_FLAG = f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}"


@pytest.fixture(params=sorted(path.name for path in CASES.iterdir()))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    directory = CASES / request.param
    expected = yamltext.load((directory / "expected.yaml").read_text())
    if "flavour" in expected:
        shutil.copytree(FLAVOURS / expected["flavour"], tmp_path, dirs_exist_ok=True)
    if (directory / "tree").is_dir():
        shutil.copytree(directory / "tree", tmp_path, symlinks=True, dirs_exist_ok=True)
    for name in expected.get("without", ()):
        (tmp_path / name).unlink()
    return expected, tmp_path


def settings_of(expected: dict[str, Any]) -> Settings:
    strategy, variable = expected.get("settings", "auto"), expected.get("names", "")
    kubelet = KubeletSettings(strategy=strategy, variable=variable, drop_in_directory="/etc/systemd/system")
    return Settings(kubelet=kubelet)


def running(expected: dict[str, Any], base: KubeletBase) -> ProcessState:
    """The process of this kubelet, on its base endpoint."""
    argv = tuple(expected.get("running", ())) or next_start(base) or ("/usr/bin/kubelet",)
    return ProcessState(7, argv, {}, argv[0])


def analysed(
    base: KubeletBase, process: ProcessState | None = None, settings: Settings | None = None
) -> KubeletAnalysis:
    unit = UnitState(UNIT, load_state="loaded")
    snapshot = HostSnapshot(ProxySnapshot(UnitState("")), KubeletSnapshot(unit, process), base=base)
    return analyse_kubelet(snapshot, settings or Settings())


def on_relay(expected: dict[str, Any], base: KubeletBase) -> ProcessState:
    """The process of this kubelet, running and moved by our guard."""
    before = running(expected, base)
    return ProcessState(7, (*before.argv, OUR_FLAG), {"CRI_RESMGR_GUARD_FLAG": OUR_FLAG}, before.exe)


def test_strategy(case: tuple[dict[str, Any], Path]) -> None:
    expected, root = case
    base = load_base(root)
    choice = choose_strategy(parse_base(base), settings_of(expected), base, running(expected, base))
    if "refusal" in expected:
        assert isinstance(choice, Finding), choice
        assert choice.code == expected["refusal"]
        assert expected.get("message", "") in choice.message
        assert expected.get("hint", "") in choice.hint
        return
    assert isinstance(choice, Choice), choice
    assert (choice.strategy, choice.variable) == (expected["strategy"], expected["variable"])
    assert expected.get("why", "") in choice.why
    if "exec_start" in expected:
        assert " ".join(choice.exec_start.split()) == " ".join(expected["exec_start"].split())
    if "last_words" in expected:
        words = tuple(expected["last_words"])
        assert next_start(base)[-len(words) :] == words


def test_base_endpoint(case: tuple[dict[str, Any], Path]) -> None:
    expected, root = case
    base = load_base(root)
    for process in (running(expected, base), None, on_relay(expected, base)):
        if process is None and "running" in expected:
            continue  # what the unit says is not kubelet's command line
        found = analysed(base, process)
        if "endpoint_refusal" in expected:
            refusals = {one.code: one.message for one in found.refusals}
            assert expected.get("message", "") in refusals[expected["endpoint_refusal"]]
            assert not found.endpoint
        elif "endpoint" in expected:
            assert found.endpoint == expected["endpoint"]
        if "policies" in expected:
            assert found.policies == tuple(expected["policies"])


def test_drop_in_makes_the_base_line_and_our_flag(case: tuple[dict[str, Any], Path]) -> None:
    """With our drop-in at its place, the merged unit is the base's command line and then our flag."""
    expected, root = case
    base = load_base(root)
    settings = settings_of(expected)
    choice = choose_strategy(parse_base(base), settings, base, running(expected, base))
    if not isinstance(choice, Choice):
        return
    files, _kubelet = desired_kubelet(settings, base.detail, choice, "/run/containerd/containerd.sock")
    drop_in = next(file for file in files if file.path.endswith(paths.DROP_IN_NAME))
    assert isinstance(drop_in.content, bytes)
    place = root / drop_in.path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(drop_in.content)
    before = next_start(base)
    composed = root / paths.KUBELET_COMPOSED[1:]
    composed.parent.mkdir(parents=True)
    value = parse_base(base).environment(base.environment_files).get(choice.variable, "")
    composed.write_text(f"{choice.variable}={quote(f'{value} {OUR_FLAG}')}\n")
    moved = load_base(root)
    if choice.passed_on and "running" in expected:  # what is made of the variable is not read
        environment = parse_base(moved).environment(moved.environment_files)
        assert environment[choice.variable].endswith(OUR_FLAG)
    else:
        assert next_start(moved) == (*before, OUR_FLAG)


def test_without_a_config_dir_nothing_is_searched(tmp_path: Path) -> None:
    """The daemon asks at each look, and would else read all of the host."""
    (tmp_path / "found.conf").touch()
    assert not [*configuration_files(RootedFiles(tmp_path), "")]
    assert [*configuration_files(RootedFiles(tmp_path), "/")] == ["/found.conf"]


def test_running_on_the_relay_by_another_hand_is_refused() -> None:
    """The flag without our variable in the environment is not ours to take away."""
    process = ProcessState(7, ("/usr/bin/kubelet", OUR_FLAG), {})
    refused = base_endpoint(KubeletBase(), process, ())
    assert isinstance(refused, Finding)
    assert refused.code == "kubelet-base-is-relay"


def test_the_running_process_counts_before_the_files() -> None:
    text = UnitText(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/usr/bin/kubelet\n")
    argv = ("/usr/bin/kubelet", "--container-runtime-endpoint=unix:///run/now.sock")
    assert analysed(KubeletBase(texts=(text,)), ProcessState(7, argv, {})).endpoint == "unix:///run/now.sock"


@pytest.mark.parametrize("flag", ["--config=/etc/k/one", "--config-dir=/etc/k"])
def test_the_endpoint_of_a_kubelet_that_does_not_run_is_not_guessed(flag: str) -> None:
    """Where its configuration is read from, its process says."""
    text = UnitText(f"/etc/systemd/system/{UNIT}", f"[Service]\nExecStart=/usr/bin/kubelet {flag}\n")
    found = analysed(KubeletBase(texts=(text,)))
    assert [one.code for one in found.refusals] == ["kubelet-config-unreadable"]
    assert "start kubelet" in found.refusals[0].hint


def test_a_kubelet_behind_a_shell_is_refused_once_and_not_called_stopped() -> None:
    expected = yamltext.load((CASES / "script-child" / "expected.yaml").read_text())
    base = load_base(CASES / "script-child" / "tree")
    found = analysed(base, running(expected, base))
    assert [one.code for one in found.refusals] == ["kubelet-behind-shell"]


@pytest.mark.parametrize(
    ("argv", "composed", "on_relay"),
    [
        (("/bin/sh", "-c", "kubelet $ARGS; exit 1"), f"--v=2 {OUR_FLAG}", True),
        (("/bin/sh", "-c", "kubelet $ARGS; exit 1"), "--v=2", False),
        (("/usr/bin/kubelet",), f"--v=2 {OUR_FLAG}", False),
    ],
    ids=["on the relay", "by the guard on its base endpoint", "a script has lost the variable"],
)
def test_a_shell_shows_the_endpoint_of_its_kubelet_by_what_the_guard_has_composed(
    argv: tuple[str, ...], composed: str, on_relay: bool
) -> None:
    environ = {"CRI_RESMGR_GUARD_VARIABLE": "ARGS", "CRI_RESMGR_GUARD_FLAG": OUR_FLAG, "ARGS": composed}
    assert ProcessState(7, argv, environ).names_relay is on_relay


def test_a_loaded_unit_without_readable_files_is_a_refusal_of_its_own() -> None:
    found = analysed(KubeletBase())
    assert [one.code for one in found.refusals] == ["kubelet-unit-unreadable"]
    assert "systemctl cat kubelet.service" in found.refusals[0].hint


@pytest.mark.parametrize(
    ("line", "scripted", "known"),
    [
        ("/usr/bin/kubelet", False, True),
        ("/usr/bin/nice -n 5 /usr/bin/kubelet", False, True),
        ("/opt/start-kubelet", False, False),
        ("/opt/kubelet", True, False),
        ("/bin/sh -c 'exec /usr/bin/kubelet $X'", False, False),
    ],
)
def test_the_next_endpoint_is_known_of_kubelets_own_command_line_alone(
    line: str, scripted: bool, known: bool
) -> None:
    """Another program may give it flags of its own, which only the running process shows."""
    text = UnitText(
        f"/etc/systemd/system/{UNIT}",
        f"[Service]\nExecStart={line} --container-runtime-endpoint=unix:///run/next.sock\n",
    )
    base = KubeletBase(texts=(text,), scripted=scripted)
    argv = ("/usr/bin/kubelet", "--container-runtime-endpoint=unix:///run/now.sock")
    found = analysed(base, ProcessState(7, argv, {}, argv[0]))
    assert found.next_endpoint == ("unix:///run/next.sock" if known else "")


def test_the_same_socket_in_other_words_or_no_plain_socket_is_no_other_endpoint() -> None:
    argv = ("/usr/bin/kubelet", "--container-runtime-endpoint=unix:///run/now.sock", OUR_FLAG)
    process = ProcessState(7, argv, {"CRI_RESMGR_GUARD_FLAG": OUR_FLAG}, argv[0])
    for value in ("/var/run/now.sock", "tcp://10.0.0.1:1234", ""):
        line = f"ExecStart=/usr/bin/kubelet --container-runtime-endpoint={value}"
        base = KubeletBase(texts=(UnitText(f"/etc/systemd/system/{UNIT}", f"[Service]\n{line}\n"),))
        assert not analysed(base, process).next_endpoint


@pytest.mark.parametrize(("name", "codes"), [("node-1", []), ("renamed", ["kubelet-arguments-lost"])])
def test_a_script_is_given_what_systemd_makes_of_a_specifier(name: str, codes: list[str]) -> None:
    line = "/opt/start --hostname-override={} $KUBELET_EXTRA_ARGS"
    loaded, argv = tuple(line.format("node-1").split()), ("/usr/bin/kubelet", f"--hostname-override={name}")
    base = KubeletBase(
        detail=UnitDetail(exec_start=(ExecLine(loaded[0], loaded),)),
        texts=(UnitText(f"/etc/systemd/system/{UNIT}", f"[Service]\nExecStart={line.format('%H')}\n"),),
    )
    found = analysed(base, ProcessState(7, argv, {}, "/usr/bin/kubelet"))
    assert [one.code for one in found.refusals] == codes


@pytest.mark.parametrize(
    ("loaded", "found"),
    [
        ("/usr/bin/kubelet --v=4 $CRI_RESMGR_KUBELET_ARGS", "`cri-resmgr-installer remove`"),
        ("/opt/start --v=4 $CRI_RESMGR_KUBELET_ARGS", ""),
        ("/opt/start --v=5 $CRI_RESMGR_KUBELET_ARGS", ""),
        ("/opt/start --v=4", ""),
        ("/opt/start --v=5", ""),  # an edit that systemd has not loaded yet
        ("/opt/other --v=5", "restart kubelet"),
    ],
)
def test_a_kubelet_that_was_started_by_another_line_is_no_evidence_of_this_one(
    loaded: str, found: str
) -> None:
    """Its last arguments may be the same by chance. The hint says how to get the evidence."""
    words = tuple(loaded.split())
    base = KubeletBase(
        detail=UnitDetail(exec_start=(ExecLine(words[0], words),)),
        texts=(UnitText(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/opt/start --v=4\n"),),
    )
    started = tuple(word for word in words[1:] if word != "$CRI_RESMGR_KUBELET_ARGS")
    refusals = analysed(
        base, ProcessState(7, ("/usr/bin/kubelet", *started), {}, "/usr/bin/kubelet")
    ).refusals
    assert [one.code for one in refusals] == (["kubelet-arguments-lost"] if found else [])
    assert not found or found in refusals[0].hint
    assert ("our drop-in still starts kubelet" in "".join(one.message for one in refusals)) == (
        "remove" in found
    )
