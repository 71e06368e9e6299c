"""The process that a throwaway host lives and dies with.

Started by ThrowawayHost in a mount namespace of its own, so whatever is mounted
here is gone with the last process in it, and nothing of it is seen outside. The
driver talks to it over stdin and stdout, a line each way:

    boot     start systemd-nspawn     -> {"nspawn": PID}
    alive    has nspawn not ended?    -> {"alive": BOOL}
    kill     SIGKILL the whole host   -> {}
    console  what it said last        -> {"text": STR}
    stop     kill, clean up, exit     -> {}

The end of stdin means that the driver is gone, by whatever death: the same as
`stop`. Should this process itself be killed, the kernel tells nspawn to shut the
host down; empty cgroup directories stay (or a host that hangs), and the next
keeper removes them. Standard library only: it starts in some milliseconds.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

#: In the private mount namespace only: root/ is the overlay, lower/ (of an image), upper/
#: and work/ its parts, containerd/ the runtime's store (overlayfs does not stack on overlayfs).
BASE = Path("/mnt")

PREFIX = "throwaway-host"

#: Set below a cgroup v1 cpuset before a process can enter it.
CPUSET_INHERITED = ("cpuset.cpus", "cpuset.mems")

DEADLINE = 60.0


def start_time(pid: int) -> str:
    """The start time of a process, which with its pid names it for good.

    Raises OSError when there is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


def cgroup_roots() -> list[Path]:
    """Where each cgroup hierarchy, of version 1 or 2, is mounted."""
    roots: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] in ("cgroup", "cgroup2") and before.split()[3] == "/":
            roots.append(Path(before.split()[4]))
    return roots


def cgroups_below(directory: Path) -> Iterator[Path]:
    """A cgroup and those below it, the deepest first; those that end meanwhile are left out."""
    for path, _, _ in os.walk(directory, topdown=False):
        yield Path(path)


def processes_below(directory: Path) -> Iterator[int]:
    """The pids in a cgroup and those below it."""
    for path in cgroups_below(directory):
        with contextlib.suppress(OSError):
            yield from map(int, (path / "cgroup.procs").read_text().split())


def remove_cgroup(directory: Path) -> None:
    """Kills what runs in a cgroup of ours and removes it, with those below.

    Several keepers may do so at once. Raises TimeoutError when it does not
    empty itself within DEADLINE.
    """
    deadline = time.monotonic() + DEADLINE
    for path in cgroups_below(directory):
        with contextlib.suppress(OSError), open(path / "freezer.state", "r+") as state:
            state.write("THAWED")  # what is frozen cannot be killed
    while directory.is_dir():
        for pid in processes_below(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in cgroups_below(directory):
            with contextlib.suppress(OSError):
                path.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} does not go away")
        if directory.is_dir():
            time.sleep(0.005)


def remove_orphans() -> None:
    """Removes the cgroups of keepers that have ended."""
    for root in cgroup_roots():
        for directory in root.glob(f"{PREFIX}-*"):
            match = re.fullmatch(rf"{PREFIX}-(\d+)-(\d+)", directory.name)
            if match is None:
                continue
            try:
                alive = start_time(int(match[1])) == match[2]
            except OSError:
                alive = False
            if not alive:
                remove_cgroup(directory)


