"""Whether HTTP/2 is served at a unix socket: the cheapest sign of life of a gRPC server.

No request is made, so it says that the server handles connections, not that the runtime behind it
answers (RFC 9113, sections 3.4 and 6.5).
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from installer.errors import is_shortage

_EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS
_HEADER = 9
_SETTINGS = 4
_ACK = 1
_LONGEST_FRAME = 1 << 14  # what a server may send before it knows better


def serves(path: Path, timeout: float) -> bool:
    """Whether the server's own SETTINGS frame arrives within `timeout` seconds.

    A socket that only accepts, as cri-resmgr's does before it serves, gives False. Raises OSError where a
    shortage on this side keeps the answer unknown.
    """
    deadline = time.monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(timeout)
            stream.connect(str(path))
            stream.sendall(_PREFACE)
            return _first_frame_is_settings(stream, deadline)
    except OSError as error:  # missing, nobody listening, hung up, timed out
        if is_shortage(error):
            raise
        return False


def _first_frame_is_settings(stream: socket.socket, deadline: float) -> bool:
    """RFC 9113: the server's first frame must be its SETTINGS; it is read to its end."""
    header = _receive(stream, _HEADER, deadline)
    size = int.from_bytes(header[:3], "big")
    if len(header) < _HEADER or header[3] != _SETTINGS or header[4] & _ACK or size > _LONGEST_FRAME:
        return False
    return len(_receive(stream, size, deadline)) == size


def _receive(stream: socket.socket, size: int, deadline: float) -> bytes:
    """`size` bytes, or fewer when the other side hangs up. Raises TimeoutError."""
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        stream.settimeout(left)
        chunk = stream.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data
