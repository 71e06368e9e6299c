"""Finds what is ours in a cluster, and deletes it in order. An object is ours by two labels, the name of our
program or of the agent that we brought and the instance (the value `name`), and by its place: it belongs to
the whole cluster, or to a namespace where the instance lives (homes.py). Tenants can create neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from installer.errors import InvalidInputError
from installer.model.event import name_some
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
from installer.operator.homes import CLUSTER_ROLE_BINDINGS, NAMES, SYSTEM, Home, find_homes
from installer.operator.kube_objects import (
    Object,
    cut_line,
    is_observed,
    items_at,
    mapping_at,
    number_at,
    text_at,
)

_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
SERVICE_ACCOUNTS, NAMESPACES = Resource("", "v1", "serviceaccounts"), Resource("", "v1", "namespaces")
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
ADJUSTMENTS = Resource("criresmgr.intel.com", "v1alpha1", "adjustments")
_RIGHTS = (
    Resource(_RBAC, "v1", "rolebindings"),
    Resource(_RBAC, "v1", "roles"),
    Resource(_RBAC, "v1", "clusterroles"),
    CLUSTER_ROLE_BINDINGS,
)
_ARGO_CD, _TRACKING = "argocd-controller", "argocd.argoproj.io/tracking-id"
_APPLIERS = (
    "kubectl-client-side-apply",
    _ARGO_CD,
    "kustomize-controller",
    "Terraform",
    "pulumi-kubernetes",
)
"""Field managers that apply whole objects, in the client's way: `kubectl apply` and what GitOps tools use."""
_RENDERERS = (*_APPLIERS, "kubectl", "OpenAPI-Generator", "kapp")
"""How the names of those begin that create objects as a file has them. OpenAPI-Generator is Ansible's."""
_HELMS = "f:meta.helm.sh/release-name"
_HOOKS = f"{NAME_LABEL}=cri-resmgr-installer-hooks"
_GUARDED = (*_RIGHTS, NAMESPACES, SERVICE_ACCOUNTS)
_IN_NAMESPACES = (
    DAEMON_SETS,
    Resource("monitoring.coreos.com", "v1", "podmonitors"),
    Resource("monitoring.coreos.com", "v1", "prometheusrules"),
    Resource("", "v1", "services"),
    CONFIG_MAPS,
    LEASES,
    *_RIGHTS[:2],
    SERVICE_ACCOUNTS,
)
_OF_THE_CLUSTER = (
    DEFINITIONS,
    Resource(_ADMISSION, "v1", "validatingadmissionpolicybindings"),
    Resource(_ADMISSION, "v1", "validatingadmissionpolicies"),
    NAMESPACES,
    *_RIGHTS[2:],
)
_ORDER = (
    *_IN_NAMESPACES[:-3],
    *_OF_THE_CLUSTER[:3],
    *_RIGHTS[:2],
    NAMESPACES,
    SERVICE_ACCOUNTS,
    *_RIGHTS[2:],
)
"""The order of deletion. Rights outlast the pods that need them, and the ClusterRoleBindings are last: while
one exists, an interrupted uninstallation can be found again, with its namespace."""


@dataclass(frozen=True, slots=True)
class Installed(FleetInstallation):
    """One of our DaemonSets, with the object."""

    daemon_set: Object

    @property
    def template(self) -> Object:
        return mapping_at(self.daemon_set, "spec", "template")

    @property
    def updated(self) -> int:
        """How many nodes have a pod of the present template."""
        observed = is_observed(self.daemon_set)
        return number_at(self.daemon_set, "status", "updatedNumberScheduled") if observed else 0


def find_installations(api: KubeApi, namespace: str = "", instance: str = "") -> tuple[Installed, ...]:
    """Find our DaemonSets: of each instance, or of the given one, those in the namespace where it lives; with
    `namespace`, which a person has named, those in it. Raises ApiError."""
    homes = {} if namespace else find_homes(api)
    places = {namespace} if namespace else {SYSTEM, *(home.namespace for home in homes.values())} - {""}
    installations = list[Installed]()
    for place in sorted(places):
        for installed in map(read_installed, api.list_objects(DAEMON_SETS, our_selector(instance), place)):
            if installed is not None and (namespace or _lives(installed, place, homes)):
                installations.append(installed)
    return tuple(installations)


def _lives(installed: Installed, place: str, homes: Mapping[str, Home]) -> bool:
    own = (installed.instance, removal_name(installed.instance))
    home = homes.get(installed.instance, Home()).namespace or SYSTEM
    return place == home and installed.name in own


def describe_unproven(api: KubeApi, instance: str = "") -> str:
    """Name the DaemonSets with our labels that no ClusterRoleBinding proves to be ours, of instances that
    have none; empty if there are none. Only for messages. Raises ApiError."""
    homes = find_homes(api)
    listed = map(read_installed, api.list_objects(DAEMON_SETS, our_selector(instance)))
    unproven = [
        installed
        for installed in listed
        if installed
        and not (
            homes.get(installed.instance, Home()).namespace or _lives(installed, installed.namespace, homes)
        )
    ]
    named = name_some([cut_line(f"{installed.namespace}/{installed.name}") for installed in unproven])
    return named and f"no ClusterRoleBinding says whose they are, so anyone may have created {named}"


