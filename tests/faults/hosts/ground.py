"""What random lives are lived on: a host with a kubelet of one flavour, containers that run on it, and
what is seen of them by asking systemd, kubelet, the relay and the kernel, never the code under test."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.hosts.lifemodel import (
    DROP_INS,
    GUARD_SECONDS,
    RELAY,
    SLACK,
    SOMEBODYS_DROP_IN,
    VERSION,
)
from tests.host.flavours import KUBELETS, NEW_FLAG, UNIT_FILE
from tests.host.node import PROXY, Node
from tests.lib.throwaway.containers import container_pid, create_container
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import TREES, UNIT, has_our_flag, on_relay, runtime_of, wait_healthy
from tests.lib.throwaway.snapshot import walk
from tests.lib.throwaway.standins.http2 import CallError, unary

_COMMAND = "$KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS"
_KUBEADM_LINE = f"ExecStart=\nExecStart=/usr/bin/kubelet --max-pods=9 {_COMMAND}"
_DROP_IN_LINES = ("Environment=SOMEBODY=1", "EnvironmentFile=-/etc/somebody")


@dataclass(frozen=True, slots=True)
class Edit:
    """What kubelet's owner may write. `of_unit`: systemd has to read it, at a reload."""

    path: str
    text: str
    of_unit: bool

    def __str__(self) -> str:
        changed = [line for line in self.text.splitlines() if "max-pods" in line or "omebody" in line.lower()]
        return f"{self.path}: {' '.join(changed) or 'as it was'}"


class Ground:
    """`original` is what kubelet's owner had in their files, None where there was none."""

    def __init__(self, scratch: Path, flavour: str) -> None:
        self.flavour = flavour
        with contextlib.ExitStack() as stack:
            host = stack.enter_context(ThrowawayHost(runtime_of(flavour)))
            self.node = Node(host, scratch, flavour)
            self._stack = stack.pop_all()
        self.host = host
        self.edits = self._possible_edits()
        self.original = {edit.path: self._text(edit.path) for edit in self.edits}
        self._made = 0
        self._containers: dict[str, tuple[int, str]] = {}  # pid and start time of their first process
        self._through_relay = False
        self._run_container(self.host.runtime_socket)

    def close(self) -> None:
        """The host ends."""
        self._stack.close()

    # -- what kubelet's owner may do ----------------------------------------

    def _text(self, path: str) -> str | None:
        place = self.node.path(path)
        return place.read_text() if place.is_file() else None

    def _possible_edits(self) -> tuple[Edit, ...]:
        how = KUBELETS[self.flavour]
        was = self._text(how.flags) or ""
        more = was.replace(how.old, how.new, 1) if how.old else how.new
        texts = [was, more, more.replace(NEW_FLAG, f"{NEW_FLAG} --v=4")]
        edits = [Edit(how.flags, text, how.flags == UNIT_FILE) for text in texts]
        unit = self._text(UNIT_FILE)
        if unit is not None and how.flags != UNIT_FILE:
            longer = unit.replace("/bin/kubelet ", "/bin/kubelet --max-pods=9 ", 1)
            edits += [Edit(UNIT_FILE, text, of_unit=True) for text in (unit, longer)]
        lines = [_KUBEADM_LINE, *_DROP_IN_LINES] if unit is None else _DROP_IN_LINES
        edits += [Edit(SOMEBODYS_DROP_IN, f"[Service]\n{line}\n", of_unit=True) for line in lines]
        return tuple(edits)

    def lay_drop_ins(self) -> None:
        """Those of the flavour, as at the start."""
        own = TREES / self.flavour / DROP_INS[1:]
        if own.is_dir():
            shutil.copytree(own, self.node.path(DROP_INS))

    def put_back(self) -> None:
        """All is as it was at first, and kubelet runs with it."""
        for path, text in self.original.items():
            if text is None:
                self.node.path(path).unlink(missing_ok=True)
            else:
                self.node.path(path).write_text(text)
        self.host.run("rmdir", DROP_INS, check=False)
        self.host.systemctl("daemon-reload")
        self.host.systemctl("restart", UNIT)
        self.wait_healthy()
        for path in (*self.original, DROP_INS):
            self.node.before = {**self.node.before, **dict(walk(self.host.root, self.node.path(path)))}

    # -- containers ---------------------------------------------------------

    def _run_container(self, socket: str) -> None:
        self._made += 1
        name = f"lives-{self._made}"
        pid = container_pid(self.host, create_container(self.host, socket, name))
        assert pid is not None, f"{name} has ended at once"
        self._containers[name] = pid, self._start_time(pid)

    def run_containers_anew(self) -> bool:
        """After a boot, where kubelet is. Returns whether that is the relay."""
        self._containers, self._through_relay = {}, False
        if self.on_relay() and self.relay_answers():
            self.run_container_through_relay()
        else:
            self._run_container(self.host.runtime_socket)
        return self._through_relay

    def run_container_through_relay(self) -> None:
        """As kubelet makes them with us there; one is enough for a boot."""
        if not self._through_relay:
            self._through_relay = True
            self._run_container(f"/{RELAY}")

    def expect_containers(self) -> None:
        """Every container still runs, in the process that it was started with."""
        for name, (pid, since) in self._containers.items():
            assert self._start_time(pid) == since, f"the container {name} has died"

    def _start_time(self, pid: int) -> str:
        """The start time of a process, empty if it has ended."""
        try:
            words = (self.host.root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if words[0] == "Z" else words[19]

    # -- what is seen -------------------------------------------------------

    def invocation(self, unit: str) -> str:
        return self.host.show(unit, "InvocationID")

    def invocations(self) -> tuple[str, str]:
        return self.node.invocations()

    def is_stopped(self) -> bool:
        """Whether kubelet does not run and nobody starts it."""
        return self.host.show(UNIT, "ActiveState") == "inactive"

    def is_masked(self) -> bool:
        """Whether systemd may not start the proxy, or kubelet."""
        return "LoadState=masked" in self.host.systemctl("show", "--property=LoadState", UNIT, PROXY).split()

    def on_relay(self) -> bool:
        return self._of_kubelet(on_relay)

    def has_our_flag(self) -> bool:
        return self._of_kubelet(has_our_flag)

    def _of_kubelet(self, question: Callable[[ThrowawayHost], bool]) -> bool:
        try:
            return question(self.host)
        except (HostError, FileNotFoundError):  # it does not run
            return False

    def relay_answers(self) -> bool:
        try:
            unary(str(self.host.root / RELAY), VERSION, b"", 2.0)
        except (OSError, CallError):
            return False
        return True

    def wait_healthy(self) -> None:
        """R12: whatever was done, kubelet is up within its time."""
        wait_healthy(self.host, GUARD_SECONDS + SLACK)
