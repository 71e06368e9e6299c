"""CRI v1 at unix sockets below the host root: whether it answers, whether it is ready, which containers run.

Only `update` and `remove` change something. Field numbers are those of
k8s.io/cri-api/pkg/apis/runtime/v1/api.proto. What every run asks is asked without a library
(`light_call`). grpcio carries all other calls, and is imported only for them (83 ms, 20 MB).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from installer.errors import StepFailedError, is_shortage, remedy_for
from installer.host.cgroups import Cgroups
from installer.host.files import RootedFiles
from installer.host.light_call import answers_version, list_ready_pods
from installer.host.ports import RuntimeStatus
from installer.host.protobuf import Fields, decode, encode, integer, mapping, message, messages, text
from installer.model.containers import CgroupState, CpuResources, ReadyPod
from installer.model.controls import THROTTLES, WEIGHTS
from installer.model.host import RunningContainer, UnstartedContainer
from installer.model.jsontext import items_at, mapping_at, parse_object
from installer.model.limits import ANSWER_SECONDS
from installer.model.paths import normalise_endpoint

# A running container, from the answers of CRI and the kernel.
#
# Only the verbose ContainerStatus has the values of its creation, in a format of each runtime's own.
# containerd's (1.6 - 2.x, ContainerInfo of its CRI plugin) has the CRI request as `config`, which no update
# changes. CRI-O's (containerInfo of its server) does not: its `runtimeSpec` follows each update, so it shows
# only what the container has now. Any other format counts as unknown.

_MOUNT_OF_PROXY = "/.cri-resmgr"
_RESOURCES = (
    *("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "oom_score_adj"),
    *("cpuset_cpus", "cpuset_mems"),
)
_LABEL = "io.kubernetes.pod."
# An annotation from VerticalPodAutoscaler's admission (ResourceUpdatesAnnotation): kubelet hands it on to the
# sandbox. No mode is there.
_AUTOSCALED = "vpaUpdates"


def build_container(listed: Fields, status: Fields, cgroups: Cgroups) -> RunningContainer | None:
    """From its entry in ListContainers and its verbose ContainerStatus. None if it has ended meanwhile."""
    identifier, labels = text(listed, 1), mapping(listed, 8)
    info = _info(status)
    pid = info.get("pid")
    pid = pid if isinstance(pid, int) else 0
    creation, created = _creation(info)
    cgroup = cgroups.state(pid, identifier) if pid else None
    if pid and not cgroups.runs(pid):  # asked last: the cgroup goes only after its process
        return None
    return RunningContainer(
        id=identifier,
        name=text(message(listed, 3), 1),
        pod=labels.get(f"{_LABEL}name", ""),
        namespace=labels.get(f"{_LABEL}namespace", ""),
        through_proxy=any(text(mount, 1) == _MOUNT_OF_PROXY for mount in messages(message(status, 1), 14)),
        pod_uid=labels.get(f"{_LABEL}uid", ""),
        pid=pid,
        created=created,
        creation=creation,
        cgroup=cgroup,
        created_io=_created_io(mapping_at(info, "runtimeSpec", "linux", "resources", "blockIO")),
    )


def encode_update(identifier: str, resources: CpuResources) -> bytes:
    """An UpdateContainerResourcesRequest. Unset fields stay unchanged."""
    linux = b""
    if resources.shares:
        linux += encode(3, resources.shares)
    if resources.cpus:
        linux += encode(6, resources.cpus.encode())
    if resources.mems:
        linux += encode(7, resources.mems.encode())
    return encode(1, identifier.encode()) + encode(2, linux)


def _info(status: Fields) -> Mapping[str, Any]:
    return parse_object(mapping(status, 2).get("info", ""))


def _creation(info: Mapping[str, Any]) -> tuple[Mapping[str, int | str] | None, CpuResources | None]:
    """`creation` and `created` of RunningContainer. Of all that LinuxContainerResources may hold, only what
    the proxy also knows: numbers and strings."""
    if "config" not in info:
        return _of_spec(info), None
    found = mapping_at(info, "config", "linux").get("resources")
    if not isinstance(found, Mapping):
        return None, None
    found = {key: value for key, value in found.items() if key in _RESOURCES}
    created = _created(found)
    return (found, created) if created else (None, None)


def _of_spec(info: Mapping[str, Any]) -> Mapping[str, int | str] | None:
    """What CRI-O's `runtimeSpec`, a configuration of the OCI runtime specification, says, in terms of
    LinuxContainerResources. Without cpu.shares, which kubelet always sets, the format is unknown."""
    resources = mapping_at(info, "runtimeSpec", "linux", "resources")
    cpu, memory = mapping_at(resources, "cpu"), mapping_at(resources, "memory")
    if "sandboxID" not in info or not isinstance(cpu.get("shares"), int):
        return None
    found = {
        **{f"cpu_{key}": cpu.get(key) for key in ("period", "quota", "shares")},
        **{f"cpuset_{key}": cpu.get(key) for key in ("cpus", "mems")},
        "memory_limit_in_bytes": memory.get("limit"),
        "oom_score_adj": mapping_at(info, "runtimeSpec", "process").get("oomScoreAdj"),
    }
    return {key: value for key, value in found.items() if value and isinstance(value, int | str)}


def _created_io(spec: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """`created_io` of RunningContainer, from `blockIO` of the OCI runtime specification."""
    found = {file: _devices(items_at(spec, name), "rate") for file, name in THROTTLES.items()}
    for file in WEIGHTS:
        found[f"{file}_device"] = _devices(items_at(spec, "weightDevice"), "weight")
        found[file] = {"": str(spec["weight"])} if spec.get("weight") else {}
    return {file: devices for file, devices in found.items() if devices}


def _devices(entries: Iterable[Mapping[str, Any]], what: str) -> dict[str, str]:
    return {f"{entry.get('major')}:{entry.get('minor')}": str(entry.get(what)) for entry in entries}


def _created(found: Mapping[str, Any]) -> CpuResources | None:
    cpus, mems = found.get("cpuset_cpus", ""), found.get("cpuset_mems", "")
    shares = found.get("cpu_shares", 0)
    if not (isinstance(cpus, str) and isinstance(mems, str) and isinstance(shares, int)):
        return None
    return CpuResources(cpus, mems, shares)


_SERVICE = "/runtime.v1.RuntimeService"
_NEWER = {3: "runtime handlers", 4: "features"}  # fields of StatusResponse
_LONGEST_ANSWER = 16 << 20  # bytes, as for kubelet and containerd; gRPC's default is 4 MiB
_AT_ONCE = 8
_CREATED, _RUNNING = 0, 1  # ContainerState
_QUIET = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")

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

    def answers(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> bool:
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

    def status(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> RuntimeStatus:
        with self._channel(endpoint, timeout, renewed=True) as call:
            version = call("Version", encode(1, b"v1"))
            whole = call("Status", b"")
            status = message(whole, 1)
        conditions = {text(condition, 1): condition for condition in messages(status, 1)}
        ready = conditions.get("RuntimeReady", {})
        reasons = (text(ready, 3), text(ready, 4))
        is_ready = bool(integer(ready, 2))
        return RuntimeStatus(
            name=text(version, 2),
            version=text(version, 3),
            api_version=text(version, 4),
            ready=is_ready,
            reason=""
            if is_ready
            else ": ".join(filter(None, reasons)) or "the runtime reports that it is not ready",
            extras=tuple(name for number, name in _NEWER.items() if whole.get(number)),
        )

    def containers(self, endpoint: str, timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        cgroups = Cgroups(self._files)
        with self._channel(endpoint, timeout, renewed=True) as call:
            # ListContainersRequest.filter.state.state, so that dead containers are not sent.
            only_running = encode(1, encode(2, encode(1, _RUNNING)))
            listed = messages(call("ListContainers", only_running), 1)
            containers = _side_by_side(
                lambda fields: _container(call, fields, cgroups),
                [fields for fields in listed if integer(fields, 6) == _RUNNING],
            )
        return tuple(container for container in containers if container is not None)

    def pods(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> dict[str, ReadyPod]:
        with self._socket(endpoint) as place:
            return {text(pod, 1): _ready_pod(pod) for pod in list_ready_pods(place, timeout)}

    def unstarted(self, endpoint: str, timeout: float = 10.0) -> tuple[UnstartedContainer, ...]:
        with self._channel(endpoint, timeout) as call:
            # CONTAINER_CREATED is 0, which protobuf leaves out.
            listed = messages(call("ListContainers", encode(1, encode(2, encode(1, 0)))), 1)
        return tuple(_unstarted(one) for one in listed if integer(one, 6) == _CREATED)

    def empty_pods(self, endpoint: str, timeout: float = 10.0) -> tuple[ReadyPod, ...]:
        with self._socket(endpoint) as place:
            ready = list_ready_pods(place, timeout)  # first: a container may come meanwhile
        with self._channel(endpoint, timeout) as call:
            filled = {text(one, 2) for one in messages(call("ListContainers", b""), 1)} if ready else set()
        return tuple(_ready_pod(pod) for pod in ready if text(pod, 1) not in filled)

    def remove(self, endpoint: str, identifier: str, timeout: float = 10.0) -> None:
        with self._channel(endpoint, timeout) as call:
            call("RemoveContainer", encode(1, identifier.encode()))

    def update(
        self, endpoint: str, resources: Mapping[str, CpuResources], timeout: float = 10.0
    ) -> dict[str, str]:
        with self._channel(endpoint, timeout, renewed=True) as call:
            # A runtime starts a process for each update: more of them than CPUs would all be late.
            at_once = min(_AT_ONCE, len(os.sched_getaffinity(0)))
            said = _side_by_side(lambda one: (one[0], _update(call, *one)), list(resources.items()), at_once)
        return {identifier: complaint for identifier, complaint in said if complaint}

    def cgroup(self, container: RunningContainer) -> CgroupState | None:
        return Cgroups(self._files).state(container.pid, container.id)

    @contextmanager
    def _channel(self, endpoint: str, timeout: float, *, renewed: bool = False) -> Iterator[Call]:
        """A connection whose calls end `timeout` seconds from now or, if `renewed`, from the last answer."""
        with self._socket(endpoint) as place, connect(str(place)) as channel:
            yield _caller(channel, timeout, renewed=renewed)

    @contextmanager
    def _socket(self, endpoint: str) -> Iterator[Path]:
        """The socket of an endpoint. Raises StepFailedError for whatever fails in the block: who does not
        answer is no version's fault, except for the relay, whose silence those who wait for it judge."""
        path = normalise_endpoint(endpoint)
        if not path.startswith("/"):
            raise StepFailedError(f"{endpoint}: not a unix socket", "CRI is served at a unix:// endpoint")
        try:
            with self._files.opened(path) as place:
                if not place.is_socket():
                    raise FileNotFoundError
                yield place
        except (FileNotFoundError, NotADirectoryError):
            where = f"{str(self._files.root).rstrip('/')}{path}"
            raise StepFailedError(
                f"{endpoint}: no socket at {where}", "is the container runtime running?", interfered=True
            ) from None
        except CallError as error:
            raise StepFailedError(
                f"{endpoint}: {error}", "is the container runtime running, with CRI v1?", interfered=True
            ) from error
        except (OSError, ValueError) as error:
            remedy = remedy_for(error) if isinstance(error, OSError) else ""
            raise StepFailedError(f"{endpoint}: {error}", remedy, interfered=True) from error


