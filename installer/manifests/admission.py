"""What the API server itself refuses: ValidatingAdmissionPolicies, for Kubernetes 1.30 and later. Pure.

RBAC can allow a pod to write every Node and every Lease of a namespace, or none. These policies hold each pod
of ours, and of cri-resmgr-agent, to the Node that its token names, to what is ours on it, and to that node's
part in a rollout. One of them refuses the deletion of what the pods need to clean their nodes, until it
carries an annotation: `kubectl delete -f` of everything at once then deletes the DaemonSet, and the nodes
clean themselves with the rights that are left.

Admission policies are not asked about themselves: whoever may delete them, can delete everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.manifests import cel
from installer.manifests.values import Values
from installer.model.fleet import BRAKE, FLEET, LONGEST_HOLD, ROLLOUT, SIZE
from installer.model.names import (
    LAST_FAILURE,
    NAME_LABEL,
    NOT_READY_TAINT,
    READY_CONDITION,
    READY_LABEL,
    STATUS,
    UNINSTALLING,
)

_WORD_LIMIT = 8192  # characters of one annotation of ours: its reasons are cut at 1024 bytes (node_word.py)
_SIZE_LIMIT = 1024  # characters of what the Lease `fleet` says of the fleet's size
_MOST_MANAGERS = (3, 10)  # that have written a permit, and any other Lease
_SHARED_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_AGENT = "system:serviceaccount:kube-system:cri-resmgr-agent"
_POD, _AGENT_POD = "a pod of the installer", "cri-resmgr-agent"
_BY_SERVER = "'managedFields', 'resourceVersion', 'generation'"  # of metadata: it writes them itself


@dataclass(frozen=True, slots=True)
class Rule:
    """What has to hold; else the request is refused with `message`, or with what `worded` amounts to."""

    expression: str
    message: str
    worded: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """`about`: the name and the expression that say whose requests are judged. `failure`: what happens to a
    request that cannot be judged. `variables` are expressions; one may use those before it."""

    name: str
    about: tuple[str, str]
    matches: Mapping[str, Any]
    rules: tuple[Rule, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    failure: str = "Fail"


def rollout_namespace(values: Values) -> str:
    """Where the permits are."""
    return f"{values.name}-rollout"


def build_admission_policies(values: Values, *, agent: bool, guard_deletion: bool) -> tuple[Policy, ...]:
    """For the template. Namespaces that others share are never ours to keep."""
    ours = ("pods-of-the-installer", f"request.userInfo.username == {cel.text(_account(values))}")
    agents = ("pods-of-the-agent", f"request.userInfo.username == {cel.text(_AGENT)}")
    policies = [_own_node(ours), _own_lease(ours, values)]
    policies += [_agent_node(agents), _agent_adjustments(agents)] if agent else []
    return (*policies, *([_deletion(values)] if guard_deletion else []))


def _account(values: Values) -> str:
    return f"system:serviceaccount:{values.namespace}:{values.name}"


# -- who asks -----------------------------------------------------------------------------------


def _token() -> dict[str, str]:
    """A pod's token says on which node it is (ServiceAccountTokenPodNodeInfo of Kubernetes 1.30)."""
    extra = "request.userInfo.extra"
    claims = {"nodeName": "node-name", "nodeUid": "node-uid"}
    named = {name: cel.text(f"authentication.kubernetes.io/{claim}") for name, claim in claims.items()}
    return {
        name: f"has({extra}) && {claim} in {extra} ? {extra}[{claim}][0] : ''"
        for name, claim in named.items()
    }


_NAMES_NODE = Rule(
    "variables.nodeName != '' && variables.nodeUid != ''",
    "the token of this pod does not say on which node it is: that needs Kubernetes 1.30 or later",
)


def _resources(group: str, version: str, operations: str, *names: str) -> dict[str, Any]:
    """With the default of the API: kubectl compares such a list as a whole with what the API server has made
    of it, and would find it changed by each apply."""
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": operations.split(),
        "resources": list(names),
        "scope": "*",
    }


# -- the Node -----------------------------------------------------------------------------------

_NODES = {"resourceRules": [_resources("", "v1", "UPDATE", "nodes", "nodes/status")]}


def _node_parts(*more: str) -> dict[str, str]:
    """Variables: each part of the Node, as it is to be and as it was. One that ends in [] is a list."""
    found = dict[str, str]()
    for path in ("metadata", "spec", "status", *more):
        name, missing = path.rpartition(".")[2], "{}"
        if name.endswith("[]"):
            path, name, missing = path[:-2], name[:-2], "[]"
        found[name] = cel.part("object", path, missing)
        found[cel.old(name)] = cel.part("oldObject", path, missing)
    return found


