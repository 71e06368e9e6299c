"""What cri-resmgr-agent sends, as the proxy keeps it."""

import json

from tests.host.node import PROXY, Node

CACHE = "/var/lib/cri-resmgr/cache"
RESERVED = "ReservedResources:\n  CPU: 750m\n"  # without, balloons ends at its start


def push(node: Node, policy: str) -> None:
    """The agent has sent a configuration with this policy, the proxy was started since, and a run has brought
    kubelet back to it."""
    content = json.loads(node.path(CACHE).read_bytes())
    content["Cfg"] = {"NodeName": "node", "Data": {"policy": f"Active: {policy}\n{RESERVED}"}}
    restart_with(node, json.dumps(content).encode())
    node.run("install")


def restart_with(node: Node, cache: bytes) -> None:
    """The proxy starts with this cache, if it can read it."""
    node.host.systemctl("stop", PROXY)
    node.path(CACHE).write_bytes(cache)
    node.host.systemctl("start", PROXY, check=False)
