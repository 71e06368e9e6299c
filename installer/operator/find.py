"""The installer's DaemonSets in a cluster, found by their labels."""

from __future__ import annotations

from dataclasses import dataclass

from installer.model.names import COMPONENT_LABEL, INSTANCE_LABEL, OURS, mode_of
from installer.model.overview import FleetInstallation
from installer.operator.api import DAEMON_SETS, KubeApi
from installer.operator.kube_objects import Object, items_at, mapping_at, text_at


@dataclass(frozen=True, slots=True)
class Installed:
    """One of our DaemonSets, as it is."""

    what: FleetInstallation
    daemon_set: Object

    @property
    def template(self) -> Object:
        return mapping_at(self.daemon_set, "spec", "template")


def find_installations(api: KubeApi, namespace: str = "", instance: str = "") -> tuple[Installed, ...]:
    """Without a namespace, of all; without an instance, all. Raises ApiError."""
    selector = OURS + (f",{INSTANCE_LABEL}={instance}" if instance else "")
    found = [read_installed(each) for each in api.list_objects(DAEMON_SETS, selector, namespace)]
    return tuple(each for each in found if each is not None)


def read_installed(daemon_set: Object) -> Installed | None:
    """None where the component is neither the installation nor the removal."""
    labels = mapping_at(daemon_set, "metadata", "labels")
    mode = mode_of(labels.get(COMPONENT_LABEL))
    if mode is None:
        return None
    containers = items_at(daemon_set, "spec", "template", "spec", "containers")
    image = next((text_at(each, "image") for each in containers if each.get("name") == "installer"), "")
    namespace, name = (text_at(daemon_set, "metadata", key) for key in ("namespace", "name"))
    what = FleetInstallation(namespace, name, str(labels.get(INSTANCE_LABEL, "")), mode, image)
    return Installed(what, daemon_set)