def _ready_pod(listed: Fields) -> ReadyPod:
    """Of a PodSandbox."""
    metadata = message(listed, 2)
    title = "/".join(filter(None, (text(metadata, 3), text(metadata, 1)))) or text(listed, 1)
    return ReadyPod(title, integer(listed, 4) / 1e9, _AUTOSCALED in mapping(listed, 6))


def _unstarted(listed: Fields) -> UnstartedContainer:
    labels, name = mapping(listed, 8), text(message(listed, 3), 1)
    words = (labels.get(f"{_LABEL}namespace"), labels.get(f"{_LABEL}name"), name)
    title = "/".join(filter(None, words)) or text(listed, 1)
    return UnstartedContainer(text(listed, 1), labels.get(f"{_LABEL}uid", ""), name, title)


def _container(call: Call, listed: Fields, cgroups: Cgroups) -> RunningContainer | None:
    """One container in detail; None if it has ended meanwhile."""
    try:
        status = call("ContainerStatus", encode(1, text(listed, 1).encode()) + encode(2, 1))
    except CallError as error:
        if error.code == "NOT_FOUND":
            return None
        raise
    return build_container(listed, status, cgroups)


def _update(call: Call, identifier: str, resources: CpuResources) -> str:
    """Why the runtime refused; empty if it did not."""
    try:
        call("UpdateContainerResources", encode_update(identifier, resources))
    except CallError as error:
        return str(error)
    return ""


