"""What a bus daemon may do that hangs, or that hangs up."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from installer.errors import SystemdError, UnservableHostError
from installer.host.files import RootedFiles
from installer.host.systemd import BusSystemd
from tests.lib.rules import rule

Respond = Callable[[bytes], bytes | None]
"""The fields of a method call -> the string in the reply, empty for none; None: hang up."""

_NAMES = {b"Hello": b":1.1", b"GetNameOwner": b":1.2"}


def _named(call: bytes) -> bytes:
    return next((name for method, name in _NAMES.items() if method in call), b"")


class _Client:
    """The bus daemon's side of one connection (D-Bus Specification, "Message Protocol")."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self._file = stream, stream.makefile("rb")

    def authenticate(self) -> None:
        while not (line := self._file.readline().lstrip(b"\0")).startswith(b"BEGIN"):
            if not line:
                raise EOFError
            accepts = line.startswith(b"AUTH EXTERNAL")
            refusal = b"ERROR" if line.startswith(b"NEGOTIATE") else b"REJECTED EXTERNAL"
            self._stream.sendall((b"OK " + b"0" * 32 if accepts else refusal) + b"\r\n")

    def answer(self, respond: Respond) -> None:
        while header := self._file.read(16):
            length, serial, size = struct.unpack("<4xIII", header)
            fields = self._file.read(size + -size % 8)[:size]
            self._file.read(length)
            if (name := respond(fields)) is None:
                return
            self._stream.sendall(_reply(serial, name))


def _reply(serial: int, name: bytes) -> bytes:
    fields = b"\5\1u\0" + struct.pack("<I", serial) + (b"\x08\1g\0\1s\0" if name else b"")
    body = struct.pack("<I", len(name)) + name + b"\0" if name else b""
    header = b"l\2\1\1" + struct.pack("<III", len(body), 1, len(fields)) + fields
    return header + bytes(-len(header) % 8) + body


@contextmanager
def _bus(respond: Respond, held: threading.Event | None = None) -> Iterator[BusSystemd]:
    """A systemd behind a bus daemon that answers so; with `held` it says nothing after the authentication
    until that is set."""
    with tempfile.TemporaryDirectory() as directory:  # pytest's own may be too long for a socket's name
        place = Path(directory, "run/dbus/system_bus_socket")
        place.parent.mkdir(parents=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place))
        listener.listen()

        streams = list[socket.socket]()

        def serve(stream: socket.socket) -> None:
            with stream, contextlib.suppress(EOFError, OSError):
                client = _Client(stream)
                client.authenticate()
                if held is not None:
                    held.wait()
                client.answer(respond)
                stream.shutdown(socket.SHUT_RDWR)

        def listen() -> None:
            with contextlib.suppress(OSError), ThreadPoolExecutor(20) as pool:
                while True:
                    streams.append(listener.accept()[0])
                    pool.submit(serve, streams[-1])

        thread = threading.Thread(target=listen)
        thread.start()
        systemd = BusSystemd(RootedFiles(Path(directory)))
        try:
            yield systemd
        finally:
            if held is not None:
                held.set()
            systemd.close()
            listener.shutdown(socket.SHUT_RDWR)
            for stream in streams:  # also one that somebody has lost
                with contextlib.suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)
            thread.join()
            listener.close()


@rule("R9")
def test_a_bus_that_hangs_after_the_authentication_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("installer.host.bus.CONNECT_SECONDS", 0.5)
    with _bus(_named, held=threading.Event()) as systemd:
        started = time.monotonic()
        with pytest.raises(UnservableHostError, match=r"it has not answered for 0.5 s"):
            systemd.unit("kubelet.service")
        assert time.monotonic() - started < 20


_CONNECTS = """
import sys
from pathlib import Path
from installer.errors import UnservableHostError
from installer.host import bus
from installer.host.files import RootedFiles
bus.CONNECT_SECONDS = 0.5
for _ in sys.stdin:
    systemd = bus.SystemBus(RootedFiles(Path(sys.argv[1])))
    try:
        systemd.manager
    except UnservableHostError as error:
        print(error.message, flush=True)
    else:
        print("connected", flush=True)
    systemd.close()
"""


