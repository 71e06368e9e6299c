"""`hack/bench report`: what `report` costs for a large fleet: memory, time, requests.

The API server's stand-in runs in this process, with nodes of 8 KB each, of which some are not well. Its share
of a busy machine is in the time, and not in the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from installer.manifests.build import build_objects
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.model.names import STATUS
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.fleet import (
    DAEMON_SETS,
    NODES,
    PODS,
    build_node,
    build_pod,
    kind_of,
)
from tests.lib.throwaway.kubeserver import Kind, KubeServer, Name

_VALUES = "images: {installer: registry.example.org/cri-resmgr-installer:1}\nannotateNode: true\n"
_NODE_BYTES = 8000
_NAMESPACE = "kube-system"


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/bench report", description=__doc__)
    parser.add_argument("count", metavar="NODES", type=int, nargs="?", default=10_000, help="10000")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="cri-resmgr-bench-") as scratch, KubeServer() as server:
        values, kubeconfig = Path(scratch) / "values.yaml", Path(scratch) / "kubeconfig"
        values.write_text(_VALUES)
        kubeconfig.write_text(server.kubeconfig())
        for body in build_objects(load_inputs(ManifestOptions(values=values), lambda _: None)):
            server.create(kind_of(body), body["metadata"].get("namespace", ""), body)
        fill(server, count)
        for output in ("text", "json", "html"):
            measure(server, kubeconfig, output, count)
    return 0


def fill(server: KubeServer, count: int) -> None:
    """Nodes and pods, past the requests that would make each of them."""
    daemon_set = next(each for each in server.find(DAEMON_SETS) if "agent" not in each["metadata"]["name"])
    for number in range(count):
        name = f"node-{number:05}"
        how = "stuck" if number % 300 == 27 else "ready"
        said = {
            "state": "failed" if how == "stuck" else "converged",
            "reason": "",
            "generation": "3f9c1b7a2d40",
        }
        node = build_node(name, how, said | {"policy": "topology-aware", "changed": "2026-01-01T00:00:00Z"})
        node["status"]["images"] = [{"names": ["x" * (_NODE_BYTES - len(json.dumps(node)) - 40)]}]
        put(server, NODES, "", node)
        put(server, PODS, _NAMESPACE, build_pod(daemon_set, name, how))
    assert STATUS in node["metadata"]["annotations"]


def put(server: KubeServer, kind: Kind, namespace: str, body: dict[str, Any]) -> None:
    metadata = body["metadata"] | {
        "namespace": namespace,
        "resourceVersion": "1",
        "uid": body["metadata"]["name"],
    }
    server.objects[Name(kind, namespace, metadata["name"])] = body | {"metadata": metadata}


def measure(server: KubeServer, kubeconfig: Path, output: str, count: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{EXTENSION}{os.pathsep}{Path.cwd()}"}
    asked, began = server.requests.total(), time.monotonic()
    argv = [
        sys.executable,
        "-m",
        "installer.cli",
        "report",
        "--output",
        output,
        "--kubeconfig",
        str(kubeconfig),
    ]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    said, _ = process.communicate()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the largest child so far
    if process.returncode not in (0, 3) or (output == "json" and len(json.loads(said)["nodes"]) != count):
        raise AssertionError(f"it has ended with {process.returncode}")
    print(
        f"{output:>5}: {time.monotonic() - began:6.1f} s, {server.requests.total() - asked} requests, "
        f"{len(said) / 1e6:.1f} MB of output, at most {used.ru_maxrss // 1024} MB of memory",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
