"""The stand-in proxy's relay, which passes frames on, and what the proxy knows of pods.

A pod is known that was listed at the start or whose RunPodSandbox came through here. A container in any other
is refused, for as long as the process lives: nothing else makes a pod known (`InsertContainer` in cache.go).

Which call a request is stands in headers that need a table to be read, so it is told from the message: only
a CreateContainerRequest begins with an ID and has two messages behind it, and only a RunPodSandboxRequest
begins with the configuration of a pod. A request of more than half a window passes unread.
"""

import json
import math
import re
import socket
from _thread import allocate_lock, start_new_thread
from contextlib import suppress
from typing import Any

from tests.lib.throwaway.standins.cri_cache import Cache
from tests.lib.throwaway.standins.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    RST_STREAM,
    WINDOW_UPDATE,
    CallError,
    Connection,
    field,
    fields,
    frame,
    literal,
    numbers,
    strings,
    unary,
)
from tests.lib.throwaway.standins.words import log

SERVICE = "/runtime.v1.RuntimeService/"
CALL_SECONDS = 60.0
HALF_A_WINDOW = 32768
CANCEL = b"\0\0\0\x08"
_ID = re.compile(rb"[0-9a-f]{64}")


class Pods:
    """The cache's pods, by the runtime's ID."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = allocate_lock()
        self._known: dict[str, dict[str, Any]] = cache.data.setdefault("Pods", {})

    def sync(self, runtime: str) -> None:
        """As a start does: what the runtime lists is known from now on, and nothing else."""
        listed = {}
        for number, message in fields(unary(runtime, SERVICE + "ListPodSandbox", b"", CALL_SECONDS)):
            if number == 1:
                identity = strings(message)[1]
                listed[identity] = self._known.get(identity) or _of_list(message, runtime)
        self._known.clear()
        self._known.update(listed)

    def know(self, identity: str, request: bytes) -> None:
        """A pod that was made through the relay."""
        config = dict(fields(dict(fields(request))[1]))
        with self._lock:
            self._known[identity] = _entry(identity, config[1], 0, _parent_in(config))
            self._cache.save()

    def __contains__(self, identity: str) -> bool:
        return identity in self._known


def _entry(identity: str, metadata: bytes, state: int, parent: str) -> dict[str, Any]:
    words = strings(metadata)
    named = {"UID": words.get(2, ""), "Name": words.get(1, ""), "Namespace": words.get(3, "")}
    return {"ID": identity, **named, "State": state, "CgroupParent": parent, "Resources": None}


def _parent_in(config: dict[int, bytes]) -> str:
    """Of a PodSandboxConfig."""
    return strings(config.get(8, b"")).get(1, "") if 8 in config else ""


def _of_list(message: bytes, runtime: str) -> dict[str, Any]:
    """Of a PodSandbox, and its verbose status. One that has gone meanwhile has none."""
    identity, parent = strings(message)[1], ""
    with suppress(OSError, CallError):
        status = unary(
            runtime, SERVICE + "PodSandboxStatus", field(1, identity) + field(2, True), CALL_SECONDS
        )
        entries = [strings(value) for number, value in fields(status) if number == 2]
        info = json.loads(next((entry[2] for entry in entries if entry[1] == "info"), "{}"))
        parent = info.get("config", {}).get("linux", {}).get("cgroup_parent") or ""
    return _entry(identity, dict(fields(message))[2], numbers(message).get(3, 0), parent)


def sandbox_of(request: bytes) -> str:
    """The pod's sandbox that a CreateContainerRequest names; empty if it is another request."""
    parts = _parts(request)
    creates = {2, 3} <= parts.keys() and _ID.fullmatch(parts.get(1, b""))
    return parts[1].decode() if creates else ""


def runs_pod(request: bytes) -> bool:
    """Whether it is a RunPodSandboxRequest: its configuration has the pod's name, UID and namespace."""
    metadata = _parts(_parts(_parts(request).get(1, b"")).get(1, b""))
    return {1, 2, 3} <= metadata.keys()


def _parts(message: bytes) -> dict[int, bytes]:
    try:
        return dict(fields(message))
    except (ValueError, IndexError):
        return {}


class Relayed:
    """One connection of a client, and the one to the runtime that it gets."""

    def __init__(self, client: socket.socket, runtime: socket.socket, pods: Pods) -> None:
        self._client, self._runtime = Connection(client, math.inf), Connection(runtime, math.inf)
        self._pods = pods
        self._to_client = allocate_lock()
        self._requests: dict[int, bytes] = {}  # of RunPodSandbox, by stream
        self._answers: dict[int, bytes] = {}  # to these
        self._refused: set[int] = set()

    def run(self) -> None:
        """Until either side has had enough."""
        start_new_thread(self._pass, (self._down,))
        self._pass(self._up)

    def _pass(self, way: Any) -> None:
        with suppress(OSError):
            way()
        for end in (self._client, self._runtime):
            with suppress(OSError):
                end.socket.shutdown(socket.SHUT_RDWR)

    def _up(self) -> None:
        """From the client to the runtime. What a call asks for is held until it is complete."""
        self._runtime.socket.sendall(self._client.exactly(len(PREFACE)))
        held: dict[int, list[tuple[int, bytes]]] = {}
        while True:
            kind, flags, stream, payload = self._client.frame()
            if kind != DATA:
                self._runtime.socket.sendall(frame(kind, flags, stream, payload))
                continue
            frames = held.setdefault(stream, [])
            frames.append((flags, payload))
            size = sum(len(part) for _, part in frames)
            if not flags & END_STREAM and size < HALF_A_WINDOW:
                continue
            del held[stream]
            message = b"".join(_content(*part) for part in frames)[5:]
            sandbox = sandbox_of(message)
            if sandbox and sandbox not in self._pods:
                self._refuse(stream, sandbox, size)
                continue
            if runs_pod(message):
                self._requests[stream], self._answers[stream] = message, b""
            for part in frames:
                self._runtime.socket.sendall(frame(DATA, part[0], stream, part[1]))

    def _refuse(self, stream: int, sandbox: str, size: int) -> None:
        why = f"can't find cached pod {sandbox} for container to create"
        why = f"failed to insert new container to cache: {why}"
        log("E", f"CreateContainer: {why}")
        self._refused.add(stream)
        self._runtime.socket.sendall(frame(RST_STREAM, 0, stream, CANCEL))
        failed = (
            b"\x88"  # :status 200
            + literal("content-type", "application/grpc")
            + literal("grpc-status", "2")
            + literal("grpc-message", why)
        )
        with self._to_client:
            self._client.socket.sendall(
                frame(WINDOW_UPDATE, 0, 0, size.to_bytes(4, "big"))
                + frame(HEADERS, END_HEADERS | END_STREAM, stream, failed)
            )

    def _down(self) -> None:
        """From the runtime to the client. A pod is known before its client hears of it."""
        while True:
            kind, flags, stream, payload = self._runtime.frame()
            if stream in self._refused and kind in (DATA, HEADERS, RST_STREAM):
                continue
            if stream in self._answers and kind in (DATA, HEADERS, RST_STREAM):
                self._answers[stream] += _content(flags, payload) if kind == DATA else b""
                if flags & END_STREAM or kind == RST_STREAM:
                    self._answered(self._requests.pop(stream), self._answers.pop(stream)[5:])
            with self._to_client:
                self._client.socket.sendall(frame(kind, flags, stream, payload))

    def _answered(self, request: bytes, answer: bytes) -> None:
        identity = _parts(answer).get(1, b"")
        if _ID.fullmatch(identity):
            self._pods.know(identity.decode(), request)


def _content(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
