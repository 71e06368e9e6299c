"""The connection to the host's system bus: connect, repeat lost reads, name errors.

The only importer of pydbus. It describes the members of systemd that `systemd` uses to pydbus itself: 0.5 ms
in all, where introspection costs 3 ms per object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from installer.errors import TIMEOUT, SystemdError, UnservableHostError
from installer.host.files import RootedFiles
from installer.model.limits import RELOAD
from installer.model.paths import SYSTEM_BUS

SYSTEMD = "org.freedesktop.systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
MANAGER_PATH = "/org/freedesktop/systemd1"
UNIT = "org.freedesktop.systemd1.Unit"
SERVICE = "org.freedesktop.systemd1.Service"

CONNECT_SECONDS = 5.0
#: A time to connect is waited for in parts: while this process cannot run, as on a starved node, one of them
#: passes, and not all, so that an answer that is there by then is seen.
_PARTS = 10
CALL_SECONDS = 10.0
READ_SECONDS = 10.0  # a read is repeated while systemd reloads or re-executes itself
RECONNECT_SECONDS = 5.0  # a bus daemon that was reachable before may be restarting
AWAY_SECONDS = 1.0  # if it did not answer the last time
_TO_CONNECT, _TO_CALL = 16, 4  # descriptors: GLib and we need 6 and 2 at once, other threads more

_CHANGED = ("org.freedesktop.DBus.Properties", "PropertiesChanged")
_ALREADY_SUBSCRIBED = "org.freedesktop.systemd1.AlreadySubscribed"
_LOST = (
    TIMEOUT,
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.TimedOut",
    "org.freedesktop.DBus.Error.Disconnected",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.ServiceUnknown",
)
_REMOTE = "GDBus.Error:"  # GLib's prefix of a D-Bus error's name
_T = TypeVar("_T")


def _method(name: str, takes: str = "", gives: str = "") -> str:
    arguments = [f'<arg direction="in" type="{kind}"/>' for kind in takes.split()]
    arguments += [f'<arg direction="out" type="{kind}"/>' for kind in gives.split()]
    return f'<method name="{name}">{"".join(arguments)}</method>'


def _manager_xml() -> str:
    methods = (
        _method("Subscribe"),
        _method("Reload"),
        _method("LoadUnit", "s", "o"),
        _method("GetUnitFileState", "s", "s"),
        _method("StopUnit", "s s", "o"),
        _method("RestartUnit", "s s", "o"),
        _method("StartTransientUnit", "s s a(sv) a(sa(sv))", "o"),
        _method("RefUnit", "s"),
        _method("UnrefUnit", "s"),
        _method("CancelJob", "u"),
        _method("KillUnit", "s s i"),
        _method("ResetFailedUnit", "s"),
        _method("EnableUnitFiles", "as b b", "b a(sss)"),
        _method("DisableUnitFiles", "as b", "a(sss)"),
        '<signal name="JobRemoved"><arg type="u"/><arg type="o"/><arg type="s"/><arg type="s"/></signal>',
        '<signal name="Reloading"><arg type="b"/></signal>',
    )
    peer = f'<interface name="org.freedesktop.DBus.Peer">{_method("Ping")}</interface>'
    return f'<node><interface name="{MANAGER}">{"".join(methods)}</interface>{peer}</node>'


def _unit_xml() -> str:
    methods = (_method("Get", "s s", "v"), _method("GetAll", "s", "a{sv}"))
    return f'<node><interface name="org.freedesktop.DBus.Properties">{"".join(methods)}</interface></node>'


class SystemBus:
    """One connection to the system bus of the host below `files.root`, opened on first use."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files
        self._bus: Any = None
        self._manager: Any = None
        self._unit_class: Any = None
        self._units: dict[str, Any] = {}
        self._context: Any = None
        self._unsubscribe: list[Callable[[], None]] = []  # from the signals of this connection
        self._subscribed = False
        self._was_connected = False
        self._away = False  # it did not answer the last time: the next wait is shorter
        self._listened: tuple[Any, tuple[str, ...]] = (None, ())
        self.job_results: dict[str, str] = {}
        self.reloading: bool | None = None  # as last announced
        self._announced = 0.0

    # -- connecting -------------------------------------------------------------

    @property
    def manager(self) -> Any:
        """systemd's manager object. Connects. Raises OSError and UnservableHostError: see `BusSystemd`."""
        if self.is_closed:
            self._connect_again()
        return self._manager

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, or was never opened."""
        return self._bus is None or self._bus.con.is_closed()

    def _connect_again(self) -> None:
        """Connect. After a lost connection, wait for a bus daemon that is restarting."""
        patience = RECONNECT_SECONDS if self._was_connected and not self._away else 0.0
        deadline = time.monotonic() + patience
        while True:
            try:
                self._connect()
            except UnservableHostError:
                if time.monotonic() >= deadline:
                    self._away = self._was_connected
                    raise
                time.sleep(0.1)
            else:
                self._was_connected, self._away = True, False
                return

    def unit(self, path: str) -> Any:
        """The properties of the unit object at `path`. The same path gives the same proxy."""
        _ = self.manager  # connects; a new connection has no proxies
        proxy = self._units.get(path)
        if proxy is None:
            proxy = self._units[path] = self._unit_class(self._bus, SYSTEMD, path)
        return proxy

    def _connect(self) -> None:
        from xml.etree import ElementTree

        from gi.repository import GLib
        from pydbus.proxy import CompositeInterface

        self.close()
        bus = self._open()
        manager_class = CompositeInterface(ElementTree.fromstring(_manager_xml()))
        self._unit_class = CompositeInterface(ElementTree.fromstring(_unit_xml()))
        manager = manager_class(bus, SYSTEMD, MANAGER_PATH)
        seconds = AWAY_SECONDS if self._away else CONNECT_SECONDS

        def ping() -> Any:
            with contextlib.suppress(GLib.Error):
                return manager.Ping(timeout=seconds * 0.8)
            return manager.Ping(timeout=seconds * 0.2)  # in parts: see `_PARTS`

        try:
            self.read("Ping", ping, seconds)
        except OSError:
            _hang_up(bus)
            raise
        except SystemdError as error:
            _hang_up(bus)
            raise UnservableHostError(
                f"systemd does not answer on the host's system bus: {error.message}",
                "only hosts whose init is systemd can be served; "
                f"if it is, see `systemctl status dbus` on the host (root {self._files.root})",
            ) from error
        self._bus, self._manager = bus, manager

    def _open(self) -> Any:
        """The pydbus bus. Not by pydbus.connect(): it has no deadline, and a bus daemon may hang."""
        from gi.repository import Gio, GLib
        from pydbus.bus import Bus

        _require_descriptors(_TO_CONNECT)
        flags, cancellable = Gio.DBusConnectionFlags, Gio.Cancellable()
        stream: Any = None
        over = threading.Event()

        def give_up_when_late() -> None:
            if any(over.wait(CONNECT_SECONDS / _PARTS) for _ in range(_PARTS)):
                return
            cancellable.cancel()
            if stream is not None:
                with contextlib.suppress(GLib.Error):  # GLib's Hello waits for 25 s, cancelled or not
                    stream.get_socket().shutdown(True, True)

        try:
            threading.Thread(target=give_up_when_late, daemon=True).start()
        except RuntimeError as error:  # else GLib would abort the process a moment later
            raise OSError(errno.EAGAIN, "cannot start a thread for the system bus") from error
        try:
            with self._files.opened(SYSTEM_BUS) as socket:
                client = Gio.SocketClient(enable_proxy=False)  # as GLib does: a proxy may need this very bus
                stream = client.connect(Gio.UnixSocketAddress.new(str(socket)), cancellable)
            connection = Gio.DBusConnection.new_sync(
                stream,
                None,
                flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION,
                None,
                cancellable,
            )
        except (FileNotFoundError, NotADirectoryError):
            raise _no_bus(self._files) from None
        except GLib.Error as error:
            if stream is not None:
                _close(stream)
            if error.matches(Gio.io_error_quark(), Gio.IOErrorEnum.TOO_MANY_OPEN_FILES):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), SYSTEM_BUS) from error
            denied = error.matches(Gio.io_error_quark(), Gio.IOErrorEnum.PERMISSION_DENIED)
            late = f"it has not answered for {CONNECT_SECONDS:g} s" if cancellable.is_cancelled() else ""
            raise UnservableHostError(
                f"cannot connect to the host's system bus ({SYSTEM_BUS}): {late or error.message}",
                "run as root (privileged container)" if denied else "see `systemctl status dbus` on the host",
            ) from error
        finally:
            over.set()
        # Not `connection.pydbus`: with an attribute on the connection, PyGObject takes the GIL in GLib's
        # thread at each signal while holding a lock that a garbage collection in this thread waits for: a
        # deadlock.
        return Bus(connection)

    def close(self) -> None:
        """Close the connection, if any. The next use opens another."""
        bus, self._bus = self._bus, None
        while self._unsubscribe:
            self._unsubscribe.pop()()
        # GLib drops a callback, which refers to this object, from the context that it was made for.
        while self._context is not None and self._context.iteration(False):
            pass
        self._listened = (None, ())
        self._manager, self._units, self._subscribed, self.reloading = None, {}, False, None
        if bus is not None:
            _hang_up(bus)

    # -- calling ----------------------------------------------------------------

    def call(self, what: str, function: Callable[[], _T]) -> _T:
        """Call once. Raises SystemdError: its message begins with `what`, its `name` is D-Bus's. And OSError
        for lack of descriptors."""
        from gi.repository import GLib

        _require_descriptors(_TO_CALL)
        try:
            if self._away and not self.is_closed:  # a new connection begins with a ping
                self._manager.Ping(timeout=AWAY_SECONDS)
            result = function()
        except GLib.Error as error:
            translated = _translated(what, error)
            self._away = translated.name == TIMEOUT and not error.message.startswith(_REMOTE)
            raise translated from error
        self._away = False
        return result

    def read(self, what: str, function: Callable[[], _T], seconds: float = READ_SECONDS) -> _T:
        """Call something that only reads, and repeat it for a while if the reply is lost because systemd
        reloads. After `subscribe`: for as long as a reload may take that systemd has announced."""
        deadline = time.monotonic() + (min(seconds, AWAY_SECONDS) if self._away else seconds)
        while True:
            try:
                return self.call(what, function)
            except SystemdError as error:
                if not error.lost or time.monotonic() > max(deadline, self._reloaded_by()):
                    raise
                time.sleep(0.05)

    def ask(self, what: str, method: str, *given: Any, seconds: float = CALL_SECONDS) -> Any:
        """Call a method of systemd's manager once. Raises like `call` and `manager`."""
        manager = self.manager
        return self.call(what, lambda: getattr(manager, method)(*given, timeout=seconds))

    def start_transient(self, what: str, name: str, properties: Mapping[str, tuple[str, Any]]) -> None:
        """Start a unit that is not on disk. `properties` are D-Bus values with their types, as in
        org.freedesktop.systemd1(5). Raises SystemdError."""
        from gi.repository import GLib

        values = [(key, GLib.Variant(kind, value)) for key, (kind, value) in properties.items()]
        self.ask(what, "StartTransientUnit", name, "replace", values, [])

    # -- signals ----------------------------------------------------------------

    def subscribe(self) -> None:
        """From now on the results of finished jobs arrive in `job_results`, by job path, and `reloading` is
        what systemd last announced."""
        from gi.repository import GLib

        manager = self.manager
        if self._subscribed:
            return
        _require_descriptors(_TO_CALL)
        # A separate context: waiting here must not dispatch the sources of the default context.
        self._context = self._context or GLib.MainContext.new()
        self._context.push_thread_default()
        try:
            for signal, called in (
                (manager.JobRemoved, self._on_job_removed),
                (manager.Reloading, self._on_reloading),
            ):
                self._unsubscribe.append(signal.connect(called).unsubscribe)
        finally:
            self._context.pop_thread_default()
        self._ask_for_signals()
        self._subscribed = True

    def _ask_for_signals(self) -> None:
        """systemd sends no signals before a client subscribes, which each connection may do once."""
        try:
            self.ask("subscribing to systemd's signals", "Subscribe")
        except SystemdError as error:
            if error.name != _ALREADY_SUBSCRIBED:
                raise

    def listen(self, paths: Iterable[str], changed: Callable[[], None]) -> None:
        """From now on the default main loop calls `changed` when a property of one of these unit objects
        changes, and when systemd reloads. Cheap to repeat: only a new connection, or another unit,
        subscribes."""
        _ = self.manager
        connection, wanted = self._bus.con, tuple(paths)
        if (connection, wanted) == self._listened:
            return
        for signal in (*((*_CHANGED, path) for path in wanted), (MANAGER, "Reloading", MANAGER_PATH)):
            self._unsubscribe.append(_on_signal(connection, *signal, changed))
        self._ask_for_signals()
        self._listened = (connection, wanted)

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """The default main loop calls `changed` when a property of the unit object at `path` changes, until
        the returned function is called. Raises SystemdError, UnservableHostError."""
        _ = self.manager
        connection = self._bus.con
        unsubscribe = _on_signal(connection, *_CHANGED, path, changed)
        self._ask_for_signals()
        return unsubscribe

    @property
    def is_listening(self) -> bool:
        """Whether the signals of `listen` still arrive."""
        connection, _ = self._listened
        return connection is not None and not connection.is_closed()

    def _on_job_removed(self, _id: int, job: str, _unit: str, result: str) -> None:
        self.job_results[job] = result

    def _on_reloading(self, active: bool) -> None:
        self.reloading, self._announced = active, time.monotonic()

    def _reloaded_by(self) -> float:
        """When the reload that systemd has announced should be over. 0: by now, or none is known."""
        while self._subscribed and self._context.iteration(False):
            pass
        return self._announced + RELOAD if self.reloading else 0.0

    def wait(self, arrived: Callable[[], bool], deadline: float) -> bool:
        """Handle signals until `arrived()` (True), or until time.monotonic() passes `deadline` (False).

        Returns to the interpreter at least every 0.1 s, so that its signal handlers run.
        """
        from gi.repository import GLib

        while not arrived():
            left = deadline - time.monotonic()
            if left <= 0 or self._bus.con.is_closed():
                return False
            tick = GLib.timeout_source_new(max(1, min(100, int(left * 1000) + 1)))
            tick.set_callback(lambda *_: False)
            tick.attach(self._context)
            self._context.iteration(True)
            tick.destroy()
        return True

    def begin_reload(self) -> Callable[[], tuple[bool, SystemdError | None]]:
        """Ask systemd to reload and return at once. The returned function gives (replied, error)."""
        from gi.repository import Gio, GLib

        replies: list[SystemdError | None] = []

        def on_reply(connection: Any, result: Any, *_: object) -> None:
            try:
                connection.call_finish(result)
                replies.append(None)
            except GLib.Error as error:
                replies.append(_translated("daemon-reload", error))

        connection = self.manager._bus.con
        self._context.push_thread_default()
        try:
            connection.call(
                SYSTEMD,
                MANAGER_PATH,
                MANAGER,
                "Reload",
                None,
                None,
                Gio.DBusCallFlags.NONE,
                GLib.MAXINT32,
                None,
                on_reply,
            )
        finally:
            self._context.pop_thread_default()
        return lambda: (bool(replies), replies[0] if replies else None)