def _of_own_node(who: str) -> Rule:
    return Rule(
        "object.metadata.name == variables.nodeName && object.metadata.uid == variables.nodeUid",
        f"{who} may write only the Node that it is on",
    )


def _own_node(about: tuple[str, str]) -> Policy:
    """What is ours may change, and the rest stays, also what a later Kubernetes adds to a Node. What cannot
    be judged is not written: pods serve their node without it."""
    taint, condition = cel.text(NOT_READY_TAINT), cel.text(READY_CONDITION)
    labels, annotations = cel.texts([READY_LABEL]), cel.texts([STATUS, LAST_FAILURE])
    short = f"size(variables.annotations[key]) <= {_WORD_LIMIT}"
    rules = (
        Rule(cel.same("labels", labels), f"{_POD} may change only its own label of its Node"),
        Rule(
            f"{cel.same('annotations', annotations)}"
            f" && {annotations}.all(key, !(key in variables.annotations) || {short})",
            f"{_POD} may change only its own annotations of its Node, of {_WORD_LIMIT} characters at most",
        ),
        Rule(
            "variables.taints.all(each, each in variables.oldTaints)"
            f" && variables.oldTaints.all(each, each.key == {taint} || each in variables.taints)",
            f"{_POD} may only remove its own taint from its Node",
        ),
        Rule(
            f"variables.conditions.all(each, each.type == {condition} || each in variables.oldConditions)"
            f" && variables.oldConditions.all(each, each.type == {condition} || each in variables.conditions)"
            f" && size(variables.conditions.filter(each, each.type == {condition})) <= 1"
            f" && variables.conditions.all(each, each.type != {condition} || !has(each.message)"
            f" || size(each.message) <= {_WORD_LIMIT})",
            f"{_POD} may change only its own condition of its Node",
        ),
        Rule(cel.same("spec", "['taints']"), f"{_POD} may not change the spec of its Node"),
        Rule(cel.same("status", "['conditions']"), f"{_POD} may not change the status of its Node"),
        Rule(
            cel.same("metadata", f"['labels', 'annotations', {_BY_SERVER}]"),
            f"{_POD} may not change the metadata of its Node",
        ),
    )
    parts = _node_parts("metadata.labels", "metadata.annotations", "spec.taints[]", "status.conditions[]")
    return Policy("own-node", about, _NODES, (_NAMES_NODE, _of_own_node(_POD), *rules), _token() | parts)


def _agent_node(about: tuple[str, str]) -> Policy:
    """Policies of cri-resmgr label, annotate and taint their Node."""
    may = f"['labels', 'annotations', {_BY_SERVER}]"
    rule = Rule(
        " && ".join((cel.same("spec", "['taints']"), cel.same("status", "['']"), cel.same("metadata", may))),
        f"{_AGENT_POD} may change only labels, annotations and taints of its Node",
    )
    rules = (_NAMES_NODE, _of_own_node(_AGENT_POD), rule)
    return Policy("agent-own-node", about, _NODES, rules, _token() | _node_parts())


def _agent_adjustments(about: tuple[str, str]) -> Policy:
    """An agent writes how its node takes an Adjustment (patchAdjustment in pkg/agent of cri-resmgr v0.9)."""
    paths = {"metadata": "metadata", "status": "status", "nodes": "status.nodes"}
    parts = {"whole": "dyn(object)", "oldWhole": "dyn(oldObject)"}
    for name, path in paths.items():
        parts |= {name: cel.part("object", path), cel.old(name): cel.part("oldObject", path)}
    same = (
        cel.same("whole", "['metadata', 'status']"),
        cel.same("metadata", f"[{_BY_SERVER}]"),
        cel.same("status", "['nodes']"),
        cel.same("nodes", "[variables.nodeName]"),
    )
    rule = Rule(" && ".join(same), f"{_AGENT_POD} may write only what its own node says of an Adjustment")
    matches = {"resourceRules": [_resources("criresmgr.intel.com", "v1alpha1", "UPDATE", "adjustments")]}
    return Policy("agent-adjustments", about, matches, (_NAMES_NODE, rule), _token() | parts)


# -- Leases -------------------------------------------------------------------------------------


