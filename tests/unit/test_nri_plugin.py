"""The tests' own NRI plugin, at the end of a runtime: its bytes are those of NRI's and ttrpc's."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from installer.host.protobuf import decode, encode, last_bytes, message, messages, text
from tests.lib.nri_plugin import PLUGIN, REQUEST, RESPONSE, Message, Plugin, read_messages

#: As NRI's own stub sends them: a frame of the multiplexer, a header of ttrpc, a Request.
REGISTERS = bytes.fromhex("00000002 00000044 0000003a 00000001 01 00") + (
    b"\x0a\x1cnri.pkg.api.v1alpha1.Runtime\x12\x0eRegisterPlugin\x1a\x0a\x0a\x04test\x12\x0290"
)


def container(identity: str, shares: int, cpus: str) -> bytes:
    cpu = encode(1, encode(1, shares)) + encode(6, cpus.encode())
    return encode(1, identity.encode()) + encode(3, b"name") + encode(11, encode(3, encode(2, cpu)))


class Runtime:
    """The other end of a plugin."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.come = read_messages(end)
        self.stream = -1

    def call(self, method: str, payload: bytes = b"") -> bytes:
        """The payload of the plugin's answer."""
        self.stream += 2
        body = encode(1, b"nri.pkg.api.v1alpha1.Plugin") + encode(2, method.encode()) + encode(3, payload)
        self.end.sendall(Message(PLUGIN, self.stream, REQUEST, body).packed())
        answer = next(self.come)
        assert answer[:3] == (PLUGIN, self.stream, RESPONSE)
        return last_bytes(decode(answer.body), 2)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, theirs


@pytest.fixture
def runtime(ends: tuple[socket.socket, socket.socket]) -> Iterator[Runtime]:
    ours, theirs = ends
    plugin = Thread(target=Plugin(theirs, "1").run)
    plugin.start()
    yield Runtime(ours)
    ours.shutdown(socket.SHUT_RDWR)
    plugin.join(10)
    assert not plugin.is_alive()


def test_it_registers_in_nris_own_bytes(runtime: Runtime) -> None:
    assert runtime.end.recv(1000) == REGISTERS


def test_it_says_what_it_is_shown_and_pins_it(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    next(runtime.come)
    assert decode(runtime.call("Configure")) == {2: [8]}
    first = runtime.call("Synchronize", encode(2, container("a", 1024, "")) + encode(3, 1))
    assert decode(first) == {2: [1]}  # there are more to come
    last = messages(decode(runtime.call("Synchronize", encode(2, container("b", 2, "0-1")))), 1)
    pinned = [(text(each, 1), text(message(message(message(each, 2), 1), 2), 6)) for each in last]
    assert pinned == [("a", "1"), ("b", "1")]
    assert runtime.call("StopContainer") == b""
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"id": "a", "name": "name", "shares": 1024, "cpus": ""},
        {"id": "b", "name": "name", "shares": 2, "cpus": "0-1"},
        {"synchronized": 2},
    ]


def test_a_long_message_goes_in_frames_that_a_runtime_takes(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """The parts of two connections may come in turns."""
    ours, theirs = ends
    long, short = Message(1, 3, REQUEST, bytes(range(256)) * 40), Message(2, 5, RESPONSE, b"short")
    packed = long.packed()
    sizes = []
    at = 0
    while at < len(packed):
        sizes.append(int.from_bytes(packed[at + 4 : at + 8], "big"))
        at += 8 + sizes[-1]
    assert sizes == [4096, 4096, 2058]
    theirs.sendall(packed[: 8 + 4096] + short.packed() + packed[8 + 4096 :])
    theirs.close()
    assert list(read_messages(ours)) == [short, long]
