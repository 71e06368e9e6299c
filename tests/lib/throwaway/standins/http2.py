"""The few lines of HTTP/2 and protobuf that one gRPC call over a unix socket takes.

No Huffman coding and no header table: all goes out literally, and of what
comes back only the message is read. A status is therefore known as good (there
is a message) or bad (there is none), not by its number. Standard library only:
this is packed into the stand-ins.
"""

import math
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from select import select

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8

# An answer may be of any length: a list of many containers is longer than a window of 64 KiB.
_INITIAL_WINDOW_SIZE, _WINDOW = 4, 2**31 - 1


class CallError(Exception):
    """The other side answered, but not with a message."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field, neither indexed nor compressed."""
    return b"\0" + b"".join(_length(len(part)) + part.encode() for part in (name, value))


def _length(size: int) -> bytes:
    """Of a string in a header: seven bits, then a varint of what is beyond (RFC 7541, 5.1)."""
    return bytes([size]) if size < 127 else b"\x7f" + varint(size - 127)


def envelope(message: bytes) -> bytes:
    """A message of gRPC as it stands in DATA."""
    return b"\0" + struct.pack(">I", len(message)) + message


def opening() -> bytes:
    """What a client sends first."""
    return (
        PREFACE
        + frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WINDOW))
        + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW - 65535))
    )