def _side_by_side(
    work: Callable[[_Given], _Found], given: Sequence[_Given], at_once: int = _AT_ONCE
) -> list[_Found]:
    """A runtime takes some milliseconds per answer, but handles several calls at once."""
    from concurrent.futures import ThreadPoolExecutor  # late: only for real calls

    try:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(work, given))
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "cannot start a thread") from error


def connect(socket: str) -> Any:
    """A channel of grpcio with a connection of its own, to be closed by `with`.

    grpcio shares the connections of channels with one address, and what failed there before fails the next
    channel at once; our addresses are names of descriptors, so that another socket soon has the same one.
    """
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    import grpc

    options = (
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", _LONGEST_ANSWER),
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.insecure_channel(f"unix:{quote(socket)}", options)


def _caller(channel: Any, timeout: float, *, renewed: bool) -> Call:
    import grpc

    deadline = time.monotonic() + timeout

    def call(method: str, request: bytes) -> Fields:
        nonlocal deadline
        left = max(0.0, deadline - time.monotonic())
        try:
            answer = channel.unary_unary(f"{_SERVICE}/{method}")(request, timeout=left)
        except grpc.RpcError as error:
            raise CallError(error.code().name, f"{method}: {error.details()}") from error
        if renewed:
            deadline = time.monotonic() + timeout
        return decode(answer)

    return call
