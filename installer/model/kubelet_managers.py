"""What kubelet's own static CPU and memory managers have assigned, as far as it matters to us.

kubelet keeps it in /var/lib/kubelet/cpu_manager_state and memory_manager_state: JSON with `policyName`
(`none` or `static`; `None` or `Static`), and of a static CPU manager `defaultCpuSet` and `entries`: pod UID,
container, CPUs (k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state, since 1.18).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from installer.model.jsontext import parse_json


@dataclass(frozen=True, slots=True)
class KubeletManagers:
    """`shared` are the CPUs of all containers without a set of their own, empty unless the CPU manager is
    static. `assigned`: (pod UID, container) -> its CPUs. `assigns_memory`: the memory manager is static."""

    shared: str = ""
    assigned: Mapping[tuple[str, str], str] = field(default_factory=dict)
    assigns_memory: bool = False

    def cpus_of(self, pod_uid: str, name: str) -> str:
        """The CPUs of a container, empty where the CPU manager assigns none."""
        return self.assigned.get((pod_uid, name), self.shared)


NO_MANAGERS = KubeletManagers()


def parse_managers(cpu: bytes | None, memory: bytes | None) -> KubeletManagers:
    """From the two files' content, None if there is no file. Damaged ones count as missing: so they do for
    kubelet, which then refuses to start."""
    found, assigns_memory = _load(cpu), _load(memory).get("policyName") == "Static"
    if found.get("policyName") != "static":
        return KubeletManagers(assigns_memory=assigns_memory)
    entries = found.get("entries")
    return KubeletManagers(
        shared=str(found.get("defaultCpuSet") or ""),
        assigned={
            (uid, name): str(cpus)
            for uid, pod in (entries.items() if isinstance(entries, dict) else ())
            for name, cpus in (pod.items() if isinstance(pod, dict) else ())
        },
        assigns_memory=assigns_memory,
    )


def _load(raw: bytes | None) -> dict[str, object]:
    try:
        found = parse_json((raw or b"{}").decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
