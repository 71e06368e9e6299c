"""Runs inside the machine: containers as kubelet makes them, and what the kernel enforces on each.

    create PODS EACH    makes so many pods with so many containers each -> {name: ID}; says each that runs
    usage               reads {name: ID} -> {name: {what: value}}

Every container has a weight of its own, every other one a quota, two of three a memory limit. Pods have the
cgroups that kubelet makes for them with the systemd driver, in its classes Burstable and Guaranteed by turns.
The quotas are multiples of 10 ms in a second: any other is rounded up at the next daemon-reload, whoever asks
for that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.lib.throwaway.containers import Pod, create_container, import_image, run_pod
from tests.lib.throwaway.standins.http2 import CallError

CGROUPS = Path("/sys/fs/cgroup")
VALUES = ("cpu.weight", "cpu.max", "cpuset.cpus.effective", "cpuset.mems.effective", "memory.max")
#: The main process, by its pid and when it was started.
PROCESS = "process"


class Here:
    """This machine."""

    root = Path("/")
    runtime_socket = "/run/containerd/containerd.sock"

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, capture_output=True, text=True, check=True)


HERE = Here()
AT_ONCE = 2  # are made: as many as the machine has processors
TRIES = 5


def create(pods: int, each: int) -> dict[str, str]:
    import_image(HERE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = [pod for pod in pool.map(create_pod, range(pods)) for _ in range(each)]
        return dict(pool.map(create_one, range(pods * each), made, [each] * len(made)))


def create_pod(number: int) -> Pod:
    pod = run_pod(HERE, HERE.runtime_socket, f"pod-{number}", parent_of(number))
    say(pod.name)
    return pod


def parent_of(number: int) -> str:
    """As kubelet's driver for systemd names it (ToSystemd in pkg/kubelet/cm): one is guaranteed, the next one
    burstable."""
    parts = ["kubepods", *([] if number % 2 else ["burstable"]), f"pod{uuid.uuid4().hex}"]
    return "".join(f"/{'-'.join(parts[: count + 1])}.slice" for count in range(len(parts)))


def create_one(number: int, pod: Pod, each: int) -> tuple[str, str]:
    """The container of this number, counted over all pods -> its name, its ID. Tried again as kubelet does:
    runc gives up after 30 s if systemd has not made the cgroup by then."""
    index = number % each
    for left in reversed(range(TRIES)):
        name = f"c{index}" if left == TRIES - 1 else f"c{index}-{TRIES - left}"
        try:
            identity = create_container(
                HERE,
                HERE.runtime_socket,
                name,
                cpu_shares=shares_of(number),
                cpu_quota=5_000 * (number + 1) if index % 2 else 0,
                memory_limit=(64 + number // each) << 20 if index % 3 else 0,
                pod=pod,
            )
            break
        except CallError as error:
            say(f"{pod.name}/{name}: {error}")
            if not left:
                raise
    say(f"{pod.name}/{name}")
    return f"{pod.name}/{name}", identity


def shares_of(number: int) -> int:
    """The cpu.shares that the container of this number is created with."""
    return max(2, (10 + 137 * number % 1900) * 1024 // 1000)


def say(what: str) -> None:
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


def usage(containers: dict[str, str]) -> dict[str, dict[str, str]]:
    directories = {path.name: path for path in CGROUPS.rglob("*/")}
    found = {}
    for name, identity in containers.items():
        (directory,) = (path for key, path in directories.items() if identity in key)
        found[name] = {key: (directory / key).read_text().strip() for key in VALUES}
        pid = (directory / "cgroup.procs").read_text().split()[0]
        since = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        found[name][PROCESS] = f"{pid} since {since}"
    return found


def main() -> None:
    what, *words = sys.argv[1:]
    result = create(*map(int, words)) if what == "create" else usage(json.load(sys.stdin))
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
