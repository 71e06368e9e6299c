"""What the Cri port promises, of the fake and of real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from installer.errors import StepFailedError
from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.host.ports import Cri
from tests.fakes import CONTAINERD, FakeCri
from tests.rules import rule
from tests.throwaway.containers import Mount, create_container
from tests.throwaway.host import ThrowawayHost

SETTINGS = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x03\x00\x00\x00\x64"
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + b"\x00" * 8
ENDPOINTS = ("unix:///var/run/r.sock", "unix:///run/r.sock", "/run/r.sock", "unix:/run/r.sock")


def fake(answer: bytes | None) -> Iterator[Cri]:
    yield FakeCri({} if answer is None else {"/run/r.sock": CONTAINERD if answer == SETTINGS else "silent"})


def real(answer: bytes | None, root: Path) -> Iterator[Cri]:
    """A root with a server that sends `answer`, byte by byte, or (None) with no server."""
    (root / "run").mkdir()
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    cri = SocketCri(RootedFiles(root))
    if answer is None:
        yield cri
        return
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "run/r.sock"))
        server.listen()
        thread = threading.Thread(target=_serve, args=(server, answer, over))
        thread.start()
        yield cri
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve(server: socket.socket, answer: bytes, over: threading.Event) -> None:
    kept: list[socket.socket] = []
    while not over.is_set():
        try:
            client, _ = server.accept()
        except OSError:
            break
        kept.append(client)
        with contextlib.suppress(OSError):  # the client has read enough
            for byte in answer:
                client.send(bytes([byte]))
    for client in kept:
        client.close()


@pytest.fixture(params=["fake", "real"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[bytes | None], Cri]]:
    begun: list[Iterator[Cri]] = []

    def begin(answer: bytes | None) -> Cri:
        begun.append(fake(answer) if request.param == "fake" else real(answer, tmp_path))
        return next(begun[0])

    yield begin
    for world in begun:
        assert next(world, None) is None


def test_settings_are_an_answer_however_the_endpoint_is_written(
    served: Callable[[bytes | None], Cri],
) -> None:
    cri = served(SETTINGS)
    assert [endpoint for endpoint in ENDPOINTS if not cri.answers(endpoint)] == []


@pytest.mark.parametrize("answer", [None, b"", SETTINGS[:9], GOAWAY, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_anything_else_is_none(served: Callable[[bytes | None], Cri], answer: bytes | None) -> None:
    cri = served(answer)
    started = time.monotonic()
    assert not cri.answers("unix:///run/r.sock", timeout=0.2)
    assert time.monotonic() - started < 1


def test_a_call_to_nobody_fails_with_the_reason(served: Callable[[bytes | None], Cri]) -> None:
    cri = served(None)
    with pytest.raises(StepFailedError, match="no socket"):
        cri.status("unix:///run/r.sock")
    with pytest.raises(StepFailedError, match="no socket"):
        cri.containers("unix:///run/r.sock")


@rule("R9")
def test_a_call_to_the_silent_has_a_deadline(tmp_path: Path) -> None:
    world = real(b"", tmp_path)
    started = time.monotonic()
    with pytest.raises(StepFailedError, match="Version"):
        next(world).status("unix:///run/r.sock", timeout=0.5)
    assert time.monotonic() - started < 2
    assert next(world, None) is None


def test_a_real_containerd(throwaway: ThrowawayHost) -> None:
    cri = SocketCri(RootedFiles(throwaway.root))
    endpoint = throwaway.runtime_socket
    assert cri.answers(endpoint)
    status = cri.status(endpoint)
    assert (status.name, status.api_version, status.ready) == ("containerd", "v1", True)
    assert cri.containers(endpoint) == ()


def test_the_running_containers_of_a_real_containerd(throwaway: ThrowawayHost) -> None:
    socket_path = throwaway.runtime_socket
    adopted = create_container(throwaway, socket_path, "adopted")
    mount = Mount("/.cri-resmgr", "/var/lib", readonly=True)
    proxied = create_container(throwaway, socket_path, "proxied", [mount], cpuset="0")
    found = {
        container.id: container
        for container in SocketCri(RootedFiles(throwaway.root)).containers(socket_path)
    }
    assert found.keys() == {adopted, proxied}
    assert [found[adopted].name, found[proxied].name] == ["adopted", "proxied"]
    assert not found[adopted].through_proxy
    assert not found[adopted].pinned
    assert found[proxied].through_proxy
    assert found[proxied].pinned == (len(os.sched_getaffinity(0)) > 1)
