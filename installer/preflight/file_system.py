"""Whether there is room for us: what is in our places, what cannot be written to, what is full.

Pure, as all of preflight.
"""

from __future__ import annotations

from collections.abc import Iterable

from installer.model import paths
from installer.model.change import Changes, Verb
from installer.model.facts import Probe
from installer.model.finding import Finding, Severity
from installer.model.resource import Kind

_MIB = 1 << 20
_REMEDY_IMMUTABLE = "find out who made it so, then `chattr -i` it; or "
_RUN_NEEDED = 16 * _MIB  # systemd's own margin (RELOAD_DISK_SPACE_NEEDED)
_RESERVE = 8 * _MIB  # bytes, for everything of ours that is not the binary


def check_room(probe: Probe, changes: Changes, binary_size: int) -> Iterable[Finding]:
    """`binary_size` in bytes, of the one in the payload."""
    yield from _check_directories(probe)
    if any(change.path == paths.BINARY for change in changes.files):
        yield from _check_binary(probe, binary_size)
    if changes.disturb:
        yield from _check_run(probe)


def check_places(changes: Changes) -> tuple[Finding, ...]:
    """What somebody has put where a file of ours was, and what we cannot take away as a file of ours:
    asked also of a removal, which would have to stop in the middle."""
    going = (change for change in changes.files if change.verb in (Verb.DELETE, Verb.RESTORE))
    return tuple(
        _blocked(change.path, f"a {'directory' if kind is Kind.DIRECTORY else 'special file'} is in the way")
        for change in going
        if (kind := change.before.kind) in (Kind.DIRECTORY, Kind.OTHER)
    )


def _blocked(path: str, why: str) -> Finding:
    return Finding(
        Severity.REFUSE,
        "path-blocked",
        f"{path} cannot be ours: {why}",
        "move it out of the way; it is left as it is",
    )


def _check_directories(probe: Probe) -> Iterable[Finding]:
    for path, why in sorted(probe.obstacles.items()):
        yield _blocked(path, why)
    for directory, why in sorted(probe.unwritable.items()):
        unit_directory = "/systemd/system" in directory
        yield Finding(
            Severity.REFUSE,
            "unit-directory-read-only" if unit_directory else "directory-not-writable",
            f"nothing can be written to {directory}: {why}",
            f"{_REMEDY_IMMUTABLE if 'immutable' in why else ''}"
            + (
                "set kubelet.dropInDirectory to a unit directory that can be written, or mount the host's "
                "root read-write"
                if unit_directory
                else "mount the host's root read-write, or leave this node out"
            ),
        )


def _check_binary(probe: Probe, size: int) -> Iterable[Finding]:
    """Two copies: the one put beside the old binary before it takes its place, and the kept one."""
    needed = 2 * size + _RESERVE
    for directory in (paths.BINARY.rpartition("/")[0], paths.OUR_STATE):
        free = probe.free_bytes.get(directory)
        if free is not None and free < needed:
            yield Finding(
                Severity.REFUSE,
                "no-space",
                f"the file system of {directory} has {free // _MIB} MiB free, and two copies of the binary "
                f"with what belongs to it need {-(-needed // _MIB)} MiB",
                "free some space there",
            )


def _check_run(probe: Probe) -> Iterable[Finding]:
    """With less systemd reloads nothing, and the proxy cannot say that it serves."""
    free = probe.free_bytes.get(paths.RUN)
    if free is not None and free < _RUN_NEEDED:
        yield Finding(
            Severity.REFUSE,
            "no-space",
            f"{paths.RUN} has {free // _MIB} MiB or no inodes free, and systemd needs {_RUN_NEEDED // _MIB} "
            "MiB there to read its units again",
            f"free some space there: `df {paths.RUN}` and `df -i {paths.RUN}`",
        )
