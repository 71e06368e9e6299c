"""The driver of a machine: switch it on, run commands in it, cut its power, switch it on again.

The machine is one qemu process, a child of this one that dies with it. Commands go over a virtio port to
the agent (see agent.py), so neither a network nor a console is needed. Emulated without the help of the
processor, it is some ten times slower than this machine.
"""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

QEMU = "qemu-system-x86_64"
BOOT_SECONDS = 600.0  # 15 on a quiet machine
SILENT_SECONDS = 600.0  # that a command may say nothing

#: /dev/nvme0n1 is the machine's disk, /dev/vda the kit. The kernel of Debian's clouds has NVMe and ext4 built
#: in, so that no initrd is needed; newer ones number two of NVMe's by chance. Nothing of the host's own
#: hardware is looked for.
HARDWARE = (
    *("-machine", "q35,accel=tcg", "-cpu", "qemu64", "-m", "1024"),
    *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-net", "none"),
    *("-device", "nvme,id=nvme,serial=machine"),
    *("-device", "nvme-ns,drive=disk,nsid=1", "-device", "virtio-blk-pci,drive=kit"),
    *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
    *("-chardev", "stdio,id=agent,signal=off", "-device", "virtserialport,chardev=agent,name=agent"),
)
#: A kernel panics when its timer does not tick while it is looked at, as where emulation has to wait; qemu
#: ends with a panic. systemd says what it does from the first failure on, or when something takes long.
COMMAND_LINE = (
    "root=/dev/nvme0n1 rw console=ttyS0 quiet mitigations=off no_timer_check panic=-1 "
    "systemd.show_status=auto"
)


class MachineError(Exception):
    """The machine did not do what was asked of it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a machine is made of: files of this machine. It writes to its `disk` only."""

    kernel: Path
    disk: Path
    kit: Path


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class Machine:
    """A machine for as long as the `with` block lasts; entering it switches it on.

    `options` are added to the kernel's command line, `cores` is how many processors it has. What its console
    says is appended to `console`, over all boots.
    """

    def __init__(self, parts: Parts, console: Path, options: str = "", cores: int = 2) -> None:
        self.parts = parts
        self.options = options
        self.cores = cores
        self._console = console
        self._qemu: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        self.boot()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    # -- power --------------------------------------------------------------

    def boot(self) -> None:
        """Switches it on, and waits until systemd says that it is running.

        Raises MachineError, with the console's last words, when it does not get there.
        """
        self.start()
        try:
            self._message(time.monotonic() + BOOT_SECONDS)
            state = self.run("systemctl", "is-system-running", "--wait", check=False, silent=BOOT_SECONDS)
            if state.out.strip() != "running":
                failed = self.run("systemctl", "--failed", "--no-legend", "--plain").out
                raise MachineError(f"the machine is {state.out.strip()}:\n{failed}{self.console()}")
        except BaseException:
            self.cut()
            raise

    def start(self) -> None:
        """Switches it on, nothing else. It dies with this process, however that dies."""
        if self._qemu is not None:
            raise MachineError("the machine is on")
        self._qemu = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *self._command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        """Of its qemu. Raises MachineError while it is off."""
        if self._qemu is None:
            raise MachineError("the machine is off")
        return self._qemu.pid

    def _command(self) -> list[str]:
        """The disk's writes need not reach the platters of this machine: it is not its power that is cut."""
        parts = self.parts
        return [
            *(QEMU, *HARDWARE, "-smp", str(self.cores), "-kernel", str(parts.kernel)),
            *("-append", f"{COMMAND_LINE} {self.options}".rstrip()),
            *("-drive", f"file={parts.disk},if=none,id=disk,format=raw,cache=unsafe"),
            *("-drive", f"file={parts.kit},if=none,id=kit,format=raw,readonly=on"),
            *("-chardev", f"file,id=console,path={self._console},append=on", "-serial", "chardev:console"),
        ]

    def cut(self) -> None:
        """Cuts the power: what it had not written to its disk is lost. Nothing if it is off."""
        qemu, self._qemu = self._qemu, None
        if qemu is not None:
            qemu.kill()
            qemu.communicate()

    def poweroff(self, timeout: float = 120.0) -> None:
        """Shuts it down in order. Raises MachineError when it takes longer than `timeout` seconds."""
        self._request("systemctl", "poweroff", "--no-block")
        assert self._qemu is not None
        try:
            self._qemu.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise MachineError(f"it did not shut down within {timeout} s:\n{self.console()}") from None
        finally:
            self.cut()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It does nothing in the block; its clocks go on. On its disk is what it had written by then."""
        tasks = Path(f"/proc/{self.pid}/task")
        os.kill(self.pid, signal.SIGSTOP)
        try:
            while any(_state(task) not in "TZX" for task in tasks.iterdir()):
                time.sleep(0.001)
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def console(self) -> str:
        """The last lines of its console."""
        return self._console.read_text(errors="replace")[-4000:] if self._console.exists() else ""

    # -- inside -------------------------------------------------------------

    def run(self, *argv: str, check: bool = True, silent: float = SILENT_SECONDS, input: str = "") -> Ended:
        """Runs a command in it, as root.

        Raises MachineError with all that the command said when it exits other than 0 and `check` is set, and
        when it says nothing for `silent` seconds.
        """
        said = {"out": "", "err": ""}
        for stream, text in self.follow(*argv, silent=silent, input=input):
            if stream == "code":
                ended = Ended(int(text), said["out"], said["err"])
                if check and ended.code != 0:
                    raise MachineError(f"{' '.join(argv)}: exit code {text}\n{ended.out}{ended.err}")
                return ended
            said[stream] += text
        raise AssertionError("a command ends with its exit code")

    def follow(
        self, *argv: str, silent: float = SILENT_SECONDS, input: str = ""
    ) -> Iterator[tuple[str, str]]:
        """Runs a command in it, and yields what it says as it comes: ("out" or "err", text) in pieces of any
        size, and at last ("code", exit code). Between two of them the power may be cut."""
        self._request(*argv, input=input)
        while True:
            ((stream, text),) = self._message(time.monotonic() + silent, argv).items()
            yield stream, str(text)
            if stream == "code":
                return

    def _request(self, *argv: str, input: str = "") -> None:
        if self._qemu is None or self._qemu.stdin is None:
            raise MachineError("the machine is off")
        self._qemu.stdin.write(json.dumps({"argv": argv, "input": input}).encode() + b"\n")
        self._qemu.stdin.flush()

    def _message(self, deadline: float, argv: tuple[str, ...] = ("boot",)) -> dict[str, Any]:
        """The agent's next message. Raises MachineError when none comes in time."""
        if self._qemu is None or self._qemu.stdout is None:
            raise MachineError("the machine is off")
        with selectors.DefaultSelector() as ready:
            ready.register(self._qemu.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(max(deadline - time.monotonic(), 0)):
                    raise MachineError(f"{' '.join(argv)}: no answer in time; its console:\n{self.console()}")
                chunk = os.read(self._qemu.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise MachineError(f"{' '.join(argv)}: the machine ended; its console:\n{self.console()}")
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _state(task: Path) -> str:
    """What a thread does, as ps(1) tells it; X if it has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
