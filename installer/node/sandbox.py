"""What a unit's own settings keep from our lines in it. Pure.

Our lines have systemd's prefix `+`, which lifts most of a sandbox (ProtectSystem=, ProcSubset=,
NoExecPaths= ...), but not another root directory and not mounts over what they need; nor does the unit start
if a path that it names does not exist, except behind a `-` (tried on systemd 252). kubelet itself has no such
prefix.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from installer.inputs.systemd_syntax import Assignment, merged, parse_unit, split_words
from installer.model import paths
from installer.model.host import UnitText

_NEEDED = (
    paths.GUARD,
    paths.OUR_STATE,
    paths.OUR_RUNTIME,
    paths.PROXY_PID_FILE,
    paths.PROXY_CACHE,
    paths.normalise_endpoint(paths.RELAY_SOCKET),
)
_ROOTS = ("RootDirectory", "RootImage")
_MOUNTS = ("TemporaryFileSystem", "BindPaths", "BindReadOnlyPaths", "MountImages")
_DIRECTORIES = ("WorkingDirectory", "NetworkNamespacePath")  # not lists: the last one counts
_LISTED = re.compile(
    "Bind(ReadOnly)?Paths|(ReadWrite|ReadOnly|Inaccessible|(No)?Exec)Paths|Extension(Directories|Images)|MountImages"
    "|LoadCredential(Encrypted)?|EnvironmentFile|Standard(Output|Error)|ExecStart(Pre|Post)"
)
# systemd's specifiers of directories, for a system service (systemd.unit(5)).
_SPECIFIERS = {"%t": "/run", "%S": "/var/lib", "%C": "/var/cache", "%L": "/var/log", "%E": "/etc", "%%": "%"}


def confines(texts: Iterable[UnitText], *, kubelet: bool) -> tuple[Assignment, ...]:
    """The settings of a unit that keep our lines, or `kubelet` itself, from what they need."""
    lines = tuple(line for text in texts for line in parse_unit(text))
    last = {line.key: line for line in lines if line.section == "Service"}
    found = [last[key] for key in _ROOTS if key in last and last[key].value not in ("", "/")]
    if "User" in last and last["User"].value not in ("", "root", "0"):
        found.append(last["User"])
    mounts = {place: line for key in _MOUNTS for place, line in _mounts(lines, key)}
    found += [line for path in _NEEDED if (line := _nearest(mounts, path)) and not _is_itself(line, path)]
    if kubelet:
        hidden = dict(_mounts(lines, "InaccessiblePaths"))
        relay = _nearest(hidden, _NEEDED[-1])
        found += [relay] if relay else []
    return tuple(dict.fromkeys(found))


def needed_paths(texts: Iterable[UnitText]) -> Iterator[tuple[str, Assignment]]:
    """The paths that have to exist for a unit with these lines to start, each with its line."""
    lines = tuple(line for text in texts for line in parse_unit(text))
    last = {line.key: line for line in lines if line.section == "Service" and line.key in _DIRECTORIES}
    listed = dict.fromkeys(line.key for line in lines if _LISTED.fullmatch(line.key))
    for line in (*last.values(), *(line for key in listed for line in merged(lines, "Service", key))):
        words = _words(line)
        for word in words[:1] if line.key.startswith("Exec") and "Paths" not in line.key else words:
            if path := _needed_path(line.key, word):
                yield path, line


def _needed_path(key: str, word: str) -> str:
    """Empty if it may be missing, or only systemd knows what it means."""
    bare = word.lstrip("-@:+!")
    parts = bare.split(":")
    path = parts[1] if key.startswith(("Load", "Standard")) and len(parts) > 1 else parts[0]
    path = posixpath.dirname(path) if key.startswith("Standard") else path
    optional = "-" in word.removesuffix(bare)
    return "" if optional or not path.startswith("/") or re.search(r"[%*?[]", path) else path


def _words(line: Assignment) -> list[str]:
    words = split_words(line.value, relaxed=True, c_escapes=True)
    return [re.sub("%.", lambda found: _SPECIFIERS.get(found[0], found[0]), word) for word in words]


def _mounts(lines: Iterable[Assignment], key: str) -> Iterator[tuple[str, Assignment]]:
    for line in merged(lines, "Service", key):
        for place in _words(line):
            yield _place(place, key), line._replace(value=place)


def _place(word: str, key: str) -> str:
    parts = word.lstrip("-+").split(":")
    place = parts[1] if not key.startswith("Temporary") and len(parts) > 1 else parts[0]
    return paths.normalise_endpoint(f"{place}/x").removesuffix("/x")  # also /var/run itself


def _nearest(mounts: dict[str, Assignment], path: str) -> Assignment | None:
    """The mount that decides what is at `path`."""
    over = [place for place in mounts if f"{path}/".startswith(f"{place.rstrip('/')}/")]
    return mounts[max(over, key=len)] if over else None


def _is_itself(line: Assignment, path: str) -> bool:
    """Whether the same files are there: `BindPaths=/run` or `BindPaths=/run:/run`."""
    source = paths.normalise_endpoint(line.value.lstrip("-+").split(":")[0])
    return line.key.startswith("Bind") and source == _place(line.value, line.key) and path.startswith(source)
