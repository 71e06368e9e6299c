"""What a runtime may expect of an NRI plugin: of the tests' own, and of one of nri-plugins where
`--real-nri-plugin` names it (seen with 0705acc). The runtime is played.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.host.protobuf import Fields, encode, integer, message, messages, text
from tests.lib.nri_plugin import CREATE_CONTAINER
from tests.lib.nri_runtime import Runtime
from tests.lib.throwaway import real

SECONDS = 60.0
CONFIG = """\
apiVersion: config.nri/v1alpha1
kind: {}Policy
metadata: {{name: default, namespace: kube-system}}
spec:
  reservedResources: {{cpu: "1"}}
  pinCPU: true
  pinMemory: false
"""
UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
NAMES = ("one", "two")


@pytest.fixture(params=["own", "real"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The command line of a plugin, but for the socket."""
    if request.param == "own":
        return [sys.executable, "-m", "tests.lib.nri_plugin", "--cpus", "0", "--socket"]
    plugin = real.named("nri-plugin")
    if plugin is None:
        pytest.skip("no --real-nri-plugin PATH")
    kind = "".join(word.capitalize() for word in plugin.name.split("-"))
    (tmp_path / "config").write_text(CONFIG.format(kind))
    places = {"config-file": "config", "state-dir": "state", "pid-file": "pid"}
    return [str(plugin), *(f"--{key}={tmp_path / name}" for key, name in places.items()), "--nri-socket"]


@pytest.fixture
def runtime(program: list[str], tmp_path: Path) -> Iterator[Runtime]:
    place = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        server.settimeout(SECONDS)
        process = subprocess.Popen([*program, str(place)])
        try:
            end, _ = server.accept()
            end.settimeout(SECONDS)
            with end:
                yield Runtime(end)
                end.shutdown(socket.SHUT_RDWR)
            process.wait(SECONDS)  # a plugin ends with its runtime
        finally:
            process.kill()
            process.wait()


def pod() -> bytes:
    parent = f"/kubepods/burstable/pod{UID}".encode()
    strings = {1: b"pod", 2: b"web-0", 3: UID.encode(), 4: b"default"}
    return b"".join(encode(*each) for each in strings.items()) + encode(8, encode(3, parent))


def container(name: str) -> bytes:
    """One that runs, with 512 shares."""
    strings = {1: name.encode(), 2: b"pod", 3: name.encode()}
    resources = encode(3, encode(2, encode(1, encode(1, 512))))
    return b"".join(encode(*each) for each in strings.items()) + encode(4, 3) + encode(11, resources)


def test_it_registers_and_pins_only_what_it_was_shown_in_several_pieces(runtime: Runtime) -> None:
    registered = runtime.accept()
    assert text(registered, 1)
    assert re.fullmatch("[0-9]{2}", text(registered, 2))
    events = integer(runtime.call("Configure", encode(2, b"containerd") + encode(3, b"v2.1.9")), 2)
    assert events == 0 or events & CREATE_CONTAINER
    first, second = (encode(2, container(name)) for name in NAMES)
    assert integer(runtime.call("Synchronize", encode(1, pod()) + first + encode(3, 1)), 2) == 1
    answer = runtime.call("Synchronize", second)
    assert not integer(answer, 2)
    pinned = {text(each, 1): cpus_of(each) for each in messages(answer, 1)}
    assert pinned.keys() <= set(NAMES)
    assert all(cpus <= os.sched_getaffinity(0) for cpus in pinned.values() if cpus)
    assert any(pinned.values())


def cpus_of(update: Fields) -> set[int]:
    """The CPUs of a ContainerUpdate: linux.resources.cpu.cpus."""
    found = text(message(message(message(update, 2), 1), 2), 6)
    ranges = [part.partition("-") for part in found.split(",") if part]
    return {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)}