@pytest.mark.parametrize("method", [b"Hello", b"Ping"])
def test_a_bus_that_answers_a_process_that_cannot_run_is_connected_to(method: bytes) -> None:
    """On a starved node all is late at once: the answer, and the end of the time for it."""
    clients, stopped = list[subprocess.Popen[str]](), list[bytes]()

    def respond(call: bytes) -> bytes:
        if b"Hello" in call:  # a new connection
            stopped.clear()
        if method in call and not stopped:
            stopped.append(method)
            clients[0].send_signal(signal.SIGSTOP)
            threading.Timer(1.0, clients[0].send_signal, [signal.SIGCONT]).start()
        return _named(call)

    with _bus(respond) as systemd:
        argv = [sys.executable, "-c", _CONNECTS, str(systemd._files.root)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            clients.append(client)
            assert client.communicate("\n" * 3)[0] == "connected\n" * 3


_RUNS_OUT = """
import os, resource, sys
from pathlib import Path
from installer.host.bus import SystemBus
from installer.host.files import RootedFiles

def ask(bus):
    bus.subscribe()
    bus.ask("reset", "ResetFailedUnit", "kubelet.service")

def ask_with(left, bus):
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        for _ in range(left):
            os.close(taken.pop())
    try:
        ask(bus)
    except OSError as error:
        return os.strerror(error.errno)
    finally:
        bus.close()
        for descriptor in taken:
            os.close(descriptor)
    return "answered"

resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for begin in (lambda bus: None, lambda bus: bus.manager, ask):
    ask(SystemBus(RootedFiles(Path(sys.argv[1]))))  # which loads what is needed
    for left in range(30):
        bus = SystemBus(RootedFiles(Path(sys.argv[1])))
        begin(bus)
        print(left, ask_with(left, bus))
"""


@rule("R15")
def test_where_descriptors_run_out_a_call_fails_and_not_the_process() -> None:
    """GLib aborts the process where it gets none for itself."""
    with _bus(_named) as systemd:
        argv = [sys.executable, "-c", _RUNS_OUT, str(systemd._files.root)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith("0 ")] == ["0 Too many open files"] * 3
    assert [line for line in said if line.startswith("29 ")] == ["29 answered"] * 3
    assert len(said) == 90


def test_a_bus_that_hangs_up_at_once_is_an_error_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("installer.host.bus.CONNECT_SECONDS", 0.5)
    with (
        _bus(lambda call: None if b"Ping" in call else _named(call)) as systemd,
        pytest.raises(UnservableHostError, match="systemd does not answer"),
    ):
        systemd.daemon_reload(30)


@rule("R9")
def test_a_bus_that_hangs_up_at_each_reload_ends_it_at_its_deadline() -> None:
    with (
        _bus(lambda call: None if b"Reload" in call else _named(call)) as systemd,
        pytest.raises(SystemdError, match="daemon-reload: not done after 4 s"),
    ):
        systemd.daemon_reload(4)


@rule("R9")
def test_a_reload_that_is_lost_while_its_time_ends_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a starved node the lost connection and the end of the time are seen at once."""
    late = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 60 * late.is_set(), sleep=time.sleep)
    monkeypatch.setattr("installer.host.systemd.time", clock)

    def respond(call: bytes) -> bytes | None:
        if b"Reload" not in call:
            return _named(call)
        late.set()
        return None

    with _bus(respond) as systemd, pytest.raises(SystemdError, match="daemon-reload: not done after 30 s"):
        systemd.daemon_reload(30)


@rule("R9")
def test_a_reload_that_was_answered_is_done_though_the_bus_is_lost_as_its_time_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 60 * late.is_set(), sleep=time.sleep)
    monkeypatch.setattr("installer.host.systemd.time", clock)
    with _bus(_named) as systemd:
        bus, wait = systemd._bus, systemd._bus.wait

        def wait_for_too_long(arrived: Callable[[], bool], deadline: float) -> bool:
            answered = wait(arrived, deadline)
            bus._bus.con.close_sync(None)
            late.set()
            return answered

        monkeypatch.setattr(bus, "wait", wait_for_too_long)
        systemd.daemon_reload(30)


@rule("R15")
def test_a_bus_that_was_away_for_long_is_connected_to_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus daemon serves only so many connections of root, which the whole host needs."""
    monkeypatch.setattr("installer.host.bus.RECONNECT_SECONDS", 0.1)
    monkeypatch.setattr("installer.host.bus.CONNECT_SECONDS", 0.5)
    away, connected = threading.Event(), list[bytes]()

    def respond(call: bytes) -> bytes | None:
        if away.is_set() or len(connected) > 5:
            return None
        connected.extend([call] if b"Hello" in call else [])
        return _named(call)

    with _bus(respond) as systemd:
        systemd.reset_failed("kubelet.service")
        away.set()
        with pytest.raises(SystemdError):
            systemd.reset_failed("kubelet.service")
        with pytest.raises(UnservableHostError, match="cannot connect"):
            systemd.reset_failed("kubelet.service")
        away.clear()
        systemd.reset_failed("kubelet.service")
        assert len(connected) == 2


@rule("R15")
@pytest.mark.parametrize("slow", [False, True])
def test_a_systemd_that_is_still_away_behind_its_bus_costs_one_connection_for_each_try(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr("installer.host.bus.RECONNECT_SECONDS", 0.1)
    monkeypatch.setattr("installer.host.bus.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("installer.host.bus.AWAY_SECONDS", 0.2)
    away, back, connected = threading.Event(), threading.Event(), list[bytes]()

    def respond(call: bytes) -> bytes | None:
        if away.is_set() or len(connected) > 5:
            return None
        connected.extend([call] if b"Hello" in call else [])
        if b"Ping" in call and len(connected) > 1 and not back.is_set():
            if not slow:
                return None
            back.wait(1)
        return _named(call)

    with _bus(respond) as systemd:
        systemd.reset_failed("kubelet.service")
        away.set()
        for error in (SystemdError, UnservableHostError):
            with pytest.raises(error):
                systemd.reset_failed("kubelet.service")
        away.clear()
        for _ in range(2):
            with pytest.raises(UnservableHostError, match="systemd does not answer"):
                systemd.reset_failed("kubelet.service")
        assert len(connected) == 3
        back.set()
        systemd.reset_failed("kubelet.service")
        assert len(connected) == 4


_LOSES = """
import gc, os, sys, time
from pathlib import Path
from installer.errors import SystemdError, UnservableHostError
from installer.host.bus import SystemBus
from installer.host.files import RootedFiles

def use(bus):
    bus.subscribe()
    bus.listen(["/unit"], lambda: None)
    watched.append(bus.watch("/unit", lambda: None))

def lose(bus):
    use(bus)
    try:
        bus.ask("hang up", "KillUnit", "", "", 9)
    except SystemdError:
        while not bus.is_closed:
            time.sleep(0.01)

def begin_anew():
    another = SystemBus(bus._files)
    another.subscribe()
    another.close()

def is_refused():
    try:
        SystemBus(RootedFiles(Path(sys.argv[2]))).manager
    except UnservableHostError:
        pass

bus, watched = SystemBus(RootedFiles(Path(sys.argv[1]))), []
for act in (lambda: lose(bus), begin_anew, is_refused):
    for turn in range(12):
        act()
        if turn in (1, 11):
            use(bus)
            gc.collect()
            print(len(os.listdir("/proc/self/fd")))
"""


@rule("R15")
def test_a_connection_that_was_lost_or_closed_leaves_no_descriptor_behind() -> None:
    """No main loop runs, as in a pass, and what was watched over the connection is still held."""
    with (
        _bus(lambda call: None if b"KillUnit" in call else _named(call)) as systemd,
        _bus(lambda call: None) as refusing,
    ):
        argv = [sys.executable, "-c", _LOSES, *(str(each._files.root) for each in (systemd, refusing))]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 6
    assert max(counts) <= counts[0] + 1, counts  # a context that GLib made late
