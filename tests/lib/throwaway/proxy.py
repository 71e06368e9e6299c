"""The proxy on a throwaway host under upstream's own unit, started and looked at without the installer."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.lib.throwaway.containers import cri_version, reach
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.payload import lay_payload
from tests.lib.throwaway.standins import agent
from tests.lib.throwaway.standins.http2 import CallError

PROXY = "cri-resource-manager.service"
BINARY = "/opt/intel/bin/cri-resmgr"
RELAY = "/var/run/cri-resmgr/cri-resmgr.sock"
CONFIG_SOCKET = "/var/run/cri-resmgr/cri-resmgr-config.sock"
PID_FILE = "/run/cri-resmgr.pid"


def until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """Waits for something; the time when it held. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.001)
    return time.monotonic()


def serves(host: ThrowawayHost) -> bool:
    try:
        return bool(cri_version(host, RELAY, timeout=0.2))
    except (OSError, CallError):
        return False


def ready(host: ThrowawayHost) -> bool:
    try:
        return (host.root / PID_FILE[1:]).read_text().endswith("\n")
    except OSError:
        return False


def push_config(
    host: ThrowawayHost, data: Mapping[str, str], node: str = "node-1", socket: str = CONFIG_SOCKET
) -> str:
    """What cri-resmgr-agent does with the data of the ConfigMap that is its node's: it sends it to the
    proxy, at its start and whenever it changes. The proxy's answer: empty, or why it has not taken it.

    Raises OSError when nobody listens there.
    """
    return agent.set_config(reach(host, socket), node, data)


def start_proxy(host: ThrowawayHost, payload: Path, config: str = "", options: str = "") -> None:
    """Starts the proxy and waits until it is ready."""
    lay_payload(host, payload)
    write(host.disk / "etc/cri-resmgr/fallback.cfg", config)
    if options:
        write(host.disk / "etc/default/cri-resource-manager", f"CONFIG_OPTIONS={options}\n")
    host.systemctl("daemon-reload")
    host.systemctl("start", PROXY)
    until(lambda: ready(host))
