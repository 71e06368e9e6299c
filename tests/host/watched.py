"""A daemon on a node, for one test."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.host.daemon import Daemon
from tests.host.node import Node
from tests.lib.throwaway.host import HostError
from tests.lib.throwaway.kubelet import UNIT

HOLD = "/var/lib/cri-resmgr-installer/hold"


MODE_FILE = "/run/cri-resmgr-installer/mode.json"


STAMPS = "/run/cri-resmgr-installer/restarts.json"


# As the command line builds it, with a cluster that answers what the first argument says.
WITH_CLUSTER = """
import sys
from pathlib import Path
from installer.model.daemon import Cluster
from installer.report.events import build_reporter
from installer.daemon.configuration import Command
from installer.daemon.loop import Daemon

class Cluster(Cluster):
    def removal_evidence(self):
        return sys.argv[1] == "gone", f"the DaemonSet is {sys.argv[1]}"

host_root, payload, configs, config, ready = map(Path, sys.argv[2:])
command = Command(host_root, payload, configs, config, ready, "one", 2.0)
sys.exit(Daemon(command, build_reporter("json", sys.stdout), Cluster()).run())
"""


def start(node: Node, scratch: Path, name: str = "one", cluster: str = "", good: int = 2) -> Daemon:
    """The pod `name`; `cluster` is passed to WITH_CLUSTER, `good` is the seconds that make a relay good."""
    ready_file = scratch / f"ready-{name}"
    inputs = node.command.globals()[1::2]
    argv = [sys.executable, "-c", WITH_CLUSTER, cluster, *inputs, str(ready_file)] if cluster else []
    pod = {"CRI_RESMGR_INSTALLER_GOOD_SECONDS": str(good), "CRI_RESMGR_INSTALLER_POD_UID": name}
    return Daemon(node, ready_file, pod, argv)


def settings(node: Node, **sections: Any) -> None:
    sections["kubelet"] = {"restartsPerHour": 50, **sections.get("kubelet", {})}
    sections.setdefault("proxy", {"deadSeconds": 4})
    node.command.set(**sections)


@contextmanager
def daemon(
    node: Node, tmp_path: Path, name: str = "one", cluster: str = "", good: int = 2
) -> Iterator[Daemon]:
    running = start(node, tmp_path, name, cluster, good)
    try:
        yield running
    except BaseException as error:
        error.add_note(running.said())
        raise
    finally:
        if running.process.poll() is None:
            running.end()


def on_relay(node: Node) -> bool:
    try:
        return node.host.show(UNIT, "ActiveState") == "active" and node.on_relay()
    except (HostError, OSError):  # between two processes
        return False


def off_relay(node: Node) -> bool:
    try:
        return node.host.show(UNIT, "ActiveState") == "active" and not node.on_relay()
    except (HostError, OSError):
        return False
