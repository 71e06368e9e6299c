"""The host's network and PID namespaces, for a container with its own.

A socket stays in the namespace where it was created. So the calling thread enters the host's only for that,
and is back in its own before it connects. Needs CAP_SYS_ADMIN if the namespaces differ.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from installer.errors import UnservableHostError, remedy_for
from installer.host.chase import opened

_CLONE_NEWNET = 0x40000000  # linux/sched.h


def host_socket(
    root: Path, family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0, *, pid: int = 1
) -> socket.socket:
    """A socket in the network namespace of a process of the host, by default of its first; TCP by default.

    Raises UnservableHostError if entering it is not permitted.
    """
    ours = "/proc/thread-self/ns/net"
    try:
        with opened(root, f"/proc/{pid}/ns", follow=True) as (place, _status):
            theirs = f"{place}/net"  # leads to the namespace, not to a path
            if os.stat(theirs).st_ino == os.stat(ours).st_ino:
                return socket.socket(family, kind, protocol)
            there = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        back = os.open(ours, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
            try:
                return socket.socket(family, kind, protocol)
            finally:
                _enter(back)
        finally:
            os.close(back)
            os.close(there)
    except OSError as error:
        raise UnservableHostError(
            f"cannot enter the host's network namespace ({root}/proc/{pid}/ns/net): {error}",
            remedy_for(error)
            or "run as root in a privileged container with the host's /proc, or with hostNetwork: true",
        ) from error


def _enter(descriptor: int) -> None:
    """setns(2) of the calling thread. The os module has it only since Python 3.12."""
    if hasattr(os, "setns"):
        os.setns(descriptor, _CLONE_NEWNET)
        return
    import ctypes

    if libc().setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def libc() -> Any:
    """Loaded once: each load leaves a class behind, in a reference cycle."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def pid_here(root: Path, pid: int) -> int:
    """The number that a process of the host has in our PID namespace; 0 if it has none, or has ended."""
    with opened(root, "/proc", follow=True) as (place, _status), suppress(OSError):
        theirs = os.stat(f"{place}/{pid}/ns/pid").st_ino
        if theirs == os.stat("/proc/self/ns/pid").st_ino:
            return pid
        for other in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if os.stat(f"/proc/{other}/ns/pid").st_ino == theirs and _innermost(other) == pid:
                    return int(other)
    return 0


def _innermost(pid: str) -> int:
    """The number of a process in its own PID namespace (proc(5): NSpid)."""
    for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return 0
