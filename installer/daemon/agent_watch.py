"""Whether cri-resmgr-agent has sent another configuration: seen in cri-resmgr's cache, cheaply.

cri-resmgr rewrites its whole cache at each change of a container: megabytes, on a node with many. So nothing
watches that file. Each heartbeat compares its status, and if the file was written, reads it in pieces for the
one part that counts. 9 MB take 20 ms. A thread reads it: the main loop does not wait for a mount that hangs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import BinaryIO

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.model import paths
from installer.model.jsontext import sha256_hex

# The cache is the JSON of a Go struct, without spaces, in this order: Version, Pods, Containers, NextID, Cfg,
# PolicyName, PolicyJSON (pkg/cri/resource-manager/cache of cri-resmgr v0.8 - v0.9.2). Quotes in strings are
# escaped.
_BEGINS, _ENDS = b'"Cfg":', b'"PolicyJSON":'
_PIECE = 1 << 16  # bytes
_LONGEST = 1 << 20  # bytes: what etcd takes as a ConfigMap


def in_thread(work: Callable[[], None]) -> None:
    """Raises RuntimeError if no thread can be started."""
    threading.Thread(target=work, name="agent", daemon=True).start()


class AgentWatch:
    """Watches the cache on one host. `beside` does its reading."""

    def __init__(self, files: Files, beside: Callable[[Callable[[], None]], None] = in_thread) -> None:
        self._files, self._beside = files, beside
        self._is_reading = False
        self._status: tuple[int, ...] = ()
        self._token = ""

    def look(self) -> str:
        """Return another value if the agent's configuration or the active policy has changed, as far as that
        has been read: else the next look does. A file that is being written, or is not understood, changes
        nothing."""
        if not self._is_reading:
            self._is_reading = True
            try:
                self._beside(self._read)
            except RuntimeError:
                self._is_reading = False
        return self._token

    def _read(self) -> None:
        try:
            with contextlib.suppress(InstallerError, OSError):
                status = self._files.status(paths.PROXY_CACHE)
                seen = (status.st_ino, status.st_size, status.st_mtime_ns) if status else ()
                if seen != self._status:
                    with self._files.opened(paths.PROXY_CACHE) as place:
                        # A FIFO in its place would wait for its other end.
                        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                        with open(descriptor, "rb", buffering=0) as file:
                            self._token = token_of(file) or self._token
                    self._status = seen
        finally:
            self._is_reading = False


def token_of(file: BinaryIO) -> str:
    """Return a digest of the configuration and the policy's name, empty if they are not found complete."""
    rest = b""
    while piece := file.read(_PIECE):
        rest += piece
        begin = rest.find(_BEGINS)
        if begin < 0:
            rest = rest[-len(_BEGINS) :]
            continue
        found = rest[begin:]
        while (end := found.find(_ENDS)) < 0 and len(found) < _LONGEST and (piece := file.read(_PIECE)):
            found += piece
        return sha256_hex(found[:end]) if end >= 0 else ""
    return ""
