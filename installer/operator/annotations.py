"""Translates cri-resmgr's annotations of workloads into those of nri-plugins. A running pod cannot get any:
they go into the templates beforehand, beside the old ones, which cri-resmgr reads until it is gone.

Upstream's own guide keeps forms that no plugin reads today, and so loses pinning without a message.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.yaml_document import parse_document
from installer.operator.api import ApiError, KubeApi, Resource
from installer.operator.kube_objects import items_at, mapping_at, text_at
from installer.operator.nri_table import Grade, Row, find_row, load_table
from installer.operator.translate import Entry

_OLD = "cri-resource-manager.intel.com"
_WEBHOOKS = "intel.com/resources"  # written by cri-resmgr's webhook


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
    """Yield those of all namespaces that have an annotation of cri-resmgr. An object follows its owner if we
    read the owner's kind, but for annotations that the owner's template lacks. All other owners are named,
    once for each way in which their pods differ, because only they can have the new ones. Raises ApiError."""
    known = {tuple(path_of_kind.split("/")[::2]) for path_of_kind in load_table()["workloads"]}
    templates, named = dict[tuple[str, ...], Mapping[str, Any]](), set[tuple[object, ...]]()
    for resource, path in load_table()["workloads"].items():
        kind = Resource(*resource.split("/"))
        for given in api.list_objects(kind):
            namespace, name = (text_at(given, "metadata", key) for key in ("namespace", "name"))
            template, owner = mapping_at(given, *path), _owner_of(given)
            old = mapping_at(template, "metadata", "annotations")
            if path:  # a pod makes none
                templates[kind.group, kind.plural, namespace, name] = old
            above = templates.get((*_kind_of(owner), namespace, str(owner.get("name"))))
            if above is None and _kind_of(owner) in known:
                continue
            here = f"{namespace}/{kind.plural}/{name}"
            title = f"{namespace}/{owner['kind']}/{owner.get('name')}" if owner else here
            lists = (items_at(template, "spec", key) for key in ("initContainers", "containers"))
            own = {key: value for key, value in old.items() if key not in (above or ())}
            new, report = translate_annotations(
                own, [text_at(container, "name") for container in chain(*lists)], title
            )
            difference = (title, json.dumps(new), new.keys() <= old.keys())
            if report and difference not in named and (new or above is None):
                named.add(difference)
                patch = _build_patch(namespace, kind.plural, name, path, new)
                if owner and new:
                    patch = _describe_owner(here, owner, new, above is not None)
                yield Workload(title, report, new, patch, new.keys() <= old.keys())


def _owner_of(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reference to what makes the object; empty if nothing does."""
    owners = [*items_at(given, "metadata", "ownerReferences")]
    return next((owner for owner in owners if owner.get("controller")), owners[0] if owners else {})


def _kind_of(owner: Mapping[str, Any]) -> tuple[str, str]:
    """Return its group and the plural of its kind."""
    return str(owner.get("apiVersion", "")).rpartition("/")[0], f"{str(owner.get('kind', '')).lower()}s"


def _describe_owner(what: str, owner: Mapping[str, Any], new: Mapping[str, str], added: bool) -> str:
    """Say where the annotations go. The API server has a static pod's mirror: its Node is the owner.
    `added`: the owner's template lacks the old ones."""
    way = "static" if owner["kind"] == "Node" else "added" if added else "made"
    return str(load_table()["owners"][way]).format(what=what, new=json.dumps(new), **owner)


def find_unready(api: KubeApi) -> tuple[str, ...]:
    """Return the workloads whose pods still lack a new annotation; none where they may not be listed."""
    try:
        return tuple(each.name for each in find_workloads(api) if not each.ready)
    except ApiError:
        return ()


def _build_patch(namespace: str, kind: str, name: str, path: Sequence[str], new: Mapping[str, str]) -> str:
    title = f"# {namespace}/{kind}/{name}"
    if not new:
        return f"{title}: no plugin has an equivalent of its annotations"
    if kind in ("jobs", "pods"):
        return f"{title} cannot be changed: recreate it with {json.dumps(new)}"
    body: Mapping[str, Any] = {"metadata": {"annotations": new}}
    for key in reversed(path):
        body = {key: body}
    words = ["kubectl", "-n", namespace, "patch", kind, name, "--type", "merge", "-p", json.dumps(body)]
    return shlex.join(words)


def translate_annotations(
    old: Mapping[str, Any], containers: Sequence[str], title: str
) -> tuple[dict[str, str], tuple[Entry, ...]]:
    """Return the new annotations, and what became of each old one that cri-resmgr, or its webhook, reads."""
    new, report, rows = dict[str, str](), list[Entry](), load_table()["rows"]["annotations"]
    # The form with a domain of its own takes precedence over the older one, and so comes last.
    for key, value in sorted(old.items(), key=lambda each: (not each[0].startswith(f"{_OLD}/"), each[0])):
        if _OLD in key or key == _WEBHOOKS:
            row, places = find_row(rows, tuple(key.split("/")), value)
            grade, into, note = row.grade, {"/".join(place): str(value) for place in places}, row.note
            newer = f"{key.removeprefix(f'{_OLD}/')}.{_OLD}"
            if places and old.keys() & {newer, f"{newer}/pod"}:
                grade, into, note = Grade.IDLE, {}, f"cri-resmgr reads {newer} first"
            elif places and places[0][-1] == "each":
                grade, into, note = _expand(places[0][0], str(value), containers, row)
            new |= into
            report.append(Entry(title, (key,), grade, tuple(into), note))
    return new, tuple(report)


def _expand(target: str, text: str, containers: Sequence[str], row: Row) -> tuple[Grade, dict[str, str], str]:
    """Translate the form whose value is a YAML mapping of containers, or one value for all of them."""
    try:
        data: Any = parse_document(text.encode("utf-8", "replace"), "value").data
        whole = not isinstance(data, dict)
        values = {"pod": text} if whole else {f"container.{name}": value for name, value in data.items()}
        converted = {scope: row.convert(value) for scope, value in values.items()}
    except InvalidInputError as error:
        return Grade.LOST, {}, f"is not YAML, and had no effect: {error.message}"
    except ValueError as error:
        return Grade.IDLE, {}, f"cri-resmgr ignores it: {error}"
    absent = [] if whole else [name for name in map(str, data) if name not in containers]
    notes = [f"no container is named {name}" for name in absent]
    notes += [
        f"cri-resmgr ignores the value for {scope}" for scope, value in converted.items() if value is None
    ]
    kept = {f"{target}/{scope}": value for scope, value in converted.items() if value is not None}
    into = {place: value if isinstance(value, str) else json.dumps(value) for place, value in kept.items()}
    grade, last = (row.grade, row.note) if into else (Grade.IDLE, "")
    return grade, into, "; ".join(filter(None, (*notes, last)))
