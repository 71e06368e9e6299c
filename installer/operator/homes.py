"""Where installations live, by objects that only people with rights to the whole cluster can create.

Anyone who may create objects in a namespace may give them our labels: they select, and prove nothing. The
ClusterRoleBinding of an installation has the rights of its pods, so it has to be there, and it names their
ServiceAccount with its namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from installer.model.names import CONFIG_NAMESPACE, INSTANCE_LABEL, NAME_LABEL
from installer.operator.api import KubeApi, Resource
from installer.operator.kube_objects import Object, items_at, mapping_at, text_at

CLUSTER_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
AGENT = "cri-resmgr-agent"
NAMES = ("cri-resmgr-installer", AGENT)
"""Values of the label of the name: of our objects, and of the agent that we brought."""
SYSTEM = "kube-system"
"""The namespace of the agent, and of what Gardener installs. Tenants may not write there."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where an installation lives. `namespace` is that of its pods; empty where only the agent is left.
    `configs`: the namespace whose ConfigMaps the agent reads, empty without an agent."""

    namespace: str = ""
    configs: str = ""


def find_homes(api: KubeApi) -> Mapping[str, Home]:
    """Return the home of each instance. A ClusterRoleBinding of another name than its instance counts as
    well, for a person may have renamed it; after the one that has it. Raises ApiError."""
    homes, renamed = dict[str, Home](), dict[str, str]()
    for binding in api.list_objects(CLUSTER_ROLE_BINDINGS, f"{NAME_LABEL} in ({','.join(NAMES)})"):
        metadata = mapping_at(binding, "metadata")
        name, instance = text_at(metadata, "name"), text_at(metadata, "labels", INSTANCE_LABEL)
        home = homes.get(instance, Home())
        if name == AGENT:
            homes[instance] = Home(home.namespace, text_at(metadata, "annotations", CONFIG_NAMESPACE))
        elif name == instance:
            homes[instance] = Home(_namespace_of(binding, name), home.configs)
        elif instance and (namespace := _namespace_of(binding, instance)):
            renamed.setdefault(instance, namespace)
    for instance, namespace in renamed.items():
        home = homes.get(instance, Home())
        homes[instance] = Home(home.namespace or namespace, home.configs)
    return homes


def namespace_of(api: KubeApi, instance: str) -> str:
    """Return the namespace of its pods: Gardener's, where nothing says another one. Raises ApiError."""
    return find_homes(api).get(instance, Home()).namespace or SYSTEM


def _namespace_of(binding: Object, account: str) -> str:
    subjects = (each for each in items_at(binding, "subjects") if each.get("kind") == "ServiceAccount")
    return next((text_at(each, "namespace") for each in subjects if each.get("name") == account), "")
