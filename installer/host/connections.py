"""Where a process's connections to unix sockets lead, and how to end them, so that it connects anew.

The kernel lists the connected unix sockets of a network namespace with their peers (sock_diag(7)). To end a
connection of another process, its socket is taken (pidfd_getfd(2), Linux 5.6) and shut down: both ends see
the end of the connection, as if the peer had died, and each call in flight fails.

gRPC has a milder way: a server that wants to end a connection sends GOAWAY (RFC 9113, 6.8). The client makes
its next call on a new connection, and closes the old one when the calls in flight have been answered. Such
a frame is written into the server's end here. Frames must not mix, so only an idle connection gets one: a
server of gRPC writes whole frames, unless an answer is longer than its buffer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from installer.errors import InstallerError, UnservableHostError, remedy_for
from installer.host.chase import opened
from installer.host.namespaces import host_socket, libc, pid_here
from installer.model.paths import normalise_endpoint

_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # of all architectures but alpha
_REMEDY = "this needs Linux 5.6, CAP_SYS_PTRACE, and kernel.yama.ptrace_scope below 3"


class HostConnections:
    """The Connections port on `<root>/proc`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def peers(self, pid: int) -> tuple[str, ...]:
        """See the port."""
        try:
            ours = set(_sockets(self._root, pid).values())
            found = list(_connected(self._root, pid)) if ours else []
        except OSError as error:
            raise _refused(f"see where the connections of process {pid} lead", error) from error
        names = {inode: name for inode, name, _peer in found}
        peers = (names.get(peer, "") for inode, _name, peer in found if inode in ours)
        return tuple(name for name in peers if name)

    def may_cut(self, pid: int) -> bool:
        """See the port."""
        try:
            with _owned(_call(_PIDFD_OPEN, pid_here(self._root, pid), 0)) as process:
                _taken(process, *min(_sockets(self._root, pid).items())).close()
        except (OSError, InstallerError, ValueError):  # ValueError: it has no socket
            return False
        except _Closed:
            pass
        return True

    def cut(self, pid: int, endpoint: str, spared: frozenset[int] = frozenset()) -> int:
        """See the port."""
        here, path, count = pid_here(self._root, pid), normalise_endpoint(endpoint), 0
        if not here:
            return 0
        try:
            with _owned(_call(_PIDFD_OPEN, here, 0)) as process:
                for descriptor, inode in _sockets(self._root, pid).items():
                    with suppress(_Closed), _taken(process, descriptor, inode) as connection:
                        count += inode not in spared and _end(connection, path)
        except ProcessLookupError:
            return count  # it has ended, and so have they
        except OSError as error:
            raise _refused(f"end connections of process {pid}", error) from error
        return count

    def drain(self, pid: int, endpoint: str) -> frozenset[int]:
        """See the port."""
        here, path, asked = pid_here(self._root, pid), normalise_endpoint(endpoint), set[int]()
        if not here:
            return frozenset()
        try:
            peers = _peers(self._root, pid)
            with _owned(_call(_PIDFD_OPEN, here, 0)) as process:
                for descriptor, inode in _sockets(self._root, pid).items():
                    with suppress(_Closed, OSError), _taken(process, descriptor, inode) as connection:
                        if _leads_to(connection, path) and _send_goaway(connection, peers.get(inode, 0)):
                            asked.add(inode)
        except ProcessLookupError:
            pass
        except OSError as error:
            raise _refused(f"reach connections of process {pid}", error) from error
        return frozenset(asked)

    def has(self, pid: int, sockets: frozenset[int]) -> bool:
        """See the port."""
        try:
            return not sockets.isdisjoint(_sockets(self._root, pid).values())
        except OSError as error:
            raise _refused(f"see the connections of process {pid}", error) from error


class _Closed(Exception):
    """The process has closed the descriptor meanwhile, and maybe opened another in its place."""


def _refused(what: str, error: OSError) -> UnservableHostError:
    """Also of a kernel without these calls, and of a security module."""
    return UnservableHostError(f"cannot {what}: {error.strerror}", remedy_for(error) or _REMEDY)


def _sockets(root: Path, pid: int) -> dict[int, int]:
    """The process's sockets: descriptor -> inode. Empty if it has ended."""
    found, ended = {}, (FileNotFoundError, ProcessLookupError)
    with opened(root, "/proc", follow=True) as (place, _status), suppress(*ended):
        directory = Path(place) / str(pid) / "fd"
        for descriptor in os.listdir(directory):
            with suppress(FileNotFoundError):  # closed meanwhile
                kind, _, inode = os.readlink(directory / descriptor).partition(":[")
                if kind == "socket":
                    found[int(descriptor)] = int(inode.rstrip("]"))
    return found


