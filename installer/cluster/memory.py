"""What the daemon keeps of the cluster on the host, below /run: for a container that starts again while the
API server is away, and for the pod that comes after it. A crash before it is written loses that alone."""

from __future__ import annotations

import contextlib
import json

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.model import paths
from installer.model.hold import CLUSTER_MEMORY
from installer.model.jsontext import parse_json


class ClusterMemory:
    """`paused`: what the API server has last said. `renewed`: when a daemon of this node has last renewed its
    Lease, a time of the epoch; 0 if that is not known."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.paused, self.renewed = False, 0.0
        self._kept: dict[str, object] = {}

    def recall(self) -> None:
        with contextlib.suppress(InstallerError, OSError, ValueError, AttributeError, TypeError):
            found = parse_json(self._files.read(CLUSTER_MEMORY) or b"{}")
            self.paused, self.renewed = found.get("paused") is True, float(found.get("renewed", 0.0))

    def keep(self) -> None:
        """Writes nothing where nothing has changed."""
        found: dict[str, object] = {"paused": self.paused, "renewed": self.renewed}
        if found == self._kept:
            return
        with contextlib.suppress(InstallerError, OSError):  # the next pass tells what is wrong with the host
            self._files.make_directory(paths.OUR_RUNTIME)
            self._files.write(CLUSTER_MEMORY, json.dumps(found).encode() + b"\n", 0o644)
            self._kept = found
