"""The pages of the daemon, asked over real sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from installer.daemon.httpd import Page, PageServer, find_addresses
from installer.daemon.watch import EventLoop
from installer.errors import InstallerError
from tests.lib.rules import rule

LONG = "x" * 3_000_000
WELL, ILL = "200 OK", "503 Service Unavailable"


def page(path: str) -> Page | None:
    pages = {"/well": Page(WELL, "text/plain", "well\n"), "/ill": Page(ILL, "application/json", "{}\n")}
    return {**pages, "/long": Page(WELL, "text/plain", LONG)}.get(path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class CountedLoop(EventLoop):
    readable = 0  # how often something was

    def while_readable(self, descriptor: int, call: Callable[[], None]) -> Callable[[], None]:
        def counted() -> None:
            self.readable += 1
            call()

        return super().while_readable(descriptor, counted)


@contextlib.contextmanager
def serving(port: int) -> Iterator[CountedLoop]:
    """A server on that port, while its loop runs in a thread of its own."""
    failures = list[Exception]()
    loop = CountedLoop(failures.append)
    server = PageServer(loop, find_addresses(f"127.0.0.1:{port}"), page)
    thread, runs = threading.Thread(target=loop.run), threading.Event()
    thread.start()
    loop.after(0.0, runs.set)
    assert runs.wait(60)
    try:
        yield loop
    finally:
        loop.after(0.0, loop.quit)
        thread.join(60)
        server.close()
    assert failures == []


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    with serving(port):
        yield port


def fetch(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, type and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_pages_are_answered_with_their_status(port: int) -> None:
    assert fetch(port, "/well?x=1") == (200, "text/plain; charset=utf-8", "well\n")
    assert fetch(port, "/ill") == (503, "application/json; charset=utf-8", "{}\n")
    assert fetch(port, "/nothing")[0] == 404
    assert fetch(port, "/well", "POST")[0] == 405
    assert fetch(port, "/well", "HEAD")[2] == ""
    assert fetch(port, "/long")[2] == LONG


def test_nobody_can_keep_others_waiting(port: int) -> None:
    """More silent connections than it takes: they are dropped, and others are answered at once."""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /well HT")
        with ThreadPoolExecutor(8) as pool:
            assert {answer[0] for answer in pool.map(lambda _: fetch(port, "/well"), range(64))} == {200}
        slow.sendall(b"TP/1.1\r\n\r\n")
        assert slow.recv(16).startswith(b"HTTP/1.1 200")


def test_of_too_many_connections_the_oldest_goes(port: int) -> None:
    """Who only waits cannot keep others out."""
    with contextlib.ExitStack() as opened:
        waiting = [opened.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(32)]
        assert fetch(port, "/well")[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert waiting[0].recv(1) == b""
        waiting[-1].sendall(b"GET /well HTTP/1.1\r\n\r\n")
        assert waiting[-1].recv(16).startswith(b"HTTP/1.1 200")


def memory() -> int:
    """Of this process, in kB."""
    status = Path("/proc/self/smaps_rollup").read_text()
    return int(status.split("Rss:")[1].split()[0])


def test_its_memory_does_not_grow_with_each_connection(port: int) -> None:
    """A monitoring that asks each 15 s would make half a kilobyte each time 3 MB a day."""
    for _ in range(200):
        fetch(port, "/well")
    before = memory()
    for _ in range(2000):
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(b"GET /well HTTP/1.1\r\n\r\n")
            while client.recv(4096):
                pass
    assert memory() - before < 500


def test_an_ipv6_address_that_means_all_also_serves_ipv4() -> None:
    other, loop = free_port(), EventLoop(print)
    try:
        server = PageServer(loop, find_addresses(f"[::]:{other}"), page)
    except InstallerError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    socket.create_connection(("127.0.0.1", other), 60).close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", other), 60)


def test_a_name_may_stand_for_the_same_address_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with several lines in /etc/hosts."""
    other, found = free_port(), socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found(*args, **kwargs) * 2)
    server = PageServer(EventLoop(print), find_addresses(f"127.0.0.1:{other}"), page)
    socket.create_connection(("127.0.0.1", other), 60).close()
    server.close()


