"""What the Cri port promises, of the fake and of real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.errors import StepFailedError
from installer.host.cri import SocketCri, connect
from installer.host.files import RootedFiles
from installer.host.ports import Cri
from installer.model.containers import CgroupState, CpuResources
from installer.model.host import RunningContainer
from tests.lib.fakes import CONTAINERD, FakeCri
from tests.lib.rules import rule
from tests.lib.throwaway.containers import Mount, create_container, run_pod
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.standins.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    envelope,
    field,
    frame,
    literal,
)

HELLO = frame(SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\x64") + frame(SETTINGS, ACK, 0)
HEAD = frame(HEADERS, END_HEADERS, 1, b"\x88")
END = frame(HEADERS, END_HEADERS | END_STREAM, 1, literal("grpc-status", "0"))
RESPONSE = field(1, "0.1.0") + field(2, "containerd") + field(3, "1.6.20") + field(4, "v1")
ANSWER = HELLO + HEAD + frame(DATA, 0, 1, envelope(RESPONSE)) + END
FAILED = HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88" + literal("grpc-status", "14"))
ENDPOINTS = ("unix:///var/run/r.sock", "unix:///run/r.sock", "/run/r.sock", "unix:/run/r.sock")


GOOD = [
    ANSWER,
    # Split, padded, in front of it a PING and a frame of a kind that nobody knows.
    HELLO
    + frame(PING, 0, 0, b"12345678")
    + frame(99, 0, 0, b"x")
    + HEAD
    + frame(DATA, 0, 1, envelope(RESPONSE)[:7])
    + frame(DATA, PADDED, 1, b"\3" + envelope(RESPONSE)[7:] + b"\0\0\0")
    + END,
    HELLO + HEAD + frame(DATA, END_STREAM, 1, envelope(RESPONSE)),
]
BAD = [
    None,
    b"",
    HELLO[:9],
    HELLO,
    HELLO[:-9] + HEAD + frame(DATA, 0, 1, envelope(RESPONSE)),  # a call that does not end
    FAILED,
    HELLO + HEAD + END,
    HELLO + HEAD + frame(DATA, 0, 3, envelope(RESPONSE)) + END,
    HELLO + HEAD + frame(DATA, 0, 1, envelope(RESPONSE)[:-1]) + END,
    HELLO + HEAD + frame(DATA, 0, 1, b"\1" + envelope(RESPONSE)[1:]) + END,  # compressed
    HELLO + HEAD + frame(DATA, 0, 1, envelope(field(1, "0.1.0"))) + END,  # of no runtime
    HELLO + HEAD + frame(DATA, 0, 1, envelope(b"\xff" * 8)) + END,
    HELLO + HEAD + frame(DATA, PADDED, 1, b"\xff") + END,
    HELLO + HEAD + frame(DATA, 0, 1, envelope(field(2, "x" * 5000))) + END,
    HELLO + frame(PING, 0, 0, b"12345678") * 5000 + ANSWER,
    HELLO + frame(RST_STREAM, 0, 1, b"\0\0\0\7"),
    HELLO + frame(GOAWAY, 0, 0, b"\0" * 8),
    ANSWER[len(HELLO) :],  # its first frame is not its SETTINGS
    b"\xff\xff\xff" + HELLO[3:],
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
]


def fake(answer: bytes | None) -> Iterator[Cri]:
    yield FakeCri({} if answer is None else {"/run/r.sock": CONTAINERD if answer in GOOD else "silent"})


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
            for at in range(0, len(answer), 7):  # in pieces that end anywhere
                client.send(answer[at : at + 7])
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


@pytest.mark.parametrize("answer", GOOD)
def test_a_version_is_an_answer_however_the_endpoint_is_written(
    served: Callable[[bytes | None], Cri], answer: bytes
) -> None:
    cri = served(answer)
    assert [endpoint for endpoint in ENDPOINTS if not cri.answers(endpoint, timeout=30.0)] == []


@rule("R4")
@pytest.mark.parametrize("answer", BAD)
def test_anything_else_is_none(served: Callable[[bytes | None], Cri], answer: bytes | None) -> None:
    cri = served(answer)
    started = time.monotonic()
    assert not cri.answers("unix:///run/r.sock", timeout=0.2)
    assert time.monotonic() - started < 60


def test_a_call_to_nobody_fails_with_the_reason(served: Callable[[bytes | None], Cri]) -> None:
    cri = served(None)
    with pytest.raises(StepFailedError, match="no socket") as failure:
        cri.status("unix:///run/r.sock")
    assert failure.value.interfered
    with pytest.raises(StepFailedError, match="no socket"):
        cri.containers("unix:///run/r.sock")


def test_who_failed_at_an_address_is_not_held_against_who_listens_there_next(tmp_path: Path) -> None:
    import grpc

    place, version = tmp_path / "r.sock", "/runtime.v1.RuntimeService/Version"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        hangs_up = threading.Thread(target=lambda: server.accept()[0].close())
        hangs_up.start()
        channel = connect(str(place))
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(version)(b"", timeout=60)
        hangs_up.join()
    place.unlink()
    with channel, serving(place, "Version", lambda *_: RESPONSE), connect(str(place)) as other:
        assert other.unary_unary(version)(b"", timeout=60) == RESPONSE


@rule("R9")
def test_a_call_to_the_silent_has_a_deadline(tmp_path: Path) -> None:
    world = real(b"", tmp_path)
    started = time.monotonic()
    with pytest.raises(StepFailedError, match="Version") as failure:
        next(world).status("unix:///run/r.sock", timeout=0.5)
    assert failure.value.interfered
    assert time.monotonic() - started < 60
    assert next(world, None) is None


def test_a_real_containerd(throwaway: ThrowawayHost) -> None:
    cri = SocketCri(RootedFiles(throwaway.root))
    endpoint = throwaway.runtime_socket
    assert cri.answers(endpoint, timeout=30.0)
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
    created = [found[identity].created for identity in (adopted, proxied)]
    assert created == [CpuResources(shares=1024), CpuResources("0", shares=1024)]


@rule("R14")
@pytest.mark.parametrize("which", ["fake", "real"])
def test_what_a_running_container_may_use_is_set_and_seen(which: str, throwaway: ThrowawayHost) -> None:
    cri, identity = some_container(which, throwaway)
    endpoint = throwaway.runtime_socket

    def found() -> RunningContainer:
        return next(one for one in cri.containers(endpoint) if one.id == identity)

    before = found()
    assert cri.update(
        endpoint, {identity: CpuResources("0", shares=2), "gone": CpuResources(shares=2)}
    ).keys() == {"gone"}
    after = found()
    assert after.created == before.created
    assert before.cgroup is not None
    assert after.cgroup == cri.cgroup(before)
    weight, shares = min(before.cgroup.weight, 1), min(before.cgroup.shares, 2)
    assert after.cgroup == replace(before.cgroup, cpus="0", weight=weight, shares=shares)
    assert cri.update(endpoint, {identity: CpuResources(before.cgroup.cpus, shares=1024)}) == {}
    assert cri.cgroup(before) == before.cgroup
    with pytest.raises(StepFailedError, match="no socket"):
        cri.update("unix:///run/nobody.sock", {identity: CpuResources(shares=2)})


def test_a_container_that_was_created_and_never_started(throwaway: ThrowawayHost) -> None:
    endpoint = throwaway.runtime_socket
    cri, pod = SocketCri(RootedFiles(throwaway.root)), run_pod(throwaway, endpoint, "cut-off")
    running = create_container(throwaway, endpoint, "c", pod=pod)
    left = create_container(throwaway, endpoint, "c", pod=pod, starts=False, attempt=1)
    ours = [one for one in cri.unstarted(endpoint) if one.pod_uid == pod.uid]
    assert [(one.id, one.name, one.title) for one in ours] == [(left, "c", "default/cut-off/c")]
    assert left not in {one.id for one in cri.containers(endpoint)}
    cri.remove(endpoint, left)
    assert not [one for one in cri.unstarted(endpoint) if one.pod_uid == pod.uid]
    assert running in {one.id for one in cri.containers(endpoint)}


def test_a_pod_without_a_container(throwaway: ThrowawayHost) -> None:
    endpoint = throwaway.runtime_socket
    cri, pod = SocketCri(RootedFiles(throwaway.root)), run_pod(throwaway, endpoint, "pulling")

    def empty() -> list[str]:
        return [one.title for one in cri.empty_pods(endpoint) if "pulling" in one.title]

    assert empty() == ["default/pulling"]
    left = create_container(throwaway, endpoint, "c", pod=pod, starts=False)
    assert not empty()
    cri.remove(endpoint, left)
    assert empty()


def some_container(which: str, throwaway: ThrowawayHost) -> tuple[Cri, str]:
    """A runtime with a container that has all CPUs, and a weight of 1024 shares."""
    if which == "real":
        identity = create_container(throwaway, throwaway.runtime_socket, "updated")
        return SocketCri(RootedFiles(throwaway.root)), identity
    cgroup = CgroupState("0-1", "0", "0-1", "0", shares=1024)
    container = RunningContainer("aa", "web", "web-0", "ns", False, "", 7, CpuResources(shares=1024), cgroup)
    fake = FakeCri(
        {throwaway.runtime_socket: CONTAINERD}, (container,), refusals={"gone": "no such container"}
    )
    return fake, "aa"


@rule("R4")
def test_a_server_of_another_make_that_answers_and_then_fails_its_calls(tmp_path: Path) -> None:
    """grpcio's Huffman-codes and indexes what it sends."""
    import grpc

    fails = threading.Event()

    def version(_request: bytes, context: grpc.ServicerContext) -> bytes:
        if fails.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection error: dial unix: connection refused")
        return RESPONSE

    with serving(tmp_path / "r.sock", "Version", version):
        cri = SocketCri(RootedFiles(tmp_path))
        answered = [cri.answers("/r.sock", timeout=30.0)]
        fails.set()
        answered.append(cri.answers("/r.sock", timeout=30.0))
    assert answered == [True, False]


