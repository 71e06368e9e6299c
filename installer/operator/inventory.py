"""Finds what is ours in a cluster, and deletes it in order. An object is ours by two labels that no other
program sets: the name of our program or of the agent that we brought, and the instance (the value `name`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from installer.errors import InvalidInputError
from installer.model.names import (
    COMPONENT_LABEL,
    INSTANCE_LABEL,
    NAME_LABEL,
    OURS,
    UNINSTALLING,
    Mode,
    mode_of,
    our_selector,
)
from installer.model.overview import FleetInstallation
from installer.operator.api import CONFIG_MAPS, DAEMON_SETS, LEASES, ApiError, KubeApi, Resource
from installer.operator.kube_objects import Object, cut_line, items_at, mapping_at, text_at

_NAMES = ("cri-resmgr-installer", "cri-resmgr-agent")
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
SERVICE_ACCOUNTS, NAMESPACES = Resource("", "v1", "serviceaccounts"), Resource("", "v1", "namespaces")
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
ADJUSTMENTS = Resource("criresmgr.intel.com", "v1alpha1", "adjustments")
_RIGHTS = (
    Resource(_RBAC, "v1", "rolebindings"),
    Resource(_RBAC, "v1", "roles"),
    Resource(_RBAC, "v1", "clusterrolebindings"),
    Resource(_RBAC, "v1", "clusterroles"),
)
_GUARDED = (*_RIGHTS, NAMESPACES, SERVICE_ACCOUNTS)
KINDS = (
    DAEMON_SETS,
    Resource("monitoring.coreos.com", "v1", "podmonitors"),
    Resource("monitoring.coreos.com", "v1", "prometheusrules"),
    Resource("", "v1", "services"),
    CONFIG_MAPS,
    LEASES,
    DEFINITIONS,
    Resource(_ADMISSION, "v1", "validatingadmissionpolicybindings"),
    Resource(_ADMISSION, "v1", "validatingadmissionpolicies"),
    *_RIGHTS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
)
"""In the order of deletion. Rights outlast the pods that need them, and the ServiceAccounts are last: while
one exists, an interrupted uninstallation can be found again."""


@dataclass(frozen=True, slots=True)
class Installed(FleetInstallation):
    """One of our DaemonSets, with the object."""

    daemon_set: Object

    @property
    def template(self) -> Object:
        return mapping_at(self.daemon_set, "spec", "template")


def find_installations(api: KubeApi, namespace: str = "", instance: str = "") -> tuple[Installed, ...]:
    """Find our DaemonSets by their labels: those of all namespaces and instances, unless given. Raises
    ApiError."""
    found = map(read_installed, api.list_objects(DAEMON_SETS, our_selector(instance), namespace))
    return tuple(each for each in found if each is not None)


def read_installed(daemon_set: Object) -> Installed | None:
    """Return None where the component is neither the installation nor the removal."""
    labels = mapping_at(daemon_set, "metadata", "labels")
    mode = mode_of(labels.get(COMPONENT_LABEL))
    if mode is None:
        return None
    containers = items_at(daemon_set, "spec", "template", "spec", "containers")
    image = next((text_at(each, "image") for each in containers if each.get("name") == "installer"), "")
    namespace, name = (text_at(daemon_set, "metadata", key) for key in ("namespace", "name"))
    return Installed(namespace, name, str(labels.get(INSTANCE_LABEL, "")), mode, image, daemon_set)


@dataclass(frozen=True, slots=True)
class Owned:
    """One of our objects. `marked`: the deletion policy allows its deletion. `held`: why it still exists
    although it was deleted."""

    resource: Resource
    namespace: str
    name: str
    marked: bool = False
    held: str = ""

    @property
    def path(self) -> str:
        """The object as people name it: kind, namespace and name."""
        return f"{self.resource.plural} {self.namespace}/{self.name}".replace(" /", " ")

    @property
    def guarded(self) -> bool:
        """Whether a deletion policy may refuse its deletion until it is marked."""
        return self.resource in _GUARDED


def find_instance(api: KubeApi, namespace: str, asked: str) -> str:
    """Return the only instance, or the one asked for; empty if there is none. Raises ApiError, and
    InvalidInputError where there are several."""
    if asked:
        return asked
    found = set()
    for resource in (DAEMON_SETS, SERVICE_ACCOUNTS):
        for each in _list(api, resource, OURS, namespace):
            found.add(text_at(each, "metadata", "labels", INSTANCE_LABEL))
    if not found:  # a person, or an interrupted uninstallation, has deleted the namespace of the pods
        left = (each for resource in KINDS for each in _list(api, resource, OURS))
        found = {text_at(each, "metadata", "labels", INSTANCE_LABEL) for each in left}
    found.discard("")
    if len(found) > 1:
        raise InvalidInputError(
            [f"there are several installations: {', '.join(sorted(found))}"], "give --name NAME"
        )
    return next(iter(found), "")


def take_inventory(api: KubeApi, instance: str, namespace: str) -> tuple[Owned, ...]:
    """Return everything of the instance, in the order of deletion. The Leases of nodes that 0.1.0 wrote
    have no instance: those in `namespace` are included where no other instance lives there. Raises
    ApiError."""
    found = [each for resource in KINDS for each in _owned(api, resource, f"{INSTANCE_LABEL}={instance}")]
    others = [
        text_at(each, "metadata", "labels", INSTANCE_LABEL)
        for each in (_list(api, DAEMON_SETS, OURS, namespace) if namespace else ())
    ]
    if namespace and set(others) <= {instance}:
        found += [each for each in _owned(api, LEASES, OURS, namespace) if each not in found]
    order = {resource: at for at, resource in enumerate(KINDS)}
    return tuple(sorted(found, key=lambda each: (order[each.resource], each.namespace, each.name)))


def find_owned(api: KubeApi, instance: str, namespace: str = "") -> tuple[str, tuple[Owned, ...]]:
    """Return the namespace of the pods, and the inventory. The namespace is the given one, else that of their
    ServiceAccount.

    Raises ApiError.
    """
    owned = take_inventory(api, instance, namespace)
    if namespace:
        return namespace, owned
    accounts = (each for each in owned if each.resource == SERVICE_ACCOUNTS and each.name == instance)
    namespace = next((each.namespace for each in accounts), "")
    return namespace, take_inventory(api, instance, namespace) if namespace else owned


def delete_installation(api: KubeApi, instance: str) -> None:
    """Delete the DaemonSet alone: its pods clean their nodes as they end. Raises ApiError."""
    delete_owned(api, list(_owned(api, DAEMON_SETS, our_selector(instance, Mode.INSTALL))))


def delete_owned(api: KubeApi, owned: Iterable[Owned]) -> None:
    """Delete them in the given order. Raises ApiError."""
    for each in owned:
        try:
            api.delete(each.resource, each.namespace, each.name)
        except ApiError as error:
            if not error.conflict:  # a namespace that is being deleted already
                raise


def _owned(api: KubeApi, resource: Resource, selector: str, namespace: str = "") -> Iterator[Owned]:
    for each in _list(api, resource, selector, namespace):
        metadata = mapping_at(each, "metadata")
        if text_at(metadata, "labels", NAME_LABEL) in _NAMES:
            where, name = (text_at(metadata, key) for key in ("namespace", "name"))
            marked = text_at(metadata, "annotations", UNINSTALLING) == "true"
            yield Owned(resource, where, name, marked, _why_held(each))


def _why_held(given: Object) -> str:
    """Return why an object still exists; empty for one that is not being deleted. A namespace says itself
    what it still waits for (Kubernetes API reference, core/v1 NamespaceCondition); any other object waits
    until its finalizers are removed."""
    metadata = mapping_at(given, "metadata")
    if not text_at(metadata, "deletionTimestamp"):
        return ""
    found = metadata.get("finalizers")
    finalizers = ", ".join(map(str, found)) if isinstance(found, list) else ""
    conditions = (each for each in items_at(given, "status", "conditions") if each.get("status") == "True")
    said = "; ".join(text_at(each, "message") for each in conditions)
    return cut_line(said or (f"its finalizers: {finalizers}" if finalizers else "it is being deleted"))


def _list(api: KubeApi, resource: Resource, selector: str, namespace: str = "") -> Iterator[Object]:
    """Yield nothing where the API server does not know the kind."""
    try:
        yield from api.list_objects(resource, selector, namespace)
    except ApiError as error:
        if not error.missing:
            raise


def find_adjustments(api: KubeApi) -> tuple[str, ...]:
    """Return the namespace of each of people's Adjustments, which are deleted with their definition. Raises
    ApiError."""
    return tuple(text_at(each, "metadata", "namespace") for each in _list(api, ADJUSTMENTS, ""))
