"""CRI v1 at unix sockets below the host root: does it answer, is it ready, which containers run.

Only asks: no call here changes a container. Field numbers are those of
k8s.io/cri-api/pkg/apis/runtime/v1/api.proto. Whether somebody answers is asked by hand
(`version_call`); grpcio carries all other calls and is imported only then (83 ms, 20 MB).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from installer.errors import StepFailedError, is_shortage, remedy_for
from installer.host.files import RootedFiles
from installer.host.ports import RuntimeStatus
from installer.host.protobuf import (
    Fields,
    decode,
    encode,
    integer,
    mapping,
    message,
    messages,
    text,
)
from installer.host.version_call import answers_version
from installer.model.jsontext import parse_json
from installer.model.paths import normalise_endpoint
from installer.model.snapshot import RunningContainer

_SERVICE = "/runtime.v1.RuntimeService"
_MOUNT_OF_PROXY = "/.cri-resmgr"
_RUNNING = 1  # ContainerState.CONTAINER_RUNNING
_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

Call = Callable[[str, bytes], Fields]
"""(method, request) -> response."""


class CallError(Exception):
    """A call failed. `code` is gRPC's name of the reason (`NOT_FOUND`)."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code.replace('_', ' ').lower()}: {details}")
        self.code = code


class SocketCri:
    """The Cri port."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files

    def answers(self, endpoint: str, timeout: float = 1.0) -> bool:
        path = normalise_endpoint(endpoint)
        if not path.startswith("/"):
            return False
        try:
            with self._files.opened(path) as place:
                return answers_version(place, timeout)
        except OSError as error:
            if is_shortage(error):
                raise
            return False

    def status(self, endpoint: str, timeout: float = 2.0) -> RuntimeStatus:
        with self._channel(endpoint, timeout) as call:
            version = call("Version", encode(1, b"v1"))
            status = message(call("Status", b""), 1)
        conditions = {text(condition, 1): condition for condition in messages(status, 1)}
        ready = conditions.get("RuntimeReady", {})
        reasons = (text(ready, 3), text(ready, 4))
        is_ready = bool(integer(ready, 2))
        return RuntimeStatus(
            name=text(version, 2),
            version=text(version, 3),
            api_version=text(version, 4),
            ready=is_ready,
            reason="" if is_ready else ": ".join(filter(None, reasons)) or "the runtime says it is not ready",
        )

    def containers(self, endpoint: str, timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        all_cpus = self._cpus(1)
        found = []
        with self._channel(endpoint, timeout) as call:
            # ListContainersRequest.filter.state.state, so that the dead ones stay where they are.
            only_running = encode(1, encode(2, encode(1, _RUNNING)))
            for listed in messages(call("ListContainers", only_running), 1):
                if integer(listed, 6) == _RUNNING:
                    found.append(self._container(call, listed, all_cpus))
        return tuple(container for container in found if container)

    def _container(self, call: Call, listed: Fields, all_cpus: str) -> RunningContainer | None:
        """One container in detail, or None if it has ended meanwhile."""
        identifier = text(listed, 1)
        try:
            answer = call("ContainerStatus", encode(1, identifier.encode()) + encode(2, 1))
        except CallError as error:
            if error.code == "NOT_FOUND":
                return None
            raise
        labels = mapping(listed, 8)
        cpus = self._cpus(_pid(mapping(answer, 2)))
        return RunningContainer(
            id=identifier,
            name=text(message(listed, 3), 1),
            pod=labels.get("io.kubernetes.pod.name", ""),
            namespace=labels.get("io.kubernetes.pod.namespace", ""),
            through_proxy=any(
                text(mount, 1) == _MOUNT_OF_PROXY for mount in messages(message(answer, 1), 14)
            ),
            pinned=bool(cpus) and cpus != all_cpus,
        )

    def _cpus(self, pid: int) -> str:
        """The CPUs that a process of the host may use, as the kernel lists them; empty if it has ended."""
        status = self._files.read(f"/proc/{pid}/status") if pid else None
        for line in (status or b"").splitlines():
            if line.startswith(b"Cpus_allowed_list:"):
                return line.partition(b":")[2].strip().decode()
        return ""

    @contextmanager
    def _channel(self, endpoint: str, timeout: float) -> Iterator[Call]:
        """A connection whose calls end `timeout` seconds from now. Raises StepFailedError for
        whatever fails in the block."""
        path = normalise_endpoint(endpoint)
        if not path.startswith("/"):
            raise StepFailedError(f"{endpoint}: not a unix socket", "CRI is served at a unix:// endpoint")
        try:
            with self._files.opened(path) as place:
                if not place.is_socket():
                    raise FileNotFoundError
                with _connected(str(place)) as channel:
                    yield _caller(channel, time.monotonic() + timeout)
        except (FileNotFoundError, NotADirectoryError):
            where = f"{str(self._files.root).rstrip('/')}{path}"
            raise StepFailedError(
                f"{endpoint}: no socket at {where}", "is the container runtime running?"
            ) from None
        except CallError as error:
            raise StepFailedError(
                f"{endpoint}: {error}", "is the container runtime running, with CRI v1?"
            ) from error
        except (OSError, ValueError) as error:
            remedy = remedy_for(error) if isinstance(error, OSError) else ""
            raise StepFailedError(f"{endpoint}: {error}", remedy) from error


@contextmanager
def _connected(socket: str) -> Iterator[Any]:
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    import grpc

    options = (("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost"))
    channel = grpc.insecure_channel(f"unix:{quote(socket)}", options)
    try:
        yield channel
    finally:
        channel.close()


def _caller(channel: Any, deadline: float) -> Call:
    import grpc

    def call(method: str, request: bytes) -> Fields:
        left = max(0.0, deadline - time.monotonic())
        try:
            return decode(channel.unary_unary(f"{_SERVICE}/{method}")(request, timeout=left))
        except grpc.RpcError as error:
            raise CallError(error.code().name, f"{method}: {error.details()}") from error

    return call


def _pid(info: dict[str, str]) -> int:
    """The main process's pid out of a verbose ContainerStatus, 0 if it does not say."""
    try:
        pid = parse_json(info.get("info", "{}")).get("pid", 0)
    except (ValueError, AttributeError):
        return 0
    return pid if isinstance(pid, int) else 0
