"""The real NRI plugin before a runtime that is played: what it makes of a resource and of pods.

The runtime refuses what a real one refuses: a container whose class of RDT or of block I/O does not exist.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from installer.host.protobuf import Fields, encode, message, messages, text
from tests.lib.judge.answers import SECONDS, Answer, Placed, last_words, started
from tests.lib.judge.machines import Machine
from tests.lib.judge.pods import Container, Pod, shares
from tests.lib.judge.proxy import mapping
from tests.lib.nri_runtime import RefusedError, Runtime

RUN_POD_SANDBOX, START_CONTAINER, REMOVE_CONTAINER = 1, 6, 11  # events
_PERIOD = 100_000
_NO_GROUPS = ("info", "mon_data", "mon_groups")


def ask_plugin(
    program: Path,
    root: Path,
    machine: Machine,
    resource: Mapping[str, Any],
    pods: Sequence[Pod],
    blockio: Collection[str],
) -> Answer:
    """Starts it below `root`, and creates the pods, whose annotations are the plugin's. `blockio`: the
    classes that the runtime knows."""
    machine.lay(root)
    (root / "config").write_text(json.dumps(resource))
    options = {"nri-socket": "nri.sock", "config-file": "config", "state-dir": "state", "pid-file": "run/pid"}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "nri.sock"))
        server.listen()
        server.settimeout(0.05)
        with started(
            [program, *(f"--{key}={root / name}" for key, name in options.items())], root
        ) as process:
            for _ in range(int(SECONDS / 0.05)):
                with suppress(TimeoutError):
                    end, _ = server.accept()
                    break
                if process.poll() is not None:
                    return Answer(last_words(root))
            else:
                raise AssertionError(f"the plugin neither registers nor ends: {last_words(root)}")
            end.settimeout(SECONDS)
            with end:
                return _create(Runtime(end), pods, root, blockio)


def _create(runtime: Runtime, pods: Sequence[Pod], root: Path, blockio: Collection[str]) -> Answer:
    runtime.accept()
    runtime.call("Configure", encode(2, b"containerd") + encode(3, b"v2.1.9"))
    runtime.call("Synchronize")
    placed, keys = dict[str, Placed](), dict[str, str]()
    for number, pod in enumerate(pods):
        sandbox = _sandbox(f"pod{number}", pod)
        runtime.call("StateChange", encode(1, RUN_POD_SANDBOX) + encode(2, sandbox))
        for container in pod.containers:
            key, identity = f"{pod.namespace}/{pod.name}/{container.name}", f"{number}-{container.name}"
            asked = _container(identity, f"pod{number}", pod, container)
            try:
                answer = runtime.call("CreateContainer", encode(1, sandbox) + encode(2, asked))
            except RefusedError:
                placed[key] = Placed("room")
                continue
            keys[identity] = key
            placed[key] = _merge(Placed(shares=shares(container)), message(message(message(answer, 1), 6), 2))
            for update in messages(answer, 2):
                other = keys[text(update, 1)]
                if not placed[other].refused:
                    placed[other] = _merge(placed[other], message(message(update, 2), 1))
            groups = {
                each.name for each in (root / "sys/fs/resctrl").glob("*/") if each.name not in _NO_GROUPS
            }
            if (placed[key].rdt or "") not in {"", *groups} or placed[key].blockio not in {"", *blockio}:
                placed[key] = Placed("class")
                runtime.call("StopContainer", encode(1, sandbox) + encode(2, asked))
                runtime.call(
                    "StateChange", encode(1, REMOVE_CONTAINER) + encode(2, sandbox) + encode(3, asked)
                )
            else:
                runtime.call(
                    "StateChange", encode(1, START_CONTAINER) + encode(2, sandbox) + encode(3, asked)
                )
    return Answer("", placed)


def _merge(before: Placed, resources: Fields) -> Placed:
    """With what the plugin has set of LinuxResources."""
    cpu = message(resources, 2)
    given = {"cpus": text(cpu, 6), "mems": text(cpu, 7), "shares": _value(cpu, 1)}
    given |= {"rdt": text(message(resources, 5), 1), "blockio": text(message(resources, 4), 1)}
    return Placed(**{**{key: getattr(before, key) for key in given}, **{k: v for k, v in given.items() if v}})


def _value(fields: Fields, number: int) -> int:
    found = message(fields, number).get(1, [0])[-1]
    return found if isinstance(found, int) else 0


def _sandbox(identity: str, pod: Pod) -> bytes:
    words = {1: identity, 2: pod.name, 3: pod.uid, 4: pod.namespace}
    labels = {"io.kubernetes.pod.name": pod.name, "io.kubernetes.pod.namespace": pod.namespace}
    return (
        b"".join(encode(number, value.encode()) for number, value in words.items())
        + mapping(5, labels)
        + mapping(6, pod.annotations)
        + encode(8, encode(3, pod.cgroup_parent.encode()))
    )


def _container(identity: str, pod_identity: str, pod: Pod, container: Container) -> bytes:
    cpu = encode(1, encode(1, shares(container)))
    if container.limit:
        cpu += encode(2, encode(1, container.limit * _PERIOD // 1000)) + encode(3, encode(1, _PERIOD))
    memory = encode(1, encode(1, encode(1, container.memory_limit << 20))) if container.memory_limit else b""
    score = encode(4, encode(1, pod.oom_score(container) % (1 << 64)))
    words = {1: identity, 2: pod_identity, 3: container.name}
    head = b"".join(encode(number, value.encode()) for number, value in words.items())
    return head + encode(4, 1) + encode(11, encode(3, memory + encode(2, cpu)) + score)