@contextlib.contextmanager
def serving(
    path: Path, methods: str, work: Callable[[bytes, Any], bytes], threads: int = 2
) -> Iterator[None]:
    """A server of grpcio whose methods all do the same."""
    import grpc

    handlers = {method: grpc.unary_unary_rpc_method_handler(work) for method in methods.split()}
    with ThreadPoolExecutor(threads) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers),)
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        yield
        server.stop(None).wait()


@rule("R8")
def test_a_slow_runtime_has_its_time_for_each_of_two_answers(tmp_path: Path) -> None:
    def work(_request: bytes, _context: object) -> bytes:
        time.sleep(2.0)
        return b""

    with serving(tmp_path / "r.sock", "Version Status", work):
        assert not SocketCri(RootedFiles(tmp_path)).status("/r.sock", timeout=3.5).ready


def test_a_container_with_a_huge_environment_does_not_hide_the_others(tmp_path: Path) -> None:
    """The verbose status of containerd has it twice, each `<` as six characters."""
    info = b'{"config": {"linux": {"resources": {"cpu_shares": 2}}, "envs": "%s"}}' % (b"x" * (5 << 20))
    status = field(2, field(1, b"info") + field(2, info))
    listed = field(1, field(1, "aa") + field(6, 1))

    def work(request: bytes, _context: object) -> bytes:
        return status if b"aa" in request else listed

    with serving(tmp_path / "r.sock", "ListContainers ContainerStatus", work):
        (found,) = SocketCri(RootedFiles(tmp_path)).containers("/r.sock")
    assert found.created == CpuResources(shares=2)


