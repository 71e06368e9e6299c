"""A throwaway host: real systemd, real D-Bus, real containerd, in about a second.

An overlay of a bootstrapped system (see tests/lib/tree.py), with its upper side in memory, is booted
by systemd-nspawn in cgroups and namespaces of its own. Needs root, and the packages
of hack/setup. What it does on the machine is undone when it ends, however it
ends: see keeper.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil

from tests.lib.throwaway import keeper
from tests.lib.throwaway.furnish import RUNTIME_SOCKETS, furnish
from tests.lib.tree import tree

#: The commands a throwaway host needs on the machine, for a message or a skip.
NEEDED = ("busybox", "mmdebstrap", "mount", "nsenter", "setpriv", "systemd-nspawn", "unshare")

BOOT_SECONDS = 120.0  # and for all else: what holds sooner ends the wait sooner


class HostError(Exception):
    """A throwaway host did not do what was asked of it."""


class NoHostError(HostError):
    """This machine cannot boot a throwaway host; the message says why."""


class ThrowawayHost:
    """A small machine of its own, for as long as the `with` block lasts.

    Its disk outlives poweroff, reboot and kill; /run and the processes do not,
    as on any machine. Several may exist at once. Entering the block boots it,
    unless `boot=False`. With `image`, it is the node on that disk, a file with a
    file system, which is not written to.
    """

    def __init__(self, runtime: str = "containerd", boot: bool = True, image: Path | None = None) -> None:
        if runtime not in RUNTIME_SOCKETS:
            raise ValueError(f"runtime is one of {', '.join(RUNTIME_SOCKETS)}, not {runtime}")
        if missing := missing_needs():
            raise NoHostError(f"no throwaway host: {', '.join(missing)}")
        self.runtime = runtime
        self.boot_on_entry = boot
        self._lower = image or tree()
        self.name = ""
        self._keeper: subprocess.Popen[str] | None = None
        self._nspawn: int | None = None
        self._leader: int | None = None

    def __enter__(self) -> Self:
        try:
            self._start_keeper()
            if self._lower.is_dir():
                furnish(self.disk, self.runtime)
            if self.boot_on_entry:
                self.boot()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- where it is --------------------------------------------------------

    @property
    def disk(self) -> Path:
        """Its root directory on disk, which exists even while the host is off."""
        if self._keeper is None:
            raise HostError("the host is gone")
        return Path(f"/proc/{self._keeper.pid}/root{keeper.BASE}/root")

    @property
    def system(self) -> Path:
        """The root directory of which its disk is an overlay."""
        return self._lower if self._lower.is_dir() else self.disk.parent / "lower"

    @property
    def changes(self) -> Path:
        """What its disk has that the system has not: the overlay's upper side, whiteouts included."""
        return self.disk.parent / "upper"

    @property
    def root(self) -> Path:
        """Its root directory as its own processes see it, /run and /proc included."""
        return Path(f"/proc/{self.leader}/root")

    @property
    def leader(self) -> int:
        """Its first process, as this machine counts; HostError while it is off."""
        if self._leader is not None and self._nspawn in _parents(self._leader):
            return self._leader
        self._leader = None
        if self._nspawn is not None:
            children = _children(self._nspawn)
            if len(children) == 1:
                self._leader = children[0]
                return self._leader
        raise HostError(f"{self.name} is not running")

    @property
    def runtime_socket(self) -> str:
        """Where its container runtime listens, as kubelets of its kind write it."""
        return RUNTIME_SOCKETS[self.runtime]

    def lay_file_system(self, directory: str, size: str) -> None:
        """From the next boot on a directory, with what is in it, is a file system of its own, of a `size` as
        tmpfs(5) has it. It outlives what the disk outlives. The host is off."""
        if self._keeper is None:
            raise HostError("the host is gone")
        new, place = f"{keeper.BASE}/new", f"{keeper.BASE}/root{directory}"
        script = (
            f"mkdir -p {new} {place} && mount -t tmpfs -o size={size},mode=755 tmpfs {new} &&"
            f"cp -a {place}/. {new} && mount --move {new} {place}"
        )
        inside = ["nsenter", "--target", str(self._keeper.pid), "--mount", "--"]
        subprocess.run([*inside, "sh", "-c", script], check=True, timeout=120)

    # -- power --------------------------------------------------------------

    def boot(self, wait: bool = True) -> None:
        """Switches it on; with `wait`, until systemd says that it is running.

        Raises HostError, naming the failed units or with the console's last
        words, when it does not get there.
        """
        self._nspawn = int(self._ask("boot")["nspawn"])
        deadline = time.monotonic() + BOOT_SECONDS
        while not self._has_init():
            self._still(deadline)
            time.sleep(0.002)
        if wait:
            self._wait_running(deadline)

    def poweroff(self, timeout: float = 120.0) -> None:
        """Shuts it down in order. Raises HostError, naming what still runs, when it takes longer than
        `timeout`."""
        # As `systemctl poweroff`, but logind, and with it the bus, are not asked.
        mode = ("--no-block", "--job-mode=replace-irreversibly")
        self.systemctl("start", "poweroff.target", *mode, check=False)
        deadline = time.monotonic() + timeout
        while self._ask("alive")["alive"]:
            self._free_shutdown()
            if time.monotonic() > deadline:
                said = "\n".join([self.console(), *_describe_below(self._nspawn or 0)])
                raise HostError(f"{self.name} did not shut down within {timeout} s:\n{said}")
            time.sleep(0.01)
        self.kill()

    def _free_shutdown(self) -> None:
        """Lets the last stage of a shutdown see the end of processes that `run` has put into the host.

        systemd-shutdown stops every process for a moment. An nsenter whose child stops stops as well, and as
        nobody wakes it, it never reaps that child. Nor does systemd-shutdown hear of a child of somebody else
        that ends: it looks again after 10 s, or at the next SIGCHLD.
        """
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.name() == "nsenter" and child.status() == psutil.STATUS_STOPPED:
                    child.resume()
        with contextlib.suppress(HostError, OSError):
            os.kill(self.leader, signal.SIGCHLD)

    def reboot(self, wait: bool = True) -> None:
        """Shuts it down in order and boots it from the same disk."""
        self.poweroff()
        self.boot(wait)

    def kill(self) -> None:
        """Cuts the power: every process dies at once."""
        self._ask("kill")
        self._nspawn = self._leader = None

    def stop(self) -> None:
        """Ends it for good: no process, mount, cgroup or file of it is left.

        Does nothing the second time. Raises HostError when something was left.
        """
        process, self._keeper = self._keeper, None
        self._nspawn = self._leader = None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(3 * keeper.DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise HostError(f"{self.name} did not end in time") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        if process.returncode != 0:
            raise HostError(f"{self.name} did not end cleanly: exit code {process.returncode}")

    # -- inside -------------------------------------------------------------

    def run(
        self, *argv: str, check: bool = True, timeout: float = 120.0, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in it, as root, in all of its namespaces.

        Raises HostError with all that the command said when it exits other than 0
        and `check` is set; subprocess.TimeoutExpired when it takes too long.
        """
        done = subprocess.run(
            ["nsenter", "--target", str(self.leader), "--all", "--", *argv],
            input="" if input is None else input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd="/",
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )
        if check and done.returncode != 0:
            raise HostError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def systemctl(self, *argv: str, check: bool = True) -> str:
        """What systemd itself says: the witness that is not the code under test."""
        return self.run("systemctl", *argv, check=check).stdout.strip()

    def show(self, unit: str, key: str) -> str:
        """One property of a unit."""
        return self.systemctl("show", "--value", f"--property={key}", unit)

    def journal(self, unit: str) -> str:
        """What a unit has logged since boot, up to now, for assertions and failures."""
        self.sync_journal()
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout

    def sync_journal(self) -> None:
        """Waits until journald has taken all that was said: it does so in its own time."""
        self.run("journalctl", "--sync")

    def console(self) -> str:
        """The last lines of its console."""
        return str(self._ask("console")["text"])

    # -- the keeper ---------------------------------------------------------

    def _start_keeper(self) -> None:
        argv = ["unshare", "--mount", "--propagation", "private", "--", sys.executable, "-IS"]
        self._keeper = subprocess.Popen(
            [*argv, keeper.__file__, str(self._lower), "/var/lib/containerd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Out of reach of a Ctrl-C: it ends when the driver does.
            start_new_session=True,
        )
        self.name = str(self._answer()["name"])

    def _ask(self, command: str) -> dict[str, Any]:
        if self._keeper is None or self._keeper.stdin is None:
            raise HostError("the host is gone")
        self._keeper.stdin.write(command + "\n")
        self._keeper.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        if not line:
            raise HostError("the keeper of the host ended; what it said is above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise HostError(reply["error"])
        return reply

    # -- booting ------------------------------------------------------------

    def _still(self, deadline: float) -> None:
        """Raises HostError when booting has failed or taken too long."""
        if not self._ask("alive")["alive"]:
            raise HostError(f"{self.name} ended while booting:\n{self.console()}")
        if time.monotonic() > deadline:
            raise HostError(f"{self.name} did not boot within {BOOT_SECONDS} s:\n{self.console()}")

    def _has_init(self) -> bool:
        """Whether its first process is systemd, which can be talked to."""
        try:
            return (self.root / "run/systemd/private").is_socket()
        except (HostError, OSError):
            return False

    def _wait_running(self, deadline: float) -> None:
        while True:
            state = self.systemctl("is-system-running", "--wait", check=False)
            if state == "running":
                return
            if state == "degraded":
                failed = self.systemctl("--failed", "--no-legend", "--plain")
                raise HostError(f"{self.name} booted degraded:\n{failed}")
            self._still(deadline)
            time.sleep(0.005)


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _describe_below(pid: int) -> list[str]:
    """Each process below it, and where in the kernel it waits."""
    said = []
    for child in _children(pid):
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{child}")
            words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            said.append(f"{child} {' '.join(words)[:120]}: {(process / 'wchan').read_text()}")
        said += _describe_below(child)
    return said


def _parents(pid: int) -> tuple[int, ...]:
    """The parent of a process, if it still runs."""
    try:
        return (int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]),)
    except OSError:
        return ()


def missing_needs() -> list[str]:
    """What keeps this machine from booting throwaway hosts; empty if nothing."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    found = {name for name in NEEDED for d in path.split(":") if os.access(f"{d}/{name}", os.X_OK)}
    missing = [f"{name} is not installed" for name in NEEDED if name not in found]
    if os.geteuid() != 0:
        missing.append("not root")
    return missing or may_not_mount()


# SIOCSIFFLAGS with IFF_UP (netdevice(7)).
_LOOPBACK_UP = (
    "import fcntl, socket, struct\nfcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh22x', b'lo', 1))"
)


@functools.cache
def may_not_mount() -> list[str]:
    """What a container without privileges lacks of what a host is made with: tried, as seccomp, LSMs and user
    namespaces forbid it as well as missing capabilities."""
    tried = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "--", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        return [f"root may not mount here, CAP_SYS_ADMIN is needed ({tried.stderr.strip()})"]
    words = ["unshare", "--net", "--", sys.executable, "-c", _LOOPBACK_UP]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        why = tried.stderr.strip().rpartition("\n")[2]
        return [f"root may not start a network here, CAP_NET_ADMIN is needed ({why})"]
    return [f"{root} is not writable" for root in keeper.cgroup_roots() if not os.access(root, os.W_OK)]