def _lease_variables(values: Values) -> dict[str, str]:
    rollout = cel.text(ROLLOUT)
    variables = _token() | {
        "me": "variables.nodeName + '/' + variables.nodeUid",
        "ofRollout": f"request.namespace == {cel.text(rollout_namespace(values))}",
        "isFleet": f"variables.ofRollout && object.metadata.name == {cel.text(FLEET)}",
        "isPermit": _named("^permit-(0|[1-9][0-9]{0,2})$"),
        "isBrake": _named("^brake-[0-9a-f]{1,64}$"),
        "label": f"{rollout} in variables.labels ? variables.labels[{rollout}] : dyn('')",
        "spec": cel.part("object", "spec"),
        "managed": cel.part("object", "metadata.managedFields", "[]"),
    }
    parts = {
        "labels": ("metadata.labels", "{}"),
        "annotations": ("metadata.annotations", "{}"),
        "owners": ("metadata.ownerReferences", "[]"),
        "finalizers": ("metadata.finalizers", "[]"),
        "holder": ("spec.holderIdentity", "''"),
        "begins": ("spec.renewTime", "'1970-01-01T00:00:00Z'"),
        "seconds": ("spec.leaseDurationSeconds", "0"),
    }
    found = dict[str, str]()
    for name, (path, missing) in parts.items():
        found[name] = cel.part("object", path, missing)
        found[cel.old(name)] = f"request.operation == 'UPDATE' && {cel.part('oldObject', path, missing)}"
    written = "variables.labels.map(key, 'f:' + key) + variables.annotations.map(key, 'f:' + key)"
    owned = "variables.owners.map(each, 'k:{\"uid\":\"' + each.uid + '\"}')"
    return found | variables | {"written": f"['.'] + {written} + {owned}"}


def _named(pattern: str) -> str:
    return f"variables.ofRollout && object.metadata.name.matches({cel.text(pattern)})"


def _own_lease(about: tuple[str, str], values: Values) -> Policy:
    """The Lease of the pod's node, and what nodes agree by. Leases of kubelets are never looked at."""
    namespaces = {
        "key": "kubernetes.io/metadata.name",
        "operator": "In",
        "values": [values.namespace, rollout_namespace(values)],
    }
    matches = {
        "namespaceSelector": {"matchExpressions": [namespaces]},
        "resourceRules": [_resources("coordination.k8s.io", "v1", "CREATE UPDATE", "leases")],
    }
    rules = (_NAMES_NODE, *_names_of_leases(), *_metadata_of_leases(), *_holders())
    return Policy("own-lease", about, matches, rules, _lease_variables(values))


def _names_of_leases() -> tuple[Rule, ...]:
    return (
        Rule(
            "variables.ofRollout || object.metadata.name == 'cri-resmgr-installer.' + variables.nodeName",
            f"{_POD} may write only the Lease of the node that it is on",
        ),
        Rule(
            "!variables.ofRollout || variables.isPermit || variables.isFleet || variables.isBrake",
            f"{_POD} may write permits, brakes and the size of the fleet, and nothing else",
        ),
        # By this label nodes find them: without it, a pause or a brake would not be seen.
        Rule(
            "!variables.ofRollout || (variables.isPermit ? variables.label == 'permit'"
            f" : variables.isFleet ? variables.label == {cel.text(FLEET)}"
            " : object.metadata.name == 'brake-' + string(variables.label))",
            f"{_POD} may not write a Lease of the rollout without its label {ROLLOUT}",
        ),
    )


def _metadata_of_leases() -> tuple[Rule, ...]:
    """An owner that does not exist has a Lease deleted, and a finalizer keeps it for ever. What is large
    fills the LIST in which each node finds everything."""
    own = "each.apiVersion == 'v1' && each.kind == 'Node'"
    own += " && each.name == variables.nodeName && each.uid == variables.nodeUid"
    brake, size = cel.text(BRAKE), cel.text(SIZE)
    few, many = _MOST_MANAGERS
    unchanged = (
        "key in variables.oldAnnotations && variables.annotations[key] == variables.oldAnnotations[key]"
    )
    counted = f"variables.isFleet && key == {size} && size(variables.annotations[key]) <= {_SIZE_LIMIT}"
    return (
        Rule(
            "variables.finalizers.all(each, each in variables.oldFinalizers)"
            " && variables.oldFinalizers.all(each, each in variables.finalizers)"
            " && variables.oldOwners.all(each, !variables.ofRollout || each in variables.owners)"
            f" && variables.owners.all(each, each in variables.oldOwners || (!variables.ofRollout && {own}))",
            f"{_POD} may give its Lease no owner but its Node, others none, and none a finalizer",
        ),
        Rule(
            f"variables.annotations.all(key, ({unchanged})"
            f" || (variables.isBrake && key == {brake}) || ({counted}))"
            " && variables.oldAnnotations.all(key, key in variables.annotations"
            f" || key in [{brake}, {size}])",
            f"{_POD} may neither pause nor resume a rollout, and may annotate Leases only as nodes do",
        ),
        Rule(
            f"variables.labels.all(key, key in {cel.texts([NAME_LABEL, ROLLOUT])}"
            " || key in variables.oldLabels)",
            f"{_POD} may give a Lease no labels but its own",
        ),
        # Clients may send it, and the API server keeps what they have made up.
        Rule(
            f"size(variables.managed) <= (variables.isPermit ? {few} : {many})"
            " && variables.managed.all(each, !has(each.fieldsV1) || each.fieldsV1.all(part,"
            " part in ['f:metadata', 'f:spec'] && size(each.fieldsV1[part]) <= 8"
            " && each.fieldsV1[part].all(name, size(name) <= 64"
            " && each.fieldsV1[part][name].all(key, key in variables.written"
            " && each.fieldsV1[part][name][key] == {}))))",
            f"{_POD} may not fill the managedFields of a Lease",
        ),
    )


