"""Stands in for cri-resmgr-agent: sends to the proxy the ConfigMap that is for its node.

That is `cri-resmgr-config.node.NAME`; without it, that of the group that the node's label names; on a node
without a group, the default. A group that has no ConfigMap does not fall back on the default: the
configuration is empty then, and it is sent. It is sent at each start of the agent too, changed or not, and
again and again while the proxy is away; what the proxy refuses is logged, and waits for a change. (From the
source of v0.9; that it takes its node from NODE_NAME and its cluster from -kubeconfig, also from upstream's
documentation, docs/node-agent.md.)

It has no socket where a proxy could ask it, and knows no Adjustments. It reads kubeconfigs that are JSON.

Faults (faults.py; the file is FAULTS below):
    rateLimitSeconds     from the last change until it is sent
    retrySeconds         from a failure to send until the next try, and so for a watch that has ended
"""

import http.client
import json
import math
import os
import ssl
import sys
import time
import urllib.parse
from _thread import start_new_thread
from base64 import b64decode
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from tests.lib.throwaway.standins import faults
from tests.lib.throwaway.standins.http2 import CallError, field, strings, unary

FAULTS = "/etc/standin-cri-resmgr-agent.json"

#: Flags, each with a value, and their defaults.
FLAGS = {
    "kubeconfig": "",
    "config-ns": "kube-system",
    "configmap-name": "cri-resmgr-config",
    "cri-resmgr-socket": "/var/run/cri-resmgr/cri-resmgr-config.sock",
    "agent-socket": "/var/run/cri-resmgr/cri-resmgr-agent.sock",
}

#: The label of a node that names its group.
GROUP_LABEL = "cri-resource-manager.intel.com/group"

RATE_LIMIT, RETRY, ANSWER = 2.0, 5.0, 5.0  # seconds


def log(level: str, text: str) -> None:
    os.write(2, f"{level}: [ resource-manager-agent ] {text}\n".encode())


def fatal(text: str, code: int = 1) -> NoReturn:
    log("F", text)
    os._exit(code)


def set_config(socket: str, node: str, data: Mapping[str, str], timeout: float = 10.0) -> str:
    """The call: the data of a ConfigMap, for a node, to the proxy that listens at `socket`.

    Returns the proxy's answer: empty, or why it has not taken it. Raises OSError when nobody listens there,
    CallError when there is no answer to the call.
    """
    entries = b"".join(field(2, field(1, key) + field(2, value)) for key, value in data.items())
    return strings(unary(socket, "/v1.Config/SetConfig", field(1, node) + entries, timeout)).get(1, "")


def read_flags(argv: list[str]) -> dict[str, str]:
    """The command line, as Go's flag package reads it."""
    values, words = dict(FLAGS), iter(argv)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        given = value if equals else next(words, None)
        if not word.startswith("-") or name not in values or given is None:
            log("F", f"flag provided but not defined, or without a value: {word}")
            os._exit(2)
        values[name] = given
    return values


class Cluster:
    """The API server, as a kubeconfig names it."""

    def __init__(self, kubeconfig: str) -> None:
        """Raises OSError, ValueError or KeyError, if that is not a usable one."""
        with open(kubeconfig, encoding="utf-8") as file:
            config = json.load(file)
        cluster = config["clusters"][0]["cluster"]
        authority = b64decode(cluster["certificate-authority-data"]).decode()
        self._address = urllib.parse.urlsplit(cluster["server"]).netloc
        self._context = ssl.create_default_context(cadata=authority)
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}

    def get(self, path: str) -> http.client.HTTPResponse:
        """The answer to a request. Raises OSError or http.client.HTTPException."""
        connection = http.client.HTTPSConnection(self._address, context=self._context)
        connection.request("GET", path, headers=self._headers)
        return connection.getresponse()


class Watch:
    """One object, and what becomes of it, until it is stopped."""

    def __init__(
        self, cluster: Cluster, collection: str, name: str, events: "SimpleQueue[Watch]", retry: float
    ) -> None:
        self.found: Any = None
        self.stopped = False
        self._cluster, self._events, self._retry = cluster, events, retry
        selector = urllib.parse.quote(f"metadata.name={name}")
        self._path = f"{collection}?fieldSelector={selector}&watch=true"
        start_new_thread(self._run, ())

    def _run(self) -> None:
        while not self.stopped:
            try:
                for line in self._cluster.get(self._path):
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        self.found = None if event["type"] == "DELETED" else event["object"]
                        self._events.put(self)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                log("W", f"failed to watch {self._path}: {error}")
            time.sleep(self._retry)

    @property
    def data(self) -> dict[str, str] | None:
        """Of a ConfigMap; None when there is none."""
        return None if self.found is None else self.found.get("data") or {}


class Agent:
    """What runs once the command line has been accepted."""

    def __init__(self, flags: dict[str, str], node: str, cluster: Cluster) -> None:
        told = faults.load(FAULTS)
        self.rate_limit = float(told.get("rateLimitSeconds", RATE_LIMIT))
        self.retry = float(told.get("retrySeconds", RETRY))
        self.flags, self.node_name, self.cluster = flags, node, cluster
        self.events: SimpleQueue[Watch] = SimpleQueue()
        self.group = ""
        self.node = Watch(cluster, "/api/v1/nodes", node, self.events, self.retry)
        self.of_node = self.watch_config(f"node.{node}")
        self.of_group = self.watch_config("default")

    def watch_config(self, of: str) -> Watch:
        collection = f"/api/v1/namespaces/{self.flags['config-ns']}/configmaps"
        name = f"{self.flags['configmap-name']}.{of}"
        return Watch(self.cluster, collection, name, self.events, self.retry)

    def run(self) -> NoReturn:
        due = time.monotonic() + self.rate_limit
        while True:
            wait = None if due == math.inf else max(0.0, due - time.monotonic())
            try:
                changed = self.events.get(timeout=wait)
            except Empty:
                due = self.send()
            else:
                if self.take(changed):
                    due = time.monotonic() + self.rate_limit

    def take(self, changed: Watch) -> bool:
        """Whether there is something to send. Another group has another ConfigMap."""
        if changed is not self.node:
            return changed is self.of_node or (changed is self.of_group and self.of_node.data is None)
        if changed.found is None:
            return False
        group = changed.found["metadata"].get("labels", {}).get(GROUP_LABEL, "")
        if group == self.group:
            return False
        log("I", f"configuration group is set to '{group}'")
        self.group, self.of_group.stopped = group, True
        self.of_group = self.watch_config(f"group.{group}" if group else "default")
        return self.of_node.data is None

    def send(self) -> float:
        """When to send again, if nothing changes."""
        data = self.of_node.data if self.of_node.data is not None else self.of_group.data or {}
        try:
            refusal = set_config(self.flags["cri-resmgr-socket"], self.node_name, data, ANSWER)
        except (OSError, CallError) as error:
            log("E", f"failed to send configuration update: {error}")
            return time.monotonic() + self.retry
        if refusal:
            log("E", f"cri-resmgr configuration error: {refusal}")
        return math.inf


def main() -> NoReturn:
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("cri-resmgr-agen")  # what the kernel keeps of the name
    flags = read_flags(sys.argv[1:])
    try:
        cluster = Cluster(flags["kubeconfig"])
    except (OSError, ValueError, KeyError) as error:
        fatal(f"failed to create resource manager agent instance: failed to get k8s client: {error}")
    node = os.environ.get("NODE_NAME", "")
    if not node:
        fatal("failed to start watcher: node name not set, NODE_NAME has to be the name of this Node")
    Agent(flags, node, cluster).run()
