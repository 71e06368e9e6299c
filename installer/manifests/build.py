"""Builds the Kubernetes objects from checked inputs. Pure.

ConfigMaps that pods start from are immutable and named by their content: a new configuration is a new pod
template, rolled out node by node, and the earlier one still exists for `kubectl rollout undo`. With a
ManagedResource it exists as long as a pod uses it.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from installer.inputs.yaml_document import parse_document
from installer.manifests.inputs import ManifestInputs, metrics_port
from installer.manifests.probes import build_min_ready, build_probes
from installer.manifests.scheduling import build_affinity, build_node_selector
from installer.manifests.text import dump, dump_objects, render_template
from installer.manifests.values import STATIC_CONFIGS
from installer.model import fleet, names, paths
from installer.model.names import COMPONENT_LABEL, INSTANCE_LABEL, NAME_LABEL

Objects = Iterable[dict[str, Any]]

# A runtime's default profile hides other processes. Kubernetes before 1.30 has no field for it.
_APPARMOR = {"container.apparmor.security.beta.kubernetes.io/installer": "unconfined"}
# Gardener schedules no other pods on a new node before ours is ready; a removal need not delay it.
CRITICAL = {"node.gardener.cloud/critical-component": "true"}
_SYSTEM = {"gardener.cloud/role": "system-component"}
_METRICS_PORT = 8891
_QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_KEEP = {"resources.gardener.cloud/keep-object": "true"}
# gardener-resource-manager deletes an object with this label once no workload or ManagedResource has an
# annotation with its name (docs/concepts/resource-manager.md of gardener/gardener), and no earlier.
_COLLECTABLE = {"resources.gardener.cloud/garbage-collectable-reference": "true"}
# It deletes a DaemonSet in the foreground, before it applies anything new. A pod on a node that is off never
# ends, and would block that for ever. Ours have ten minutes to end; those of a removal need none.
_FINALIZE = {
    mode: {"resources.gardener.cloud/finalize-deletion-after": duration}
    for mode, duration in (("install", "15m"), ("remove", "1m"))
}
_OWN_SOCKETS = {
    "directory": paths.AGENT_DIRECTORY,
    "agent": paths.AGENT_SOCKET,
    "config": paths.CONFIG_SOCKET,
}
# When a Shoot is deleted, objects with this label are left to the deletion of their ManagedResource, which
# lets the pods clean up first.
_NO_CLEANUP = {"shoot.gardener.cloud/no-cleanup": "true"}


def build_objects(inputs: ManifestInputs) -> list[dict[str, Any]]:
    """Return every object, after those that it needs."""
    objects = list(_build_objects(inputs))
    return list(_managed_resource(inputs, objects)) if inputs.managed_resource else objects


def _build_objects(inputs: ManifestInputs) -> Objects:
    """Rights come first and admission policies last: what is deleted in this order loses its rights only
    after its DaemonSet."""
    values, install = inputs.values, inputs.settings.mode == "install"
    metadata = _metadata(inputs)
    config_maps = _mounted_config_maps(inputs)
    yield from _rights(inputs)
    labels = metadata["labels"] | (_COLLECTABLE if inputs.managed_resource else {})
    for name, data in config_maps.values():
        named = metadata | {"object_name": name, "labels": labels}
        yield from render_template("config-map", **named, data=data, immutable=True)
    if install and values.agent.enabled:
        yield from _agent(inputs)
    selector = _selector(inputs, "installation")
    if install and values.gardener:
        # Gardener's users scrape the proxies by it, if their `instrumentation.HTTPEndpoint` is on.
        named = metadata | {"object_name": "cri-resmgr-installation"}
        yield from render_template("service", **named, selector=selector, port=_METRICS_PORT)
    yield from _daemon_set(inputs, {volume: name for volume, (name, _) in config_maps.items()})
    if install and inputs.monitoring:
        yield from render_template("monitoring", **metadata, selector=selector)
    if values.admission_policies:
        yield from render_template(
            "admission",
            **_metadata(inputs, kept=True),
            names=names,
            fleet=fleet,
            account=f"system:serviceaccount:{values.namespace}:{values.name}",
            rollout_namespace=values.rollout_namespace,
            agent=values.agent.enabled and install,
            # A ManagedResource keeps what `kept` marks; it must be able to delete the rest.
            guard_deletion=not inputs.managed_resource,
        )


def _mounted_config_maps(inputs: ManifestInputs) -> dict[str, tuple[str, dict[str, str]]]:
    """Return name and data of the settings, and of the static configs if there are any. A removal needs no
    configs."""
    configs = inputs.values.configs
    mounted = {"settings": {"settings.yaml": dump(dict(inputs.settings_given))}}
    static = {file: configs[key] for key, file in STATIC_CONFIGS.items() if key in configs}
    if static and inputs.settings.mode == "install":
        mounted["configs"] = static
    return {key: (config_map_name(inputs.values.name, key, data), data) for key, data in mounted.items()}


def config_map_name(instance: str, key: str, data: Mapping[str, str]) -> str:
    """Name a ConfigMap that pods start from by its content."""
    return f"{instance}-{key}-{_digest(json.dumps(data, sort_keys=True))[:10]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _selector(inputs: ManifestInputs, component: str) -> dict[str, str]:
    """Return the labels that select pods: without the operator's, because a DaemonSet's selector can never be
    changed. The component tells the pods of our two DaemonSets apart."""
    ours = {NAME_LABEL: "cri-resmgr-installer", INSTANCE_LABEL: inputs.values.name}
    return {**ours, COMPONENT_LABEL: component} if component else ours


def _metadata(inputs: ManifestInputs, *, kept: bool = False) -> dict[str, Any]:
    """Return what most objects have. `kept`: the deletion of a ManagedResource leaves the object."""
    values = inputs.values
    return {
        "object_name": values.name,
        "namespace": values.namespace,
        "labels": {**values.labels, **_selector(inputs, "")},
        "annotations": {**values.annotations, **(_KEEP if kept and inputs.managed_resource else {})},
    }


def _rights(inputs: ManifestInputs) -> Objects:
    """Build the rights: the same for installation and removal, so that neither deletes the other's. With a
    ManagedResource they outlive the pods, which ask the API server whether they have to clean up."""
    values, metadata = inputs.values, _metadata(inputs, kept=True)
    yield from render_template("service-account", **metadata)
    followed = inputs.settings.removal.successor == "nri"
    yield from render_template(
        "rbac",
        **metadata,
        annotate_node=values.writes_node,
        awaits_pods=inputs.settings.rollout.pod_ready_seconds > 0,
        followed=followed,
    )
    yield from render_template("rollout", **metadata, rollout_namespace=values.rollout_namespace)


def _agent(inputs: ManifestInputs) -> Objects:
    """Build the agent, and what it reads: every ConfigMap of its namespace, and users' Adjustments there.
    Both would be deleted with the namespace or their definition, so these are kept. A namespace that the
    operator names exists already."""
    values, kept = inputs.values, _metadata(inputs, kept=True)
    if not values.agent.namespace:
        yield from render_template("namespace", **kept | {"object_name": values.agent_namespace})
    for key, text in sorted(values.configs.items()):
        if key not in STATIC_CONFIGS:
            # The agent finds them by name, and wants one key for each section.
            found = parse_document(text.encode(), key).data
            sections = found if isinstance(found, dict) else {}
            data = {str(section): dump(value) for section, value in sections.items()}
            name = {"object_name": f"cri-resmgr-config.{key}", "namespace": values.agent_namespace}
            named = _metadata(inputs) | name
            yield from render_template("config-map", **named, data=data, immutable=False)
    selector = {NAME_LABEL: "cri-resmgr-agent", INSTANCE_LABEL: values.name}
    labels, annotations = {**values.labels, **selector}, dict(values.annotations)
    yield from render_template(
        "adjustments", labels=labels, annotations=kept["annotations"], quantity=_QUANTITY
    )
    yield from render_template(
        "agent",
        labels=labels | (_SYSTEM if values.gardener else {}),
        annotations=annotations,
        daemon_set_annotations=annotations | (_FINALIZE["install"] if inputs.managed_resource else {}),
        selector=selector,
        config_namespace=values.agent_namespace,
        sockets=_OWN_SOCKETS if inputs.settings.proxy.agent_sockets == "own" else None,
        **_pod_values(inputs),
    )


def _pod_values(inputs: ManifestInputs) -> dict[str, Any]:
    values = inputs.values
    return {
        "values": values,
        "node_selector": build_node_selector(values),
        "affinity": build_affinity(values),
    }


def _references(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Return the annotations that keep what is _COLLECTABLE."""
    return {f"reference.resources.gardener.cloud/{kind}-{_digest(name)[:8]}": name for name in names}


