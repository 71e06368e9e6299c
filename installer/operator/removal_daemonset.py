"""Builds the DaemonSet that cleans the nodes from the installed one, as `manifests --mode remove` renders
it. So no one has to find the values again, and what people have added to the pods (tolerations, a mirror of
the image) stays. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.settings import Settings
from installer.inputs.yaml_document import parse_document
from installer.manifests.build import CRITICAL, config_map_name
from installer.manifests.text import dump
from installer.model.names import COMPONENT_LABEL, COMPONENTS, Mode
from installer.operator.inventory import Installed, removal_name
from installer.operator.kube_objects import Object, items_at, mapping_at, text_at

SETTINGS = "settings.yaml"
_DAEMON_SET = "CRI_RESMGR_INSTALLER_DAEMONSET"
_CONFIGS, _DEFAULT_CONFIGS = "CRI_RESMGR_INSTALLER_CONFIGS", "CRI_RESMGR_INSTALLER_DEFAULT_CONFIGS"
_OF_THE_SERVER = (
    "deprecated.daemonset.template.generation",
    "kubectl.kubernetes.io/last-applied-configuration",
)


def settings_map_of(daemon_set: Object) -> str:
    """Return the name of the ConfigMap with the settings of its pods; empty if it has none."""
    volumes = items_at(daemon_set, "spec", "template", "spec", "volumes")
    return next(
        (text_at(each, "configMap", "name") for each in volumes if each.get("name") == "settings"), ""
    )


def parse_settings_map(config_map: Object) -> dict[str, Any]:
    """Return the settings in it as keys of the settings file. Raises InvalidInputError."""
    text = text_at(config_map, "data", SETTINGS)
    document = parse_document(text.encode(), SETTINGS)
    if document.faults or not isinstance(document.data, dict):
        name = text_at(config_map, "metadata", "name")
        raise InvalidInputError(
            [f"ConfigMap {name}: {SETTINGS} cannot be parsed"], "apply the manifests again"
        )
    return dict(document.data)


def build_removal(installed: Installed, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build the ConfigMap and the DaemonSet, with the labels, annotations, image and pods of the
    installation."""
    found = copy.deepcopy({key: installed.daemon_set[key] for key in ("metadata", "spec")})
    metadata, spec = found["metadata"], found["spec"]
    labels = {**metadata["labels"], COMPONENT_LABEL: COMPONENTS[Mode.REMOVE]}
    labels = {key: value for key, value in labels.items() if key not in CRITICAL}
    given = metadata.get("annotations") or {}
    annotations = {key: value for key, value in given.items() if key not in _OF_THE_SERVER}
    noted = {"annotations": annotations} if annotations else {}
    data = {SETTINGS: dump({**settings, "mode": "remove"})}
    map_name = config_map_name(installed.instance, "settings", data)
    own = {key: value for key, value in labels.items() if key != COMPONENT_LABEL}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": map_name, "namespace": installed.namespace, "labels": own, **noted},
        "immutable": True,
        "data": data,
    }
    name = removal_name(installed.name)
    spec["selector"]["matchLabels"][COMPONENT_LABEL] = COMPONENTS[Mode.REMOVE]
    _turn_pods(spec["template"], name, map_name)
    head = {"name": name, "namespace": installed.namespace, "labels": labels, **noted}
    return config_map, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": head, "spec": spec}


def _turn_pods(template: dict[str, Any], name: str, settings_map: str) -> None:
    """A removal needs no configs, and is never restarted because of the proxy that it removes. Only one pod
    of a node can have a port of the host: while the installation's has it, another one would not be
    scheduled there."""
    labels = template["metadata"]["labels"]
    labels[COMPONENT_LABEL] = COMPONENTS[Mode.REMOVE]
    for key in CRITICAL:
        labels.pop(key, None)
    spec = template["spec"]
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "configs"]
    for volume in spec["volumes"]:
        if volume["name"] == "settings":
            volume["configMap"]["name"] = settings_map
    for container in spec["containers"]:
        if container["name"] != "installer":
            continue
        for part in ("startupProbe", "livenessProbe", "ports"):
            container.pop(part, None)
        container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "configs"]
        container["env"] = [_turn_variable(each, name) for each in container["env"]]


def _turn_variable(variable: dict[str, Any], name: str) -> dict[str, Any]:
    if variable["name"] == _DAEMON_SET:
        return {"name": _DAEMON_SET, "value": name}
    if variable["name"] == _CONFIGS:
        return {"name": _DEFAULT_CONFIGS, "value": "true"}
    return variable


def wait_seconds_of(settings: Mapping[str, Any]) -> float:
    """Return `removal.waitSeconds` of the settings that the nodes have."""
    found = mapping_at(settings, "removal").get("waitSeconds")
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        return float(found)
    return float(Settings().removal.wait_seconds)