def _holders() -> tuple[Rule, ...]:
    """An expression is not told what time it is. So whoever takes over another node's permit has to say that
    its own term begins when the other one's is over; nodes let a term begin first (`Permit`), and no
    node puts one back."""
    fields = ["holderIdentity", "leaseDurationSeconds", "leaseTransitions", "acquireTime", "renewTime"]
    return (
        Rule(
            f"variables.spec.all(key, key in {cel.texts(fields)}) && (variables.ofRollout"
            " ? variables.isPermit || variables.holder == '' : variables.holder == variables.nodeName)",
            f"{_POD} may hold nothing but permits and the Lease of its node",
        ),
        Rule(
            "!variables.isPermit || variables.holder in ['', variables.me]",
            f"{_POD} may take a permit only for the node that it is on",
        ),
        Rule(
            "!variables.isPermit"
            f" || (variables.seconds > 0 && variables.seconds <= {LONGEST_HOLD}"
            " && (variables.oldHolder in ['', variables.me]"
            " ? timestamp(variables.begins) >= timestamp(variables.oldBegins)"
            " : variables.holder == variables.me && timestamp(variables.begins)"
            " >= timestamp(variables.oldBegins) + duration(string(variables.oldSeconds) + 's')))",
            f"{_POD} may neither give back nor take another node's permit before its time is over",
        ),
    )


# -- deletion -----------------------------------------------------------------------------------


def _deletion(values: Values) -> Policy:
    """Nobody's deletion is held up by a policy that cannot be judged."""
    namespaces = [values.namespace, rollout_namespace(values)]
    own = cel.texts([name for name in namespaces if name not in _SHARED_NAMESPACES])
    mark, labels = cel.text(UNINSTALLING), "oldObject.metadata.labels"
    wanted = {"name": "cri-resmgr-installer", "instance": values.name}
    labelled = (
        f"{key} in {labels} && {labels}[{key}] == {cel.text(value)}"
        for key, value in ((cel.text(f"app.kubernetes.io/{name}"), value) for name, value in wanted.items())
    )
    about = (
        f"request.resource.resource == 'namespaces' ? oldObject.metadata.name in {own}"
        f" : has({labels}) && {' && '.join(labelled)}"
    )
    marked = "oldObject.metadata.annotations"
    # What is in a namespace that is being deleted goes with it.
    expression = (
        f"(has({marked}) && {mark} in {marked} && {marked}[{mark}] == 'true')"
        " || (has(oldObject.metadata.namespace) && has(namespaceObject.metadata.deletionTimestamp))"
    )
    needs = "the nodes need it to be cleaned: run `cri-resmgr-installer uninstall`"
    worded = (
        f"'{needs}. If they are clean, let it go: kubectl annotate ' + request.resource.resource"
        " + ' ' + oldObject.metadata.name"
        " + (has(oldObject.metadata.namespace) ? ' -n ' + oldObject.metadata.namespace : '')"
        f" + ' {UNINSTALLING}=true'"
    )
    rbac = ("clusterrolebindings", "clusterroles", "rolebindings", "roles")
    rules = [
        _resources("", "v1", "DELETE", "namespaces", "serviceaccounts"),
        _resources("rbac.authorization.k8s.io", "v1", "DELETE", *rbac),
    ]
    rule = Rule(expression, f"{needs}, or annotate it with {UNINSTALLING}=true", worded)
    return Policy(
        "deletion", ("rights-of-the-installer", about), {"resourceRules": rules}, (rule,), failure="Ignore"
    )
