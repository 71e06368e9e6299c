"""From checked inputs to the objects as YAML documents. Pure.

What pods are started from is named by its content and immutable: a new configuration is a new pod
template, rolled out node by node, and what was before is still there for `kubectl rollout undo`.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from installer.manifests.embedded import sections
from installer.manifests.inputs import Inputs
from installer.manifests.probes import build_probes
from installer.manifests.scheduling import build_affinity, build_node_selector
from installer.manifests.security import HOST_ROOT, build_rights
from installer.manifests.text import dump_block, join_documents, quote, split_documents, tidy
from installer.manifests.values import DYNAMIC_PREFIXES, STATIC_CONFIGS
from installer.render import render

KEEP = {"resources.gardener.cloud/keep-object": "true"}

_MOUNTED = "/etc/cri-resmgr-installer"
_SETTINGS = f"{_MOUNTED}/settings"
_CONFIGS = f"{_MOUNTED}/configs"
_CRITICAL = {"node.gardener.cloud/critical-component": "true"}


@dataclass(frozen=True, slots=True)
class Mounted:
    """A ConfigMap that the pods mount, named by what is in it."""

    volume: str
    name: str
    path: str
    data: Mapping[str, str]


def build_documents(inputs: Inputs) -> list[str]:
    """Each object as one YAML document, what others need before them."""
    documents = list(_documents(inputs))
    return list(_wrap(inputs, documents)) if inputs.managed_resource else documents


def _documents(inputs: Inputs) -> Iterable[str]:
    mounted = build_mounted(inputs)
    yield from _rbac(inputs)
    for config_map in mounted:
        yield from _render(
            "config-map",
            **_metadata(inputs, config_map.name),
            data=config_map.data,
            immutable=True,
        )
    if inputs.settings.mode == "install":
        yield from _dynamic_configs(inputs)
        if inputs.values.agent.enabled:
            yield from _agent(inputs)
    yield from _daemon_set(inputs, mounted)


def build_mounted(inputs: Inputs) -> list[Mounted]:
    """The settings, and the static configs if there are any. A removal needs none of those."""
    name, configs = inputs.values.name, inputs.values.configs
    settings = {"settings.yaml": dump_block(dict(inputs.settings_given))}
    found = [Mounted("settings", _content_name(f"{name}-settings", settings), _SETTINGS, settings)]
    files = {file: configs[key] for key, file in STATIC_CONFIGS.items() if key in configs}
    if files and inputs.settings.mode == "install":
        found.append(Mounted("configs", _content_name(f"{name}-configs", files), _CONFIGS, files))
    return found


def _content_name(name: str, data: Mapping[str, str]) -> str:
    return f"{name}-{hashlib.sha256(quote(dict(data)).encode()).hexdigest()[:10]}"


def _render(template: str, **values: object) -> list[str]:
    rendered = render(f"manifests/{template}.yaml.j2", yaml=quote, **values)
    return [tidy(document) for document in split_documents(rendered)]


def _selector(inputs: Inputs, name: str = "cri-resmgr-installer", component: str = "") -> dict[str, str]:
    """Ours alone: a selector can never be changed. `component` tells our DaemonSets' pods apart."""
    found = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": inputs.values.name}
    return found | ({"app.kubernetes.io/component": component} if component else {})


def _labels(inputs: Inputs, name: str = "cri-resmgr-installer") -> dict[str, str]:
    return {**inputs.values.labels, **_selector(inputs, name)}


def _metadata(inputs: Inputs, name: str, namespace: str = "") -> dict[str, Any]:
    return {
        "object_name": name,
        "namespace": namespace or inputs.values.namespace,
        "labels": _labels(inputs),
        "annotations": dict(inputs.values.annotations),
    }


def _rbac(inputs: Inputs) -> Iterable[str]:
    """The same for installation and removal, so that neither takes it from the other. With a
    ManagedResource it outlives the pods: they ask the API server whether they are to clean up."""
    values = inputs.values
    metadata = _metadata(inputs, values.name)
    if inputs.managed_resource:
        metadata["annotations"] |= KEEP
    subject = {"kind": "ServiceAccount", "name": values.name, "namespace": values.namespace}
    yield from _render("service-account", **metadata)
    yield from _render(
        "rbac",
        **metadata,
        daemonsets=[values.name, f"{values.name}-removal"],
        node_verbs=["get", "patch"] if values.annotate_node else ["get"],
        subjects=[subject],
    )