def removal_name(name: str) -> str:
    return f"{name}-removal"


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
    although it was deleted. `release`: the Helm release that has installed it, as NAMESPACE/NAME."""

    resource: Resource
    namespace: str
    name: str
    marked: bool = False
    held: str = ""
    release: str = ""

    @property
    def path(self) -> str:
        """The object as people name it: kind, namespace and name."""
        return f"{self.resource.plural} {self.namespace}/{self.name}".replace(" /", " ")

    @property
    def guarded(self) -> bool:
        """Whether a deletion policy may refuse its deletion until it is marked."""
        return self.resource in _GUARDED


def find_release(api: KubeApi, instance: str, namespace: str, release: str) -> str:
    """Return why the objects of the instance are no Helm release's; empty if they are those of this one,
    NAMESPACE/NAME. Helm annotates each object that it installs itself, and no other program that applies a
    rendered chart does. The DaemonSet decides; where it says another thing, any other object does.

    Raises ApiError, and InvalidInputError where it is in doubt: Helm deletes the objects of a release also
    where another one, or another program, has taken them over, and no node would be cleaned.
    """
    sets = [installed.daemon_set for installed in find_installations(api, namespace, instance)]
    releases = {_release_of(daemon_set) for daemon_set in sets}
    if release not in releases:
        releases |= {owned.release for owned in take_inventory(api, instance, namespace)}
    if not any(releases):
        return "Helm has not installed it"
    others = {_applied_since(daemon_set) for daemon_set in sets} - {""} | {
        f"Helm release {other_release}" for other_release in releases - {release, ""}
    }
    others |= _makers_of_hook(api, instance)
    if not others and (releases == {release} or not sets):
        return ""
    other = max(others, default="another program")
    raise InvalidInputError(
        [f"Helm release {release} is to be uninstalled, but {other} has applied {instance} since"],
        f"`cri-resmgr-installer uninstall --name {instance} --namespace {namespace}` removes it, then "
        "`helm uninstall --no-hooks` the release; where it is to stay, delete this Job and, instead of "
        "`helm uninstall`, the Secrets of the release",
    )


def require_argo_cd(api: KubeApi, instance: str, namespace: str) -> None:
    """Raise InvalidInputError unless Argo CD has applied the DaemonSet last, or it is gone: anything else
    that applies the chart creates the hook at once. Raises ApiError."""
    for each in find_installations(api, namespace, instance):
        given = each.daemon_set
        stamps = _stamps_of(given, _is_applied) + _stamps_of(given, _is_helms)
        tracked = bool(text_at(given, "metadata", "annotations", _TRACKING))
        manager = max(stamps, default=("", _ARGO_CD if tracked else "another program"))[1]
        if each.mode is Mode.INSTALL and manager != _ARGO_CD:
            raise InvalidInputError(
                [f"this hook is for Argo CD, and {manager} has applied DaemonSet {namespace}/{each.name}"],
                "set hooks.uninstall to false, or to true for Helm, and delete this Job; "
                f"`cri-resmgr-installer uninstall --name {instance} --namespace {namespace}` removes the "
                "installation",
            )


def _release_of(given: Object) -> str:
    found = (
        text_at(given, "metadata", "annotations", f"meta.helm.sh/release-{key}")
        for key in ("namespace", "name")
    )
    return "/".join(filter(None, found))


def _applied_since(given: Object) -> str:
    """Return the program that has applied the object as a whole since Helm did; empty if none has. The field
    managers say so (Kubernetes documentation, "Server-Side Apply"); Helm's, whose name is that of the
    program that it is built into, is the one that owns Helm's annotation."""
    time, manager = max(_stamps_of(given, _is_applied), default=("", ""))
    return manager if time and time >= max(_stamps_of(given, _is_helms), default=("", ""))[0] else ""


def _makers_of_hook(api: KubeApi, instance: str) -> set[str]:
    """Return who has created the hook's own binding, if that is known not to be Helm: a program that applies
    a rendered chart to what Helm has installed may create the hook before it writes the DaemonSet, which may
    also be right already."""
    makers = (
        stamp[1]
        for binding in _list(api, CLUSTER_ROLE_BINDINGS, _HOOKS)
        if text_at(binding, "metadata", "name") == f"{instance}-uninstall"
        for stamp in _stamps_of(binding, lambda entry: text_at(entry, "manager").startswith(_RENDERERS))
    )
    return set(makers)


def _stamps_of(given: Object, wanted: Callable[[Object], bool]) -> list[tuple[str, str]]:
    """Return when, and who: of the wanted field managers."""
    entries = filter(wanted, items_at(given, "metadata", "managedFields"))
    return [(text_at(entry, "time"), text_at(entry, "manager")) for entry in entries]


def _is_helms(entry: Object) -> bool:
    return _HELMS in mapping_at(entry, "fieldsV1", "f:metadata", "f:annotations")


