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
    """`paused`: what the API server has last said."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.paused = False
        self._kept: bool | None = None

    def recall(self) -> None:
        with contextlib.suppress(InstallerError, OSError, ValueError, AttributeError, TypeError):
            self.paused = parse_json(self._files.read(CLUSTER_MEMORY) or b"{}").get("paused") is True

    def keep(self) -> None:
        """Writes nothing where nothing has changed."""
        if self.paused is self._kept:
            return
        with contextlib.suppress(InstallerError, OSError):  # the next pass tells what is wrong with the host
            self._files.make_directory(paths.OUR_RUNTIME)
            self._files.write(CLUSTER_MEMORY, json.dumps({"paused": self.paused}).encode() + b"\n", 0o644)
            self._kept = self.paused
