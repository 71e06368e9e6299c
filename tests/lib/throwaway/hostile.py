"""An API server that belongs to somebody hostile, or is very sick: each way of answering holds a client for
ever, or fills its memory, unless the client itself sets an end to it."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Self

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_DRIP_SECONDS = 0.02


def _sized(body: bytes, more: bytes = b"") -> bytes:
    return _HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _page(**metadata: str) -> bytes:
    return json.dumps({"kind": "List", "metadata": metadata, "items": []}).encode()


def _always(part: bytes) -> Iterator[bytes]:
    while True:
        yield part


def drip_content() -> Iterator[bytes]:
    """A byte now and then: never silent, and never done."""
    yield _HEAD + b"Content-Length: 1000000\r\n\r\n"
    yield from _always(b" ")


def drip_headers() -> Iterator[bytes]:
    yield _HEAD + b"X: "
    yield from _always(b"x")


def flood() -> Iterator[bytes]:
    yield _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    yield from _always(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def bomb() -> Iterator[bytes]:
    """64 MiB in 64 KiB."""
    yield _sized(_packed(), b"Content-Encoding: gzip\r\n")


@cache
def _packed() -> bytes:
    return gzip.compress(b'{"items": [' + b" " * (64 << 20) + b"]}")


def endless_list() -> Iterator[bytes]:
    yield _sized(_page(**{"continue": "more"}))


def deep() -> Iterator[bytes]:
    yield _sized(b"[" * 50_000)


def redirect() -> Iterator[bytes]:
    yield b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/stolen\r\nContent-Length: 0\r\n\r\n"


def no_list() -> Iterator[bytes]:
    """As a proxy may answer whatever it is asked: not the same as a list without items."""
    yield _sized(b'{"status": "ok"}')


def huge_chunk() -> Iterator[bytes]:
    """Whoever believes it asks for so much memory."""
    yield _HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n[]" % (1 << 60)


def surrogate() -> Iterator[bytes]:
    """Half of a character, which no URL can have."""
    yield _sized(_page(**{"continue": "\ud800"}))


def no_date() -> Iterator[bytes]:
    yield _sized(_page(), b"Date: Mon, 01 Jan 99999999999999999999 00:00:00 GMT\r\n")


WAYS = (drip_content, drip_headers, flood, bomb, endless_list, deep, redirect, no_list, huge_chunk, surrogate)


class HostileServer:
    """`with HostileServer(way) as server:` answers every request so, whatever it asks. `requests` counts
    them."""

    def __init__(self, way: Callable[[], Iterator[bytes]]) -> None:
        self._way, self._ended = way, threading.Event()
        self.requests = 0
        next(way())  # what has to be made for it takes no time of an answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def kubeconfig(self) -> str:
        return json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as asked:
            while not self._ended.is_set() and asked.readline():
                while asked.readline().strip():
                    continue
                self.requests += 1
                for part in self._way():
                    connection.sendall(part)
                    if len(part) == 1 and self._ended.wait(_DRIP_SECONDS):
                        return
