"""Hostile answers to the CRI `Version` call that is made by hand."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from hypothesis import strategies as st

from installer.host.light_call import answers_version
from tests.faults.inputs.trial import Trial, end_of
from tests.lib.throwaway.standins.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    envelope,
    field,
    frame,
    literal,
)

_MESSAGE = field(1, "0.1.0") + field(2, "containerd") + field(3, "1.6.20") + field(4, "v1")
_PARTS = (
    frame(SETTINGS, 0, 0, b"\0\3\0\0\0\x64"),
    frame(SETTINGS, ACK, 0),
    frame(HEADERS, END_HEADERS, 1, b"\x88"),
    frame(DATA, 0, 1, envelope(_MESSAGE)),
    frame(HEADERS, END_HEADERS | END_STREAM, 1, literal("grpc-status", "0")),
)
_FRAME = st.builds(
    frame, st.integers(0, 255), st.integers(0, 255), st.sampled_from((0, 1, 1, 3)), st.binary(max_size=60)
)
_MESSAGES = st.builds(lambda message: frame(DATA, 0, 1, envelope(message)), st.binary(max_size=60))
_ANSWERS = st.lists(_FRAME | _MESSAGES | st.sampled_from(_PARTS) | st.binary(max_size=20), max_size=12)


def _check(parts: list[bytes], directory: Path) -> str:
    """It is answered or not; nothing else comes out, and soon."""
    path = directory / "version.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=_serve, args=(server, b"".join(parts)))
        thread.start()
        wrong = end_of(lambda: answers_version(path, 5.0))
        thread.join()
    return wrong


def _serve(server: socket.socket, answer: bytes) -> None:
    client, _ = server.accept()
    with client:
        try:
            client.sendall(answer)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
        except OSError:  # it has read enough
            pass


TRIALS = (
    Trial(
        "answers to Version",
        st.one_of(_ANSWERS, st.builds(lambda rest: [*_PARTS[:3], *rest], _ANSWERS)),
        _check,
        [list(_PARTS[:count]) for count in range(len(_PARTS) + 1)],
    ),
)
