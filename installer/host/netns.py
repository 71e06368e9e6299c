"""Sockets in the host's network namespace, for a container that has one of its own.

Only the creating of a socket happens there: a socket stays in the namespace it was made in, so
the calling thread is back in its own before anything is connected. Needs CAP_SYS_ADMIN when
the namespaces differ.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Any

from installer.errors import UnservableHostError, remedy_for
from installer.host.chase import opened

_CLONE_NEWNET = 0x40000000  # linux/sched.h


def host_socket(root: Path, family: socket.AddressFamily) -> socket.socket:
    """A TCP socket in the network namespace of the host's first process.

    Raises UnservableHostError when it may not be entered.
    """
    ours = "/proc/thread-self/ns/net"
    try:
        with opened(root, "/proc/1/ns", follow=True) as (place, _status):
            theirs = f"{place}/net"  # leads to no path, but to the namespace
            if os.stat(theirs).st_ino == os.stat(ours).st_ino:
                return socket.socket(family, socket.SOCK_STREAM)
            there = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        back = os.open(ours, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
            try:
                return socket.socket(family, socket.SOCK_STREAM)
            finally:
                _enter(back)
        finally:
            os.close(back)
            os.close(there)
    except OSError as error:
        raise UnservableHostError(
            f"cannot enter the host's network namespace ({root}/proc/1/ns/net): {error}",
            remedy_for(error)
            or "run as root in a privileged container with the host's /proc, or with hostNetwork: true",
        ) from error


def _enter(descriptor: int) -> None:
    """setns(2) of the calling thread. The os module has it only from Python 3.12 on."""
    if hasattr(os, "setns"):
        os.setns(descriptor, _CLONE_NEWNET)
        return
    import ctypes

    if _libc().setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _libc() -> Any:
    """Loaded once: each loading leaves a class behind, in a reference cycle."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
