"""R13: kubelet's healthz is believed of kubelet alone. Its port is anybody's while kubelet is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.host.command import untouched
from tests.host.node import Node
from tests.host.product import offer_broken, offer_good
from tests.lib.rules import rule
from tests.lib.throwaway.host import HostError
from tests.lib.throwaway.kubelet import UNIT, healthz, wait_healthy

_END = "/run/end-of-the-proxy"

#: Takes the port as soon as it is free, and answers as the test wants.
_THIEF = """
import socket, time
while True:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", 10248))
        break
    except OSError:
        server.close()
        time.sleep(0.001)
server.listen(64)
while True:
    client, _ = server.accept()
    client.recv(4096)
    client.sendall(b"HTTP/1.1 {status}\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    client.close()
"""


@contextmanager
def thief(node: Node, status: str) -> Iterator[None]:
    """Another user of the node waits for kubelet's port."""
    program = _THIEF.replace("{status}", status)
    node.host.run(
        "systemd-run", "--unit=thief", "--uid=nobody", "--collect", "/usr/bin/python3", "-c", program
    )
    try:
        yield
    finally:
        node.host.systemctl("stop", "thief.service")
        wait_healthy(node.host)  # it tries its port again


def steal(node: Node) -> None:
    """Kubelet is restarted, and finds its port taken."""
    node.host.systemctl("stop", UNIT)
    deadline = time.monotonic() + 60
    while not healthz(node.host):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    node.host.systemctl("start", UNIT)


@rule("R13")
@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_r13_a_process_that_holds_kubelets_port_speaks_for_nobody(node: Node, status: str) -> None:
    """Neither is a sick kubelet called healthy, nor a healthy one sick: nothing is changed."""
    with thief(node, status):
        steal(node)
        with untouched(node.host):
            refused = node.run("install", code=4)
        assert "a process other than kubelet.service listens at http://127.0.0.1:10248/healthz" in refused.err
        assert "ss -ltnp 'sport = :10248'" in refused.err
        assert "a process other than kubelet.service answers on its healthz" in node.run("status", code=3).out
    node.run("install")
    node.expect_good()


@contextmanager
def when_on_relay(node: Node, act: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, do this once kubelet runs on the relay."""
    is_over = threading.Event()

    def wait() -> None:
        while not is_over.wait(0.05):
            with suppress(HostError):  # it does not run
                if node.on_relay():
                    act()
                    return

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        is_over.set()
        waiting.join()


@rule("R8", "R13")
def test_r8_a_port_that_is_taken_during_kubelets_restart_fails_no_change_and_no_rollback(node: Node) -> None:
    with thief(node, "500 Internal Server Error"):
        ended = node.run("install")
        assert "another process answers on kubelet's healthz" in ended.said
        assert node.on_relay()
    node.expect_good()
    node.run("remove")
    with thief(node, "500 Internal Server Error"), when_on_relay(node, node.path(_END).touch):
        offer_broken(node, {"exitAtFile": _END})
        ended = node.run("install", code=5)
        assert "it will be retried" in ended.err
        assert not node.on_relay()
    node.path(_END).unlink()
    offer_good(node)
    node.expect_untraced()
