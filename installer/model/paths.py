"""Absolute host paths, to be resolved below the host root.

The paths are upstream's where upstream has one, so that people find what they know.
"""

from __future__ import annotations

from collections.abc import Iterable

PROXY_UNIT = "cri-resource-manager.service"

BINARY = "/opt/intel/bin/cri-resmgr"
GUARD = "/opt/intel/bin/cri-resmgr-kubelet-guard"
PROXY_UNIT_FILE = "/etc/systemd/system/cri-resource-manager.service"
LINKS = "/etc/systemd/system"  # holds the links that enable units, also in subdirectories (systemctl(1))
WANTS = f"{LINKS}/multi-user.target.wants"  # earlier versions of ours enabled the proxy unit there
PROXY_WANTED = f"{WANTS}/{PROXY_UNIT}"
PROXY_ENVIRONMENT = "/etc/default/cri-resource-manager"
FALLBACK_CONFIG = "/etc/cri-resmgr/fallback.cfg"
FORCE_CONFIG = "/etc/cri-resmgr/force.cfg"
EXTRA_OPTIONS = "/etc/cri-resmgr/EXTRA_OPTIONS.cfg"
CONFIG_FILES = (FALLBACK_CONFIG, FORCE_CONFIG, EXTRA_OPTIONS)
KUBELET_ENVIRONMENT = "/etc/cri-resmgr/kubelet.env"
KUBELET_COMPOSED = "/run/cri-resmgr-installer/kubelet.env"
KUBELET_USED = f"{KUBELET_COMPOSED}.used"  # renamed to this once kubelet has read it
RELAY_START = (
    "/run/cri-resmgr-installer/relay-start"  # written by the guard when it starts kubelet on the relay
)
RELAY_FAILURES = "/run/cri-resmgr-installer/relay-failures"  # the guard's count of kubelet's failed starts
# For the guard: a flag that there may be pods and containers that the proxy does not know; flags that the
# next start of the proxy, or of kubelet, is ours; the configuration of a start by anyone else in that case.
CONTAINERS_UNKNOWN = "/run/cri-resmgr-installer/containers-unknown"
PROXY_START_OURS = "/run/cri-resmgr-installer/proxy-start-ours"
KUBELET_START_OURS = "/run/cri-resmgr-installer/kubelet-start-ours"
SPARING_CONFIG = "/run/cri-resmgr-installer/none.cfg"
DROP_IN_NAME = "90-cri-resmgr.conf"
OUR_FILES = (
    BINARY,
    GUARD,
    PROXY_UNIT_FILE,
    PROXY_ENVIRONMENT,
    FALLBACK_CONFIG,
    FORCE_CONFIG,
    EXTRA_OPTIONS,
    KUBELET_ENVIRONMENT,
)
"""All files that may be installed, except the drop-in, whose path depends on the settings."""

RELAY_SOCKET = "/var/run/cri-resmgr/cri-resmgr.sock"
RELAY_ENDPOINT = f"unix://{RELAY_SOCKET}"
# In a directory of their own: whoever may write to the relay's directory can serve kubelet in the proxy's
# place. cri-resmgr creates it (pkg/cri/resource-manager/config/server.go of v0.8 - v0.9.2).
AGENT_DIRECTORY = "/var/run/cri-resmgr/agent"
AGENT_SOCKET = f"{AGENT_DIRECTORY}/cri-resmgr-agent.sock"  # the agent listens
CONFIG_SOCKET = f"{AGENT_DIRECTORY}/cri-resmgr-config.sock"  # the proxy listens
RELAY_NAME = "cri-resmgr/cri-resmgr.sock"  # part of every spelling of the relay
PROXY_PID_FILE = "/run/cri-resmgr.pid"  # names the process that serves
PROXY_STATE = ("/var/lib/cri-resmgr", "/run/cri-resmgr", PROXY_PID_FILE)
PROXY_CACHE = "/var/lib/cri-resmgr/cache"
TORN_CACHE = f"{PROXY_CACHE}.torn"  # a cache that no start can read is moved here
KUBELET_ROOT = "/var/lib/kubelet"  # unless kubelet has --root-dir
# Below that:
CPU_MANAGER_STATE = "cpu_manager_state"
ALLOCATED_PODS = "allocated_pods_state"
MEMORY_MANAGER_STATE = "memory_manager_state"

