"""What a host's file system and units are, to be compared with what they were."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.throwaway.host import ThrowawayHost

#: Where an installer could leave something.
TREES = (
    "etc",
    "opt",
    "usr/local",
    "usr/lib/systemd/system",
    "var/lib",
    "run/systemd/system",
)

#: What changes by itself, or belongs to others.
VOLATILE = (
    "var/lib/apt",
    "var/lib/containerd",
    "var/lib/dpkg",
    "var/lib/systemd",
)

#: Directly below /run: names that are ours or the proxy's.
RUN_PREFIXES = ("cri-resmgr", "cri-resource-manager")


@dataclass(frozen=True, slots=True)
class Entry:
    """One path, by everything that may not differ; times are left out."""

    kind: str
    mode: int
    uid: int
    gid: int
    content: str


def snapshot(host: ThrowawayHost) -> Mapping[str, Entry]:
    """Every path that an installer could touch, and each unit file's state.

    The keys are absolute paths on the host; a unit file's state stands under
    `unit:<name>`. Equal snapshots mean: without a trace.
    """
    found = files(host)
    for line in host.systemctl("list-unit-files", "--no-legend", "--full").splitlines():
        words = line.split()
        found[f"unit:{words[0]}"] = Entry("unit", 0, 0, 0, words[1])
    return found


def files(host: ThrowawayHost) -> dict[str, Entry]:
    """Every path of a snapshot; systemd is not asked, which takes five times as long."""
    root = host.root
    found: dict[str, Entry] = {}
    for tree in TREES:
        found.update(walk(root, root / tree))
    for name in sorted(os.listdir(root / "run")):
        if name.startswith(RUN_PREFIXES):
            found.update(walk(root, root / "run" / name))
    return found


def walk(root: Path, path: Path) -> Iterator[tuple[str, Entry]]:
    """A path and all below it; nothing when there is none."""
    name = str(path.relative_to(root))
    if name in VOLATILE:
        return
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    yield f"/{name}", entry(path, status)
    if stat.S_ISDIR(status.st_mode):
        for child in sorted(os.listdir(path)):
            yield from walk(root, path / child)


def entry(path: Path, status: os.stat_result) -> Entry:
    mode = status.st_mode
    content = ""
    if stat.S_ISLNK(mode):
        kind, content = "link", os.readlink(path)
    elif stat.S_ISDIR(mode):
        kind = "directory"
    elif stat.S_ISREG(mode):
        kind, content = "file", hashlib.sha256(path.read_bytes()).hexdigest()
    elif stat.S_ISSOCK(mode):
        kind = "socket"
    else:
        kind = "special"
    return Entry(kind, stat.S_IMODE(mode), status.st_uid, status.st_gid, content)


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
