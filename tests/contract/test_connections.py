"""A process's connections to unix sockets, as the kernel of this machine has them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from installer.errors import UnservableHostError
from installer.host.connections import HostConnections
from installer.host.namespaces import pid_here
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost

# Connects to each path, says so, and connects anew whenever a connection ends.
_CLIENT = """
import select, socket, sys
def dial(path):
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    return end
ends = {dial(path): path for path in sys.argv[1:]}
print("connected", flush=True)
while True:
    for end in select.select(list(ends), [], [])[0]:
        if not end.recv(1):
            path = ends.pop(end)
            end.close()
            ends[dial(path)] = path
"""


class Client:
    """A process that keeps connections to sockets."""

    def __init__(self, *paths: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, *map(str, paths)], stdout=subprocess.PIPE
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == b"connected\n"
        self.pid = self.process.pid

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def connections() -> HostConnections:
    return HostConnections(Path("/"))


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    server.settimeout(10)
    return server


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    with closing(listening(tmp_path / "one.sock")) as one, closing(listening(tmp_path / "two.sock")) as two:
        yield one, two


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@rule("R4")
def test_a_process_is_moved_from_one_socket_to_another_by_a_link(
    connections: HostConnections, servers: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    one, two = (server.getsockname() for server in servers)
    link, other = tmp_path / "link", tmp_path / "new"
    link.symlink_to(one)
    with closing(Client(link, tmp_path / "two.sock")) as client:
        kept, stays = servers[0].accept()[0], servers[1].accept()[0]
        assert sorted(connections.peers(client.pid)) == [one, two]
        assert connections.may_cut(client.pid)
        assert connections.cut(client.pid, str(tmp_path / "three.sock")) == 0
        other.symlink_to(two)
        other.rename(link)
        assert connections.peers(client.pid) == connections.peers(client.pid)
        assert connections.cut(client.pid, one) == 1
        assert kept.recv(1) == b""  # the other end sees it as well
        moved = servers[1].accept()[0]
        soon(lambda: connections.peers(client.pid) == (two, two))
        assert connections.cut(client.pid, one) == 0
        for end in (kept, stays, moved):
            end.close()


@rule("R4")
def test_a_connection_that_nobody_has_accepted_is_ended_as_well(
    connections: HostConnections, servers: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    """The listener is frozen."""
    with closing(Client(tmp_path / "one.sock")) as client:
        assert connections.peers(client.pid) == ()
        assert connections.cut(client.pid, str(tmp_path / "one.sock")) == 1
        first, again = servers[0].accept()[0], servers[0].accept()[0]
        assert first.recv(1) == b""
        soon(lambda: connections.peers(client.pid) == (str(tmp_path / "one.sock"),))
        first.close()
        again.close()


def test_a_process_that_has_ended(connections: HostConnections) -> None:
    assert connections.peers(4_194_305) == ()
    assert connections.cut(4_194_305, "/run/x.sock") == 0
    assert not connections.may_cut(4_194_305)


def test_a_host_in_namespaces_of_its_own(throwaway: ThrowawayHost) -> None:
    """Its processes have other numbers there, and its sockets another table."""
    pid = int(throwaway.show("dbus.service", "MainPID"))
    assert pid_here(throwaway.root, pid) not in (0, pid)
    assert pid_here(Path("/"), os.getpid()) == os.getpid()
    manager = HostConnections(throwaway.root)
    assert any("systemd" in peer or "journal" in peer for peer in manager.peers(pid))
    assert manager.may_cut(pid)


# Its descriptors change all the time from socket to file and back, as kubelet's do, which probes and reads.
_RESTLESS = """
import os, socket
print("begun", flush=True)
while True:
    ends = [socket.socket() for _ in range(20)]
    for end in ends:
        end.close()
    files = [open(os.devnull) for _ in range(20)]
    for file in files:
        file.close()
"""


@rule("R4")
def test_a_descriptor_that_is_no_socket_any_more_is_in_nobodys_way(connections: HostConnections) -> None:
    with subprocess.Popen([sys.executable, "-c", _RESTLESS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"begun\n"
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(500):
                assert connections.cut(process.pid, "/run/nobody.sock") == 0
            assert len(os.listdir("/proc/self/fd")) == before
        finally:
            process.kill()


def test_a_server_seems_to_ask_its_client_to_go(connections: HostConnections, tmp_path: Path) -> None:
    """GOAWAY of RFC 9113: length, type, no flags, stream 0; the last stream that there can be, NO_ERROR."""
    path = tmp_path / "socket"
    with listening(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        server, _ = listener.accept()
        with server:
            asked = connections.drain(os.getpid(), f"unix://{path}")
            assert asked == {os.fstat(client.fileno()).st_ino}
            assert client.recv(64) == bytes.fromhex("000008 07 00 00000000 7fffffff 00000000")
            assert connections.has(os.getpid(), asked)
            assert not connections.drain(os.getpid(), "unix:///run/another.sock")
    assert not connections.has(os.getpid(), asked)


def test_no_frame_is_put_into_an_answer_that_is_on_its_way(
    connections: HostConnections, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with listening(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        server, _ = listener.accept()
        with server:
            server.sendall(b"half of an answer")
            assert not connections.drain(os.getpid(), f"unix://{path}")
            assert client.recv(64) == b"half of an answer"


def test_a_client_whose_server_has_not_accepted_it_is_not_asked(
    connections: HostConnections, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with listening(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert not connections.drain(os.getpid(), f"unix://{path}")


def test_connections_that_are_asked_to_go_are_spared(connections: HostConnections, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        listening(path) as listener,
        socket.socket(socket.AF_UNIX) as idle,
        socket.socket(socket.AF_UNIX) as busy,
    ):
        ends = []
        for client in (idle, busy):
            client.connect(str(path))
            ends.append(listener.accept()[0])
        ends[1].sendall(b"half of an answer")
        asked = connections.drain(os.getpid(), f"unix://{path}")
        assert asked == {os.fstat(idle.fileno()).st_ino}
        assert connections.cut(os.getpid(), f"unix://{path}", asked) == 1
        assert busy.recv(64) + busy.recv(64) == b"half of an answer"
        idle.sendall(b"its last call")
        assert ends[0].recv(64) == b"its last call"
        for end in ends:
            end.close()


def test_where_the_other_ends_cannot_be_seen_nobody_is_asked_and_connections_still_end(
    tmp_path: Path,
) -> None:
    """The kernel has no unix_diag, or we may not enter kubelet's network namespace."""
    path, pid = tmp_path / "socket", os.getpid()
    process = tmp_path / f"host/proc/{pid}"
    (process / "ns").mkdir(parents=True)
    (process / "fd").symlink_to(f"/proc/{pid}/fd")
    (process / "ns/pid").symlink_to(f"/proc/{pid}/ns/pid")
    blind = HostConnections(tmp_path / "host")
    with listening(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        with listener.accept()[0]:
            with pytest.raises(UnservableHostError):
                blind.peers(pid)
            assert not blind.drain(pid, str(path))
            assert blind.cut(pid, str(path)) == 1
            assert client.recv(1) == b""
