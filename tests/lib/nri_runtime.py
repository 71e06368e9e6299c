"""The runtime's side of a connection to an NRI plugin; `nri_plugin` has the other one, and describes both."""

from __future__ import annotations

import socket

from installer.host.protobuf import Fields, decode, encode, message, text
from tests.lib.nri_plugin import PLUGIN, REQUEST, RESPONSE, RUNTIME, Message, read_messages


class RefusedError(Exception):
    """The plugin has answered with an error."""


class Runtime:
    """The runtime's side of one plugin's connection; calls go one after the other."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._come, self._stream = end, read_messages(end), -1

    def accept(self) -> Fields:
        """Lets the plugin register; what it says of itself."""
        request = next(self._come)
        assert (request.connection, request.kind) == (RUNTIME, REQUEST)
        called = decode(request.body)
        assert text(called, 2) == "RegisterPlugin"
        self._send(RUNTIME, request.stream, RESPONSE, encode(2, b""))
        return message(called, 3)

    def call(self, method: str, payload: bytes = b"") -> Fields:
        """The plugin's answer. Raises RefusedError."""
        self._stream += 2
        service = encode(1, b"nri.pkg.api.v1alpha1.Plugin")
        self._send(PLUGIN, self._stream, REQUEST, service + encode(2, method.encode()) + encode(3, payload))
        answer = next(each for each in self._come if each.connection == PLUGIN)
        assert (answer.kind, answer.stream) == (RESPONSE, self._stream)
        if status := message(decode(answer.body), 1):
            raise RefusedError(text(status, 2))
        return message(decode(answer.body), 2)

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        self._end.sendall(Message(connection, stream, kind, body).packed())
