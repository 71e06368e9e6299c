"""From checked inputs to the Kubernetes objects. Pure.

ConfigMaps that pods start from are immutable and named by their content: a new configuration is a new pod
template, rolled out node by node, and the earlier one is still there for `kubectl rollout undo`. With a
ManagedResource it is there as long as a pod uses it.
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

# A runtime's default profile hides other processes. Kubernetes has a field for it since 1.30, and still reads
# the annotation.
_APPARMOR = {"container.apparmor.security.beta.kubernetes.io/installer": "unconfined"}
# A new node of Gardener takes no other pods before ours is ready; a removal need not hold it up.
CRITICAL = {"node.gardener.cloud/critical-component": "true"}
_SYSTEM = {"gardener.cloud/role": "system-component"}
_METRICS_PORT = 8891
_QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_KEEP = {"resources.gardener.cloud/keep-object": "true"}
# gardener-resource-manager deletes an object with this label once no workload or ManagedResource has an
# annotation with its name (docs/concepts/resource-manager.md of gardener/gardener), and no earlier.
_COLLECTABLE = {"resources.gardener.cloud/garbage-collectable-reference": "true"}
# It deletes a DaemonSet in the foreground, before it applies anything new. A pod on a node that is off never
# ends, and would hold that up for ever. Ours have ten minutes to end; those of a removal need none.
_FINALIZE = {
    mode: {"resources.gardener.cloud/finalize-deletion-after": duration}
    for mode, duration in (("install", "15m"), ("remove", "1m"))
}
_OWN_SOCKETS = {
    "directory": paths.AGENT_DIRECTORY,
    "agent": paths.AGENT_SOCKET,
    "config": paths.CONFIG_SOCKET,
}
# The deletion of a Shoot leaves what has this label to the deletion of its ManagedResource, which lets the
# pods clean up first.
_NO_CLEANUP = {"shoot.gardener.cloud/no-cleanup": "true"}


def build_objects(inputs: ManifestInputs) -> list[dict[str, Any]]:
    """Every object, after those that it needs."""
    objects = list(_build_objects(inputs))
    return list(_managed_resource(inputs, objects)) if inputs.managed_resource else objects


def _build_objects(inputs: ManifestInputs) -> Objects:
    config_maps = _mounted_config_maps(inputs)
    yield from _rbac(inputs)
    for name, data in config_maps.values():
        metadata = _metadata(inputs, name)
        if inputs.managed_resource:
            metadata["labels"] |= _COLLECTABLE
        yield from render_template("config-map", **metadata, data=data, immutable=True)
    if inputs.settings.mode == "install":
        if inputs.values.agent.enabled:
            yield from _agent_namespace(inputs)
            yield from _dynamic_configs(inputs)
            yield from _agent(inputs)
        if inputs.values.gardener:
            yield from _metrics_service(inputs)
    yield from _daemon_set(inputs, {volume: name for volume, (name, _) in config_maps.items()})
    if inputs.monitoring and inputs.settings.mode == "install":
        selector = _pod_selector(inputs, "installation")
        yield from render_template("monitoring", **_metadata(inputs, inputs.values.name), selector=selector)
    if inputs.values.admission_policies:
        yield from _admission(inputs)


def _mounted_config_maps(inputs: ManifestInputs) -> dict[str, tuple[str, dict[str, str]]]:
    """The name and data of the settings, and of the static configs if there are any. A removal needs no
    configs."""
    configs = inputs.values.configs
    mounted = {"settings": {"settings.yaml": dump(dict(inputs.settings_given))}}
    static = {file: configs[key] for key, file in STATIC_CONFIGS.items() if key in configs}
    if static and inputs.settings.mode == "install":
        mounted["configs"] = static
    return {key: (config_map_name(inputs.values.name, key, data), data) for key, data in mounted.items()}


def config_map_name(instance: str, key: str, data: Mapping[str, str]) -> str:
    """Of a ConfigMap that pods start from."""
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return f"{instance}-{key}-{digest[:10]}"


def _selector(inputs: ManifestInputs, name: str = "cri-resmgr-installer") -> dict[str, str]:
    """Without the operator's labels: a DaemonSet's selector can never be changed."""
    return {NAME_LABEL: name, INSTANCE_LABEL: inputs.values.name}


def _metadata(inputs: ManifestInputs, name: str, namespace: str = "") -> dict[str, Any]:
    return {
        "object_name": name,
        "namespace": namespace or inputs.values.namespace,
        "labels": {**inputs.values.labels, **_selector(inputs)},
        "annotations": dict(inputs.values.annotations),
    }


def _rbac(inputs: ManifestInputs) -> Objects:
    """The same for installation and removal, so that neither takes it from the other. With a ManagedResource
    it outlives the pods, which ask the API server whether they have to clean up."""
    values = inputs.values
    metadata = _metadata(inputs, values.name)
    if inputs.managed_resource:
        metadata["annotations"] |= _KEEP
    yield from render_template("service-account", **metadata)
    followed = inputs.settings.removal.successor == "nri"
    yield from render_template("rbac", **metadata, annotate_node=values.writes_node, followed=followed)
    yield from render_template("rollout", **metadata, rollout_namespace=values.rollout_namespace)


def _admission(inputs: ManifestInputs) -> Objects:
    """Last: what is deleted in this order loses its rights only after its DaemonSet. A ManagedResource keeps
    the rights of the pods anyway, and so the policies that bind them; it must let go of the rest."""
    metadata = _metadata(inputs, inputs.values.name)
    if inputs.managed_resource:
        metadata["annotations"] |= _KEEP
    yield from render_template(
        "admission",
        **metadata,
        names=names,
        fleet=fleet,
        account=f"system:serviceaccount:{inputs.values.namespace}:{inputs.values.name}",
        rollout_namespace=inputs.values.rollout_namespace,
        agent=inputs.values.agent.enabled and inputs.settings.mode == "install",
        guard_deletion=not inputs.managed_resource,
    )


def _agent_namespace(inputs: ManifestInputs) -> Objects:
    """Where the agent reads every ConfigMap. One that the operator names is there already. It has people's
    Adjustments, which would go with it."""
    if not inputs.values.agent.namespace:
        metadata = _metadata(inputs, inputs.values.agent_namespace)
        if inputs.managed_resource:
            metadata["annotations"] |= _KEEP
        yield from render_template("namespace", **metadata)


def _dynamic_configs(inputs: ManifestInputs) -> Objects:
    """As cri-resmgr-agent looks for them: by name, one key for each section."""
    for key, text in sorted(inputs.values.configs.items()):
        if key not in STATIC_CONFIGS:
            # cri-resmgr-agent wants one key for each section.
            found = parse_document(text.encode(), key).data
            sections = found if isinstance(found, dict) else {}
            data = {str(section): dump(value) for section, value in sections.items()}
            metadata = _metadata(inputs, f"cri-resmgr-config.{key}", inputs.values.agent_namespace)
            yield from render_template("config-map", **metadata, data=data, immutable=False)


def _agent(inputs: ManifestInputs) -> Objects:
    values, selector = inputs.values, _selector(inputs, "cri-resmgr-agent")
    labels, annotations = {**values.labels, **selector}, dict(values.annotations)
    # People's Adjustments would go with their definition.
    kept = annotations | (_KEEP if inputs.managed_resource else {})
    yield from render_template("adjustments", labels=labels, annotations=kept, quantity=_QUANTITY)
    labels |= _SYSTEM if values.gardener else {}
    yield from render_template(
        "agent",
        labels=labels,
        annotations=annotations,
        daemon_set_annotations=annotations | (_FINALIZE["install"] if inputs.managed_resource else {}),
        selector=selector,
        config_namespace=values.agent_namespace,
        sockets=_OWN_SOCKETS if inputs.settings.proxy.agent_sockets == "own" else None,
        **_pod_values(inputs),
    )


def _metrics_service(inputs: ManifestInputs) -> Objects:
    """By which Gardener's users scrape the proxies, if `instrumentation.HTTPEndpoint` of theirs is on."""
    selector = _pod_selector(inputs, "installation")
    metadata = _metadata(inputs, "cri-resmgr-installation")
    yield from render_template("service", **metadata, selector=selector, port=_METRICS_PORT)


