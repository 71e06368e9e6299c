"""What the file systems say: a blocked path, a directory that is not writable, a full disk.

Pure, like all of preflight.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from installer.host.ports import Unwritable
from installer.model import paths
from installer.model.host import ABSENT, HostSnapshot, Part, Probe
from installer.model.plan import Changes, Desired, Finding, Verb, refusal, warning
from installer.model.proxy import CACHE_NEEDED
from installer.node.facts import Facts

_MIB = 1 << 20
_REMEDY_IMMUTABLE = "find out why it is immutable, then `chattr -i` it"
_RUN_NEEDED = 16 * _MIB  # systemd's own margin (RELOAD_DISK_SPACE_NEEDED)
_RESERVE = 8 * _MIB  # bytes for all our files but the binary


def check_file_systems(probe: Probe, changes: Changes, binary_size: int) -> Iterable[Finding]:
    """`binary_size`: bytes of the payload's binary."""
    yield from _check_directories(probe)
    if any(change.path == paths.BINARY for change in changes.files):
        yield from _check_binary(probe, binary_size)
    if changes.disturb:
        yield from _check_run(probe)


def check_cache_space(facts: Facts) -> Iterable[Finding]:
    """cri-resmgr exits if it cannot save its cache at its start. A proxy that runs is left alone then; where
    kubelet is on a dead relay, nothing can get worse."""
    snapshot, directory = facts.snapshot, paths.PROXY_STATE[0]
    free = facts.probe.free_bytes.get(directory)
    dead = snapshot.kubelet.on_relay and not snapshot.proxy.relay_answers
    if facts.changes.restarts(Part.PROXY) and free is not None and free < CACHE_NEEDED and not dead:
        yield refusal(
            "no-space",
            f"{directory} has less than {CACHE_NEEDED // _MIB} MiB or no inodes free, and cri-resmgr exits "
            "if it cannot save its cache there when it starts",
            f"free some space there: `df {directory}` and `df -i {directory}`",
        )


def check_exposed(snapshot: HostSnapshot) -> Iterable[Finding]:
    for directory, why in sorted(snapshot.exposed.items()):
        ours = directory == paths.OUR_RUNTIME
        yield (warning if ours else refusal)(
            "directory-exposed",
            f"{directory} {why}: whoever may write there could run programs as root",
            "the next run ends that, and deletes what does not belong to root there"
            if ours
            else f"look at what lies in it, then `chown root {directory} && chmod go-w {directory}`",
        )


def check_extra_options(snapshot: HostSnapshot, desired: Desired, changes: Changes) -> Iterable[Finding]:
    of_us = {file.path for file in desired.files} | {change.path for change in changes.files}
    if paths.EXTRA_OPTIONS not in of_us and snapshot.files.get(paths.EXTRA_OPTIONS, ABSENT).exists:
        yield warning(
            "extra-options-foreign",
            f"{paths.EXTRA_OPTIONS} is not ours and has no effect",
            "if you want its options, give that file with the configs (--configs)",
        )


def check_places(changes: Changes) -> tuple[Finding, ...]:
    """A directory or device in the place of our file, which cannot be deleted as a file. Checked before a
    removal as well, which would otherwise stop half-way."""
    going = (change for change in changes.files if change.verb in (Verb.DELETE, Verb.RESTORE))
    return tuple(_blocked(change.path, change.before.obstacle) for change in going if change.before.obstacle)


def check_deletions(probe: Probe, changes: Changes) -> Iterable[Finding]:
    """What a removal cannot delete: it would move kubelet, fail, and move it back."""
    places = {place for change in changes.files for place in (change.path, posixpath.dirname(change.path))}
    for place, why in sorted(probe.unwritable.items()):
        if place in places and why != Unwritable.NOEXEC:
            remedy = _REMEDY_IMMUTABLE if why == Unwritable.IMMUTABLE else "make it writable"
            yield refusal(
                "directory-not-writable",
                f"{place} is not writable: {why}",
                f"{remedy}; meanwhile `touch {paths.HOLDS[1]} && systemctl stop {paths.PROXY_UNIT}` takes "
                "kubelet off the proxy until the next boot",
            )


def _blocked(path: str, why: str) -> Finding:
    hint = "move that away; the installer does not touch it"
    if path == paths.RELAY_SOCKET:
        hint = "make /var/run a link to /run and reboot, or exclude this node (nodeSelector of the DaemonSet)"
    return refusal("path-blocked", f"{path} cannot be installed: {why}", hint)


def _check_directories(probe: Probe) -> Iterable[Finding]:
    for path, why in sorted(probe.obstacles.items()):
        yield _blocked(path, why)
    for directory, why in sorted(probe.unwritable.items()):
        if why == Unwritable.NOEXEC:
            yield refusal(
                "directory-noexec",
                f"no program can be started from {directory}: {why}",
                "mount it without noexec (`mount -o remount,exec`), or exclude this node",
            )
            continue
        unit_directory = "/systemd/system" in directory
        yield refusal(
            "unit-directory-read-only" if unit_directory else "directory-not-writable",
            f"{directory} is not writable: {why}",
            (f"{_REMEDY_IMMUTABLE}; or " if why == Unwritable.IMMUTABLE else "")
            + (
                "set kubelet.dropInDirectory to a writable unit directory, or mount the host's "
                "root read-write"
                if unit_directory and directory != paths.USUAL_UNITS  # where the proxy's unit goes
                else "mount the host's root read-write, or exclude this node"
            ),
        )


def _check_binary(probe: Probe, size: int) -> Iterable[Finding]:
    """Room for two copies: the new binary beside the old one, and the kept one."""
    needed = 2 * size + _RESERVE
    for directory in (paths.BINARY.rpartition("/")[0], paths.OUR_STATE):
        free = probe.free_bytes.get(directory)
        if free is not None and free < needed:
            yield refusal(
                "no-space",
                f"the file system of {directory} has less than {-(-needed // _MIB)} MiB free, which two "
                "copies of the binary and its files need",
                "free some space there",
            )


def _check_run(probe: Probe) -> Iterable[Finding]:
    """With less, systemd refuses a daemon-reload, and the proxy cannot write its pid file."""
    free = probe.free_bytes.get(paths.RUN)
    if free is not None and free < _RUN_NEEDED:
        yield refusal(
            "no-space",
            f"{paths.RUN} has less than {_RUN_NEEDED // _MIB} MiB or no inodes free, but systemd needs that "
            "there for a daemon-reload",
            f"free some space there: `df {paths.RUN}` and `df -i {paths.RUN}`",
        )
