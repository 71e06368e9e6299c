"""The files of an image and their sizes. Reads an archive as `docker save` writes it.

    image_files.py ARCHIVE          the size of the image and of its parts
    image_files.py --list ARCHIVE   each path: mode, owner, content

Times are left out: two images with the same list behave the same. Standard library only, because it runs
wherever an image is built.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Path -> part of the image; the first prefix that matches counts.
PARTS = {
    "opt/cri-resmgr-installer": "the program and its libraries",
    "payload": "the payload",
    "usr/lib/python3": "Python's library",
    "usr/lib/x86_64-linux-gnu": "shared libraries",
    "usr/lib/aarch64-linux-gnu": "shared libraries",
    "": "the rest of the distribution",
}
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
MIB = 1 << 20

#: The flags of a compiled file that never checks its source (PEP 552: unchecked hash).
UNCHECKED = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of the image; `content` is a digest, the target of a link, or empty. `stale` is compiled
    Python that is valid only while its source keeps its time."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    content: str
    stale: bool = False


def read_image(archive: Path) -> dict[str, Entry]:
    """Every path of the image, without a leading slash, after all layers."""
    found: dict[str, Entry] = {}
    for layer in _layers(archive):
        _apply(found, layer)
    return found


def _layers(archive: Path) -> Iterator[tarfile.TarFile]:
    """From the lowest."""
    with tarfile.open(archive) as image:
        for name in _json(image, "manifest.json")[0]["Layers"]:
            stream = image.extractfile(name)
            assert stream is not None
            with tarfile.open(fileobj=stream) as layer:
                yield layer


def read_contents(archive: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The content of the files whose path is wanted, as the last layer has it that has the file. Links are
    not followed, and what an upper layer deletes is not asked for."""
    found: dict[str, bytes] = {}
    for layer in _layers(archive):
        for member in layer:
            path = member.name.removeprefix("./").strip("/")
            stream = layer.extractfile(member) if member.isfile() and wanted(path) else None
            if stream is not None:
                found[path] = stream.read()
    return found


def read_config(archive: Path) -> dict[str, Any]:
    """The image's configuration: entry point, environment, labels."""
    with tarfile.open(archive) as image:
        config: dict[str, Any] = _json(image, _json(image, "manifest.json")[0]["Config"])
    return config


def _json(image: tarfile.TarFile, name: str) -> Any:
    stream = image.extractfile(name)
    assert stream is not None
    return json.load(stream)


def _apply(found: dict[str, Entry], layer: tarfile.TarFile) -> None:
    for member in layer:
        path = member.name.removeprefix("./").strip("/")
        directory, _, name = path.rpartition("/")
        if name == OPAQUE:
            _remove(found, directory, itself=False)
        elif name.startswith(WHITEOUT):
            _remove(found, f"{directory}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
        elif path and path != ".":
            if not member.isdir():
                _remove(found, path)
            found[path] = _entry(found, layer, member)


def _remove(found: dict[str, Entry], path: str, itself: bool = True) -> None:
    for name in [name for name in found if name.startswith(f"{path}/")]:
        del found[name]
    if itself:
        found.pop(path, None)


def _entry(found: dict[str, Entry], layer: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    owner = (member.mode & 0o7777, member.uid, member.gid)
    if member.isdir():
        return Entry("directory", *owner, 0, "")
    if member.issym():
        return Entry("link", *owner, 0, member.linkname)
    if member.islnk():
        return found[member.linkname.removeprefix("./").strip("/")]
    stream = layer.extractfile(member)
    if stream is None:
        return Entry("special", *owner, 0, "")
    content = stream.read()
    stale = member.name.endswith(".pyc") and content[4] != UNCHECKED
    return Entry("file", *owner, len(content), hashlib.sha256(content).hexdigest(), stale)


def lines(found: dict[str, Entry]) -> Iterator[str]:
    """One line per path."""
    for path, entry in sorted(found.items()):
        yield f"{entry.kind:9} {entry.mode:04o} {entry.uid}:{entry.gid} {entry.content or '-'} /{path}"


def sizes(found: dict[str, Entry]) -> dict[str, int]:
    """Bytes by part, the largest first."""
    weights: dict[str, int] = {}
    for path, entry in found.items():
        part = next(part for start, part in PARTS.items() if path.startswith(start))
        weights[part] = weights.get(part, 0) + entry.size
    return dict(sorted(weights.items(), key=lambda item: -item[1]))


def main(argv: list[str]) -> int:
    listed = argv[:1] == ["--list"]
    if len(argv) != 1 + listed:
        print(__doc__, file=sys.stderr)
        return 2
    archive = Path(argv[-1])
    found = read_image(archive)
    if listed:
        print("\n".join(lines(found)))
        return 0
    weights = sizes(found)
    print(f"{sum(weights.values()) / MIB:7.1f} MiB unpacked, {len(found)} paths")
    for part, weight in weights.items():
        print(f"{weight / MIB:7.1f} MiB {part}")
    stale = [path for path, entry in found.items() if entry.stale]
    if stale:
        print(f"{len(stale)} compiled files depend on the time of their source: each start may be slow")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