def _require_descriptors(number: int) -> None:
    """Raises OSError if fewer are left. GLib aborts the process if it gets none for a main context, of which
    each call has its own."""
    with contextlib.ExitStack() as taken:
        for _ in range(number):
            taken.callback(os.close, os.eventfd(0))


def _hang_up(bus: Any) -> None:
    """Close the connection."""
    from gi.repository import GLib

    stream = bus.con.get_stream()
    with contextlib.suppress(GLib.Error):
        try:
            if not bus.con.is_closed():
                _require_descriptors(_TO_CALL)
                bus.con.close_sync(None)
        except OSError:
            stream.get_socket().shutdown(True, True)
            return  # GLib's thread may be about to read
    _close(stream)


def _close(stream: Any) -> None:
    """Of a connection that was lost, GLib itself closes the stream only with the last reference, and it keeps
    one until the default main loop runs."""
    from gi.repository import GLib

    with contextlib.suppress(GLib.Error):
        stream.close(None)


def _on_signal(
    connection: Any, interface: str, member: str, path: str, changed: Callable[[], None]
) -> Callable[[], None]:
    """Have the default main loop call `changed` at a signal of systemd. Return what ends that."""
    number = connection.signal_subscribe(SYSTEMD, interface, member, path, None, 0, lambda *_: changed())
    return lambda: connection.signal_unsubscribe(number)


