"""An NRI plugin, as small as it can be: it says which containers the runtime shows it, and pins all of them.

    python -m tests.lib.nri_plugin [--socket PATH] [--cpus LIST]

It prints a line of JSON for its registration, for each container that runs when it comes, and one when the
runtime has its answer. What it pins stays pinned when it stops.

The runtime and the plugin call each other over one socket: frames of NRI's multiplexer (pkg/net/multiplex)
carry two connections of ttrpc, one for each direction (PROTOCOL.md there). The messages are those of NRI's
pkg/api/api.proto.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from installer.host.protobuf import Fields, decode, encode, integer, last_bytes, message, messages, text

SOCKET = "/var/run/nri/nri.sock"
NAME, INDEX = "test", "90"

#: The multiplexer's connections: where the runtime calls the plugin, and where the plugin calls the runtime.
PLUGIN, RUNTIME = 1, 2
_TRUNK = struct.Struct(">II")  # connection, length
_HEAD = struct.Struct(">IIBB")  # of ttrpc: length, stream, kind, flags
REQUEST, RESPONSE = 1, 2
#: A runtime reads a frame of the multiplexer into a buffer of this size, and gives up on a longer one.
_FRAME = 4096
_STREAM = 1  # of the only call that the plugin makes

CREATE_CONTAINER = 1 << 3  # an event's bit is its number less one; no bit at all asks for all events


class Message(NamedTuple):
    """One of ttrpc, on a connection of the multiplexer."""

    connection: int
    stream: int
    kind: int
    body: bytes

    def packed(self) -> bytes:
        """As it goes over the socket."""
        whole = _HEAD.pack(len(self.body), self.stream, self.kind, 0) + self.body
        parts = [whole[at : at + _FRAME] for at in range(0, len(whole), _FRAME)]
        return b"".join(_TRUNK.pack(self.connection, len(part)) + part for part in parts)


def read_messages(end: socket.socket) -> Iterator[Message]:
    """All that come, until the other side closes the connection."""
    unread: dict[int, bytes] = {}
    with end.makefile("rb") as trunk:
        while head := trunk.read(_TRUNK.size):
            connection, size = _TRUNK.unpack(head)
            rest = unread.pop(connection, b"") + trunk.read(size)
            while len(rest) >= _HEAD.size:
                length, stream, kind, _ = _HEAD.unpack_from(rest)
                if len(rest) < _HEAD.size + length:
                    break
                whole, rest = rest[: _HEAD.size + length], rest[_HEAD.size + length :]
                yield Message(connection, stream, kind, whole[_HEAD.size :])
            unread[connection] = rest


class Plugin:
    """Answers a runtime; `cpus` is where it pins each container that runs, nowhere if it is empty."""

    def __init__(self, end: socket.socket, cpus: str) -> None:
        self._end = end
        self._cpus = cpus
        self._seen: list[Fields] = []

    def run(self) -> None:
        """Registers, and answers until the runtime closes the connection."""
        names = encode(1, NAME.encode()) + encode(2, INDEX.encode())
        self._send(RUNTIME, _STREAM, REQUEST, _request("Runtime", "RegisterPlugin", names))
        for come in read_messages(self._end):
            if come.connection == PLUGIN and come.kind == REQUEST:
                request = decode(come.body)
                answer = self._answer(text(request, 2), message(request, 3))
                self._send(PLUGIN, come.stream, RESPONSE, encode(2, answer))
            elif come.kind == RESPONSE:
                status = message(decode(come.body), 1)
                if integer(status, 1):
                    raise SystemExit(f"the runtime refuses the plugin: {text(status, 2)}")
                say(registered=NAME)

    def _answer(self, method: str, request: Fields) -> bytes:
        """Everything that is not asked for here is an empty message."""
        if method == "Configure":
            return encode(2, CREATE_CONTAINER)
        return self._synchronize(request) if method == "Synchronize" else b""

    def _synchronize(self, request: Fields) -> bytes:
        """Many containers come in several requests, each but the last with `more`."""
        self._seen += messages(request, 2)
        if integer(request, 3):
            return encode(2, 1)
        for container in self._seen:
            say(**what_it_has(container))
        say(synchronized=len(self._seen))
        return b"".join(self._update(container) for container in self._seen if self._cpus)

    def _update(self, container: Fields) -> bytes:
        """A ContainerUpdate: linux.resources.cpu.cpus."""
        linux = encode(1, encode(2, encode(6, self._cpus.encode())))
        return encode(1, encode(1, last_bytes(container, 1)) + encode(2, linux))

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        self._end.sendall(Message(connection, stream, kind, body).packed())


def what_it_has(container: Fields) -> dict[str, Any]:
    """What an NRI plugin can know of a container's CPUs; 0 shares if it has none."""
    cpu = message(message(message(container, 11), 3), 2)
    shares = integer(message(cpu, 1), 1)
    return {"id": text(container, 1), "name": text(container, 3), "shares": shares, "cpus": text(cpu, 6)}


def _request(service: str, method: str, payload: bytes) -> bytes:
    called = encode(1, f"nri.pkg.api.v1alpha1.{service}".encode())
    return called + encode(2, method.encode()) + encode(3, payload)


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", default=SOCKET)
    parser.add_argument("--cpus", default="")
    arguments = parser.parse_args()
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(arguments.socket)
        Plugin(end, arguments.cpus).run()


if __name__ == "__main__":
    main()
