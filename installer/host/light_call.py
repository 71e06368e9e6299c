"""Calls of CRI's RuntimeService at a unix socket, made without a library.

HTTP/2 alone proves nothing: while the runtime is away, cri-resmgr sends SETTINGS within a millisecond and
every call fails. So this makes one whole call, as gRPC does over HTTP/2 (RFC 9113, RFC 7541, and
PROTOCOL-HTTP2.md of grpc). The daemon asks for `Version` at rest, and every run asks for the pods, so both
must be cheap.

A message means success: with an error, a server sends trailers and no DATA. So the status, which may be
compressed in several ways, need not be read, and why a call failed is not known here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from installer.errors import is_shortage
from installer.host.protobuf import Fields, decode, encode, messages, text

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED = 4, 8
_STREAM = 1
_HEADER = 9  # bytes in front of each frame
_LONGEST_FRAME = 1 << 14  # the limit for a client that has not allowed more
_MUCH_TALK = 1 << 16  # bytes besides the answer: a server that sends more is not a CRI server
_VERSION = 1 << 12  # bytes of a VersionResponse, which has about 50
_LIST = 16 << 20  # bytes of a list, as for kubelet and containerd
_WINDOW = 65535  # bytes that a client accepts that says nothing else
_INITIAL_WINDOW_SIZE = 4  # a setting


class _Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _string(value: bytes) -> bytes:
    """An uncompressed HPACK string of less than 127 bytes."""
    return bytes((len(value),)) + value


def _request(method: str, message: bytes, longest: int) -> bytes:
    """All that a client sends for one call, whose answer has at most `longest` bytes."""
    header_fields = b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http: entries of HPACK's static table
            # Literal fields without indexing. The first bytes name an entry of the static table, or none.
            b"\x04" + _string(f"/runtime.v1.RuntimeService/{method}".encode()),  # :path
            b"\x01" + _string(b"localhost"),  # :authority
            b"\x0f\x10" + _string(b"application/grpc"),  # content-type
            b"\x00" + _string(b"te") + _string(b"trailers"),
        )
    )
    settings, window = b"", b""
    if (more := longest - _WINDOW) > 0:
        settings = _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + longest.to_bytes(4, "big")
        window = _frame(_WINDOW_UPDATE, 0, 0, more.to_bytes(4, "big"))
    return b"".join(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _frame(_SETTINGS, 0, 0, settings),
            window,
            _frame(_HEADERS, _END_HEADERS, _STREAM, header_fields),
            _frame(_DATA, _END_STREAM, _STREAM, b"\0" + len(message).to_bytes(4, "big") + message),
        )
    )


def answers_version(path: Path, timeout: float) -> bool:
    """Whether the CRI server at `path` answers a `Version` call within `timeout` seconds, with a runtime's
    name.

    False for everything else: no socket, hung up, silent, an error, not CRI. Raises OSError if a shortage of
    resources on our side leaves the answer unknown.
    """
    try:
        # VersionRequest.version, VersionResponse.runtime_name
        return bool(text(_call(path, "Version", encode(1, b"v1"), timeout, _VERSION), 2))
    except OSError as error:  # missing, no listener, hung up, timed out
        if is_shortage(error):
            raise
        return False
    except ValueError:  # not HTTP/2, not gRPC, not a VersionResponse
        return False


def list_ready_pods(path: Path, timeout: float) -> list[Fields]:
    """The PodSandbox messages of the pods that are ready. Raises OSError, and ValueError for an answer that
    is no such list."""
    # ListPodSandboxRequest.filter.state.state: SANDBOX_READY is 0, which protobuf leaves out.
    ready = encode(1, encode(2, b""))
    return messages(_call(path, "ListPodSandbox", ready, timeout, _LIST), 1)


def _call(path: Path, method: str, request: bytes, timeout: float, longest: int) -> Fields:
    """Raises OSError, ValueError."""
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(timeout)
        stream.connect(str(path))
        stream.sendall(_request(method, request, longest))
        return _message_in(_response(stream, deadline, longest))


def _message_in(response: bytes) -> Fields:
    """A complete, uncompressed gRPC message. Raises ValueError."""
    head, message = response[:5], response[5:]
    if len(head) != 5 or head[0] != 0 or int.from_bytes(head[1:], "big") != len(message):
        raise ValueError("the call failed" if not head else "not an answer of gRPC")
    return decode(message)


def _response(stream: socket.socket, deadline: float, longest: int) -> bytes:
    """The DATA that the server sends until it ends the call. Raises OSError, ValueError."""
    data = bytearray()
    for frame in _frames(stream, deadline, 2 * longest + _MUCH_TALK):
        if frame.kind in (_SETTINGS, _PING) and not frame.flags & _ACK:
            reply = frame.payload if frame.kind == _PING else b""
            stream.settimeout(_left(deadline))
            stream.sendall(_frame(frame.kind, _ACK, 0, reply))
        elif frame.kind == _GOAWAY or (frame.kind == _RST_STREAM and frame.stream == _STREAM):
            raise ValueError("the call was refused")
        elif frame.kind in (_DATA, _HEADERS) and frame.stream == _STREAM:
            if frame.kind == _DATA:
                data += _without_padding(frame)
            if len(data) > longest:
                raise ValueError("the answer is too long")
            if frame.flags & _END_STREAM:
                break
    return bytes(data)


def _without_padding(frame: _Frame) -> bytes:
    if not frame.flags & _PADDED:
        return frame.payload
    if not frame.payload or frame.payload[0] >= len(frame.payload):
        raise ValueError("more padding than payload")
    return frame.payload[1 : len(frame.payload) - frame.payload[0]]


def _frames(stream: socket.socket, deadline: float, longest: int) -> Iterator[_Frame]:
    """The server's frames, of which the first must be its SETTINGS. Raises OSError, ValueError."""
    talk, first = 0, True
    while True:
        header = _receive(stream, _HEADER, deadline)
        size, kind = int.from_bytes(header[:3], "big"), header[3]
        talk += _HEADER + size
        if size > _LONGEST_FRAME or talk > longest or (first and kind != _SETTINGS):
            raise ValueError("not the HTTP/2 of a CRI server")
        number = int.from_bytes(header[5:], "big") & 0x7FFFFFFF
        yield _Frame(kind, header[4], number, _receive(stream, size, deadline))
        first = False


def _receive(stream: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly `size` bytes. Raises OSError, and ValueError if the other side hangs up."""
    data = b""
    while len(data) < size:
        stream.settimeout(_left(deadline))
        chunk = stream.recv(size - len(data))
        if not chunk:
            raise ValueError("hung up")
        data += chunk
    return data


def _left(deadline: float) -> float:
    """Seconds. Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