class Keeper:
    """One host's mounts, cgroups and nspawn process."""

    def __init__(self, system: str, runtime_store: str) -> None:
        self.name = f"{PREFIX}-{os.getpid()}-{start_time(os.getpid())}"
        self.system = system
        self.runtime_store = runtime_store
        self.nspawn: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        """Lays an overlay over the system, a directory or a disk's image, its upper side in memory."""
        # nspawn keeps locks below /run: they are not to stay on this machine.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", BASE], check=True)
        for name in ("root", "lower", "upper", "work", "containerd"):
            (BASE / name).mkdir()
        lower = self.system
        if not os.path.isdir(lower):
            # With the last mount of it, its loop device goes.
            subprocess.run(["mount", "-o", "loop,ro", lower, BASE / "lower"], check=True)
            lower = f"{BASE}/lower"
        options = f"lowerdir={lower},upperdir={BASE}/upper,workdir={BASE}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, BASE / "root"], check=True)

    def enter_cgroups(self) -> None:
        """Moves the calling process into the host's own cgroups."""
        for root in cgroup_roots():
            directory = root / self.name
            directory.mkdir(exist_ok=True)
            for name in CPUSET_INHERITED:
                if (root / name).exists() and not (root / "cgroup.controllers").exists():
                    (directory / name).write_text((root / name).read_text())
            (directory / "cgroup.procs").write_text(str(os.getpid()))

    def leader(self) -> int | None:
        """The host's pid 1 as seen from here."""
        if self.nspawn is None:
            return None
        pid = self.nspawn.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if len(children) == 1 else None
        return None

    def command(self) -> list[str]:
        """The command that boots the host.

        SIGTERM at our death and not SIGKILL: nspawn would not take its child along.
        """
        return [
            *("setpriv", "--pdeathsig", "TERM", "--"),
            *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"),
            *("--private-network", "--capability=all", "--link-journal=no"),
            *("--resolv-conf=off", "--timezone=off", "--console=pipe"),
            *(f"--machine={PREFIX}-{os.getpid()}", f"--hostname=node-{os.getpid()}"),
            f"--bind={BASE}/containerd:{self.runtime_store}",
            f"--directory={BASE}/root",
        ]

    def boot(self) -> dict[str, object]:
        if self.alive():
            raise RuntimeError("the host is up")
        self.clear()
        with (BASE / "console").open("wb") as console:
            self.nspawn = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                # Without it runc could not load its own filters.
                env={"PATH": os.environ["PATH"], "SYSTEMD_SECCOMP": "0"},
                preexec_fn=self.enter_cgroups,
            )
        return {"nspawn": self.nspawn.pid}

    def alive(self) -> bool:
        return self.nspawn is not None and self.nspawn.poll() is None

    def kill(self) -> None:
        """Ends the host as a power cut does; its disk stays."""
        if self.nspawn is None:
            return
        leader = self.leader()
        # The leader first: with the first process of a pid namespace all others die.
        if leader is not None and self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, signal.SIGKILL)
        # It sees its child dead and ends; only if it had none, it has to be told.
        try:
            self.nspawn.wait(2.0 if leader is not None else 0.0)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()
            self.nspawn.wait()
        self.nspawn = None
        self.clear()

    def clear(self) -> None:
        """Removes the host's cgroups, and kills what might still be in them."""
        for root in cgroup_roots():
            remove_cgroup(root / self.name)

    def console(self) -> str:
        with contextlib.suppress(OSError):
            return (BASE / "console").read_text(errors="replace")[-8000:]
        return ""

    def answer(self, command: str) -> dict[str, object]:
        if command == "boot":
            return self.boot()
        if command == "alive":
            return {"alive": self.alive()}
        if command == "console":
            return {"text": self.console()}
        if command in ("kill", "stop"):
            self.kill()
            return {}
        raise ValueError(f"unknown command {command}")


def say(reply: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def serve(keeper: Keeper) -> None:
    """Answers the driver until it says stop or is gone."""
    for line in sys.stdin:
        try:
            reply = keeper.answer(line.strip())
        except Exception as error:  # the driver raises it
            reply = {"error": f"{type(error).__name__}: {error}"}
        say(reply)
        if line.strip() == "stop":
            break


def main() -> None:
    def end(*_: object) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    keeper = Keeper(sys.argv[1], sys.argv[2])
    try:
        remove_orphans()
        keeper.mount()
        say({"name": keeper.name})
        serve(keeper)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        keeper.kill()


if __name__ == "__main__":
    main()
