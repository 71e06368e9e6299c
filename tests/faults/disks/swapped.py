"""Somebody swaps a directory for a link out of the root, as fast as they can, while we work below it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from installer.daemon.watch import EventLoop, WatchSpec, find_directories
from installer.errors import InstallerError
from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.host.namespaces import host_socket
from installer.host.process import ProcProcesses
from installer.host.systemd import BusSystemd
from installer.model.host import HostPath
from installer.model.paths import SYSTEM_BUS
from tests.faults import Report
from tests.faults.disks.crash import read_tree
from tests.faults.disks.recorder import Careless

_SECRET = b"of somebody outside"
_SOCKET = Path(SYSTEM_BUS).name
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE: renameat2(2)
_SWITCH_SECONDS = 1e-6  # how long Python lets a thread run while another one wants to


class Swapper:
    """`place` is a directory or a link to `outside`, by turns."""

    def __init__(self, place: Path, outside: Path) -> None:
        aside = place.with_name("aside")
        aside.symlink_to(outside)
        self._both = os.fsencode(place), os.fsencode(aside)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._swap, daemon=True)
        self.turns = 0

    def __enter__(self) -> Swapper:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def _swap(self) -> None:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        while not self._end.is_set():
            assert exchange(_HERE, self._both[0], _HERE, self._both[1], _EXCHANGE) == 0, ctypes.get_errno()
            self.turns += 1


class Outside:
    """What somebody has put where the link leads: each door would find there what it is looking for.
    `visits` counts who has connected to the socket."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for directory in ("below", "empty", "1/ns"):
            (place / directory).mkdir(parents=True)
        for file in ("x", "below/x"):
            (place / file).write_bytes(_SECRET)
        (place / "empty/.x.cri-resmgr-installer").touch()  # as a killed run would have left it
        (place / "1/ns/net").symlink_to("/proc/self/ns/net")
        (place / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
        (place / "stat").write_bytes(Path("/proc/stat").read_bytes())
        self._before = read_tree(place)
        self.visits = 0

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        with socket.socket(socket.AF_UNIX) as server:
            with contextlib.chdir(self.place):  # its path may be too long
                server.bind(_SOCKET)
            server.listen()
            thread = threading.Thread(target=self._serve, args=(server,), daemon=True)
            thread.start()
            yield
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
        (self.place / _SOCKET).unlink()

    def _serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()
                self.visits += 1

    def complaints(self) -> Iterator[str]:
        if self.visits:
            yield f"has connected to what is outside {self.visits} times"
        if read_tree(self.place) != self._before:
            yield "has changed what is outside"


def try_out(directory: Path, rounds: int) -> Iterator[tuple[str, int, list[str]]]:
    """Each operation so many times, and until the directory was swapped as often: its name, how often that
    was, and what went wrong."""
    for name in _OPERATIONS:
        root, outside = directory / name / "root", Outside(directory / name / "outside")
        (root / "etc/there/below").mkdir(parents=True)
        (root / "run").mkdir()
        for link, target in (
            ("run/dbus", "../etc/there"),
            ("proc", "etc/there"),
        ):
            (root / link).symlink_to(target)
        files = RootedFiles(root, Careless())
        wrong = []
        with outside.serving(), Swapper(root / "etc/there", outside.place) as swapper:
            done = 0
            while min(done, swapper.turns) < rounds:
                done += 1
                with contextlib.suppress(OSError, InstallerError):
                    if _OPERATIONS[name](files):
                        wrong.append(f"{name} has seen what is outside")
        yield name, swapper.turns, [*wrong, *(f"{name} {complaint}" for complaint in outside.complaints())]


_OWNER = (os.geteuid(), os.getegid())


def _writes(files: RootedFiles) -> bool:
    files.write("/etc/there/x", b"ours", 0o644, *_OWNER)
    files.write("/etc/there/below/x", b"ours", 0o644, *_OWNER)
    return False


def _reads(files: RootedFiles) -> bool:
    files.write("/etc/there/x", b"ours", 0o644, *_OWNER)
    return _SECRET in (files.read("/etc/there/x"), files.read("/etc/there/below/x"))


def _looks(files: RootedFiles) -> bool:
    seen = [files.state(f"/etc/there/{name}") for name in ("x", "below/x")]
    return any(state.content == _SECRET for state in seen)


def _lists(files: RootedFiles) -> bool:
    return "empty" in files.list("/etc/there")


def _links(files: RootedFiles) -> bool:
    files.link("/etc/there/x", "/nowhere", *_OWNER)
    return False


def _removes(files: RootedFiles) -> bool:
    files.remove("/etc/there/x")
    files.remove("/etc/there/below/x")
    return False


def _makes(files: RootedFiles) -> bool:
    files.make_directory("/etc/there/made/deep", 0o700)
    for directory in ("/etc/there/made/deep", "/etc/there/made"):
        files.remove_empty_directory(directory)
    return files.remove_empty_directory("/etc/there/empty")


def _fells(files: RootedFiles) -> bool:
    files.remove_tree("/etc/there/below")
    files.make_directory("/etc/there/below/more")
    return False


def _copies(files: RootedFiles) -> bool:
    files.write("/copy", HostPath("/etc/there/below/x"), 0o644, *_OWNER)
    return files.read("/copy") == _SECRET


def _opens(files: RootedFiles) -> bool:
    with files.opened("/etc/there/below/x") as place:
        return place.read_bytes() == _SECRET


def _connects(files: RootedFiles) -> bool:
    return SocketCri(files).answers(f"unix:///etc/there/{_SOCKET}")


def _calls(files: RootedFiles) -> bool:
    SocketCri(files).status(f"unix:///etc/there/{_SOCKET}")
    return True


def _takes_the_bus(files: RootedFiles) -> bool:
    BusSystemd(files).unit("kubelet.service")
    return True


def _watches(files: RootedFiles) -> bool:
    """A monitor of a directory outside would only cost a look: what it names is never opened."""
    loop = EventLoop(_raise)
    loop.watch(find_directories([WatchSpec(files.root, "/etc/there/below")]), lambda: None)
    loop.watch({}, lambda: None)
    return False


def _raise(error: Exception) -> None:
    raise error


def _asks_a_process(files: RootedFiles) -> bool:
    return ProcProcesses(files.root).get(os.getpid()) is not None


def _enters_a_network(files: RootedFiles) -> bool:
    host_socket(files.root, socket.AF_INET).close()
    return True


_OPERATIONS: dict[str, Callable[[RootedFiles], bool]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        *(_writes, _reads, _looks, _lists, _links, _removes, _makes, _fells, _copies, _opens),
        *(_connects, _calls, _takes_the_bus, _watches, _asks_a_process, _enters_a_network),
    )
}


def run(report: Report, amount: int) -> None:
    """So many rounds of each operation."""
    with tempfile.TemporaryDirectory(prefix="swapped-") as directory:
        for name, turns, wrong in try_out(Path(directory), amount):
            report(f"a directory swapped {turns} times, {name}", amount, wrong)
