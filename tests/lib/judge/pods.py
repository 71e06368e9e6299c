"""Pods as kubelet asks for them, and the lists of them that both programs place, one after the other."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from tests.lib.judge.machines import MEMORY

OLD = "cri-resource-manager.intel.com"


@dataclass(frozen=True, slots=True)
class Container:
    """Milli-CPUs and MiB; 0 for none."""

    name: str = "main"
    request: int = 0
    limit: int = 0
    memory: int = 0
    memory_limit: int = 0


@dataclass(frozen=True, slots=True)
class Pod:
    """`annotations` are cri-resmgr's."""

    name: str
    containers: tuple[Container, ...]
    namespace: str = "default"
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def qos(self) -> str:
        """Its class, as kubelet finds it."""
        if not any(
            each.request or each.limit or each.memory or each.memory_limit for each in self.containers
        ):
            return "BestEffort"
        sure = all(
            each.limit
            and each.memory_limit
            and (each.request, each.memory) == (each.limit, each.memory_limit)
            for each in self.containers
        )
        return "Guaranteed" if sure else "Burstable"

    @property
    def uid(self) -> str:
        """One that cgroups can have."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.namespace}/{self.name}"))

    @property
    def cgroup_parent(self) -> str:
        """Below the cgroup of its class; that of Guaranteed pods is the root of all."""
        above = "" if self.qos == "Guaranteed" else f"/{self.qos.lower()}"
        return f"/kubepods{above}/pod{self.uid}"

    def oom_score(self, container: Container) -> int:
        """What kubelet writes."""
        if self.qos != "Burstable":
            return -997 if self.qos == "Guaranteed" else 1000
        return min(max(1000 - 1000 * container.memory * 1024 // MEMORY, 3), 999)


def shares(container: Container) -> int:
    """Of its request, as kubelet converts it."""
    return max(2, (container.request or container.limit) * 1024 // 1000)


def prefers_sharing(pod: Pod, container: Container) -> bool:
    """Whether cri-resmgr lets the container share CPUs because of an annotation: its older form counts only
    without any of the newer one."""
    newer = f"prefer-shared-cpus.{OLD}"
    for key in (f"{newer}/container.{container.name}", f"{newer}/pod", newer):
        if key in pod.annotations:
            return pod.annotations[key].lower() in ("1", "t", "true")
    text = pod.annotations.get(f"{OLD}/prefer-shared-cpus", "false")
    older = yaml.safe_load(text)
    if not isinstance(older, dict) or any(isinstance(each, dict | list) for each in older.values()):
        return text == "true"
    return older.get(container.name) in (True, "true")


def sure(name: str, cpu: int, count: int = 1, namespace: str = "default", **annotations: str) -> Pod:
    """Guaranteed: what it asks for is its limit."""
    each = [Container(f"c{number}", cpu, cpu, 64, 64) for number in range(count)]
    return Pod(name, tuple(each), namespace, _full(annotations))


def bursts(name: str, cpu: int, count: int = 1, namespace: str = "default", **annotations: str) -> Pod:
    """Burstable, without a limit."""
    each = [Container(f"c{number}", cpu, 0, 64) for number in range(count)]
    return Pod(name, tuple(each), namespace, _full(annotations))


def modest(name: str, count: int = 1, namespace: str = "default", **annotations: str) -> Pod:
    """BestEffort."""
    return Pod(name, tuple(Container(f"c{each}") for each in range(count)), namespace, _full(annotations))


def _full(annotations: Mapping[str, str]) -> dict[str, str]:
    """`rdtclass="x"` is for the whole pod."""
    return {
        f"{key.replace('__', '.').replace('_', '-')}.{OLD}/pod": each for key, each in annotations.items()
    }


_OF_ONE = {
    f"balloon.balloons.{OLD}/container.c0": "fast",
    f"balloon.balloons.{OLD}/pod": "dual",
    f"pool.podpools.{OLD}/container.c0": "fast",
}
_LISTS: Mapping[str, tuple[Pod, ...]] = {
    "one of each class": (sure("g", 2000), bursts("b", 500), modest("e")),
    "the system first": (
        bursts("dns", 100, namespace="kube-system"),
        modest("proxy", namespace="kube-system"),
        sure("g", 1000),
        bursts("b", 250, count=2),
    ),
    "many small": (*(bursts(f"b{number}", 200) for number in range(6)), modest("e1"), modest("e2")),
    "exclusive": (sure("g1", 2000), sure("g2", 1000), sure("g3", 3000), bursts("b", 1000)),
    "mixed fractions": (sure("g1", 1500), sure("g2", 2500), bursts("b", 1500), modest("e")),
    "pods of several": (sure("g", 1000, count=3), bursts("b", 300, count=3), modest("e", count=2)),
    "namespaces": (
        sure("g", 1000, namespace="team-a"),
        bursts("b", 500, namespace="team-b"),
        modest("e", namespace="team-a"),
        bursts("m", 100, namespace="monitoring"),
        bursts("s", 100, namespace="kube-system"),
    ),
    "more than there is": (*(sure(f"g{number}", 3000) for number in range(5)), bursts("b", 500), modest("e")),
    "by annotation": (
        Pod("shared", sure("", 2000).containers, annotations={f"{OLD}/prefer-shared-cpus": "c0: true"}),
        sure("isolated", 1000, prefer_isolated_cpus="true"),
        bursts("kept", 200, prefer_reserved_cpus="true"),
        bursts("cold", 200, memory_type="dram"),
        sure("plain", 1000),
    ),
    "by class and pool": (
        sure("gold", 1000, rdtclass="gold", blockioclass="gold"),
        bursts("unknown", 300, rdtclass="nosuch", blockioclass="nosuch"),
        bursts("fast", 500, balloon__balloons="fast", pool__podpools="fast"),
        sure("dual", 2000, balloon__balloons="dual", pool__podpools="dual"),
        Pod("both", bursts("", 200, 2).containers, annotations=_OF_ONE),
        modest("e"),
        bursts("s", 100, namespace="kube-system", balloon__balloons="fast", pool__podpools="fast"),
    ),
}

_SHARED, _ISOLATED = "prefer-shared-cpus", "prefer-isolated-cpus"
_FORMS: Mapping[str, Mapping[str, str]] = {
    "a mapping, and for the pod": {f"{OLD}/{_SHARED}": "c0: true", f"{_SHARED}.{OLD}/pod": "false"},
    "a mapping, and without a scope": {f"{OLD}/{_SHARED}": "c0: true", f"{_SHARED}.{OLD}": "false"},
    "for all, and for a container": {f"{OLD}/{_SHARED}": "true", f"{_SHARED}.{OLD}/container.c0": "false"},
    "for all, and without a scope": {f"{OLD}/{_SHARED}": "true", f"{_SHARED}.{OLD}": "false"},
    "a mapping": {f"{OLD}/{_SHARED}": "c0: yes"},
    "for the pod and a container": {f"{_SHARED}.{OLD}/pod": "1", f"{_SHARED}.{OLD}/container.c0": "false"},
    "neither true nor false": {f"{_SHARED}.{OLD}/pod": "yes"},
    "a number": {f"{OLD}/{_SHARED}": "1"},
    "a mapping with one value that cannot be read": {f"{OLD}/{_SHARED}": "c0: true\nc1: maybe"},
    "a mapping with a number": {f"{OLD}/{_SHARED}": "c0: 1\nc1: true"},
    "a mapping with nothing": {f"{OLD}/{_SHARED}": "c0:\nc1: true"},
    "a mapping with a list": {f"{OLD}/{_SHARED}": "c0: true\nc1: [true]"},
    "a mapping of texts": {f"{OLD}/{_SHARED}": "c0: 'true'\nc1: 'True'"},
    "a mapping without a space": {f"{OLD}/{_SHARED}": "c0:true"},
    "in capitals": {f"{OLD}/{_SHARED}": "TRUE"},
    "isolated, a mapping": {f"{OLD}/{_ISOLATED}": "c0: true"},
    "isolated, a mapping of texts": {f"{OLD}/{_ISOLATED}": "c0: 'true'"},
    "isolated, a mapping with nothing": {f"{OLD}/{_ISOLATED}": "c0:\nc1: true"},
    "isolated, a mapping with a text": {f"{OLD}/{_ISOLATED}": "c0: false\nc1: maybe"},
    "isolated, for all": {f"{OLD}/{_ISOLATED}": "true"},
    "isolated, a number": {f"{OLD}/{_ISOLATED}": "1"},
    "reserved, but for one": {
        f"prefer-reserved-cpus.{OLD}/pod": "true",
        f"prefer-reserved-cpus.{OLD}/container.c1": "false",
    },
    "affinity": {f"{OLD}/affinity": "c1: [c0]", f"{OLD}/anti-affinity": "c0: [c1]"},
    "no hints": {f"topologyhints.{OLD}/pod": "false"},
    "memory in capitals": {f"memory-type.{OLD}/pod": "DRAM"},
    "memory that is not there": {f"memory-type.{OLD}/pod": "hbm"},
    "a cold start": {f"{OLD}/cold-start": "c0: {duration: 60s}", f"{OLD}/memory-type": "c0: dram,pmem"},
    "a cold start of two hours": {f"cold-start.{OLD}/pod": "duration: 2h"},
    "a cold start without a duration": {f"cold-start.{OLD}/container.c0": "60s"},
    "memory in a list": {f"{OLD}/memory-type": "c0: [dram]"},
    "memory of one container": {f"{OLD}/memory-type": "c0:\nc1: dram"},
    "a balloon": {f"balloon.balloons.{OLD}/pod": "fast"},
    "a balloon for one": {f"balloon.balloons.{OLD}/container.c1": "fast"},
    "a pool": {f"pool.podpools.{OLD}/pod": "fast"},
    "a pool without a scope": {f"pool.podpools.{OLD}": "fast"},
    "a balloon, and another pool": {f"balloon.balloons.{OLD}": "fast", f"pool.podpools.{OLD}": "dual"},
    "a misspelt class": {f"rdt-class.{OLD}/container.c0": "gold"},
}
ANNOTATED = {
    name: (
        modest("probe", namespace="kube-system"),
        Pod("g", sure("", 2000, 2).containers, annotations=annotations),
        Pod("b", bursts("", 500, 2).containers, annotations=annotations),
        modest("e"),
    )
    for name, annotations in _FORMS.items()
}
"""The forms that an annotation can have, and what people have written; by name."""

POD_LISTS = {name: (modest("probe", namespace="kube-system"), *pods) for name, pods in _LISTS.items()}
"""By name; the first pod of each has the CPUs that are reserved."""
