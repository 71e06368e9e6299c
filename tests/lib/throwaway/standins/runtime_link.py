"""The stand-in proxy's way to the runtime."""

import socket
import time
from _thread import allocate_lock

from tests.lib.throwaway.standins.http2 import CallError, fields, unary


class RuntimeLink:
    """The way to the runtime, with the backoff of gRPC's own (connection-backoff.md, without jitter)."""

    def __init__(self, path: str, backoff: float) -> None:
        self.path = path
        self.backoff = backoff
        self.lock = allocate_lock()
        self.failures = 0
        self.not_before = 0.0

    def connect(self) -> socket.socket | None:
        """A connection, or None while the runtime is away or is not retried yet."""
        runtime = socket.socket(socket.AF_UNIX)
        with self.lock:
            if time.monotonic() >= self.not_before:
                try:
                    runtime.connect(self.path)
                except OSError:
                    self.not_before = time.monotonic() + min(120.0, self.backoff * 1.6**self.failures)
                    self.failures += 1
                else:
                    self.failures = 0
                    return runtime
        runtime.close()
        return None

    def is_back(self) -> bool:
        runtime = self.connect()
        if runtime is not None:
            runtime.close()
        return runtime is not None

    def containers(self) -> int:
        """How many there are, whatever they do."""
        try:
            listed = unary(self.path, "/runtime.v1.RuntimeService/ListContainers")
        except (OSError, CallError):
            return 0
        return sum(number == 1 for number, _ in fields(listed))