def test_of_a_name_the_addresses_that_are_here_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """/etc/hosts has `::1 localhost` also where IPv6 is switched off."""
    other, here = free_port(), (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    elsewhere = (*here, ("192.0.2.1", other))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [elsewhere, (*here, ("127.0.0.1", other))])
    server = PageServer(EventLoop(print), find_addresses(f"localhost:{other}"), page)
    socket.create_connection(("127.0.0.1", other), 60).close()
    server.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [elsewhere])
    with pytest.raises(InstallerError, match="Cannot assign requested address"):
        PageServer(EventLoop(print), find_addresses(f"elsewhere:{other}"), page)


def test_a_page_that_raises_is_asked_for_once() -> None:
    """Its client has sent all that it will: the end of that can be read again and again."""
    failures, asked, other = list[Exception](), list[str](), free_port()

    def unprintable(path: str) -> Page:
        asked.append(path)
        return Page(WELL, "text/plain", "\ud800")

    loop = EventLoop(failures.append)
    server = PageServer(loop, find_addresses(f"127.0.0.1:{other}"), unprintable)
    with socket.create_connection(("127.0.0.1", other), 60) as client:
        client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        loop.after(0.5, loop.quit)
        loop.run()
        assert (asked, len(failures)) == (["/x"], 1)
        assert client.recv(16) == b""
    server.close()


def test_a_connection_that_cannot_be_awaited_keeps_no_other_one_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's limit is fs.epoll.max_user_watches."""
    failures, other, register = list[Exception](), free_port(), selectors.EpollSelector.register
    loop = EventLoop(failures.append)
    server = PageServer(loop, find_addresses(f"127.0.0.1:{other}"), page)
    monkeypatch.setattr("installer.daemon.httpd._SECONDS", 0.2)

    def refuse(*_: object) -> None:
        monkeypatch.setattr(selectors.EpollSelector, "register", register)
        raise OSError(errno.ENOSPC, "no watch left")

    monkeypatch.setattr(selectors.EpollSelector, "register", refuse)
    with (
        socket.create_connection(("127.0.0.1", other), 60) as refused,
        socket.create_connection(("127.0.0.1", other), 60) as slow,
    ):
        loop.after(1.0, loop.quit)
        loop.run()
        for client in (refused, slow):
            client.settimeout(0)
            assert client.recv(1) == b""
    server.close()
    assert failures == []


def test_an_endless_request_is_hung_up_on(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as greedy:
        greedy.sendall(b"GET /" + b"x" * 20_000)
        with contextlib.suppress(ConnectionResetError):
            assert greedy.recv(16) == b""


def test_where_it_cannot_listen_it_says_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InstallerError, match=listen):
            PageServer(EventLoop(print), find_addresses(listen), page)


@rule("R15")
def test_without_a_free_descriptor_it_cannot_listen() -> None:
    """The daemon, which tries again later, expects no other error."""
    listen, loop = f"127.0.0.1:{free_port()}", EventLoop(print)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(InstallerError, match="Too many open files"):
            PageServer(loop, find_addresses(listen), page)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_listener_that_somebody_ends_listens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `ss --kill`, for the kernel the same as here. It is not looked at again and again meanwhile."""
    port, create = free_port(), socket.create_server
    ours = list[socket.socket]()

    def listen(*args: Any, **kwargs: Any) -> socket.socket:
        ours.append(create(*args, **kwargs))
        return ours[-1]

    monkeypatch.setattr(socket, "create_server", listen)
    with serving(port) as loop, socket.socket() as client:
        ours[0].shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + 60
        while client.connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert loop.readable < 10


def test_without_a_free_descriptor_it_waits_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither tries again and again meanwhile, nor fills the log. And then there may be no watch left."""
    port, register = free_port(), selectors.EpollSelector.register

    def refuse(*_: object) -> None:
        monkeypatch.setattr(selectors.EpollSelector, "register", register)
        raise OSError(errno.ENOSPC, "no watch left")

    with serving(port) as loop, socket.socket() as client, contextlib.ExitStack() as taken:
        client.settimeout(0)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(client.fileno()))
            assert client.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
            time.sleep(0.5)
            assert 0 < loop.readable < 10
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        taken.close()
        monkeypatch.setattr(selectors.EpollSelector, "register", refuse)
        client.settimeout(60)
        client.sendall(b"HEAD /well HTTP/1.1\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert loop.readable < 10
