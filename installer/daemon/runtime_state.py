"""What has to outlive the daemon's process, below the host's /run: gone at the next boot.

The claim says which daemon acts on this host: the last that came. But a removal takes the host back from an
installation: after a boot the pods of both start at once, in any order. A daemon that finds another's name in
the claim has been replaced, and stays so when its container restarts, because the claim lists whom its writer
replaced. The last pod of a removal deletes the claim, and then a replaced daemon begins anew. So it does when
no daemon that came later has lived for some minutes.

Two installations may select the same node, which no manifest can know. The one that acts there goes on: a
daemon of another one does nothing, not even remove, until no daemon of the first has lived for some minutes.

The stamps say when we restarted kubelet. A crash between two writes loses the newest stamp at worst. An
unreadable file counts as none.

Best effort: if nothing can be written, the daemon says so and keeps running without.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.host.runtime_directory import make_runtime_directory
from installer.model import paths
from installer.model.jsontext import mapping_at, parse_object
from installer.model.names import Mode

MODE_FILE = f"{paths.OUR_RUNTIME}/mode.json"
STAMPS = f"{paths.OUR_RUNTIME}/restarts.json"
_KEPT = 20  # of replaced daemons, and of stamps
_GONE = 300.0  # seconds without the daemon that the claim names: longer than a pod takes to be replaced
_VACANT = 30.0  # seconds; a removal deletes the claim, and restores it when its pass has ended


class RuntimeState:
    """`identity` names this daemon (a pod's UID); a restart of its container keeps it. `now` is a clock in
    seconds that all processes of this boot share and nobody sets: with a wall clock that is set back we would
    forget how often kubelet was restarted. `installation`: NAMESPACE/NAME of the pod's, empty outside of one.

    `foreign`: the other installation that acts on this host, as NAMESPACE/NAME; empty if none does.
    `foreign_lives`: a daemon of it lives, as of the last look: it may be gone for good.

    No method raises."""

    def __init__(
        self,
        files: Files,
        identity: str,
        now: Callable[[], float],
        warn: Callable[[str, str], None],
        installation: str = "",
    ) -> None:
        self._files = files
        self._identity = identity
        self._installation = installation
        self.foreign, self.foreign_lives, self._gone_since = "", False, now()
        self._now = now
        self._warn = warn
        self._mode, self._refused = Mode.INSTALL, False
        self._replaced: tuple[str, ...] = ()
        self._vacant_since: float | None = None

    def claim(self, mode: Mode) -> bool:
        """Claim the host from now on. Return False, and write nothing, if we were replaced before, or another
        installation acts on the host."""
        self._mode = mode
        found = _load(self._files, MODE_FILE)
        self.foreign = self._find_foreign(found)
        if self.foreign:
            return False
        by, replaced = str(found.get("by", "")), _strings(found.get("replaced"))
        if by != self._identity:
            if self._identity in replaced:
                self._refused = True
                return False
            replaced = (*replaced, by) if by else replaced
        self._take(replaced)
        return True

    def insist(self) -> bool:
        """A removal goes first: take the host back from an installation. Return whether that was done."""
        found = _load(self._files, MODE_FILE)
        if self._mode is not Mode.REMOVE or found.get("mode") != Mode.INSTALL.value or self.foreign:
            return False
        self._take((*self._replaced, str(found.get("by", ""))))
        return True

    def _take(self, replaced: tuple[str, ...]) -> None:
        self._replaced, self._refused = replaced[-_KEPT:], False
        self._write(self._mode)

    def restore(self, mode: Mode) -> None:
        """Write our claim again if a removal or a person has deleted it, or if our mode has changed. And over
        that of one that we replaced: it had not seen ours when it restored its own, and would act as well."""
        self._mode, found = mode, _load(self._files, MODE_FILE)
        is_current = (found.get("by"), found.get("mode")) == (self._identity, mode.value)
        if not (is_current or self.superseded()):
            self._write(mode)

    def _write(self, mode: Mode) -> None:
        claim: dict[str, Any] = {"mode": mode.value, "by": self._identity, "replaced": self._replaced}
        claim |= {"pid": os.getpid(), "started": self._started(os.getpid())}
        if self._installation:
            claim["installation"] = self._installation
        self._save(MODE_FILE, claim)

    def _find_foreign(self, claim: Mapping[str, Any]) -> str:
        """Return the other installation that acts on the host by its claim; empty if none does."""
        other = str(claim.get("installation", ""))
        if "" in (other, self._installation) or other == self._installation:
            return ""
        now, self.foreign_lives = self._now(), self._lives(claim)
        if self.foreign_lives:
            self._gone_since = now
        return other if now - self._gone_since < _GONE else ""

    def _lives(self, claim: Mapping[str, Any]) -> bool:
        started = self._started(claim.get("pid"))
        return bool(started) and started == claim.get("started")

    def _started(self, pid: object) -> str:
        """Return when the process of the host started, in ticks since the boot; empty if it does not live
        (proc_pid_stat(5))."""
        with contextlib.suppress(InstallerError, OSError, ValueError, IndexError):
            return (self._files.read(f"/proc/{pid}/stat") or b"").decode().rpartition(")")[2].split()[19]
        return ""

    def forget(self, *, everything: bool = True) -> None:
        """Called at our end; does nothing if another daemon has come since. A removal deletes its claim, so
        that an installation that yielded begins anew. With `everything`, delete all if nothing is
        installed. Nothing is deleted as long as the link is there: a kubelet may live by it, although the
        record is lost. A removal deletes it when kubelet has left it."""
        try:
            if self.superseded():
                return
            if self._mode is Mode.REMOVE:
                self._files.remove(MODE_FILE)
            linked = any(self._files.status(link) is not None for link in paths.ENDPOINT_LINKS)
            if everything and not linked and self._files.read(paths.RECORD) is None:
                self._files.remove_tree(paths.OUR_RUNTIME)
        except (InstallerError, OSError) as error:
            self._warn(f"cannot delete {paths.OUR_RUNTIME}: {error}", "it is gone after the next boot")

    def superseded(self) -> bool:
        """Whether another daemon has come since our claim, or had before. Those that we replaced have not,
        even if our own claim could not be written, unless they have replaced us in turn."""
        found = _load(self._files, MODE_FILE)
        self.foreign = self.foreign or self._find_foreign(found)
        by, replaced = found.get("by", self._identity), _strings(found.get("replaced"))
        came = by != self._identity and (by not in self._replaced or self._identity in replaced)
        return self._refused or came or bool(self.foreign)

    def is_vacant(self) -> bool:
        """Whether nobody has acted on the host for a while: there is no claim, or its daemon has ended. For a
        daemon that was replaced. The claim of one that is over is deleted: the daemon that begins anew would
        wait for its end again."""
        now, found = self._now(), _load(self._files, MODE_FILE)
        if found.get("by") == self._identity:  # it was taken back, by `insist`
            return True
        if self.foreign and found:
            if self._find_foreign(found):
                return False
            is_left = found.get("installation") == self.foreign
        else:
            if found and (self._lives(found) or not found.get("started")):  # or that is unknown
                self._vacant_since = None
                return False
            self._vacant_since = now if self._vacant_since is None else self._vacant_since
            if now - self._vacant_since < (_GONE if found else _VACANT):
                return False
            is_left = bool(found)
        if is_left:
            with contextlib.suppress(InstallerError, OSError):
                self._files.remove(MODE_FILE)
        return True

    def ages(self) -> tuple[float, ...]:
        """Return how many seconds ago we restarted kubelet, the longest first. A stamp from the future counts
        as of now: better to count a restart twice than to forget it."""
        return tuple(self._now() - stamp for stamp in self._stamps())

    def _stamps(self) -> tuple[float, ...]:
        found = _load(self._files, STAMPS).get("restarts")
        found = found if isinstance(found, list) else []
        now = self._now()
        return tuple(float(max(0, min(now, stamp))) for stamp in found if isinstance(stamp, (int, float)))

    def stamp(self, count: int) -> None:
        """Note that kubelet was restarted `count` times just now."""
        self._save(STAMPS, {"restarts": [*self._stamps(), *[self._now()] * count][-_KEPT:]})

    def _save(self, path: str, document: dict[str, Any]) -> None:
        try:
            make_runtime_directory(self._files)
            self._files.write(path, json.dumps(document).encode() + b"\n", 0o644)
        except (InstallerError, OSError) as error:
            hint = "the daemon keeps running, but after a restart it will not know what it did before"
            self._warn(f"cannot write {path}: {error}", hint)


def recorded_kubelet_unit(files: Files) -> str:
    """Return the unit that our drop-in belongs to, by the record; empty if it says nothing of that."""
    return next(iter(paths.drop_in_units(mapping_at(_load(files, paths.RECORD), "owned"))), "")


def _load(files: Files, path: str) -> Mapping[str, Any]:
    with contextlib.suppress(InstallerError, OSError):
        return parse_object(files.read(path) or b"")
    return {}


def _strings(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
