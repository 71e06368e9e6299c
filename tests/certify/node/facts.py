"""Hosts of other kinds: what a port says there, by a file that only the world reads, and files of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from installer.model import paths
from tests.faults.disks.crash import Entry, Tree
from tests.faults.disks.node import bare_node

FACTS = "/srv/facts"
_UNITS = "/etc/systemd/system"


def parse_facts(raw: bytes | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw) if raw else {}
    return found


def _host(
    facts: Mapping[str, object] | None = None,
    files: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    without: str = "",
) -> Callable[[], Tree]:
    def tree() -> Tree:
        found = {path: one for path, one in bare_node().items() if path != without}
        made = {path: Entry("f", 0o644, text.encode()) for path, text in (files or {}).items()}
        made |= {path: Entry("l", 0, target=target) for path, target in (links or {}).items()}
        if facts:
            made[FACTS] = Entry("f", 0o644, json.dumps(facts).encode())
        for path, entry in made.items():
            above = path.rpartition("/")[0]
            while above and above not in found:
                found[above] = Entry("d", 0o755)
                above = above.rpartition("/")[0]
            found[path] = entry
        return found

    return tree


def _service(name: str) -> dict[str, str]:
    return {f"{_UNITS}/{name}": "[Service]\nExecStart=/bin/true\n"}


_LEFTOVERS = [["old", "uid-c0", "c0", "ns/pod/c0"], ["new", "uid-c9", "c9", "ns/pod/c9"]]
_FREQUENCY = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq"
_NRI = "0000: 00000002 00000000 00010000 0001 01 123 /run/nri/nri.sock\n"
_POD = "/sys/fs/cgroup/blkio/c0"

#: Each is tried once.
HOSTS: dict[str, Callable[[], Tree]] = {
    "no space": _host({"free": {"/opt/intel/bin": 1}}),
    "no space in /run": _host({"free": {"/run": 1}}),
    "no space for the cache": _host({"free": {paths.PROXY_STATE[0]: 1}}),
    "read-only units": _host({"unwritable": {_UNITS: "its file system is mounted read-only"}}),
    "read-only configuration": _host({"unwritable": {"/etc/default": "no permission to write to it"}}),
    "no programs": _host({"unwritable": {"/opt/intel/bin": "its file system is mounted noexec"}}),
    "immutable": _host({"unwritable": {paths.FALLBACK_CONFIG: "it is immutable (chattr +i)"}}),
    "exposed": _host({"exposed": {"/opt/intel": "anybody may write there"}}),
    "exposed runtime directory": _host({"exposed": {paths.OUR_RUNTIME: "anybody may write there"}}),
    "a runtime directory of others": _host({"seals": "belonged to 1000"}),
    "a runtime directory that cannot be sealed": _host({"seals": ""}),
    "bottlerocket": _host(files={"/etc/os-release": "ID=bottlerocket\n"}),
    "gardener": _host(files=_service("gardener-node-agent.service")),
    "nodeadm": _host(files=_service("nodeadm-run.service")),
    "openshift": _host(files=_service("machine-config-daemon-pull.service")),
    "k3s": _host(files=_service("k3s.service"), without=f"{_UNITS}/kubelet.service"),
    "no kubelet": _host(without=f"{_UNITS}/kubelet.service"),
    "a unit in error": _host({"load_state": "error"}),
    "a unit that is merged": _host({"load_state": "merged"}),
    "another machine": _host({"architecture": "aarch64"}),
    "few CPUs": _host({"cpus": "0"}),
    "a kubelet of the future": _host({"kubelet": "v1.38.0"}),
    "a new kubelet": _host({"kubelet": "v1.33.1", "extras": ["features"], "autoscaled": True}),
    "a kubelet without a number": _host({"kubelet": "mine"}),
    "another healthz": _host({"foreign": True}),
    "a busy host": _host({"holder": "`install`, pid 7"}),
    "a kubelet that has been ill": _host({"age": 1000}, files={"/srv/nature": "ill"}),
    "a kubelet that has been well": _host({"age": 1000}),
    "a runtime of few words": _host({"creation": None}),
    "a runtime of fewer words": _host({"creation": None, "created": None}),
    "a container without a cgroup": _host({"cgroup": None}),
    "a runtime that refuses": _host({"refusals": {"c0": "no"}}),
    "a runtime that ignores": _host({"ignores": True}),
    "a container with too little": _host({"low": True}),
    "leftovers": _host({"unstarted": _LEFTOVERS}),
    "containers through the proxy": _host({"through": True}),
    "containers with throttles": _host(
        {"enforced": {"blkio": _POD}}, files={f"{_POD}/blkio.throttle.read_bps_device": "8:0 1048576\n"}
    ),
    "resctrl": _host(
        files={
            "/sys/fs/resctrl/schemata": "L3:0=ff\n",
            "/sys/fs/resctrl/mon_groups/cri-resmgr.c0/tasks": "",
            "/sys/fs/resctrl/theirs/mon_groups/cri-resmgr.c1/tasks": "",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq": "800000\n",
        }
    ),
    "a /run of its own": _host(links={}, files={"/var/run/something": ""}, without="/var/run"),
    "links that lead away": _host(
        links={
            paths.FORCE_CONFIG: "../../../../x",
            "/usr/bin/kubelet": "../../../../x",
            paths.RECORD: "../../../../../x",
            f"/var/lib/kubelet/{paths.CPU_MANAGER_STATE}": "../../../../../x",
        }
    ),
    "directories that lead away": _host(
        links={
            "/opt/intel": "../../../../x",
            paths.PROXY_STATE[0]: "../../../../x",
            f"/var/lib/kubelet/{paths.ALLOCATED_PODS}": "../../../../../x",
            "/usr/local/lib/systemd/system": "../../../../../../x",
        }
    ),
    "an old kubelet": _host({"kubelet": "v1.28.2"}),
    "a newer kubelet": _host({"kubelet": "v1.31.0"}),
    "a runtime that ignores too little": _host({"low": True, "ignores": True}),
    "containers with CPUs": _host({"created with": {"cpus": "1", "mems": "1", "shares": 524}}),
    "rounded weights": _host(
        {
            "through": True,
            "rounded": True,
            "creation": {"cpu_shares": 500},
            "created with": {"shares": 500},
            "enforced": {"shares": 499},
        }
    ),
    "a container without a place": _host({"unplaced": "c0"}),
    "guaranteed containers": _host({"parent": "/kubepods/pod-1"}),
    "unknown CPUs": _host({"enforced": {"free_cpus": "all"}}),
    "a CPU that is offline": _host({"offline": [_FREQUENCY]}, files={_FREQUENCY: "1\n"}),
    "a kernel that refuses": _host(
        {"kernel refuses": True, "enforced": {"blkio": _POD}},
        files={
            "/sys/fs/resctrl/schemata": "L3:0=ff\n",
            _FREQUENCY: "800000\n",
            f"{_POD}/blkio.weight": "80\n",
        },
    ),
    "containers with weights": _host(
        {"enforced": {"blkio": _POD}, "created_io": {"blkio.throttle.read_bps_device": {"8:0": "1"}}},
        files={
            f"{_POD}/blkio.throttle.read_bps_device": "8:0 1\n8:1 2\n",
            f"{_POD}/blkio.weight": "80\n",
            f"{_POD}/blkio.bfq.weight": "100\n",
        },
    ),
    "no labels": _host({"unlabelled": [f"{paths.BINARY}: no", f"{paths.GUARD}: no"]}),
    "containers that ask for nothing": _host({"creation": {"cpu_shares": 2}}),
    "containers on one memory node": _host({"enforced": {"cpus": "0-1", "mems": "0"}}),
    "containers on one CPU": _host({"enforced": {"mems": "0-1"}}),
    "a runtime of fewer words, and nothing pinned": _host(
        {"creation": None, "created": None, "enforced": {"cpus": "0-1", "mems": "0-1"}}
    ),
    "NRI": _host(files={"/proc/1/net/unix": _NRI}),
    "assigned CPUs": _host(
        files={f"/var/lib/kubelet/{paths.CPU_MANAGER_STATE}": '{"policyName": "static", "entries": {}}\n'}
    ),
}
HOSTS = {f"host: {name}": tree for name, tree in HOSTS.items()}
