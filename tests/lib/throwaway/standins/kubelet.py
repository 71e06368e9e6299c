"""Stands in for kubelet: finds its runtime as the real one, is healthy with it, and polls it.

Takes any flag. Starts no pods; what it does about those that a test tells it of is in `pods`.

Faults (faults.py; the file is FAULTS below, healthz is looked up at each request):
    startup            "exit": exit code 1 at once; "hang": alive, never healthy
    exitOnRelay        true: exit code 1 when the endpoint is cri-resmgr's relay
    onRelay            faults that hold only when the endpoint is the relay
    offRelay           faults that hold only when it is not
    startDelaySeconds  from the runtime's answer until it is healthy
    exitAfterSeconds   it dies that long after it was healthy
    healthz            false: answers 500
    version            what it answers to --version
    sickAfterAnswers   it answers 500 when it has answered ok that often
    ignoreTerm         true: SIGTERM does not end it
    workerSeconds      from its start until the probes of the pods that were there have workers
    graceSeconds       so much older than kubelet is a container whose readiness outlives a restart
"""

import json
import math
import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from tests.lib.throwaway.standins import faults
from tests.lib.throwaway.standins.http2 import CallError, Channel, strings, unary
from tests.lib.throwaway.standins.kubelet_api import READ_ONLY, SECURE, UNKNOWN, serve, serve_healthz
from tests.lib.throwaway.standins.pods import RESTART_GRACE, WORKER_SECONDS, Pods, load

FAULTS = "/etc/standin-kubelet.json"
DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
CONTAINERD = "/run/containerd/containerd.sock"
RELAY = "/run/cri-resmgr/cri-resmgr.sock"
SERVICE = "/runtime.v1.RuntimeService/"
IMAGE_INFO = "/runtime.v1.ImageService/ImageFsInfo"
VERSION = "1.29.14"

#: Flags that Kubernetes removed.
GONE = ("--container-runtime",)

#: How long the runtime may take to answer.
RUNTIME_SECONDS = 5.0


def log(level: str, text: str) -> None:
    os.write(2, f"{level}{time.strftime('%m%d %H:%M:%S')} {os.getpid():7} server.go:1] {text}\n".encode())


def fail(text: str) -> NoReturn:
    log("E", f'"command failed" err="{text}"')
    os._exit(1)


def flag(argv: list[str], name: str) -> str | None:
    """The value of a flag as pflag reads it, an underscore in its name as a hyphen; the last one wins."""
    value = None
    for position, word in enumerate(argv):
        found, equals, behind = word.partition("=")
        if found.replace("_", "-") != f"--{name}":
            continue
        if not equals and position + 1 == len(argv):
            fail(f"flag needs an argument: --{name}")
        value = behind if equals else argv[position + 1]
    return value


def check_words(argv: list[str]) -> None:
    """Ends us on what the real one refuses: a word that no flag takes, an empty one too, and a flag of old.

    Any other flag is taken for known, with a value behind it or without.
    """
    before = ""
    for word in argv:
        if word.split("=")[0] in GONE:
            fail(f"failed to parse kubelet flag: unknown flag: {word}")
        if not word.startswith("-") and (not before.startswith("-") or "=" in before):
            fail(f"unknown command {word}")
        before = word


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
            documents = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            data = next(documents, None)  # of several the first counts
        except yaml.YAMLError as error:
            fail(f"failed to load kubelet config file, path: {path}, error: {error}")
    if not isinstance(data, dict) or data.get("kind") != "KubeletConfiguration":
        fail(f"failed to load kubelet config file, path: {path}, error: no kind KubeletConfiguration")
    if not str(data.get("apiVersion", "")).startswith("kubelet.config.k8s.io/"):
        fail(f"failed to load kubelet config file, path: {path}, error: wrong apiVersion")
    return data


def configuration(argv: list[str]) -> dict[str, Any]:
    """--config, and over it the files of --config-dir in order."""
    config = flag(argv, "config")
    found = read_config(config) if config else {}
    directory = flag(argv, "config-dir")
    if directory:
        for path in in_directory(directory):
            found.update(read_config(path))
    return found


def in_directory(directory: str) -> Iterator[str]:
    """The files of --config-dir: *.conf, those of subdirectories too, in the order of names."""
    if os.path.islink(directory):
        return  # it is not followed
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        fail(f"failed to walk through kubelet dropin directory {directory}: {error.strerror}")
    for name in names:
        path = f"{directory}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            yield from in_directory(path)
        elif name.endswith(".conf"):
            yield path


def endpoint(argv: list[str], config: dict[str, Any]) -> str:
    """The flag, else the configuration, else built-in."""
    given = flag(argv, "container-runtime-endpoint")
    if given is not None:
        if not given:
            fail("the containerRuntimeEndpoint was not specified or empty")
        return given
    return config.get("containerRuntimeEndpoint") or DEFAULT_ENDPOINT


def image_endpoint(argv: list[str], config: dict[str, Any], address: str) -> str:
    """Where images are: with the runtime by default."""
    return flag(argv, "image-service-endpoint") or config.get("imageServiceEndpoint") or address


def read_only_port(argv: list[str], config: dict[str, Any]) -> int:
    """Where it tells everybody its pods; 0 for nowhere, the default with a configuration file."""
    default = config.get("readOnlyPort", 0) if flag(argv, "config") else READ_ONLY
    return int(flag(argv, "read-only-port") or default)