def _dynamic_configs(inputs: Inputs) -> Iterable[str]:
    """As cri-resmgr-agent looks for them: in kube-system, by name, one key for each section."""
    for key, text in sorted(inputs.values.configs.items()):
        if key == "default" or key.startswith(DYNAMIC_PREFIXES):
            data = {section: dump_block(value) for section, value in sections(text.encode()).items()}
            metadata = _metadata(inputs, f"cri-resmgr-config.{key}", "kube-system")
            yield from _render("config-map", **metadata, data=data, immutable=False)


def _agent(inputs: Inputs) -> Iterable[str]:
    values = inputs.values
    metadata = {
        "labels": _labels(inputs, "cri-resmgr-agent"),
        "annotations": dict(values.annotations),
    }
    yield from _render("adjustments", **metadata)
    yield from _render(
        "agent",
        **metadata,
        **_placement(inputs),
        selector=_selector(inputs, "cri-resmgr-agent"),
        image=values.images.agent,
    )


def _placement(inputs: Inputs) -> dict[str, Any]:
    values = inputs.values
    return {
        "node_selector": build_node_selector(values),
        "affinity": build_affinity(values),
        "pull_policy": values.image_pull_policy,
        "pull_secrets": values.image_pull_secrets,
    }


def _daemon_set(inputs: Inputs, mounted: list[Mounted]) -> Iterable[str]:
    values, removal = inputs.values, inputs.settings.mode == "remove"
    name = f"{values.name}-removal" if removal else values.name
    component = "removal" if removal else "installation"
    rights = build_rights(values)
    metadata = _metadata(inputs, name)
    selector = _selector(inputs, component=component)
    metadata["labels"] = {**values.labels, **selector, **(_CRITICAL if values.gardener else {})}
    yield from _render(
        "daemon-set",
        **metadata,
        **_placement(inputs),
        selector=selector,
        pod_annotations={**values.annotations, **rights.annotations},
        max_unavailable=values.update_strategy.max_unavailable,
        service_account=values.name,
        image=values.images.installer,
        command=_command(mounted),
        environment=_environment(inputs, name),
        resources=values.resources.model_dump(),
        security=rights.security,
        probes=build_probes(inputs.settings),
        mounts=rights.mounts
        + [{"name": each.volume, "mountPath": each.path, "readOnly": True} for each in mounted],
        volumes=rights.volumes
        + [{"name": each.volume, "configMap": {"name": each.name}} for each in mounted],
    )


def _command(mounted: list[Mounted]) -> list[str]:
    words = ["cri-resmgr-installer", "--host-root", HOST_ROOT, "--config", f"{_SETTINGS}/settings.yaml"]
    if any(each.path == _CONFIGS for each in mounted):
        words += ["--configs", _CONFIGS]
    return [*words, "--payload", "/payload", "--output", "json", "run"]


def _environment(inputs: Inputs, daemonset: str) -> dict[str, str]:
    """SYSTEMD_IGNORE_CHROOT: where the host is put together from single mounts, its systemctl would take
    itself for one in a chroot and answer 0 to everything (systemd's docs/ENVIRONMENT.md)."""
    environment = {"CRI_RESMGR_INSTALLER_DAEMONSET": daemonset, "SYSTEMD_IGNORE_CHROOT": "1"}
    if inputs.values.annotate_node:
        environment["CRI_RESMGR_INSTALLER_ANNOTATE_NODE"] = "true"
    return environment


def _wrap(inputs: Inputs, documents: list[str]) -> Iterable[str]:
    """One Secret with all of them, named by its content, and the ManagedResource that points there."""
    stream = join_documents(documents).encode()
    digest = hashlib.sha256(stream).hexdigest()[:10]
    values = inputs.values
    name = values.name if inputs.settings.mode == "install" else f"{values.name}-removal"
    yield from _render(
        "managed-resource",
        object_name=name,
        namespace=values.managed_resource.namespace,
        resource_class=values.managed_resource.class_,
        labels=_labels(inputs),
        secret=f"managedresource-{name}-{digest}",
        data={"objects.yaml": b64encode(stream).decode()},
    )
