"""cri-resmgr's annotations of workloads as those of nri-plugins. A running pod cannot get any: they go into
the templates beforehand, beside the old ones, which cri-resmgr reads until it is gone.

Upstream's own guide keeps forms that no plugin reads today, and loses pinning without a word.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.yaml_document import parse_document
from installer.operator.api import PAGE, PODS, KubeApi, Resource
from installer.operator.kube_objects import Object, items_at, mapping_at, text_at
from installer.operator.nri_table import Grade
from installer.operator.translate import Entry

_OLD, _NEW = "cri-resource-manager.intel.com", "resource-policy.nri.io"
_KEYS = (
    "prefer-isolated-cpus",
    "prefer-shared-cpus",
    "prefer-reserved-cpus",
    "memory-type",
    "cold-start",
    "rdtclass",
    "blockioclass",
    "topologyhints",
    "balloon.balloons",
)
_RENAMED = {"pool.podpools": "balloon.balloons"}
_AFFINITY = ("affinity", "anti-affinity")
_OTHERS = {"intel.com/resources": "noderesource.dev/resources, which the chart resource-annotator writes"}
_TEMPLATE = ("spec", "template")
_KINDS = {
    Resource("apps", "v1", "daemonsets"): _TEMPLATE,
    Resource("apps", "v1", "deployments"): _TEMPLATE,
    Resource("apps", "v1", "statefulsets"): _TEMPLATE,
    Resource("apps", "v1", "replicasets"): _TEMPLATE,
    Resource("", "v1", "replicationcontrollers"): _TEMPLATE,
    Resource("batch", "v1", "cronjobs"): ("spec", "jobTemplate", "spec", "template"),
    Resource("batch", "v1", "jobs"): _TEMPLATE,
    PODS: (),
}
"""Where each kind has the annotations of its pods. What another one owns follows that one."""
_FIXED = ("jobs", "pods")


@dataclass(frozen=True, slots=True)
class Workload:
    """`found` says of each old annotation what becomes of it, `annotations` are the new ones."""

    name: str
    found: tuple[Entry, ...]
    annotations: Mapping[str, str]
    patch: str

    @property
    def data(self) -> dict[str, Any]:
        return {"workload": self.name, "annotations": dict(self.annotations), "patch": self.patch}


def find_workloads(api: KubeApi) -> Iterator[Workload]:
    """Those of all namespaces with an annotation that cri-resmgr reads. Raises ApiError."""
    for kind, path in _KINDS.items():
        for page in api.list_pages(kind, limit=PAGE):
            for each in page.items:
                if not any(True for _ in items_at(each, "metadata", "ownerReferences")):
                    yield from _workload(kind, path, each)


def _workload(kind: Resource, path: Sequence[str], found: Object) -> Iterator[Workload]:
    template = mapping_at(found, *path)
    old = mapping_at(template, "metadata", "annotations")
    namespace, name = (text_at(found, "metadata", key) for key in ("namespace", "name"))
    title = f"{namespace}/{kind.plural}/{name}"
    containers = [text_at(each, "name") for each in items_at(template, "spec", "containers")]
    new, entries = translate_annotations(old, containers, title)
    if not entries:
        return
    body: Any = {"metadata": {"annotations": new}}
    for key in reversed(path):
        body = {key: body}
    patch = [
        "kubectl",
        "-n",
        namespace,
        "patch",
        kind.plural,
        name,
        "--type",
        "merge",
        "-p",
        json.dumps(body),
    ]
    fixed = f"# {title} cannot be changed: create it anew with {json.dumps(new)}"
    words = fixed if kind.plural in _FIXED else shlex.join(patch)
    yield Workload(title, entries, new, words if new else f"# {title}: nothing of it has a successor")


def translate_annotations(
    old: Mapping[str, Any], containers: Sequence[str], title: str
) -> tuple[dict[str, str], tuple[Entry, ...]]:
    """The new annotations, and what became of each old one that cri-resmgr, or its webhook, reads."""
    new: dict[str, str] = {}
    entries = []
    # The form with a domain of its own wins over the older one, which comes first.
    for key, value in sorted(old.items(), key=lambda each: (not each[0].startswith(f"{_OLD}/"), each[0])):
        if _OLD not in key and key not in _OTHERS:
            continue
        grade, into, note = _translate(key, str(value), containers)
        new |= into
        entries.append(Entry(title, (key,), grade, tuple(into), note))
    return new, tuple(entries)


def _translate(key: str, value: str, containers: Sequence[str]) -> tuple[Grade, dict[str, str], str]:
    domain, _, rest = key.partition("/")
    if key in _OTHERS:
        return Grade.LOST, {}, f"becomes {_OTHERS[key]}"
    if domain == _OLD and rest in _AFFINITY:
        return Grade.EXACT, {f"{_NEW}/{rest}": value}, ""
    if domain == _OLD:
        return _expand(rest, value, containers)
    name = domain.removesuffix(f".{_OLD}")
    scope = f"/{rest}" if rest else ""
    if name in _RENAMED:
        note = "the balloon type has the name of the pool"
        return Grade.APPROXIMATE, {f"{_RENAMED[name]}.{_NEW}{scope}": value}, note
    if name not in _KEYS or not (rest in ("", "pod") or rest.startswith("container.")):
        return Grade.LOST, {}, "no plugin reads it"
    return Grade.EXACT, {f"{name}.{_NEW}{scope}": value}, ""


def _expand(name: str, value: str, containers: Sequence[str]) -> tuple[Grade, dict[str, str], str]:
    """The form with a YAML mapping of containers, or one value for all of them."""
    if name not in _KEYS:
        return Grade.LOST, {}, "no plugin reads it"
    try:
        data = parse_document(value.encode("utf-8", "replace"), name).data
    except InvalidInputError as error:
        return Grade.LOST, {}, f"is not YAML, and had no effect: {error.message}"
    if not isinstance(data, dict):
        return Grade.EXACT, {f"{name}.{_NEW}/pod": value}, ""
    into = {f"{name}.{_NEW}/container.{each}": _text(data[each]) for each in data}
    absent = sorted(set(map(str, data)) - set(containers))
    return Grade.EXACT, into, f"no container is called {', '.join(absent)}" if absent else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