def request(path: str, message: bytes, stream: int = 1) -> bytes:
    """All that a client sends for one unary call."""
    headers = b"".join(
        literal(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    call = frame(HEADERS, END_HEADERS, stream, headers)
    return call + frame(DATA, END_STREAM, stream, envelope(message))


class Connection:
    """One end of an HTTP/2 connection with a deadline for everything."""

    def __init__(self, end: socket.socket, timeout: float) -> None:
        self.deadline = time.monotonic() + timeout
        self.socket = end
        self.rest = b""
        self.is_left = False  # the server wants no further call

    @classmethod
    def to(cls, path: str, timeout: float) -> "Connection":
        """A client's. Raises OSError."""
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(timeout)
        end.connect(path)
        return cls(end, timeout)

    def exactly(self, count: int) -> bytes:
        while len(self.rest) < count:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self.socket.settimeout(None if left == math.inf else left)
            chunk = self.socket.recv(65536)
            if not chunk:
                raise ConnectionResetError("the other side closed the connection")
            self.rest += chunk
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, payload."""
        head = self.exactly(9)
        length = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream & 0x7FFFFFFF, self.exactly(length)

    def frame_of_call(self) -> tuple[int, int, int, bytes]:
        """The next frame that belongs to a call. SETTINGS and PING on the way to it are acknowledged."""
        while True:
            kind, flags, stream, payload = self.frame()
            if kind not in (SETTINGS, PING):
                return kind, flags, stream, payload
            if not flags & ACK:
                self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))

    def close(self) -> None:
        self.socket.close()


def refuse_calls(client: socket.socket, is_over: Callable[[], bool]) -> None:
    """A server's end: each call fails as UNAVAILABLE, until the client goes or, at a call, it is over.

    Then the client must reconnect, as gRPC does by itself.
    """
    connection = Connection(client, math.inf)
    failed = b"".join(
        (
            b"\x88",  # :status 200
            literal("content-type", "application/grpc"),
            literal("grpc-status", "14"),
            literal("grpc-message", "connection error: dial unix: connection refused"),
        )
    )
    try:
        connection.exactly(len(PREFACE))
        client.sendall(frame(SETTINGS, 0, 0))
        while True:
            kind, _flags, stream, _payload = connection.frame_of_call()
            if kind == HEADERS and is_over():
                client.sendall(frame(GOAWAY, 0, 0, bytes(8)))
                return
            if kind == HEADERS:
                client.sendall(frame(HEADERS, END_HEADERS | END_STREAM, stream, failed))
    except OSError:  # it has gone
        pass
    finally:
        client.close()


def answer_calls(client: socket.socket, handle: Callable[[bytes], bytes]) -> None:
    """A server's end: each call is answered by what `handle` makes of its message, whatever method it is."""
    connection = Connection(client, math.inf)
    head = b"\x88" + literal("content-type", "application/grpc")  # :status 200
    bodies: dict[int, bytes] = {}
    try:
        connection.exactly(len(PREFACE))
        client.sendall(frame(SETTINGS, 0, 0))
        while True:
            kind, flags, stream, payload = connection.frame_of_call()
            if kind == DATA:
                body = payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
                bodies[stream] = bodies.get(stream, b"") + body
                if flags & END_STREAM:
                    answer = envelope(handle(bodies.pop(stream)[5:]))
                    client.sendall(
                        frame(HEADERS, END_HEADERS, stream, head)
                        + frame(DATA, 0, stream, answer)
                        + frame(HEADERS, END_HEADERS | END_STREAM, stream, literal("grpc-status", "0"))
                    )
    except OSError:  # it has gone
        pass
    finally:
        client.close()


def unary(path: str, method: str, message: bytes = b"", timeout: float = 10.0) -> bytes:
    """Calls one gRPC method on a unix socket and returns its answer's message.

    Raises OSError when nobody listens (TimeoutError when nobody answers), and
    CallError when the answer is an error.
    """
    connection = Connection.to(path, timeout)
    try:
        connection.socket.sendall(opening() + request(method, message))
        return _answer(connection, method, 1)
    finally:
        connection.close()


class Channel:
    """A client's, for one call after the other, which keeps its connection. When that ends, it dials the path
    anew, after 0.1 s, then later and later up to 3 s, as kubelet does (k8s.io/cri-client)."""

    def __init__(self, path: str) -> None:
        self._path, self._stream = path, -1
        self._connection: Connection | None = None
        self._wait, self._next = 0.1, 0.0

    def unary(self, method: str, message: bytes = b"", timeout: float = 10.0) -> bytes:
        """Raises OSError and CallError."""
        connection = self._dial()
        if connection is None:
            raise ConnectionRefusedError(f"{self._path}: waits before it dials again")
        connection.deadline = time.monotonic() + timeout
        self._stream += 2
        try:
            connection.socket.sendall(request(method, message, self._stream))
            answer = _answer(connection, method, self._stream)
        except (OSError, CallError):
            self._drop()
            raise
        if connection.is_left:
            self._drop()
        return answer

    def rest(self, seconds: float) -> None:
        """Time passes. A connection that ends meanwhile is dialled anew."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with suppress(OSError):
                self._dial()
            if self._connection is None:
                time.sleep(min(left, 0.05))
            elif select([self._connection.socket], [], [], left)[0]:
                self._connection.deadline = time.monotonic() + 1.0
                try:
                    kind, flags, _stream, payload = self._connection.frame()
                    if kind == PING and not flags & ACK:
                        self._connection.socket.sendall(frame(PING, ACK, 0, payload))
                    if kind == GOAWAY:
                        self._drop()
                except OSError:
                    self._drop()

    def _dial(self) -> "Connection | None":
        if self._connection is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._wait
            self._wait = min(3.0, self._wait * 1.6)
            connection = Connection.to(self._path, 5.0)
            try:
                connection.socket.sendall(opening())
                head = connection.exactly(9)  # whoever serves says so
            except OSError:
                connection.close()
                raise
            connection.rest = head + connection.rest
            self._connection, self._stream, self._wait = connection, -1, 0.1
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(connection: Connection, method: str, call: int) -> bytes:
    body = b""
    while True:
        kind, flags, stream, payload = connection.frame_of_call()
        if kind == GOAWAY:
            connection.is_left = True
        last = int.from_bytes(payload[:4], "big") if kind == GOAWAY else call
        if last < call or (kind == RST_STREAM and stream == call):
            raise CallError(f"{method}: refused")
        if stream == call and kind == DATA:
            body += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
        if stream == call and kind in (DATA, HEADERS) and flags & END_STREAM:
            break
    if len(body) < 5:
        raise CallError(f"{method}: an error was answered")
    return body[5 : 5 + int.from_bytes(body[1:5], "big")]


# -- protobuf ---------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: bytes | str | int | bool) -> bytes:
    """One field: a string, a message or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(int(value))
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def strings(message: bytes) -> dict[int, str]:
    """The string fields of a flat message, by number; the last of each."""
    return {number: value.decode(errors="replace") for number, value in fields(message)}


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that are strings or messages, in order."""
    return ((number, value) for number, value in _walk(message) if isinstance(value, bytes))


def numbers(message: bytes) -> dict[int, int]:
    """The fields of a message that are numbers; the last of each. One that is 0 is not sent."""
    return {number: value for number, value in _walk(message) if isinstance(value, int)}


def _walk(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 2:
            length = number()
            yield key >> 3, message[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {key & 7} is not expected here")