def _pod_values(inputs: ManifestInputs) -> dict[str, Any]:
    values = inputs.values
    return {
        "values": values,
        "node_selector": build_node_selector(values),
        "affinity": build_affinity(values),
    }


def _references(kind: str, names: Iterable[str]) -> dict[str, str]:
    """The annotations that keep what is _COLLECTABLE."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest()[:8] for name in names}
    return {f"reference.resources.gardener.cloud/{kind}-{digests[name]}": name for name in digests}


def _pod_selector(inputs: ManifestInputs, component: str) -> dict[str, str]:
    return {**_selector(inputs), COMPONENT_LABEL: component}


def _daemon_set(inputs: ManifestInputs, config_maps: Mapping[str, str]) -> Objects:
    values, removal = inputs.values, inputs.settings.mode == "remove"
    metadata = _metadata(inputs, f"{values.name}-removal" if removal else values.name)
    if inputs.managed_resource:
        metadata["annotations"] |= _references("configmap", config_maps.values())
    pod_annotations = metadata["annotations"] | (_APPARMOR if values.profile == "restricted" else {})
    if inputs.managed_resource:
        metadata["annotations"] = metadata["annotations"] | _FINALIZE[inputs.settings.mode]
    # The component tells the pods of our two DaemonSets apart.
    component = "removal" if removal else "installation"
    selector = _pod_selector(inputs, component)
    gardeners = _SYSTEM if removal else _SYSTEM | CRITICAL
    metadata["labels"] = {**values.labels, **selector, **(gardeners if values.gardener else {})}
    yield from render_template(
        "daemon-set",
        **metadata,
        **_pod_values(inputs),
        selector=selector,
        pod_annotations=pod_annotations,
        rollout_namespace=values.rollout_namespace,
        probes=build_probes(inputs.settings),
        min_ready=build_min_ready(inputs.settings),
        config_maps=config_maps,
        # A port of the host is for one pod of a node: the removal's is beside that of the installation.
        metrics_port=0 if removal else metrics_port(inputs.settings),
        on_node_address=inputs.settings.status.listen.startswith(":"),
    )


def _managed_resource(inputs: ManifestInputs, objects: Objects) -> Objects:
    """One Secret with all of them, named by its content, and the ManagedResource that refers to it."""
    stream = dump_objects(objects).encode()
    values, managed = inputs.values, inputs.values.managed_resource
    name = values.name if inputs.settings.mode == "install" else f"{values.name}-removal"
    secret = f"managedresource-{name}-{hashlib.sha256(stream).hexdigest()[:10]}"
    labels = {**values.labels, **_selector(inputs)}
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
        data={"objects.yaml": b64encode(stream).decode()},
    )