def _is_applied(entry: Object) -> bool:
    """Whether it has applied the whole object, and is not Helm."""
    whole = text_at(entry, "operation") == "Apply" or text_at(entry, "manager") in _APPLIERS
    return whole and not text_at(entry, "subresource") and not _is_helms(entry)


def find_instance(api: KubeApi, namespace: str, asked: str) -> str:
    """Return the only instance, or the one asked for; empty if there is none. Raises ApiError, and
    InvalidInputError where there are several."""
    if asked:
        return asked
    instances = {instance for instance, home in find_homes(api).items() if namespace in ("", home.namespace)}
    if not instances and namespace:
        listed = (
            given for kind in (DAEMON_SETS, SERVICE_ACCOUNTS) for given in _list(api, kind, OURS, namespace)
        )
        instances = {text_at(given, "metadata", "labels", INSTANCE_LABEL) for given in listed}
    if not instances:  # a person, or an interrupted uninstallation, has deleted it
        left = (given for resource in _OF_THE_CLUSTER for given in _list(api, resource, OURS))
        instances = {text_at(given, "metadata", "labels", INSTANCE_LABEL) for given in left}
    instances.discard("")
    if len(instances) > 1:
        raise InvalidInputError(
            [f"there are several installations: {', '.join(sorted(instances))}"], "give --name NAME"
        )
    return next(iter(instances), "")


def take_inventory(api: KubeApi, instance: str, namespace: str = "") -> tuple[Owned, ...]:
    """Return everything of the instance, in the order of deletion. `namespace`: where a person, or a
    DaemonSet, says that its pods are, besides the place that the ClusterRoleBinding names. The Leases of
    nodes that 0.1.0 wrote have no instance: those in the pods' namespace are included where no other instance
    lives there. Raises ApiError."""
    homes, of_instance = find_homes(api), f"{INSTANCE_LABEL}={instance}"
    home = homes.get(instance, Home())
    owned = [item for resource in _OF_THE_CLUSTER for item in _owned(api, resource, of_instance)]
    places = {namespace, home.namespace, home.configs, SYSTEM, f"{instance}-rollout"} - {""}
    places |= {item.name for item in owned if item.resource == NAMESPACES}
    for place in sorted(places):
        owned += [item for kind in _IN_NAMESPACES for item in _owned(api, kind, of_instance, place)]
    events = f"{instance}-events"
    owned += [
        item
        for kind in _RIGHTS[:2]
        for item in _owned(api, kind, of_instance, "default")
        if item.name == events
    ]
    for place in {namespace, home.namespace or SYSTEM} - {""}:
        if not any(other.namespace == place for name, other in homes.items() if name != instance):
            owned += [item for item in _owned(api, LEASES, OURS, place) if item not in owned]
    return tuple(
        sorted(set(owned), key=lambda item: (_ORDER.index(item.resource), item.namespace, item.name))
    )


def find_bindings_of_hook(api: KubeApi, name: str) -> tuple[tuple[Resource, str], ...]:
    """Return the kind and the namespace of each binding of this name that a hook has its rights by; that of
    the whole cluster, which lets the hook delete them, is the last. Raises ApiError."""
    bindings = (
        (resource, text_at(binding, "metadata", "namespace"))
        for resource in (_RIGHTS[0], CLUSTER_ROLE_BINDINGS)
        for binding in _list(api, resource, _HOOKS)
        if text_at(binding, "metadata", "name") == name
    )
    return tuple(bindings)


def find_agents_other_user(api: KubeApi, instance: str) -> str:
    """Return another installation that has the agent: its ServiceAccount and roles have one name in a
    cluster, and the label of the installation that was applied last. Empty if there is none. Raises
    ApiError."""
    for each in _list(api, NAMESPACES, OURS):
        other = text_at(each, "metadata", "labels", INSTANCE_LABEL)
        if other != instance and text_at(each, "metadata", "name") == f"{other}-agent":
            return other
    return ""


def delete_installation(api: KubeApi, instance: str) -> None:
    """Delete the DaemonSet alone: its pods clean their nodes as they end. Raises ApiError."""
    for each in find_installations(api, instance=instance):
        if each.mode is Mode.INSTALL:
            api.delete(DAEMON_SETS, each.namespace, each.name)


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
        if text_at(metadata, "labels", NAME_LABEL) in NAMES:
            where, name = (text_at(metadata, key) for key in ("namespace", "name"))
            marked = text_at(metadata, "annotations", UNINSTALLING) == "true"
            yield Owned(resource, where, name, marked, _why_held(each), _release_of(each))


def _why_held(given: Object) -> str:
    """Return why an object still exists; empty for one that is not being deleted. A namespace says itself
    what it still waits for (Kubernetes API reference, core/v1 NamespaceCondition); any other object waits
    until its finalizers are removed."""
    metadata = mapping_at(given, "metadata")
    if not text_at(metadata, "deletionTimestamp"):
        return ""
    held_by = metadata.get("finalizers")
    finalizers = ", ".join(map(str, held_by)) if isinstance(held_by, list) else ""
    conditions = (
        condition
        for condition in items_at(given, "status", "conditions")
        if condition.get("status") == "True"
    )
    said = "; ".join(text_at(condition, "message") for condition in conditions)
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
