"""A network of throwaway hosts: a bridge in a network namespace of its own, whose first address is the
control plane's. It goes with the process that holds the namespace, and that one with this process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Self

from tests.lib.throwaway.host import ThrowawayHost

ADDRESS = "10.99.0.1"
#: Of the Service `kubernetes`: the control plane has it itself, so that nobody needs kube-proxy.
SERVICE = "10.96.0.1"
SERVICES = "10.96.0.0/16"
PODS = "10.100.{}.0/24"  # of each host

_HOLD = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--", "sleep", "infinity")
_SECONDS = 30.0


class Network:
    """`with Network() as network:` there is one; hosts join it at each of their boots."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(_HOLD, stdin=subprocess.DEVNULL)
        try:
            self._wait()
            self._ip("link", "set", "lo", "up")
            self._ip("address", "add", f"{SERVICE}/32", "dev", "lo")
            self._ip("link", "add", "hosts", "type", "bridge")
            self._ip("address", "add", f"{ADDRESS}/24", "dev", "hosts")
            self._ip("link", "set", "hosts", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.kill()
            holder.wait()

    @property
    def namespace(self) -> str:
        assert self._holder is not None
        return f"/proc/{self._holder.pid}/ns/net"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What runs a command in it."""
        return ("nsenter", f"--net={self.namespace}", "--")

    def join(self, host: ThrowawayHost, number: int) -> None:
        """A host that runs, with `address(number)`."""
        self._ip(
            "link", "add", f"to-{number}", "type", "veth", "peer", "name", "host0", "netns", str(host.leader)
        )
        self._ip("link", "set", f"to-{number}", "master", "hosts", "up")
        for words in (
            ("address", "add", f"{address(number)}/24", "dev", "host0"),
            ("link", "set", "host0", "up"),
            ("route", "add", "default", "via", ADDRESS),
        ):
            host.run("ip", *words)
        self._ip("route", "replace", PODS.format(number), "via", address(number))

    def _wait(self) -> None:
        """Until the holder has left the namespace in which it began."""
        deadline, ours = time.monotonic() + _SECONDS, os.readlink("/proc/self/ns/net")
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if os.readlink(self.namespace) != ours:
                    return
            time.sleep(0.01)
        raise AssertionError("no network namespace of its own")

    def _ip(self, *words: str) -> None:
        argv: Sequence[str] = (*self.prefix, "ip", *words)
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def address(number: int) -> str:
    """Of the host with this number, from 0."""
    return f"10.99.0.{10 + number}"