MANY = {f"container-{number}": CpuResources(shares=2) for number in range(20)}


@rule("R14")
def test_many_containers_may_take_a_slow_runtime_its_time(tmp_path: Path) -> None:
    """Seen with 50 of them on an emulated machine: whoever came after 10 s in all got nothing back."""

    def update(_request: bytes, _context: object) -> bytes:
        time.sleep(0.25)
        return b""

    with serving(tmp_path / "r.sock", "UpdateContainerResources", update):
        assert SocketCri(RootedFiles(tmp_path)).update("/r.sock", MANY, timeout=2.0) == {}


@rule("R14")
def test_a_runtime_gets_no_more_updates_at_once_than_it_has_cpus(tmp_path: Path) -> None:
    """Seen on an emulated machine with 2 CPUs: of 8 at once, none was done after 10 s."""
    lock, working, most = threading.Lock(), 0, 0

    def update(_request: bytes, _context: object) -> bytes:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        time.sleep(0.1)
        with lock:
            working -= 1
        return b""

    with serving(tmp_path / "r.sock", "UpdateContainerResources", update, threads=16):
        assert SocketCri(RootedFiles(tmp_path)).update("/r.sock", MANY, timeout=30.0) == {}
    assert most <= len(os.sched_getaffinity(0))


@rule("R9")
def test_a_runtime_that_answers_nothing_is_not_waited_for_with_each_container(tmp_path: Path) -> None:
    over, asked = threading.Event(), []

    def update(request: bytes, _context: object) -> bytes:
        asked.append(request)
        over.wait()
        return b""

    with serving(tmp_path / "r.sock", "UpdateContainerResources", update):
        complaints = SocketCri(RootedFiles(tmp_path)).update("/r.sock", MANY, timeout=0.5)
        waited_for = len(asked)
        over.set()
    assert complaints.keys() == MANY.keys()
    assert waited_for <= 2  # as many as the server begins at a time
