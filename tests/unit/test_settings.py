"""The operator's settings: what a file gives, and the messages about a wrong one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from installer.errors import InvalidInputError
from installer.inputs.settings import KubeletSettings, Settings, load_settings, parse_settings


def faults(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidInputError) as caught:
        parse_settings(text.encode(), "settings.yaml")
    assert caught.value.exit_code == 2
    return caught.value.faults


def test_no_file_is_all_defaults() -> None:
    settings = load_settings(None)
    assert settings == Settings()
    assert settings.mode == "install"
    assert settings.proxy.runtime_endpoint == "auto"
    assert settings.proxy.agent == "enabled"
    assert (settings.proxy.start_timeout_seconds, settings.proxy.dead_seconds) == (20, 5)
    kubelet = settings.kubelet
    assert (kubelet.unit, kubelet.strategy) == ("kubelet.service", "auto")
    assert kubelet.drop_in_directory == "auto"
    assert kubelet.healthz_url == "http://127.0.0.1:10248/healthz"
    assert (kubelet.start_timeout_seconds, kubelet.settle_seconds) == (60, 10)
    assert (kubelet.guard_seconds, kubelet.restarts_per_hour) == (15, 3)
    assert not kubelet.accept_static_managers
    assert settings.removal.on_termination == "keep"
    assert settings.removal.reset_pinning
    assert settings.status.listen == ""


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "kubelet:\nproxy:\n", "{}"])
def test_a_file_that_sets_nothing_is_all_defaults(text: str) -> None:
    assert parse_settings(text.encode()) == Settings()


def test_what_a_file_sets_is_taken_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "apiVersion: cri-resmgr-installer/v1\n"
        "mode: remove\n"
        "proxy: {runtimeEndpoint: 'unix:///var/run/crio/crio.sock', agent: disabled}\n"
        "kubelet:\n  dropInDirectory: /usr/local/lib/systemd/system/\n  healthzUrl: ''\n"
    )
    settings = load_settings(file)
    assert settings.mode == "remove"
    assert settings.proxy.runtime_endpoint == "unix:///var/run/crio/crio.sock"
    assert settings.proxy.agent == "disabled"
    assert settings.kubelet.drop_in_directory == "/usr/local/lib/systemd/system"
    assert settings.kubelet.healthz_url == ""
    assert settings.kubelet.guard_seconds == 15


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kubelet: {gaurdSeconds: 5}", "kubelet.gaurdSeconds: unknown key; did you mean guardSeconds?"),
        ("kubelet: {guard_seconds: 5}", "kubelet.guard_seconds: unknown key; did you mean guardSeconds?"),
        ("guardSeconds: 5", "guardSeconds: unknown key; it belongs under kubelet"),
        ("Mode: install", "Mode: unknown key; did you mean mode?"),
        ("zzz: 1", "zzz: unknown key; expected one of apiVersion, mode, takeOver, proxy"),
        ("3: 1", "3: unknown key"),
        ("mode: instal", "mode: must be 'install' or 'remove', not 'instal'"),
        ("apiVersion: cri-resmgr-installer/v2", "apiVersion: must be 'cri-resmgr-installer/v1', not"),
        ("kubelet: {guardSeconds: 2}", "kubelet.guardSeconds: must be at least 3, not 2"),
        ("kubelet: {settleSeconds: 0}", "kubelet.settleSeconds: must be at least 1, not 0"),
        ("proxy: {startTimeoutSeconds: -1}", "proxy.startTimeoutSeconds: must be at least 1, not -1"),
        ("proxy: {deadSeconds: '20'}", "proxy.deadSeconds: must be a whole number, not '20'"),
        ("proxy: {deadSeconds: true}", "proxy.deadSeconds: must be a whole number, not true"),
        ("adopt: true", "adopt: was renamed to takeOver"),
        ("proxy: {strangers: adopt}", "proxy.strangers: was renamed to proxy.existingContainers"),
        ("configs: {resetCached: true}", "configs: was removed: a force.cfg takes precedence"),
        ("rollout: {spreadSeconds: 5}", "rollout.spreadSeconds: was removed: in a fleet, permits limit"),
        ("proxy: {acceptRepinning: true}", "proxy.acceptRepinning: was removed: proxy.existingContainers"),
        ("kubelet: {acceptStaticManagers: 'yes'}", "kubelet.acceptStaticManagers: must be true or"),
        ("proxy: {agent: off}", "proxy.agent: must be 'enabled' or 'disabled', not false"),
        ("proxy: {agent: }", "proxy.agent: has no value; leave the key out for its default"),
        ("proxy: 5", "proxy: must be a mapping, not 5"),
        ("proxy: [1]", "proxy: must be a mapping, not a list"),
        ("proxy: {runtimeEndpoint: /run/x.sock}", "proxy.runtimeEndpoint: must be auto or unix://"),
        ("proxy: {runtimeEndpoint: 'unix://run/x.sock'}", "proxy.runtimeEndpoint: must be auto or unix://"),
        ("proxy: {runtimeEndpoint: 'tcp://1:2'}", "proxy.runtimeEndpoint: must be auto or unix://"),
        ("proxy: {runtimeEndpoint: ''}", "proxy.runtimeEndpoint: must be auto or unix://"),
        (
            "proxy: {runtimeEndpoint: 'unix:///var/run/cri-resmgr/cri-resmgr.sock'}",
            "proxy.runtimeEndpoint: is the proxy's own relay socket",
        ),
        (
            "proxy: {runtimeEndpoint: 'unix:///run/cri-resmgr/cri-resmgr.sock'}",
            "proxy.runtimeEndpoint: is the proxy's own relay socket",
        ),
        (
            "proxy: {runtimeEndpoint: 'unix:///run//cri-resmgr/./cri-resmgr.sock'}",
            "proxy.runtimeEndpoint: is the proxy's own relay socket",
        ),
        (
            "proxy: {runtimeEndpoint: 'unix:///run/cri-resmgr-installer/endpoint/containerd.sock'}",
            "proxy.runtimeEndpoint: is our own link",
        ),
        (
            f"proxy: {{runtimeEndpoint: 'unix:///{'x' * 107}'}}",
            "proxy.runtimeEndpoint: must have a path of at most",
        ),
        ("kubelet: {unit: kubelet}", "kubelet.unit: must be the name of a service"),
        ('kubelet: {unit: "kubelet@.service"}', "kubelet.unit: must be the name of a service"),
        ("kubelet: {unit: ../x.service}", "kubelet.unit: must be the name of a service"),
        ("kubelet: {unit: cri-resource-manager.service}", "kubelet.unit: is the proxy's own unit"),
        (
            "kubelet: {dropInDirectory: /opt}",
            "kubelet.dropInDirectory: must be auto or one that systemd reads",
        ),
        (
            "kubelet: {dropInDirectory: system}",
            "kubelet.dropInDirectory: must be auto or one that systemd reads",
        ),
        *(
            (f"kubelet: {{healthzUrl: '{url}'}}", "kubelet.healthzUrl: must be http://ADDRESS:PORT/PATH")
            for url in (
                *("https://127.0.0.1/", "http://node/", "127.0.0.1:10248", "http://127.0.0.1:x/"),
                *("http://127.0.0.1:65536/", "http://127.0.0.999/", "http://127.1/", "http://[:::]/"),
            )
        ),
        ("kubelet: {strategy: magic}", "kubelet.strategy: must be 'auto', 'environment' or 'exec-start'"),
        ("removal: {onTermination: remove}", "removal.onTermination: must be 'keep' or 'auto'"),
        ("status: {listen: '8080'}", "status.listen: must be host:port"),
        ("status: {listen: ':99999'}", "status.listen: must be host:port"),
        ("mode: install\nmode: remove", "mode: already given on line 1"),
        ("- mode", "settings.yaml: must be a mapping of settings, not a list"),
        ("mode: [", "settings.yaml:2: not YAML"),
        ("a: 1\n--- \nb: 2", "settings.yaml:2: not YAML"),
        ("a: !!python/object/apply:os.system ['true']", "settings.yaml:1: not YAML"),
    ],
)
def test_a_wrong_file_is_refused_in_words(text: str, fault: str) -> None:
    (only,) = faults(text)
    assert only.startswith(fault)


def test_every_fault_is_said_at_once_with_its_line() -> None:
    found = faults("mode: x\nkubelet:\n  gaurdSeconds: 5\n  unit: 3\n  unit: 4\nproxy:\n  agent: maybe\n")
    assert [fault.partition(":")[0] for fault in found] == [
        "kubelet.unit",
        "mode",
        "proxy.agent",
        "kubelet.unit",
        "kubelet.gaurdSeconds",
    ]
    assert [fault.rpartition("settings.yaml:")[2] for fault in found] == ["5)", "1)", "7)", "4)", "3)"]


def test_a_file_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"x:2: not UTF-8 text \(byte 0xff\)"):
        parse_settings(b"mode: install\n\xff", "x")


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_named_file_must_be_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_settings(tmp_path / name)
    assert str(tmp_path) in caught.value.faults[0]
    assert "--config" in caught.value.hint


def test_documents_that_multiply_or_contain_themselves_end_soon() -> None:
    layers = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    many = ("settings.yaml: has more than 50000 values or 4 MiB, including its aliases (`*`)",)
    assert faults("l0: &l0 [x]\n" + layers) == many
    assert faults("proxy: &p\n  agent: *p\n") == (
        "settings.yaml:1: an alias refers to a value that contains it",
    )


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_settings(None).kubelet.unit = "x.service"


def test_code_uses_the_attributes_names() -> None:
    assert Settings(kubelet=KubeletSettings(guard_seconds=5)).kubelet.guard_seconds == 5


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_settings_or_bad_input(content: bytes) -> None:
    with contextlib.suppress(InvalidInputError):
        parse_settings(content)


def test_starting_up_imports_neither_yaml_nor_a_heavy_library() -> None:
    """Start-up is what a DaemonSet pays for on every node."""
    script = (
        "import sys, installer.inputs.settings as s; s.load_settings(None);"
        "print(*sorted({'yaml', 'jinja2', 'grpc', 'psutil', 'pydbus'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout.strip() == ""