def _daemon_set(inputs: ManifestInputs, config_maps: Mapping[str, str]) -> Objects:
    values, settings, removal = inputs.values, inputs.settings, inputs.settings.mode == "remove"
    selector = _selector(inputs, "removal" if removal else "installation")
    gardeners = _SYSTEM if removal else _SYSTEM | CRITICAL
    annotations = dict(values.annotations)
    if inputs.managed_resource:
        annotations |= _references("configmap", config_maps.values())
    # What has the policies, has the field.
    by_annotation = values.profile == "restricted" and not values.admission_policies
    yield from render_template(
        "daemon-set",
        object_name=f"{values.name}-removal" if removal else values.name,
        namespace=values.namespace,
        labels={**values.labels, **selector, **(gardeners if values.gardener else {})},
        annotations=annotations | (_FINALIZE[settings.mode] if inputs.managed_resource else {}),
        **_pod_values(inputs),
        selector=selector,
        pod_annotations=annotations | (_APPARMOR if by_annotation else {}),
        rollout_namespace=values.rollout_namespace,
        probes=build_probes(settings),
        min_ready=build_min_ready(settings),
        config_maps=config_maps,
        # Only one pod of a node can have a port of the host, and the removal's is beside the installation's.
        metrics_port=0 if removal else metrics_port(settings),
        on_node_address=settings.status.listen.startswith(":"),
    )


def _managed_resource(inputs: ManifestInputs, objects: Objects) -> Objects:
    """Build one Secret with all of them, named by its content, and the ManagedResource that refers to it."""
    stream = dump_objects(objects)
    values, managed = inputs.values, inputs.values.managed_resource
    name = values.name if inputs.settings.mode == "install" else f"{values.name}-removal"
    secret = f"managedresource-{name}-{_digest(stream)[:10]}"
    labels = _metadata(inputs)["labels"]
    yield from render_template(
        "managed-resource",
        object_name=name,
        namespace=managed.namespace,
        resource_class="seed" if managed.class_ == "seed" else "",
        keep_objects=managed.keep_objects,
        inject_labels={**({} if managed.class_ == "seed" else _NO_CLEANUP), **managed.inject_labels},
        # Gardener takes a ManagedResource for its own where `origin` is gardener.
        labels={"origin": "cri-resmgr-installer", **labels},
        annotations=_references("secret", [secret]),
        secret=secret,
        secret_labels={**labels, **_COLLECTABLE},
        data={"objects.yaml": b64encode(stream.encode()).decode()},
    )