TEMPORARY = ".cri-resmgr-installer"
"""Suffix of temp files: `.NAME.cri-resmgr-installer` is renamed to NAME in the same directory."""
OUR_STATE = "/var/lib/cri-resmgr-installer"
OUR_RUNTIME = "/run/cri-resmgr-installer"
# Kubelet's endpoint: a link to the relay's socket or to its base endpoint's.
ENDPOINT_DIRECTORY = f"{OUR_RUNTIME}/endpoint"
PASS_UNIT = "cri-resmgr-installer-pass.service"
PASS_LOG = f"{OUR_RUNTIME}/pass.json"  # tells `run` what the pass in that unit has done so far
RECORD = f"{OUR_STATE}/record.json"
OBJECTS = f"{OUR_STATE}/objects"
HOLD = f"{OUR_STATE}/hold"
HOLDS = (HOLD, f"{OUR_RUNTIME}/hold")  # the second is for a disk that takes no file; a reboot ends it
RUN = "/run"
LOCK = "/run/cri-resmgr-installer.lock"
SYSTEM_BUS = "/run/dbus/system_bus_socket"

# Where systemd looks for units and drop-ins (systemd.unit(5)).
CONTROL_UNITS, USUAL_UNITS = "/etc/systemd/system.control", "/etc/systemd/system"
AUTO = "auto"  # our drop-in goes to one of these two
UNIT_DIRECTORIES = (
    CONTROL_UNITS,
    USUAL_UNITS,
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
# Those that may change while the host runs.
CHANGING_UNIT_DIRECTORIES = UNIT_DIRECTORIES[:4]

_PATH_LIMIT, _NAME_LIMIT = 4096, 255  # bytes: linux/limits.h

GENERATION_VARIABLE = "CRI_RESMGR_INSTALLER_GENERATION"
GUARD_VARIABLE = "CRI_RESMGR_GUARD_VARIABLE"  # names the variable that the guard composes
PENDING = "pending-"  # prefix of a generation whose files are not all in place yet
UNIT_VARIABLE = "CRI_RESMGR_INSTALLER_UNIT"


def drop_in(directory: str, unit: str) -> str:
    """The host path of our drop-in for kubelet's unit in the unit directory `directory`."""
    return f"{directory}/{unit}.d/{DROP_IN_NAME}"


def drop_in_units(found: Iterable[str]) -> list[str]:
    """The units to which those of these paths belong that are drop-ins of ours."""
    ours = (path for path in found if path.endswith(f".d/{DROP_IN_NAME}"))
    return [path.split("/")[-2].removesuffix(".d") for path in ours]


def drop_in_directories(setting: str) -> tuple[str, ...]:
    """Every directory that this value of `kubelet.dropInDirectory` may lead to, on any machine."""
    return (CONTROL_UNITS, USUAL_UNITS) if setting == AUTO else (setting,)


_OF_CRIO = "run/crio/crio.sock"
ENDPOINT_LINKS = (f"{ENDPOINT_DIRECTORY}/containerd.sock", f"{ENDPOINT_DIRECTORY}/{_OF_CRIO}")


def endpoint_link(base: str) -> str:
    """The link that kubelet gets as its endpoint, of a kubelet with this base endpoint. It ends as CRI-O's
    socket where that does: then kubelet takes its statistics from cadvisor (pkg/kubelet/cadvisor of
    Kubernetes)."""
    crio = normalise_endpoint(base).endswith(_OF_CRIO)
    return ENDPOINT_LINKS[crio]


def link_of(endpoint: str) -> str:
    """The path of our link that this endpoint names; empty if it names anything else."""
    path = normalise_endpoint(endpoint)
    return path if path.startswith(f"{ENDPOINT_DIRECTORY}/") else ""


def same_endpoint(one: str, other: str) -> bool:
    """Whether two spellings name the same socket: with or without `unix://`, /var/run or /run."""
    return normalise_endpoint(one) == normalise_endpoint(other)


def normalise_endpoint(endpoint: str) -> str:
    """The absolute path of an endpoint's socket, without `unix://` and superfluous slashes, and with /run for
    /var/run."""
    path = endpoint.removeprefix("unix:")
    if path.startswith("/"):
        path = "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def is_clean(path: str) -> bool:
    """Whether it is an absolute path in normal form, below the root, and short enough for every file
    system."""
    names = path.split("/")[1:]
    return (
        path.startswith("/")
        and len(path.encode()) < _PATH_LIMIT
        and all(name not in ("", ".", "..") and len(name.encode()) <= _NAME_LIMIT for name in names)
        and "\0" not in path
    )