def socket_path(address: str) -> str:
    return address.removeprefix("unix://")


def is_relay(address: str) -> bool:
    """Whether it is the relay, or a link to it."""
    path = socket_path(address)
    path = os.readlink(path) if os.path.islink(path) else path
    return (path.removeprefix("/var") if path.startswith("/var/run/") else path) == RELAY


def ask_runtime(address: str, images: str) -> None:
    """Ends us as the real one ends when the runtime, or who serves images, does not answer."""
    begun = time.monotonic()
    try:
        version = strings(call(address, "Version"))
    except (OSError, CallError) as error:
        time.sleep(max(0.0, begun + 0.05 - time.monotonic()))
        fail(f"failed to run Kubelet: validate service connection: {address}: {error}")
    if images != address:
        log("I", f'"Using image service endpoint" endpoint="{images}"')
        try:
            unary(socket_path(images), IMAGE_INFO, b"", RUNTIME_SECONDS)
        except (OSError, CallError) as error:
            fail(f"failed to run Kubelet: validate service connection: {images}: {error}")
    log(
        "I", f'"Container runtime initialized" containerRuntime="{version.get(2)}" version="{version.get(3)}"'
    )


def call(address: str, method: str, message: bytes = b"", timeout: float = RUNTIME_SECONDS) -> bytes:
    """One call of the CRI's RuntimeService. Raises OSError or CallError."""
    return unary(socket_path(address), SERVICE + method, message, timeout)


def poll(address: str, pods: Pods) -> NoReturn:
    """As the real one looks each second at what runs, whatever comes of it: it stays healthy for minutes."""
    channel = Channel(socket_path(address))
    while True:
        with suppress(OSError, CallError):
            pods.sync(channel.unary(f"{SERVICE}ListContainers", timeout=RUNTIME_SECONDS))
        channel.rest(1.0)


def watch_runtime() -> None:
    """cadvisor's own connection to containerd, whatever kubelet's endpoint is."""
    channel = Channel(CONTAINERD)
    while os.path.exists(CONTAINERD):
        channel.rest(3600.0)


class Pages:
    """What is answered over HTTP."""

    def __init__(self, address: str, pods: Pods) -> None:
        self._address, self._pods = address, pods
        self._answers = 0  # that it is well

    def healthz(self, path: str, _token: str = "") -> tuple[str, str]:
        if not path.startswith("/healthz"):
            return UNKNOWN
        wrong = wrongs(self._address)
        healthy = wrong.get("healthz", True) and self._answers < wrong.get("sickAfterAnswers", math.inf)
        self._answers += healthy
        return ("200 OK", "ok") if healthy else ("500 Internal Server Error", "failed")

    def read_only(self, path: str, _token: str = "") -> tuple[str, str]:
        if path.rstrip("/") == "/pods":
            return "200 OK", json.dumps(self._pods.page())
        return self.healthz(path)

    def secure(self, path: str, token: str) -> tuple[str, str]:
        """As kubelet asks the API server whose token it is, and what it may."""
        rights = load().get("tokens", {}).get(token)
        if rights is None:
            return "401 Unauthorized", "Unauthorized"
        part = "nodes/" + path.strip("/").partition("/")[0]
        if part not in rights and "nodes/proxy" not in rights:
            return "403 Forbidden", f"Forbidden (verb=get, resource=nodes, subresource(s)=[{part} proxy])"
        return self.read_only(path)


def wrongs(address: str) -> dict[str, Any]:
    """What is wrong now, with this endpoint."""
    wrong = faults.load(FAULTS)
    wrong.update(wrong.get("onRelay" if is_relay(address) else "offRelay", {}))
    if is_relay(address) and wrong.get("exitOnRelay"):
        wrong["startup"] = "exit"
    return wrong


def main() -> NoReturn:
    if "--version" in sys.argv[1:]:
        os.write(1, f"Kubernetes v{faults.load(FAULTS).get('version', VERSION)}\n".encode())
        os._exit(0)
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("kubelet")
    check_words(sys.argv[1:])
    config = configuration(sys.argv[1:])
    address = endpoint(sys.argv[1:], config)
    wrong = wrongs(address)
    log("I", f'"Using container runtime endpoint" endpoint="{address}"')
    if wrong.get("ignoreTerm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if wrong.get("startup") == "exit":
        fail("failed to run Kubelet: this one is broken")
    ask_runtime(address, image_endpoint(sys.argv[1:], config, address))
    while wrong.get("startup") == "hang":
        signal.pause()
    time.sleep(float(wrong.get("startDelaySeconds", 0.05)))
    worker, grace = wrong.get("workerSeconds", WORKER_SECONDS), wrong.get("graceSeconds", RESTART_GRACE)
    manifests = config.get("staticPodPath", "")
    pods = Pods(partial(call, address), log, float(worker), float(grace), manifests)
    pages = Pages(address, pods)
    serve_healthz(pages.healthz, log)
    serve(SECURE, pages.secure, secure=True)
    port = read_only_port(sys.argv[1:], config)
    if port:
        serve(("0.0.0.0", port), pages.read_only)
    start_new_thread(poll, (address, pods))
    start_new_thread(watch_runtime, ())
    log("I", '"Started kubelet"')
    if "exitAfterSeconds" in wrong:
        time.sleep(float(wrong["exitAfterSeconds"]))
        fail("failed to run Kubelet: unexpected state")
    while True:
        signal.pause()
