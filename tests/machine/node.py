"""A node on a machine, with the program and payloads for it: what the tests and the faults share."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.host.node import BINARY, PROXY
from tests.host.workload import POLICIES
from tests.lib.program import KIT, PROGRAM, PYTHON
from tests.lib.throwaway import real
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.standins import kubelet as standin
from tests.machine.machine import Ended, Machine, Parts
from tests.machine.parts import assemble

RELAY = "/cri-resmgr/cri-resmgr.sock"
OLD, NEW, BROKEN = "old", "new", "broken"
NO_CONFIGS, REAL_CONFIGS = "configs", "topology-aware"  # beside it, those of the other POLICIES

#: kubelet has to stay up for a second only.
PROMPT = {"kubelet": {"settleSeconds": 1}}
#: As for a slow machine: what takes 5 s here takes a minute while others work. A proxy that has containers to
#: place takes half a second for each.
SETTINGS = {
    "kubelet": {**PROMPT["kubelet"], "guardSeconds": 60, "startTimeoutSeconds": 240},
    "proxy": {"startTimeoutSeconds": 300},
}
HEALTHY = (
    "until busybox wget -qO- http://127.0.0.1:10248/healthz 2>/dev/null | grep -qx ok; do sleep 0.2; done"
)
CONTAINERS = "tests.machine.containers"
#: Container -> what the kernel enforces on it, and which process it is.
Usage = Mapping[str, Mapping[str, str]]
UP_SECONDS = 500  # for a kubelet after a boot, on a busy machine; less than a command may be silent


def build_parts(scratch: Path, selinux: bool = False) -> Parts:
    """A machine with a new disk, and a kit with three payloads: a good one, a newer one, one that dies."""
    kit = scratch / "kit"
    build_payload(kit / OLD, version="v0.9.2")
    build_payload(kit / NEW, version="v0.9.3")
    build_payload(kit / BROKEN, version="v0.9.4", fault={"exitAfterSeconds": 0.5})
    (kit / NO_CONFIGS).mkdir()
    for name, text in POLICIES.items():
        write(kit / name / "fallback.cfg", text)
    (kit / "settings.yaml").write_text(json.dumps(SETTINGS))
    (kit / "prompt.yaml").write_text(json.dumps(PROMPT))
    (kit / "successor.yaml").write_text(json.dumps({**SETTINGS, "removal": {"successor": "nri"}}))
    if plugin := real.named("nri-plugin"):
        shutil.copy(plugin, kit / "nri-plugin")
    return assemble(scratch, kit, selinux)


class MachineNode:
    """A booted machine; `payload`, `configs` and `settings` are those that the program is given."""

    def __init__(self, machine: Machine, parts: Parts) -> None:
        self.machine = machine
        self.payload = OLD
        self.configs = NO_CONFIGS
        self.settings = "settings.yaml"
        #: Containers that run on it: name -> ID.
        self.containers: dict[str, str] = {}
        self._digests = {
            name: _digest(parts.kit.with_name("kit") / name / BINARY[1:]) for name in (OLD, NEW, BROKEN)
        }

    def words(self, *argv: str) -> tuple[str, ...]:
        """The program's command line, with the global options that name its inputs."""
        inputs = ("--payload", f"{KIT}/{self.payload}", "--configs", f"{KIT}/{self.configs}")
        return (PROGRAM, *inputs, "--config", f"{KIT}/{self.settings}", *argv)

    def give(self, configs: str) -> None:
        """What the program is given from now on."""
        self.configs, self.settings = configs, "settings.yaml"

    def run(self, *argv: str, code: int = 0) -> Ended:
        ended = self.machine.run(*self.words(*argv), check=False)
        assert ended.code == code, f"{argv}: exit code {ended.code}\n{ended.out}{ended.err}"
        return ended

    def show(self, unit: str, key: str) -> str:
        """One property of a unit."""
        return self.machine.run("systemctl", "show", "--value", f"--property={key}", unit).out.strip()

    def wait_healthy(self) -> None:
        """Waits until kubelet's healthz says ok. Raises MachineError with its journal if it does not."""
        ended = self.machine.run("timeout", str(UP_SECONDS), "sh", "-c", HEALTHY, check=False)
        journal = self.machine.run("journalctl", "--no-pager", "--unit=kubelet").out if ended.code else ""
        assert ended.code == 0, f"kubelet is not healthy within {UP_SECONDS} s:\n{journal}"

    def on_relay(self) -> bool:
        """Whether the endpoint of the running kubelet is a link that leads to the relay."""
        pid = self.show("kubelet", "MainPID")
        arguments = self.machine.run("cat", f"/proc/{pid}/cmdline").out.split("\0")
        endpoint = standin.flag(arguments, "container-runtime-endpoint") or ""
        link = self.machine.run("readlink", endpoint.removeprefix("unix://"), check=False)
        return link.out.strip().endswith(RELAY)

    def expect_good(self) -> None:
        """Converged and healthy with this payload, by our own word, systemd's and kubelet's."""
        assert self.run("status").out.splitlines()[-1] == "converged and healthy"
        self.wait_healthy()
        assert self.on_relay()
        assert self.show(PROXY, "ActiveState") == "active"
        assert self.machine.run("sha256sum", BINARY).out.split()[0] == self._digests[self.payload]

    def manifest(self) -> dict[str, str]:
        """All that a removal has to leave as it was."""
        found: dict[str, str] = json.loads(self.machine.run(PYTHON, "-m", "tests.machine.manifest").out)
        return found

    def run_containers(self, pods: int, each: int) -> None:
        """Makes containers that run from now on, until the next boot."""
        made = self.machine.run(PYTHON, "-m", CONTAINERS, "create", str(pods), str(each))
        self.containers = json.loads(made.out)

    def usage(self) -> Usage:
        """What the kernel enforces on each of the containers, and which process it is."""
        asked = json.dumps(self.containers)
        found: Usage = json.loads(self.machine.run(PYTHON, "-m", CONTAINERS, "usage", input=asked).out)
        return found

    def cut_after(self, lines: int, seconds: float, *argv: str) -> None:
        """Runs the program and cuts the power so long after it has said so many lines, or has ended."""
        said = ""
        for _, text in self.machine.follow(*self.words(*argv)):
            said += text
            if said.count("\n") >= lines:
                break
        time.sleep(seconds)
        self.machine.cut()

    def cut_at(self, words: str, *argv: str) -> bool:
        """Runs the program and cuts the power as soon as it says `words`; False if it never does."""
        said = ""
        for _, text in self.machine.follow(*self.words(*argv)):
            said += text
            if words in said:
                self.machine.cut()
                return True
        return False


@contextmanager
def booted(scratch: Path, options: str = "", selinux: bool = False) -> Iterator[MachineNode]:
    """A machine with a node, kubelet healthy; its disk, kit and console are below `scratch`."""
    parts = build_parts(scratch, selinux)
    with Machine(parts, scratch / "console", options) as machine:
        node = MachineNode(machine, parts)
        node.wait_healthy()
        yield node


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What is not the same in two manifests, one readable line per path."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"{name}: {before.get(name, 'absent')} -> {after.get(name, 'absent')}" for name in names]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
