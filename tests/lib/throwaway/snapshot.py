"""A manifest of the whole host, to be compared with what it was.

The host's disk is an overlay of a bootstrapped system: all that makes it differ stands on the
overlay's upper side, some hundred paths, so a manifest of the whole takes some milliseconds. What
is as that system has it does not appear. Besides: /run and /tmp, the state of every unit file, and
kubelet's unit as systemd has it. What changes by itself is left out: lively has the list.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from installer.model import paths
from tests.lib.throwaway import lively
from tests.lib.throwaway.host import ThrowawayHost

#: File systems of the host's own, beside its disk.
IN_MEMORY = ("run", "tmp")

KUBELET = "kubelet.service"

_LOOKED = 20.0  # seconds; the guard looks after two

#: Properties of a unit.
UNIT_LISTS = ("After", "Before", "Conflicts", "Requires", "RequiredBy", "WantedBy", "Wants")

#: Where an original that was in our way is given back.
OURS = frozenset(
    {
        paths.BINARY,
        paths.GUARD,
        paths.PROXY_UNIT_FILE,
        paths.PROXY_ENVIRONMENT,
        paths.FALLBACK_CONFIG,
        paths.FORCE_CONFIG,
        paths.EXTRA_OPTIONS,
        paths.KUBELET_ENVIRONMENT,
        *(paths.drop_in(directory, KUBELET) for directory in paths.UNIT_DIRECTORIES),
    }
)

_OPAQUE = "trusted.overlay.opaque"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path, by everything that may not differ.

    `content` is a digest, or where a link leads; `modified` is 0 where it may differ.
    """

    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    content: str = ""
    size: int = 0
    attributes: tuple[tuple[str, bytes], ...] = ()
    modified: int = 0


#: In the system it is there, on the host it is not.
GONE = Entry("absent")


def snapshot(host: ThrowawayHost) -> Mapping[str, Entry]:
    """The whole host. Equal snapshots mean: without a trace.

    The keys are absolute paths on the host; a unit file's state stands under
    `unit:<name>`, a property of kubelet's unit under `kubelet:<name>`.
    """
    return files(host) | units(host.systemctl)


def _await_guard(root: Path) -> None:
    """Some seconds after the proxy has ended, a timer of the guard's looks again, and goes: also if the guard
    is removed meanwhile."""
    deadline = time.monotonic() + _LOOKED
    while _is_to_look(root / "run/systemd/transient") and time.monotonic() < deadline:
        time.sleep(0.1)


def _is_to_look(transient: Path) -> bool:
    for path in transient.glob("run-*.service"):
        with suppress(FileNotFoundError):
            if paths.GUARD in path.read_text():
                return True
    return False


def units(systemctl: Callable[..., str]) -> dict[str, Entry]:
    """What systemd says of every unit file and of kubelet's unit; `systemctl` takes its words."""
    found: dict[str, Entry] = {}
    for line in systemctl("list-unit-files", "--no-legend", "--full").splitlines():
        words = line.split()
        found[f"unit:{words[0]}"] = Entry("unit", content=words[1])
    for line in systemctl("show", KUBELET).splitlines():
        name, _, value = line.partition("=")
        if not lively.property_changes_by_itself(name):
            words = lively.OF_A_RUN.sub("", value).split()
            key = f"kubelet:{name}"
            before = found[key].content + "\n" if key in found else ""
            found[key] = Entry("property", content=before + " ".join(_ordered(name, words)))
    return found


def _ordered(name: str, words: list[str]) -> list[str]:
    """Lists of units have no order."""
    return sorted(words) if name in UNIT_LISTS else words


def files(host: ThrowawayHost) -> dict[str, Entry]:
    """Every path of a snapshot; systemd is not asked, which takes fifty times as long."""
    _await_guard(host.root)
    found: dict[str, Entry] = {}
    for name in _differing(host.changes, ""):
        here, in_system = _entry_at(host.root, name), _entry_at(host.system, name)
        if _is_opaque(host.changes / name):
            # It hides what the system has below a directory of this name.
            found[f"/{name}"] = here or GONE
        elif here != in_system:
            found[f"/{name}"] = here or GONE
    for name in IN_MEMORY:
        found.update(walk(host.root, host.root / name))
    return found


def _differing(upper: Path, name: str) -> Iterator[str]:
    """The names, relative to the root, of all on the upper side, in no order."""
    with os.scandir(upper / name) as entries:
        for entry in entries:
            path = f"{name}/{entry.name}".lstrip("/")
            if path in IN_MEMORY or lively.changes_by_itself(f"/{path}"):
                continue
            yield path
            if entry.is_dir(follow_symlinks=False):
                yield from _differing(upper, path)


def _is_opaque(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and _OPAQUE in os.listxattr(path)


def walk(root: Path, path: Path) -> Iterator[tuple[str, Entry]]:
    """A path and all below it; nothing when there is none."""
    name = str(path.relative_to(root))
    if lively.changes_by_itself(f"/{name}"):
        return
    found = _entry_at(root, name)
    if found is None:
        return
    if not lively.comes_by_itself(f"/{name}"):
        yield f"/{name}", found
    if found.kind == "directory":
        for child in sorted(os.listdir(path)):
            yield from walk(root, path / child)


def _entry_at(root: Path, name: str) -> Entry | None:
    path = root / name
    try:
        return entry(path, path.lstat(), f"/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None  # also when it goes while it is read


def entry(path: Path, status: os.stat_result, name: str) -> Entry:
    """What is at `path`, which on the host is `name`."""
    mode = status.st_mode
    content, size = "", 0
    if stat.S_ISLNK(mode):
        kind, content = "link", os.readlink(path)
    elif stat.S_ISDIR(mode):
        kind = "directory"
    elif stat.S_ISREG(mode):
        kind, content, size = "file", hashlib.sha256(path.read_bytes()).hexdigest(), status.st_size
    else:
        kind = "socket" if stat.S_ISSOCK(mode) else "special"
    timeless = kind == "directory" or name in OURS or lively.time_changes_by_itself(name)
    return Entry(
        kind,
        stat.S_IMODE(mode),
        status.st_uid,
        status.st_gid,
        content,
        size,
        tuple(_attributes(path)),
        0 if timeless else status.st_mtime_ns,
    )


def _attributes(path: Path) -> Iterator[tuple[str, bytes]]:
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        if not name.startswith("trusted.overlay."):
            yield name, os.getxattr(path, name, follow_symlinks=False)


def difference(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """What is not the same, one readable line per path."""
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        word = "added" if old is None else "removed" if new is None else "changed"
        lines.append(f"{word} {name}: {old} -> {new}")
    return lines
