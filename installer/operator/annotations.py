"""Translates cri-resmgr's annotations of workloads into those of nri-plugins. A running pod cannot get any:
they go into the templates beforehand, beside the old ones, which cri-resmgr reads until it is gone.

Upstream's own guide keeps forms that no plugin reads today, and so loses pinning without a message.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.yaml_document import parse_document
from installer.operator.api import ApiError, KubeApi, Resource
from installer.operator.kube_objects import Object, items_at, mapping_at, text_at
from installer.operator.nri_table import Grade, find_row, load_table
from installer.operator.translate import Entry

_OLD = "cri-resource-manager.intel.com"
_WEBHOOKS = "intel.com/resources"  # written by cri-resmgr's webhook
_EACH = "/each"


@dataclass(frozen=True, slots=True)
class Workload:
    """`report` says of each old annotation what becomes of it, `annotations` are the new ones. `patch`: the
    command that adds them, or a comment that says why there is none. `ready`: its pods have them already."""

    name: str
    report: tuple[Entry, ...]
    annotations: Mapping[str, str]
    patch: str
    ready: bool


def find_workloads(api: KubeApi) -> Iterator[Workload]:
    """Yield those of all namespaces that have an annotation of cri-resmgr. An object with an owner follows
    its owner. Raises ApiError."""
    for name, path in load_table().workloads.items():
        kind = Resource(*name.split("/"))
        for each in api.list_objects(kind):
            if not any(True for _ in items_at(each, "metadata", "ownerReferences")):
                yield from _translate_workload(kind, path, each)


def find_unready(api: KubeApi) -> tuple[str, ...]:
    """Return the workloads whose pods still lack a new annotation; none where they may not be listed."""
    try:
        return tuple(each.name for each in find_workloads(api) if not each.ready)
    except ApiError:
        return ()


def _translate_workload(kind: Resource, path: Sequence[str], workload: Object) -> Iterator[Workload]:
    template = mapping_at(workload, *path)
    old = mapping_at(template, "metadata", "annotations")
    namespace, name = (text_at(workload, "metadata", key) for key in ("namespace", "name"))
    title = f"{namespace}/{kind.plural}/{name}"
    containers = [text_at(each, "name") for each in items_at(template, "spec", "containers")]
    new, report = translate_annotations(old, containers, title)
    if not report:
        return
    body: Any = {"metadata": {"annotations": new}}
    for key in reversed(path):
        body = {key: body}
    words = ["-n", namespace, "patch", kind.plural, name, "--type", "merge", "-p", json.dumps(body)]
    patch = shlex.join(["kubectl", *words])
    if not new:
        patch = f"# {title}: no plugin has an equivalent of its annotations"
    elif kind.plural in ("jobs", "pods"):
        patch = f"# {title} cannot be changed: recreate it with {json.dumps(new)}"
    yield Workload(title, report, new, patch, new.keys() <= old.keys())


def translate_annotations(
    old: Mapping[str, Any], containers: Sequence[str], title: str
) -> tuple[dict[str, str], tuple[Entry, ...]]:
    """Return the new annotations, and what became of each old one that cri-resmgr, or its webhook, reads."""
    new: dict[str, str] = {}
    report = []
    # The form with a domain of its own takes precedence over the older one, and so comes last.
    for key, value in sorted(old.items(), key=lambda each: (not each[0].startswith(f"{_OLD}/"), each[0])):
        if _OLD in key or key == _WEBHOOKS:
            grade, into, note = _translate(key, str(value), containers)
            new |= into
            report.append(Entry(title, (key,), grade, tuple(into), note))
    return new, tuple(report)


def _translate(key: str, value: str, containers: Sequence[str]) -> tuple[Grade, dict[str, str], str]:
    row, places = find_row(load_table().rows["annotations"], tuple(key.split("/")), value)
    into = {"/".join(place): value for place in places}
    each = next((target.removesuffix(_EACH) for target in into if target.endswith(_EACH)), "")
    return _expand(each, value, containers) if each else (row.grade, into, row.note)


def _expand(target: str, value: str, containers: Sequence[str]) -> tuple[Grade, dict[str, str], str]:
    """Translate the form whose value is a YAML mapping of containers, or one value for all of them."""
    try:
        data = parse_document(value.encode("utf-8", "replace"), "value").data
    except InvalidInputError as error:
        return Grade.LOST, {}, f"is not YAML, and had no effect: {error.message}"
    if not isinstance(data, dict):
        return Grade.EXACT, {f"{target}/pod": value}, ""
    into = {
        f"{target}/container.{each}": text if isinstance(text, str) else json.dumps(text)
        for each, text in data.items()
    }
    absent = sorted(set(map(str, data)) - set(containers))
    return Grade.EXACT, into, f"no container is named {', '.join(absent)}" if absent else ""
