"""Bounds one answer: connections read it only as far as its time and its size allow.

A socket's timeout bounds the silence between two pieces. A server that sends one byte now and then, as a
header or as content, is never silent. So each read checks the clock, and counts what it received as it
came: compressed content stays compressed (`Accept-Encoding` is never sent), and cannot grow here.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError


class TooLargeError(OSError):
    """The answer exceeds its size."""


@dataclass(slots=True)
class Bounds:
    """The bounds of the answer that is being read. `end` is monotonic."""

    end: float
    size: int

    def left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError when there are none."""
        found = self.end - time.monotonic()
        if found <= 0:
            raise TimeoutError("it did not end in time")
        return found


_BOUNDS: ContextVar[Bounds | None] = ContextVar("bounds", default=None)
_END: ContextVar[float] = ContextVar("end", default=float("inf"))


@contextmanager
def bounded(bounds: Bounds) -> Iterator[None]:
    """Bound what this thread receives in the block."""
    token = _BOUNDS.set(bounds)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


@contextmanager
def ending(end: float) -> Iterator[None]:
    """Bound all requests of this thread in the block together; `end` is monotonic."""
    token = _END.set(min(end, _END.get()))
    try:
        yield
    finally:
        _END.reset(token)


def end_of(seconds: float) -> float:
    """Return when a request that begins now and may last so many seconds has to end."""
    return min(_END.get(), time.monotonic() + seconds)


class _Source(io.RawIOBase):
    """Reads the bytes of a socket. Raises TimeoutError and OSError."""

    def __init__(self, connection: Any, bounds: Bounds) -> None:
        super().__init__()
        self._connection, self._bounds = connection, bounds
        self._raw = connection.makefile("rb", buffering=0)  # the socket stays open for it
        self._silence = connection.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._bounds.left()
        self._connection.settimeout(min(left, self._silence or left))
        count: int | None = self._raw.readinto(buffer)
        self._bounds.size -= count or 0
        if self._bounds.size < 0:
            raise TooLargeError("it exceeds the size limit of an answer")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedSocket:
    """The part of a socket that http.client's response uses."""

    def __init__(self, connection: socket.socket, bounds: Bounds) -> None:
        self._connection, self._bounds = connection, bounds

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Source(self._connection, self._bounds))


_Response: Any = HTTPConnection.response_class


class _BoundedResponse(_Response):  # type: ignore[misc]
    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        bounds = _BOUNDS.get()
        super().__init__(_BoundedSocket(sock, bounds) if bounds else sock, *arguments, **options)


Dial = Callable[[str, int, float | None], socket.socket]


def bind(pool_manager: Any, dial: Dial | None = None) -> None:
    """Bound the connections that it opens from now on. `dial` opens them, if given."""

    class Dialled:
        response_class = _BoundedResponse

        def _new_conn(self: Any) -> socket.socket:
            if dial is None:
                found: socket.socket = super()._new_conn()  # type: ignore[misc]
                return found
            try:
                return dial(self._dns_host, self.port, self.timeout)
            except OSError as error:
                raise NewConnectionError(self, str(error)) from error

    class Connection(Dialled, HTTPConnection):  # type: ignore[misc]
        pass

    class SecureConnection(Dialled, HTTPSConnection):  # type: ignore[misc]
        pass

    class Pool(HTTPConnectionPool):  # type: ignore[misc]
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):  # type: ignore[misc]
        ConnectionCls = SecureConnection

    pool_manager.pool_classes_by_scheme = {"http": Pool, "https": SecurePool}
