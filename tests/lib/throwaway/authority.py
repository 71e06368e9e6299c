"""An API server's stand-in that asks who may do what: tokens of pods, RBAC, ValidatingAdmissionPolicies; and
namespaces that are deleted with what is in them.

As on a real one (Kubernetes' documentation on "Managing Service Accounts", "Using RBAC Authorization",
"Validating Admission Policy" and "Namespaces"), with these differences: a policy acts from its creation until
its deletion to the moment, garbage is collected at once, and a token lives as long as its pod. A test is an
administrator, and so are the controllers: policies alone can refuse them something.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lib.admission import compile_policy, judge
from tests.lib.cel import CelError
from tests.lib.throwaway.fleet import NODES, PODS
from tests.lib.throwaway.kubeserver import CORE, Kind, KubeServer, Name, Refused, now

ACCOUNTS, NAMESPACES = Kind(CORE, "serviceaccounts"), Kind(CORE, "namespaces")
_RBAC, _ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
POLICIES = Kind(_ADMISSION, "validatingadmissionpolicies")
BINDINGS = Kind(_ADMISSION, "validatingadmissionpolicybindings")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ADMIN = {"username": "kubernetes-admin", "extra": {}}

Object = dict[str, Any]


@dataclass(frozen=True)
class _Token:
    """That of a pod; good as long as both are there that it names."""

    account: Name
    account_uid: str
    pod: Name
    pod_uid: str
    extra: Mapping[str, list[str]]

    @property
    def username(self) -> str:
        return f"system:serviceaccount:{self.account.namespace}:{self.account.name}"


class StrictServer(KubeServer):
    """`policies`: it knows ValidatingAdmissionPolicies and says in a token on which node its pod is, as
    Kubernetes does since 1.30. `directory` is its own."""

    def __init__(self, directory: Path, *, policies: bool = True) -> None:
        authority = directory / "authority"
        authority.mkdir(parents=True)
        super().__init__(authority)
        self._directory, self._policies = directory, policies
        self._tokens: dict[str, _Token] = {}
        self._asking = _ADMIN
        self.denied: list[str] = []  # what pods were denied
        if not policies:
            self.unknown.add(POLICIES.group)
        for name in ("default", "kube-system"):
            self.create(NAMESPACES, "", {"metadata": {"name": name}})

    # -- who asks ---------------------------------------------------------------------------------

    def account_of(self, pod: Object) -> Path:
        """With a token of its own, and the certificate of this server."""
        metadata = pod["metadata"]
        account = Name(ACCOUNTS, metadata["namespace"], pod["spec"]["serviceAccountName"])
        node = self.get(Name(NODES, "", pod["spec"]["nodeName"]))["metadata"]
        claims = {"node-name": node["name"], "node-uid": node["uid"]} if self._policies else {}
        extra = {f"authentication.kubernetes.io/{name}": [value] for name, value in claims.items()}
        uid = self.get(account)["metadata"]["uid"]
        name, token = Name(PODS, metadata["namespace"], metadata["name"]), uuid.uuid4().hex
        self._tokens[token] = _Token(account, uid, name, metadata["uid"], extra)
        directory: Path = self._directory / metadata["name"]
        directory.mkdir()
        assert self.account is not None
        (directory / "ca.crt").write_bytes((self.account / "ca.crt").read_bytes())
        (directory / "namespace").write_text(metadata["namespace"])
        (directory / "token").write_text(token)
        return directory

    def authenticate(self, authorization: str) -> str:
        with self.changed:
            found = authorization.removeprefix("Bearer ")
            token = self._tokens.get(found)
            named = ((token.account, token.account_uid), (token.pod, token.pod_uid)) if token else ()
            good = [self.objects.get(name, {}).get("metadata", {}).get("uid") == uid for name, uid in named]
            if found != self.token and (not good or not all(good)):
                raise Refused(401, "Unauthorized", "Unauthorized")
            return found

    @contextlib.contextmanager
    def acting(self, user: str, method: str, key: Name, status: bool) -> Iterator[None]:
        token = self._tokens.get(user)
        with self.changed:
            if token is not None:
                self._authorize(token, _VERBS.get(method, "get" if key.name else "list"), key, status)
                self._asking = {"username": token.username, "extra": token.extra}
            try:
                yield
            finally:
                self._asking = _ADMIN

    def _authorize(self, token: _Token, verb: str, key: Name, status: bool) -> None:
        resource = key.kind.plural + ("/status" if status else "")
        for rule in self._rules(token.account, key.namespace):
            named = rule.get("resourceNames") or [key.name]
            if (
                key.kind.group in rule["apiGroups"]
                and resource in rule["resources"]
                and verb in rule["verbs"]
                and key.name in named
            ):
                return
        what = f'{resource} "{key.name}" is forbidden: User "{token.username}" cannot {verb} it'
        self.denied.append(f"{what} in {key.namespace!r}")
        raise Refused(403, "Forbidden", what)

    def _rules(self, account: Name, namespace: str) -> Iterator[Object]:
        """Those that hold for the account in a namespace, and everywhere."""
        for part in {"", namespace}:
            kind = "rolebindings" if part else "clusterrolebindings"
            for binding in self._all(Kind(_RBAC, kind), part):
                subjects = [
                    (each["kind"], each.get("namespace"), each["name"]) for each in binding["subjects"]
                ]
                role = binding["roleRef"]
                where = part if role["kind"] == "Role" else ""
                found = self.objects.get(Name(Kind(_RBAC, f"{role['kind'].lower()}s"), where, role["name"]))
                if found and ("ServiceAccount", account.namespace, account.name) in subjects:
                    yield from found["rules"]

    # -- what policies refuse ------------------------------------------------------------------------

    def _store(self, kind: str, key: Name, body: Object) -> None:
        operation = "CREATE" if kind == "ADDED" else "UPDATE"
        self._admit(operation, key, body, self.objects.get(key) if kind == "MODIFIED" else None)
        super()._store(kind, key, body)

    def _admit(self, operation: str, key: Name, new: Object | None, old: Object | None) -> None:
        """Raises Refused for the first policy that is bound and refuses it."""
        namespace = self.objects.get(Name(NAMESPACES, "", key.namespace))
        request = {
            "resource": {"group": key.kind.group, "resource": key.kind.plural},
            "operation": operation,
            "namespace": key.namespace,
            "userInfo": self._asking,
        }
        given = {"request": request, "object": new, "oldObject": old, "namespaceObject": namespace}
        bound = {
            binding["spec"]["policyName"]
            for binding in self._all(BINDINGS, "")
            if "Deny" in binding["spec"]["validationActions"]
        }
        for policy in self._all(POLICIES, ""):
            name, spec = policy["metadata"]["name"], policy["spec"]
            if name not in bound or not _matches(spec["matchConstraints"], operation, key):
                continue
            try:
                failed = judge(spec, given)
            except CelError as error:
                failed = [str(error)] if spec["failurePolicy"] == "Fail" else []
            if failed:
                what = f"ValidatingAdmissionPolicy '{name}' denied request: {failed[0]}"
                self.denied += [] if self._asking is _ADMIN else [what]
                raise Refused(422, "Invalid", f'{key.kind.plural} "{key.name}" is invalid: {what}')

    # -- namespaces ------------------------------------------------------------------------------------

    def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        with self.changed:
            if kind == NAMESPACES:
                labels = {"kubernetes.io/metadata.name": body["metadata"]["name"]}
                metadata = body["metadata"]
                body = {**body, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}}
            elif namespace and self.get(Name(NAMESPACES, "", namespace))["metadata"].get("deletionTimestamp"):
                what = f"unable to create new content in namespace {namespace}: it is being terminated"
                raise Refused(403, "Forbidden", what)
            if kind == POLICIES:
                try:
                    compile_policy(body["spec"])
                except CelError as error:
                    raise Refused(422, "Invalid", f"{kind.plural}: compilation failed: {error}") from None
            return super().create(kind, namespace, body)

    def delete(self, key: Name) -> None:
        """A namespace is gone when everything in it is: first what is of the core, pods and ServiceAccounts
        among it, then the rest (the order in which its controller finds them)."""
        with self.changed:
            self._admit("DELETE", key, None, self.get(key))
            if key.kind != NAMESPACES:
                super().delete(key)
                return
            found = self.get(key)
            if found["metadata"].get("deletionTimestamp"):
                return
            found["metadata"]["deletionTimestamp"] = now()
            self._store("MODIFIED", key, found | {"status": {"phase": "Terminating"}})
            held = [each for each in self.objects if each.namespace == key.name]
            for each in sorted(held, key=lambda name: (name.kind.prefix != CORE, name)):
                if each in self.objects:
                    self.delete(each)
            self._end_namespace(key.name)

    def _collect(self, key: Name) -> None:
        """A controller does it, whoever has named the owner."""
        asking, self._asking = self._asking, _ADMIN
        try:
            super()._collect(key)
        finally:
            self._asking = asking

    def _remove(self, key: Name) -> None:
        super()._remove(key)
        if key.namespace:
            self._end_namespace(key.namespace)

    def _end_namespace(self, name: str) -> None:
        key = Name(NAMESPACES, "", name)
        ending = self.objects.get(key, {}).get("metadata", {}).get("deletionTimestamp")
        if ending and not any(each.namespace == name for each in self.objects):
            super()._remove(key)


def _matches(constraints: Object, operation: str, key: Name) -> bool:
    selector = constraints.get("namespaceSelector")
    if selector:
        (term,) = selector["matchExpressions"]
        assert (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", "In")
        if key.namespace not in term["values"]:
            return False
    return any(
        key.kind.group in rule["apiGroups"]
        and operation in rule["operations"]
        and key.kind.plural in rule["resources"]
        for rule in constraints["resourceRules"]
    )
