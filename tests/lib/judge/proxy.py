"""The real cri-resmgr before a runtime that is played: what it makes of a configuration and of pods."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from installer.host.protobuf import Fields, decode, encode, integer, message, text
from tests.lib.judge.answers import SECONDS, Answer, Placed, last_words, started
from tests.lib.judge.machines import Machine
from tests.lib.judge.pods import Container, Pod, shares

_RUNTIME = "/runtime.v1.RuntimeService/"
_ASSIGNED = re.compile(r'(rdt|blockio)\.go:\d+\] "(\S+):(\S+)": assigned to class "([^"]*)"')
_CONTROLLERS = ("cpu", "cpuset", "blkio", "memory")  # all in one tree
_BLOCK_IO = (
    *("weight", "bfq.weight", "weight_device", "bfq.weight_device"),
    *(f"throttle.{way}_{unit}_device" for way in ("read", "write") for unit in ("bps", "iops")),
)
_PERIOD = 100_000


class Runtime(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A runtime that does what it is asked to. `resources` are those of each container, by its ID."""

    def __init__(self, cgroups: Path) -> None:
        self.resources: dict[str, dict[str, Any]] = {}
        self._cgroups, self._made = cgroups, 0

    def service(self, details: Any) -> Any:
        """Answers any method."""
        method = details.method.rpartition("/")[2]
        answer = getattr(self, f"_{method}", lambda _: b"")
        return grpc.unary_unary_rpc_method_handler(lambda request, _: answer(decode(request)))

    def _Version(self, _: Fields) -> bytes:
        return b"".join(
            encode(n, each) for n, each in enumerate((b"0.1.0", b"containerd", b"1.7.0", b"v1"), 1)
        )

    def _RunPodSandbox(self, _: Fields) -> bytes:
        return encode(1, self._next())

    def _CreateContainer(self, request: Fields) -> bytes:
        identity = self._next()
        config, pod = message(request, 2), message(request, 3)
        parent = text(message(pod, 8), 1)
        place = self._cgroups / "cpu" / parent[1:] / identity.decode()
        place.mkdir(parents=True)
        for name in ("tasks", "cgroup.procs", *(f"blkio.{each}" for each in _BLOCK_IO)):
            (place / name).write_text("100\n" if name.endswith("weight") else "")
        self._take(identity.decode(), message(message(config, 15), 1))
        return encode(1, identity)

    def _UpdateContainerResources(self, request: Fields) -> bytes:
        self._take(text(request, 1), message(request, 2))
        return b""

    def _take(self, identity: str, linux: Fields) -> None:
        given = {"shares": integer(linux, 3), "cpus": text(linux, 6), "mems": text(linux, 7)}
        self.resources.setdefault(identity, {}).update({key: value for key, value in given.items() if value})

    def _next(self) -> bytes:
        self._made += 1
        return f"{self._made:064x}".encode()


def ask_proxy(program: Path, root: Path, machine: Machine, config: str, pods: Sequence[Pod]) -> Answer:
    """Starts it below `root`, and creates the pods. Raises AssertionError if it gives no answer at all."""
    machine.lay(root)
    (root / "config").write_text(config)
    cgroups = root / "sys/fs/cgroup"
    (cgroups / "cpu").mkdir()
    for each in _CONTROLLERS[1:]:
        (cgroups / each).symlink_to("cpu")
    runtime = Runtime(cgroups)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[runtime])
    server.add_insecure_port(f"unix:{root / 'runtime.sock'}")
    server.start()
    sockets = {name: root / f"{name}.sock" for name in ("relay", "config")}
    options = [f"--{name}-socket={path}" for name, path in sockets.items()]
    options += [f"--runtime-socket={root / 'runtime.sock'}", "--agent-socket=disabled", "--disable-ui"]
    options += [f"--relay-dir={root / 'state'}", f"--fallback-config={root / 'config'}"]
    try:
        with started([program, *options], root) as process:
            refused = _wait(process, root)
            if refused:
                return Answer(refused)
            with grpc.insecure_channel(f"unix:{sockets['relay']}") as channel:
                return _create(channel, runtime, pods, root)
    finally:
        server.stop(None)


def _wait(process: subprocess.Popen[bytes], root: Path) -> str:
    """Until it serves; why it does not."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            return last_words(root)
        if (root / "run/cri-resmgr.pid").exists():
            for group in (root / "sys/fs/resctrl").glob("cri-resmgr.*"):  # mkdir of the kernel's makes it
                (group / "tasks").touch()
            return ""
        time.sleep(0.005)
    raise AssertionError(f"cri-resmgr neither serves nor ends: {last_words(root)}")


def _create(channel: grpc.Channel, runtime: Runtime, pods: Sequence[Pod], root: Path) -> Answer:
    def call(method: str, request: bytes) -> Fields:
        called: Callable[..., bytes] = channel.unary_unary(_RUNTIME + method)
        return decode(called(request, timeout=SECONDS))

    placed, identities = dict[str, Placed](), dict[str, str]()
    for pod in pods:
        sandbox = _sandbox(pod)
        pod_id = text(call("RunPodSandbox", encode(1, sandbox)), 1)
        for container in pod.containers:
            key = f"{pod.namespace}/{pod.name}/{container.name}"
            request = encode(1, pod_id.encode()) + encode(2, _container(pod, container)) + encode(3, sandbox)
            try:
                identity = text(call("CreateContainer", request), 1)
            except grpc.RpcError:
                placed[key] = Placed("room")
                continue
            call("StartContainer", encode(1, identity.encode()))
            identities[key] = identity
    call("StopPodSandbox", encode(1, b"unknown"))  # it has its turn when the last container has its classes
    said = _ASSIGNED.findall((root / "log").read_text())
    classes = {(kind, f"{pod}/{name}"): each for kind, pod, name, each in said}
    for key, identity in identities.items():
        found = {kind: classes.get((kind, key.partition("/")[2]), "") for kind in ("rdt", "blockio")}
        placed[key] = Placed(**runtime.resources[identity], **found)
    return Answer("", placed)


def _sandbox(pod: Pod) -> bytes:
    metadata = {1: pod.name, 2: pod.uid, 3: pod.namespace}
    labels = {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.uid": pod.uid,
    }
    return (
        encode(1, b"".join(encode(number, value.encode()) for number, value in metadata.items()))
        + mapping(6, labels)
        + mapping(7, pod.annotations)
        + encode(8, encode(1, pod.cgroup_parent.encode()))
    )


def _container(pod: Pod, container: Container) -> bytes:
    numbers = {3: shares(container), 4: container.memory_limit << 20, 5: pod.oom_score(container) % (1 << 64)}
    if container.limit:
        numbers |= {1: _PERIOD, 2: container.limit * _PERIOD // 1000}
    resources = b"".join(encode(number, value) for number, value in sorted(numbers.items()) if value)
    labels = {"io.kubernetes.container.name": container.name, "io.kubernetes.pod.uid": pod.uid}
    return (
        encode(1, encode(1, container.name.encode())) + mapping(9, labels) + encode(15, encode(1, resources))
    )


def mapping(number: int, values: Any) -> bytes:
    """A map of strings."""
    return b"".join(
        encode(number, encode(1, key.encode()) + encode(2, value.encode())) for key, value in values.items()
    )
