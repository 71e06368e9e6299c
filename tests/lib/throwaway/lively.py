"""The one list of what a live system changes by itself, with the reason each.

Whatever is not named here has to be as it was when we have gone: see snapshot.
"""

import fnmatch
import re
from dataclasses import dataclass
from enum import StrEnum


class Aspect(StrEnum):
    """What of a thing may differ: all of it, with what is below it; whether the directory is there; or its
    time of modification."""

    PATH = "path"
    DIRECTORY = "directory"
    TIME = "time"
    PROPERTY = "property of kubelet.service"


@dataclass(frozen=True, slots=True)
class Lively:
    """`pattern` is as a shell's; its `*` goes across `/`."""

    aspect: Aspect
    pattern: str
    reason: str


#: What a real kubelet keeps below /var/lib/kubelet; the stand-in has nothing there.
STATE = (
    *("actuated_pods_state", "allocated_pods_state", "checkpoints", "cpu_manager_state"),
    *("device-plugins", "dra_manager_state", "memory_manager_state", "plugins", "plugins_registry"),
    *("pod-resources", "pods", "usernamespaces"),
)

BY_ITSELF = (
    Lively(Aspect.PATH, "/run/containerd", "sockets and tasks of the runtime, for as long as it runs"),
    Lively(Aspect.PATH, "/run/crio", "sockets of the runtime in CRI-O's place"),
    Lively(Aspect.PATH, "/run/runc", "states of running containers"),
    Lively(Aspect.PATH, "/run/pods", "volumes and logs of the pods that run"),
    Lively(Aspect.PATH, "/run/standin-kubelet", "what the stand-in kubelet has told of its pods"),
    *(Lively(Aspect.PATH, f"/var/lib/kubelet/{name}", "a real kubelet's state") for name in STATE),
    Lively(Aspect.PATH, "/run/netns", "network namespaces of pods"),
    Lively(Aspect.PATH, "/run/credentials", "of services, while they start"),
    Lively(Aspect.PATH, "/run/dbus", "the bus recreates its socket at each boot"),
    Lively(Aspect.PATH, "/run/host", "nspawn's, recreated at each boot"),
    Lively(Aspect.PATH, "/run/log/journal", "whatever runs is logged"),
    Lively(Aspect.PATH, "/run/nologin", "systemd's, until a boot or from a shutdown on"),
    Lively(Aspect.PATH, "/run/utmp", "boots and shutdowns are noted in it"),
    Lively(Aspect.PATH, "/run/systemd/generator*", "rewritten at each reload, from what is elsewhere"),
    Lively(Aspect.PATH, "/run/systemd/journal", "journald's sockets, and a stream for each unit that runs"),
    Lively(Aspect.PATH, "/run/systemd/propagate", "a mount point for each unit with namespaces of its own"),
    Lively(Aspect.PATH, "/run/systemd/show-status", "systemd's own state"),
    Lively(Aspect.PATH, "/run/systemd/systemd-units-load", "touched at each reload"),
    Lively(Aspect.DIRECTORY, "/run/systemd/transient", "stays when a transient unit has gone"),
    Lively(Aspect.PATH, "/run/systemd/units", "the invocation of each unit that runs"),
    Lively(Aspect.PATH, "/var/lib/containerd", "the runtime's store, a file system of its own"),
    Lively(Aspect.PATH, "/var/lib/systemd", "random seed and timers' stamps"),
    Lively(Aspect.PATH, "/var/log/journal", "whatever runs is logged"),
    Lively(Aspect.PATH, "/var/log/wtmp", "boots and shutdowns are noted in it"),
    Lively(Aspect.TIME, "/run/*", "it is recreated at each boot"),
    Lively(Aspect.TIME, "/tmp/*", "it is recreated at each boot"),
    Lively(Aspect.TIME, "directory", "a file that is made in one and removed again leaves its time there"),
    Lively(
        Aspect.TIME,
        "ours",
        "an original is given back under a new time: systemd would not see a unit file with an old one",
    ),
    Lively(
        Aspect.TIME,
        "*.wants/cri-resource-manager.service",
        "enabled again if it was before us: systemd recreates the link",
    ),
    Lively(Aspect.PROPERTY, "*Timestamp*", "when it was started or changed its state"),
    Lively(Aspect.PROPERTY, "InvocationID", "other after each start"),
    Lively(Aspect.PROPERTY, "ControlGroupId", "other after each start"),
    Lively(Aspect.PROPERTY, "*MainPID", "other after each start"),
    Lively(Aspect.PROPERTY, "ControlPID", "a command of its start may be running"),
    Lively(Aspect.PROPERTY, "NRestarts", "it may have died, or its runtime was away, at a boot"),
    Lively(Aspect.PROPERTY, "Memory[AC]*", "what it uses, and what is free"),
    Lively(Aspect.PROPERTY, "Memory*Peak", "what it has used"),
    Lively(Aspect.PROPERTY, "*Current", "what it uses"),
    Lively(Aspect.PROPERTY, "CPUUsageNSec", "what it uses"),
    Lively(Aspect.PROPERTY, "IO*Bytes", "what it uses"),
    Lively(Aspect.PROPERTY, "IO*Operations", "what it uses"),
)

#: Its `Exec` lines say when they ran last, and as which process.
OF_A_RUN = re.compile(r" (?:start_time|stop_time|pid|code|status)=[^;}]*[;}]")


def _any_of(aspect: Aspect, below: str) -> re.Pattern[str]:
    patterns = [fnmatch.translate(entry.pattern) for entry in BY_ITSELF if entry.aspect is aspect]
    # translate() ends each with \Z: what may follow comes before it.
    return re.compile("|".join(pattern.removesuffix(r"\Z") + below + r"\Z" for pattern in patterns))


_PATH = _any_of(Aspect.PATH, "(?s:/.*)?")
_DIRECTORY = _any_of(Aspect.DIRECTORY, "")
_TIME = _any_of(Aspect.TIME, "")
_PROPERTY = _any_of(Aspect.PROPERTY, "")


def changes_by_itself(path: str) -> bool:
    """Whether what is at a path, and below it, may differ."""
    return _PATH.match(path) is not None


def comes_by_itself(path: str) -> bool:
    """Whether a directory may be there or not; what is in it may not differ."""
    return _DIRECTORY.match(path) is not None


def time_changes_by_itself(path: str) -> bool:
    """Whether the time of modification of a path may differ."""
    return _TIME.match(path) is not None


def property_changes_by_itself(name: str) -> bool:
    """Whether a property of kubelet's unit may differ."""
    return _PROPERTY.match(name) is not None
