"""What a unit's own settings keep from our lines in it. Pure.

Our lines have systemd's prefix `+`, which lifts most of a sandbox (ProtectSystem=, ProcSubset=,
NoExecPaths= ...), but not another root directory and not mounts over what they need (tried on systemd 252).
kubelet itself has no such prefix.
"""

from __future__ import annotations

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


def _mounts(lines: Iterable[Assignment], key: str) -> Iterator[tuple[str, Assignment]]:
    for line in merged(lines, "Service", key):
        for word in split_words(line.value, relaxed=True, c_escapes=True):
            place = re.sub("%.", lambda found: _SPECIFIERS.get(found[0], found[0]), word)
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