# -- ending ---------------------------------------------------------------------------


def _call(number: int, *arguments: int) -> int:
    """A system call that returns a descriptor and for which Python has no name. Raises OSError."""
    import ctypes

    result = libc().syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


@contextmanager
def _owned(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(process: int, descriptor: int, inode: int) -> socket.socket:
    """Raises _Closed, OSError."""
    try:
        taken = _call(_PIDFD_GETFD, process, descriptor, 0)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise _Closed from None
        raise
    status = os.fstat(taken)
    if not (stat.S_ISSOCK(status.st_mode) and status.st_ino == inode):
        os.close(taken)
        raise _Closed
    return socket.socket(fileno=taken)


def _leads_to(connection: socket.socket, path: str) -> bool:
    """It has a peer also before a frozen listener has accepted it. Raises OSError if it is not connected."""
    if connection.family != socket.AF_UNIX:
        return False
    peer = connection.getpeername()
    return isinstance(peer, str) and normalise_endpoint(peer) == path


def _end(connection: socket.socket, path: str) -> bool:
    """Shut the connection down if it leads to that path."""
    try:
        if not _leads_to(connection, path):
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is not connected, or has ended
        return False
    return True


# -- draining -------------------------------------------------------------------------

#: A frame of HTTP/2: 8 bytes of type GOAWAY on stream 0, with the highest stream number and NO_ERROR.
_GOAWAY = struct.pack("!BHBBIII", 0, 8, 7, 0, 0, 0x7FFFFFFF, 0)
_LOOKS, _LOOK_EACH = 20, 0.005  # for an instant at which nothing is on its way


def _peers(root: Path, pid: int) -> dict[int, int]:
    """The other ends of that process's connections; empty where the kernel does not list them."""
    with suppress(OSError, UnservableHostError):
        return {inode: peer for inode, _name, peer in _connected(root, pid)}
    return {}


def _send_goaway(connection: socket.socket, peer: int) -> bool:
    """Write GOAWAY into the server's end, whose inode is `peer`; False if that cannot be reached or is never
    idle. `connection` is the client's end; its SO_PEERCRED is the process that called listen(2)."""
    server = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    descriptor = next((own for own, inode in _sockets(Path("/"), server).items() if inode == peer), -1)
    if not peer or descriptor < 0:
        return False
    with _owned(_call(_PIDFD_OPEN, server, 0)) as process, _taken(process, descriptor, peer) as end:
        for _ in range(_LOOKS):
            time.sleep(_LOOK_EACH)
            if not (_waiting(connection, termios.FIONREAD) or _waiting(end, termios.TIOCOUTQ)):
                return end.send(_GOAWAY, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(_GOAWAY)
    return False


def _waiting(end: socket.socket, which: int) -> int:
    """How many bytes nobody has read yet: of those that it has received, or has sent."""
    return int(struct.unpack("i", fcntl.ioctl(end, which, bytes(4)))[0])


# -- seeing: linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h ---------------------

_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_ESTABLISHED, _ANY = 1 << 1, 0xFFFFFFFF
_SHOW_NAME, _SHOW_PEER = 0x1, 0x4
_NAME, _PEER = 0, 2
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_REQUEST, _SOCKET = struct.Struct("=BBHIIIII"), struct.Struct("=BBBBIII")
_SECONDS = 5.0


def _connected(root: Path, pid: int) -> Iterator[tuple[int, str, int]]:
    """Each connected unix socket in that process's network namespace: its inode, the name that it is bound
    to, and the inode of its peer (0 before that has been accepted)."""
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ESTABLISHED, 0, _SHOW_NAME | _SHOW_PEER, _ANY, _ANY)
    header = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST_DUMP, 0, 0)
    with host_socket(root, socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG, pid=pid) as door:
        door.settimeout(_SECONDS)
        door.sendall(header + request)
        while True:
            answer, at = door.recv(1 << 16), 0
            while at < len(answer):
                length, kind, *_others = _HEADER.unpack_from(answer, at)
                body = answer[at + _HEADER.size : at + length]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                yield _read(body)
                at += _aligned(length)


def _read(body: bytes) -> tuple[int, str, int]:
    inode, name, peer = _SOCKET.unpack_from(body)[4], "", 0
    at = _SOCKET.size
    while at < len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        value = body[at + _ATTRIBUTE.size : at + length]
        if kind == _NAME:
            name = os.fsdecode(value.rstrip(b"\0"))
        elif kind == _PEER:
            (peer,) = struct.unpack("=I", value)
        at += _aligned(length)
    return inode, name, peer


def _aligned(length: int) -> int:
    return (length + 3) & ~3