def require_bus(files: RootedFiles) -> None:
    """Raises UnservableHostError if the root has no system bus: it is not the root of a host."""
    if files.status(SYSTEM_BUS, follow=True) is None:
        raise _no_bus(files)


def _no_bus(files: RootedFiles) -> UnservableHostError:
    return UnservableHostError(
        f"no system bus socket at {str(files.root).rstrip('/')}{SYSTEM_BUS}",
        "this program needs systemd and D-Bus: `systemctl is-system-running` says more"
        if str(files.root) == "/"
        else f"mount the host's root at {files.root} with its /run "
        "(hostPath /, mountPropagation HostToContainer), or point --host-root to it; "
        "the host needs systemd and D-Bus",
    )


def _translated(what: str, error: Any) -> SystemdError:
    from gi.repository import Gio

    if error.message.startswith(_REMOTE):
        name, _, message = error.message.removeprefix(_REMOTE).partition(": ")
        return SystemdError(f"{what}: {message}", name=name, lost=name in _LOST)
    timed_out = error.matches(Gio.io_error_quark(), Gio.IOErrorEnum.TIMED_OUT)
    closed = error.matches(Gio.io_error_quark(), Gio.IOErrorEnum.CLOSED)
    name = TIMEOUT if timed_out else "org.freedesktop.DBus.Error.Disconnected" if closed else ""
    hint = "see `systemctl status dbus` on the host" if name else ""
    return SystemdError(f"{what}: {error.message}", hint, name, lost=bool(name))
