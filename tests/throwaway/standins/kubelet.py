"""Stands in for kubelet: finds its runtime as the real one, and is healthy with it.

Takes any flag. Does nothing about pods.

Faults (faults.py; the file is FAULTS below, healthz is looked up at each request):
    startup            "exit": exit code 1 at once; "hang": alive, never healthy
    exitOnRelay        true: exit code 1 when the endpoint is cri-resmgr's relay
    onRelay            faults that hold only when the endpoint is the relay
    startDelaySeconds  from the runtime's answer until it is healthy
    exitAfterSeconds   it dies that long after it was healthy
    healthz            false: answers 500
    sickAfterSeconds   from then on, counted from its start, it answers 500
    ignoreTerm         true: SIGTERM does not end it
"""

import json
import math
import os
import signal
import socket
import sys
import time
from _thread import start_new_thread
from contextlib import suppress
from typing import Any, NoReturn

from tests.throwaway.standins import faults
from tests.throwaway.standins.http2 import CallError, strings, unary

FAULTS = "/etc/standin-kubelet.json"
DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
RELAY = "/run/cri-resmgr/cri-resmgr.sock"
VERSION = "/runtime.v1.RuntimeService/Version"
STARTED = time.monotonic()
HEALTHZ = ("127.0.0.1", 10248)

#: How long the runtime may take to answer.
RUNTIME_SECONDS = 5.0


def log(level: str, text: str) -> None:
    os.write(2, f"{level}{time.strftime('%m%d %H:%M:%S')} {os.getpid():7} server.go:1] {text}\n".encode())


def fail(text: str) -> NoReturn:
    log("E", f'"command failed" err="{text}"')
    os._exit(1)


def flag(argv: list[str], name: str) -> str | None:
    """The value of a flag as pflag reads it; the last one wins."""
    value = None
    for position, word in enumerate(argv):
        if word == f"--{name}":
            if position + 1 == len(argv):
                fail(f"flag needs an argument: --{name}")
            value = argv[position + 1]
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
    return value


def read_config(path: str) -> dict[str, Any]:
    """A KubeletConfiguration, YAML or JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        fail(f"failed to load kubelet config file, path: {path}, error: {error.strerror}")
    try:
        data = json.loads(text)
    except ValueError:
        # Started without site: the distribution's PyYAML is looked for by hand.
        sys.path.append("/usr/lib/python3/dist-packages")
        import yaml

        try:
            data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            fail(f"failed to load kubelet config file, path: {path}, error: {error}")
    if not isinstance(data, dict) or data.get("kind") != "KubeletConfiguration":
        fail(f"failed to load kubelet config file, path: {path}, error: no kind KubeletConfiguration")
    if not str(data.get("apiVersion", "")).startswith("kubelet.config.k8s.io/"):
        fail(f"failed to load kubelet config file, path: {path}, error: wrong apiVersion")
    return data


def endpoint(argv: list[str]) -> str:
    """Flag, else the last of --config-dir's files, else --config, else built-in."""
    given = flag(argv, "container-runtime-endpoint")
    configured = ""
    config = flag(argv, "config")
    if config:
        configured = read_config(config).get("containerRuntimeEndpoint") or ""
    directory = flag(argv, "config-dir")
    if directory:
        try:
            names = sorted(name for name in os.listdir(directory) if name.endswith(".conf"))
        except OSError as error:
            fail(f"failed to read {directory}: {error.strerror}")
        for name in names:
            configured = read_config(f"{directory}/{name}").get("containerRuntimeEndpoint") or configured
    if given is not None:
        if not given:
            fail("the containerRuntimeEndpoint was not specified or empty")
        return given
    return configured or DEFAULT_ENDPOINT


def socket_path(address: str) -> str:
    return address.removeprefix("unix://")


def is_relay(address: str) -> bool:
    path = socket_path(address)
    return (path.removeprefix("/var") if path.startswith("/var/run/") else path) == RELAY


def ask_runtime(address: str) -> None:
    """Ends us as the real one ends when the runtime does not answer."""
    begun = time.monotonic()
    try:
        version = strings(unary(socket_path(address), VERSION, b"", RUNTIME_SECONDS))
    except (OSError, CallError) as error:
        time.sleep(max(0.0, begun + 0.05 - time.monotonic()))
        fail(f"failed to run Kubelet: validate service connection: {address}: {error}")
    log(
        "I", f'"Container runtime initialized" containerRuntime="{version.get(2)}" version="{version.get(3)}"'
    )


def poll(address: str) -> NoReturn:
    """As the real one lists its pods each second, whatever comes of it: it stays healthy for minutes."""
    while True:
        time.sleep(1.0)
        with suppress(OSError, CallError):
            unary(socket_path(address), VERSION, b"", RUNTIME_SECONDS)


def serve_healthz(server: socket.socket, address: str) -> None:
    while True:
        client, _ = server.accept()
        start_new_thread(answer_healthz, (client, address))


def answer_healthz(client: socket.socket, address: str) -> None:
    try:
        client.settimeout(5)
        head = b""
        while b"\r\n\r\n" not in head:
            data = client.recv(4096)
            if not data:
                return
            head += data
        found = head.split(b" ")[1].split(b"?")[0].startswith(b"/healthz")
        wrong = wrongs(address)
        age = time.monotonic() - STARTED
        healthy = wrong.get("healthz", True) and age < wrong.get("sickAfterSeconds", math.inf)
        status, body = ("200 OK", "ok") if healthy else ("500 Internal Server Error", "failed")
        if not found:
            status, body = "404 Not Found", "404 page not found"
        client.sendall(
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
        )
    except OSError:
        pass
    finally:
        client.close()


def wrongs(address: str) -> dict[str, Any]:
    """What is wrong now, with this endpoint."""
    wrong = faults.load(FAULTS)
    if is_relay(address):
        wrong.update(wrong.get("onRelay", {}))
        if wrong.get("exitOnRelay"):
            wrong["startup"] = "exit"
    return wrong


def main() -> NoReturn:
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("kubelet")
    address = endpoint(sys.argv[1:])
    wrong = wrongs(address)
    log("I", f'"Using container runtime endpoint" endpoint="{address}"')
    if wrong.get("ignoreTerm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if wrong.get("startup") == "exit":
        fail("failed to run Kubelet: this one is broken")
    ask_runtime(address)
    while wrong.get("startup") == "hang":
        signal.pause()
    time.sleep(float(wrong.get("startDelaySeconds", 0.05)))
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(HEALTHZ)
    server.listen(64)
    start_new_thread(serve_healthz, (server, address))
    start_new_thread(poll, (address,))
    log("I", '"Started kubelet"')
    if "exitAfterSeconds" in wrong:
        time.sleep(float(wrong["exitAfterSeconds"]))
        fail("failed to run Kubelet: unexpected state")
    while True:
        signal.pause()
