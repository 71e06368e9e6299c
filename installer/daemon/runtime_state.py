"""What has to outlive the resident's process, below the host's /run: gone at the next boot.

The mode mark says which resident acts on this host: the last that came. One that finds another's
mark has been replaced and stays so, also after a restart of its container: the mark lists whom it
replaced. The stamps say when kubelet was restarted by us. A crash between two writes loses the
newest stamp at worst; an unreadable file counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.model import paths
from installer.model.jsontext import parse_json
from installer.model.state import Mode

MODE_MARK = f"{paths.OUR_RUNTIME}/mode.json"
STAMPS = f"{paths.OUR_RUNTIME}/restarts.json"
_KEPT = 20  # of those replaced, and of stamps


class RuntimeState:
    """`identity` names this resident (a pod's UID): the same after a restart of its container.
    `now` is a clock in seconds that all processes of this boot share and nobody sets: a wall clock that
    is set back would make us forget how often kubelet was restarted."""

    def __init__(self, files: Files, identity: str, now: Callable[[], float]) -> None:
        self._files = files
        self._identity = identity
        self._now = now
        self._replaced: tuple[str, ...] = ()

    def claim(self, mode: Mode) -> bool:
        """Says that we act from now on; returns False, and writes nothing, if we were replaced before."""
        found = self._load(MODE_MARK)
        by, replaced = str(found.get("by", "")), _strings(found.get("replaced"))
        if by != self._identity:
            if self._identity in replaced:
                return False
            replaced = (*replaced, by) if by else replaced
        self._replaced = replaced[-_KEPT:]
        self._write(mode)
        return True

    def restore(self, mode: Mode) -> None:
        """Writes our mark again if it is gone: a removal takes it along."""
        if not self._load(MODE_MARK):
            self._write(mode)

    def _write(self, mode: Mode) -> None:
        mark = {"mode": mode.value, "when": self._now(), "by": self._identity, "replaced": self._replaced}
        self._save(MODE_MARK, mark)

    def superseded(self) -> bool:
        """Whether another resident has come since our claim."""
        by = self._load(MODE_MARK).get("by", self._identity)
        return bool(by != self._identity)

    def ages(self) -> tuple[float, ...]:
        """How long ago kubelet was restarted by us, in seconds, longest first. A stamp of a time that has
        not come is of just now: restarts are rather counted twice than forgotten."""
        now = self._now()
        return tuple(max(0.0, now - stamp) for stamp in self._stamps())

    def _stamps(self) -> tuple[float, ...]:
        found = self._load(STAMPS).get("restarts")
        found = found if isinstance(found, list) else []
        now = self._now()
        # Whatever number stands there: one of no time that has been is of now.
        return tuple(float(max(0, min(now, stamp))) for stamp in found if isinstance(stamp, (int, float)))

    def stamp(self, count: int) -> None:
        """Kubelet was restarted `count` times just now."""
        self._save(STAMPS, {"restarts": [*self._stamps(), *[self._now()] * count][-_KEPT:]})

    def _load(self, path: str) -> dict[str, Any]:
        try:
            found = parse_json(self._files.read(path) or b"{}")
        except (InstallerError, OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _save(self, path: str, document: dict[str, Any]) -> None:
        self._files.make_directory(paths.OUR_RUNTIME)
        self._files.write(path, json.dumps(document).encode() + b"\n", 0o644)


def _strings(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
