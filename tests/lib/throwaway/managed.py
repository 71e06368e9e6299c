"""gardener-resource-manager's stand-in: what it makes of ManagedResources, from the API server of a seed to
that of a Shoot. It is held to the real program by `tests/contract/gardener`.

It does less: what others change of an applied object stays until the ManagedResource changes.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from base64 import b64decode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple, Self

from tests.lib import yamltext
from tests.lib.throwaway.fleet import DAEMON_SETS, kind_of
from tests.lib.throwaway.kubeserver import Kind, KubeServer, Name, Refused
from tests.lib.throwaway.kubevalidation import InvalidError

RESOURCES = Kind("/apis/resources.gardener.cloud/v1alpha1", "managedresources")
SECRETS = Kind("/api/v1", "secrets")
_GROUP = "resources.gardener.cloud"
MANAGER = f"{_GROUP}/gardener-resource-manager"
KEPT, COLLECTABLE = f"{_GROUP}/keep-object", f"{_GROUP}/garbage-collectable-reference"
FINALIZED = f"{_GROUP}/finalize-deletion-after"
_IGNORED = f"{_GROUP}/ignore"
_WIDE = (
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
_FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret", "ConfigMap")
_LOOKS_PER_SECOND = 10
_UNITS = {"s": 1, "m": 60, "h": 3600}
_CHECKS = "ChecksPending", "The health checks have not yet been executed for the current set of resources."

Object = dict[str, Any]


class Said(NamedTuple):
    """A condition, without the prefix of its type."""

    kind: str
    status: str
    reason: str
    message: str = ""


class Manager:
    """`with Manager(seed, shoot):` both serve, and what the seed has is applied to the Shoot."""

    def __init__(self, seed: KubeServer, shoot: KubeServer) -> None:
        self.seed, self.shoot = seed, shoot
        self._stop = threading.Event()
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self.seed.__enter__()
        self.shoot.__enter__()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._stop.set()
        with self.seed.changed:
            self.seed.changed.notify_all()
        self._thread.join(10)
        self.seed.__exit__()
        self.shoot.__exit__()
        if self.error is not None:
            raise self.error from error

    # -- what may be different where more is played -------------------------------------------------

    def seen(self) -> tuple[object, ...]:
        """As long as it is the same, nothing is to be done. Time alone may bring a deletion to its end."""
        return self.seed.version, self.shoot.version, int(time.monotonic() * _LOOKS_PER_SECOND)

    def run_nodes(self) -> None:
        """What else happens of itself."""

    def placed(self, _namespace: str, objects: list[Object]) -> list[Object]:
        """What of the objects of a ManagedResource in this namespace is applied, and where."""
        return objects

    def refusal(self, _objects: Iterable[Object]) -> str:
        """Why something that is applied after these objects is refused; empty if nothing is."""
        return ""

    def tell(self, name: Name, what: str) -> None:
        """Something was created or deleted."""

    def is_over(self, metadata: Object) -> bool:
        """Whether a deletion has had its time."""
        given = metadata.get("annotations", {}).get(FINALIZED, "")
        begun = metadata.get("deletionTimestamp")
        if not given or not begun:
            return False
        length = timedelta(seconds=int(given[:-1]) * _UNITS[given[-1]])
        return datetime.now(UTC) - datetime.fromisoformat(begun) >= length

    # -- one after the other ------------------------------------------------------------------------

    def _run(self) -> None:
        seen: tuple[object, ...] = ()
        while not self._stop.is_set():
            if (now_ := self.seen()) == seen:
                with self.seed.changed:
                    self.seed.changed.wait(0.02)
                continue
            seen = now_
            try:
                for resource in self.seed.find(RESOURCES):
                    with contextlib.suppress(Refused):  # another one was quicker
                        self._manage(resource)
                self.run_nodes()
            except Exception as error:
                self.error = error
                return

    def _manage(self, resource: Object) -> None:
        metadata, spec = resource["metadata"], resource["spec"]
        key = Name(RESOURCES, metadata["namespace"], metadata["name"])
        finalizers, going = metadata.get("finalizers", []), bool(metadata.get("deletionTimestamp"))
        if spec.get("class"):
            return
        if going:
            if MANAGER in finalizers and self._end(key, resource):
                left = [each for each in finalizers if each != MANAGER]
                self.seed.patch(key, {"metadata": {"finalizers": left}})
        elif metadata.get("annotations", {}).get(_IGNORED) == "true":
            known = (("Applied", "True"), ("Healthy", "True"), ("Progressing", "False"))
            self._say(key, *(Said(*each, "ManagedResourceIgnored") for each in known))
        elif MANAGER not in finalizers:
            self.seed.patch(key, {"metadata": {"finalizers": [*finalizers, MANAGER]}})
        elif resource.get("status", {}).get("observedGeneration") == metadata["generation"]:
            self._check_health(key, resource)
        else:
            self._apply(key, resource)

    def _end(self, key: Name, resource: Object) -> bool:
        """Whether all is gone that has to."""
        going = "DeletionPending", "The resources are currently being deleted."
        self._say(key, Said("Healthy", "False", *going), Said("Progressing", "True", *going))
        return bool(resource["spec"].get("keepObjects")) or self._delete(key, _known(resource))

    def _delete(self, key: Name, names: Iterable[Name]) -> bool:
        """Whether all of them are gone, or stay."""
        pending = []
        for name in names:
            metadata = self.shoot.objects.get(name, {}).get("metadata", {})
            kept = metadata.get("annotations", {}).get(KEPT) or metadata.get("labels", {}).get(COLLECTABLE)
            if not metadata or kept:
                continue
            if not metadata.get("deletionTimestamp"):
                self.tell(name, "deleted")
            self.shoot.delete(name)
            if name in self.shoot.objects and self.is_over(self.shoot.get(name)["metadata"]):
                self.shoot.patch(name, {"metadata": {"finalizers": []}})
            pending.append(f'deletion of old resource "{name.kind.plural}/{name.name}" is still pending')
        if pending:
            self._say(key, Said("Applied", "Progressing", "DeletionPending", "; ".join(pending)))
        return not pending

    def _apply(self, key: Name, resource: Object) -> None:
        spec, status = resource["spec"], resource.get("status", {})
        try:
            given = [self.seed.get(Name(SECRETS, key.namespace, each["name"])) for each in spec["secretRefs"]]
        except Refused as error:
            self._say(key, Said("Applied", "False", "CannotReadSecret", str(error)))
            return
        texts = [b64decode(text) for secret in given for _, text in sorted(secret["data"].items())]
        found = [each for text in texts for each in yamltext.load_all(text) if each]
        labels = {**spec.get("injectLabels", {}), f"{_GROUP}/managed-by": "gardener"}
        objects = [_with_labels(each, labels) for each in self.placed(key.namespace, found)]
        new = {"resources": sorted(map(_refer, objects), key=str), "secretsDataChecksum": _digest(texts)}
        if any(status.get(part) != content for part, content in new.items()):
            self._say(key, Said("Healthy", "Unknown", *_CHECKS), Said("Progressing", "Unknown", *_CHECKS))
        wanted = {_name_of(each): each for each in objects}
        if not self._delete(key, _known(resource).keys() - wanted.keys()):
            return
        known = _known(resource)
        origin = {f"{_GROUP}/origin": f"{key.namespace}/{key.name}"}
        for name, body in sorted(wanted.items(), key=lambda each: _order(each[1])):
            try:
                self._write(name, body, known.get(name, {}), origin)
            except (Refused, InvalidError) as error:
                why = f'error during apply of object "{body["kind"]}/{name.namespace}/{name.name}": {error}'
                self._say(key, Said("Applied", "False", "ApplyFailed", why))
                return
        if why := self.refusal(objects):
            self._say(key, Said("Applied", "False", "ApplyFailed", why))
            return
        done = Said("Applied", "True", "ApplySucceeded", "All resources are applied.")
        new["observedGeneration"] = resource["metadata"]["generation"]
        self._say(key, done, **new)

    def _write(self, name: Name, body: Object, known: Object, origin: Mapping[str, str]) -> None:
        """`known`: labels and annotations of ours that it had. Those of others stay."""
        body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), **origin}
        if name not in self.shoot.objects:
            self.tell(name, "created")
            self.create(name, body)
            return
        old = self.shoot.get(name)
        metadata = dict(old["metadata"])
        for part in ("labels", "annotations"):
            there, wanted = metadata.get(part, {}), body["metadata"].get(part, {})
            gone = {key for key, text in known.get(part, {}).items() if there.get(key) == text}
            metadata[part] = {key: there[key] for key in there.keys() - gone} | wanted
        kept = {"status": old["status"]} if "status" in old else {}
        self.shoot.replace(name, {**body, "metadata": metadata, **kept})

    def create(self, name: Name, body: Object) -> None:
        self.shoot.create(name.kind, name.namespace, body)

    # -- what it says -------------------------------------------------------------------------------

    def _say(self, key: Name, *said: Said, **more: Any) -> None:
        """The generation that was observed stays that of the last success."""
        status = copy.deepcopy(self.seed.get(key).get("status", {}))
        conditions = {each["type"]: each for each in status.get("conditions", [])}
        for each in said:
            kind = f"Resources{each.kind}"
            conditions[kind] = {
                "type": kind,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
            }
        new = {**status, "conditions": list(conditions.values()), **more}
        if new != status:
            self.seed.patch(key, {"status": new}, status=True)

    def _check_health(self, key: Name, resource: Object) -> None:
        sick, rolling = "", ""
        for name in _known(resource):
            found = self.shoot.objects.get(name)
            if found is None:
                self._say(key, Said("Healthy", "False", "ConfigMapMissing", f"{name.name} is missing"))
                return
            if name.kind == DAEMON_SETS:
                sick = sick or _sickness(found)
                rolling = rolling or _progress(found)
        healthy = Said("Healthy", "True", "ResourcesHealthy", "All resources are healthy.")
        rolled = Said("Progressing", "False", "ResourcesRolledOut", "All resources have been rolled out.")
        self._say(
            key,
            Said("Healthy", "False", "DaemonSetUnhealthy", sick) if sick else healthy,
            Said("Progressing", "True", "DaemonSetProgressing", rolling) if rolling else rolled,
        )


def _known(resource: Object) -> dict[Name, Object]:
    """What it has applied, as its status says it."""
    found = resource.get("status", {}).get("resources", [])
    return {Name(kind_of(each), each.get("namespace", ""), each["name"]): each for each in found}


def _refer(body: Object) -> Object:
    metadata = body["metadata"]
    parts = {part: metadata[part] for part in ("labels", "annotations") if part in metadata}
    place = {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "name": metadata["name"],
        **place,
        **parts,
    }


def _with_labels(body: Object, labels: Mapping[str, str]) -> Object:
    metadata = body["metadata"]
    if body["kind"] not in _WIDE:
        metadata.setdefault("namespace", "default")
    for each in (body, body.get("spec", {}).get("template")):
        if each is not None:
            each["metadata"]["labels"] = {**each["metadata"].get("labels", {}), **labels}
    return body


def _name_of(body: Object) -> Name:
    metadata = body["metadata"]
    return Name(kind_of(body), metadata.get("namespace", ""), metadata["name"])


def _order(body: Object) -> tuple[int, str]:
    kind = body["kind"]
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST), kind


def _digest(texts: Iterable[bytes]) -> str:
    return sha256(b"".join(texts)).hexdigest()


def _sickness(daemon_set: Object) -> str:
    """Empty if it is well. Of a rollout, as many pods may be missing as it allows."""
    name, status = daemon_set["metadata"]["name"], daemon_set.get("status", {})
    if status.get("observedGeneration", 0) < daemon_set["metadata"]["generation"]:
        return f"DaemonSet {name} is unhealthy: observed generation outdated"
    wanted = status.get("desiredNumberScheduled", 0)
    if status.get("currentNumberScheduled", 0) < wanted:
        return f"DaemonSet {name} is unhealthy: not enough scheduled pods"
    strategy = daemon_set["spec"].get("updateStrategy", {}).get("rollingUpdate", {})
    allowed = strategy.get("maxUnavailable", 1) if status.get("updatedNumberScheduled", 0) < wanted else 0
    if isinstance(allowed, str):
        allowed = -(-wanted * int(allowed.rstrip("%")) // 100)
    away = wanted - status.get("numberAvailable", 0)
    return f"DaemonSet {name} is unhealthy: too many unavailable pods" if away > allowed else ""


def _progress(daemon_set: Object) -> str:
    """Empty if it has been rolled out."""
    name, status = daemon_set["metadata"]["name"], daemon_set.get("status", {})
    if status.get("observedGeneration", 0) < daemon_set["metadata"]["generation"]:
        return f"DaemonSet {name} is progressing: observed generation outdated"
    missing = status.get("desiredNumberScheduled", 0) - status.get("updatedNumberScheduled", 0)
    return f"DaemonSet {name} is progressing: {missing} to be updated" if missing > 0 else ""
