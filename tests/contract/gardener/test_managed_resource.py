"""What becomes of a ManagedResource: what the extension relies on when it writes one, reads its conditions,
and deletes it.
"""

from __future__ import annotations

import itertools
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.lib.throwaway.controlplane import Caller

Object = dict[str, Any]
_GROUP = "resources.gardener.cloud"
MANAGER = f"{_GROUP}/gardener-resource-manager"
RESOURCES = f"/apis/{_GROUP}/v1alpha1/namespaces/default/managedresources"
SECRETS = "/api/v1/namespaces/default/secrets"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
HELD = "example.org/held"
_SECONDS = 120.0  # until a controller has seen it, on a machine that has much else to do
_numbers = itertools.count()


def number() -> int:
    return next(_numbers)


def config_map(name: str, data: str = "1", **metadata: Any) -> Object:
    head = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {"a": data}}


def daemon_set(name: str, **metadata: Any) -> Object:
    labels, container = {"app": name}, {"name": "c", "image": "image:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


class Managed:
    """One ManagedResource. `write` gives it these objects."""

    def __init__(self, seed: Caller) -> None:
        self.name = f"managed-{number()}"
        self.path, self._seed, self._there = f"{RESOURCES}/{self.name}", seed, False

    def write(self, *objects: Object, **spec: Any) -> None:
        secret = f"{self.name}-{number()}"
        text = yaml.safe_dump_all(objects)
        data = {"objects.yaml": b64encode(text.encode()).decode()}
        assert self._seed.call("POST", SECRETS, {"metadata": {"name": secret}, "data": data}).ok
        self.name_secret(secret, **spec)

    def name_secret(self, secret: str, **spec: Any) -> None:
        body = {
            "apiVersion": f"{_GROUP}/v1alpha1",
            "kind": "ManagedResource",
            "metadata": {"name": self.name},
            "spec": {"secretRefs": [{"name": secret}], **spec},
        }
        answer = self._seed.call(*(("PATCH", self.path) if self._there else ("POST", RESOURCES)), body)
        assert answer.ok, answer
        self._there = True

    def edit(self, body: Object) -> None:
        assert self._seed.call("PATCH", self.path, body).ok

    def delete(self) -> None:
        assert self._seed.call("DELETE", self.path).ok

    @property
    def body(self) -> Object:
        return self._seed.call("GET", self.path).body

    @property
    def known(self) -> list[str]:
        return [each["name"] for each in self.body.get("status", {}).get("resources", ())]

    @property
    def is_current(self) -> bool:
        found = self.body
        return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])

    def says(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        for each in self.body.get("status", {}).get("conditions", ()):
            if each["type"] == kind:
                return each["status"], each["reason"]
        return "", ""

    def message(self, kind: str) -> str:
        found = self.body["status"]["conditions"]
        return next(str(each["message"]) for each in found if each["type"] == kind)

    def rest(self) -> None:
        """Until it is applied."""
        applied = ("ResourcesApplied", "True")
        until(lambda: (applied[0], self.says(applied[0])[0]) == applied and self.is_current)

    def gone(self) -> None:
        until(lambda: self._seed.call("GET", self.path).code == 404)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < end, "never"
        time.sleep(0.1)


def is_there(shoot: Caller, path: str) -> bool:
    return shoot.call("GET", path).ok


@pytest.fixture
def managed(seed: Caller) -> Managed:
    return Managed(seed)


@pytest.fixture
def one() -> str:
    return f"one-{number()}"


@pytest.fixture
def two() -> str:
    return f"two-{number()}"


# -- applied --------------------------------------------------------------------------------------


def test_what_its_secret_has_is_applied(managed: Managed, shoot: Caller, one: str, two: str) -> None:
    managed.write(config_map(one), daemon_set(two), injectLabels={"in": "jected"})
    managed.rest()
    assert managed.body["metadata"]["finalizers"] == [MANAGER]
    assert managed.says("ResourcesApplied") == ("True", "ApplySucceeded")
    assert sorted(managed.known) == [one, two]
    metadata = shoot.call("GET", f"{CONFIG_MAPS}/{one}").body["metadata"]
    assert metadata["labels"] == {"in": "jected", f"{_GROUP}/managed-by": "gardener"}
    assert metadata["annotations"][f"{_GROUP}/origin"] == f"default/{managed.name}"
    template = shoot.call("GET", f"{DAEMON_SETS}/{two}").body["spec"]["template"]
    assert template["metadata"]["labels"] == {"app": two, **metadata["labels"]}


def test_what_others_have_added_stays_and_what_they_have_changed_does_not(
    managed: Managed, shoot: Caller, one: str
) -> None:
    managed.write(config_map(one, labels={"first": "1"}, annotations={"first": "1"}))
    managed.rest()
    theirs = {"labels": {"theirs": "1"}, "annotations": {"theirs": "1"}}
    shoot.call("PATCH", f"{CONFIG_MAPS}/{one}", {"metadata": theirs, "data": {"a": "theirs", "b": "2"}})
    managed.write(config_map(one, "new", labels={"second": "2"}, annotations={"second": "2"}))
    managed.rest()
    found = shoot.call("GET", f"{CONFIG_MAPS}/{one}").body
    assert found["data"] == {"a": "new"}
    for part in ("labels", "annotations"):
        names = {key for key in found["metadata"][part] if "/" not in key}
        assert names == {"theirs", "second"}, part


def test_what_is_no_longer_named_is_deleted_before_the_rest_is_applied(
    managed: Managed, shoot: Caller, one: str, two: str
) -> None:
    managed.write(config_map(one, finalizers=[HELD]))
    managed.rest()
    managed.write(config_map(two))
    until(lambda: shoot.call("GET", f"{CONFIG_MAPS}/{one}").body["metadata"].get("deletionTimestamp"))
    until(lambda: managed.says("ResourcesApplied") == ("Progressing", "DeletionPending"))
    assert one in managed.message("ResourcesApplied")
    assert not is_there(shoot, f"{CONFIG_MAPS}/{two}")
    assert not managed.is_current
    shoot.call("PATCH", f"{CONFIG_MAPS}/{one}", {"metadata": {"finalizers": None}})
    managed.rest()
    assert is_there(shoot, f"{CONFIG_MAPS}/{two}")
    assert managed.known == [two]


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {f"{_GROUP}/keep-object": "true"}},
        {"labels": {f"{_GROUP}/garbage-collectable-reference": "true"}},
    ],
    ids=["kept", "collected"],
)
def test_what_is_to_be_kept_stays(
    managed: Managed, shoot: Caller, one: str, two: str, metadata: Object
) -> None:
    managed.write(config_map(one, **metadata), config_map(two))
    managed.rest()
    managed.write(config_map(two))
    managed.rest()
    assert is_there(shoot, f"{CONFIG_MAPS}/{one}")
    managed.delete()
    managed.gone()
    assert is_there(shoot, f"{CONFIG_MAPS}/{one}")
    assert not is_there(shoot, f"{CONFIG_MAPS}/{two}")


# -- not applied ----------------------------------------------------------------------------------


def test_an_object_that_is_refused(managed: Managed, shoot: Caller, one: str, two: str) -> None:
    """The generation that was observed is that of the last success, and nothing is known of what was applied
    before the refused one: it stays when it is not named any more."""
    managed.write(config_map(two))
    managed.rest()
    bad = daemon_set(f"bad-{number()}")
    bad["spec"]["selector"] = {"matchLabels": {"app": "another"}}
    managed.write(config_map(one), config_map(two), bad)
    until(lambda: "ApplyFailed" in managed.says("ResourcesApplied"))
    assert bad["metadata"]["name"] in managed.message("ResourcesApplied")
    assert not managed.is_current
    assert managed.known == [two]
    assert is_there(shoot, f"{CONFIG_MAPS}/{one}")
    managed.write(config_map(two))
    managed.rest()
    assert managed.says("ResourcesApplied") == ("True", "ApplySucceeded")
    assert is_there(shoot, f"{CONFIG_MAPS}/{one}")


def test_a_secret_that_is_not_there(managed: Managed) -> None:
    managed.name_secret("nobody")
    until(lambda: managed.says("ResourcesApplied") == ("False", "CannotReadSecret"))
    assert not managed.is_current


def test_another_class_is_anothers_business(managed: Managed, seed: Caller, shoot: Caller, one: str) -> None:
    managed.write(config_map(one), **{"class": "another"})
    other = Managed(seed)
    other.write(config_map(f"{one}-other"))
    other.rest()
    assert not managed.body["metadata"].get("finalizers")
    assert not is_there(shoot, f"{CONFIG_MAPS}/{one}")


def test_one_that_is_ignored_changes_nothing_until_it_is_deleted(
    managed: Managed, shoot: Caller, one: str, two: str
) -> None:
    managed.write(config_map(one))
    managed.rest()
    managed.edit({"metadata": {"annotations": {f"{_GROUP}/ignore": "true"}}})
    managed.write(config_map(two))
    until(lambda: managed.says("ResourcesApplied") == ("True", "ManagedResourceIgnored"))
    assert not managed.is_current
    assert (is_there(shoot, f"{CONFIG_MAPS}/{one}"), is_there(shoot, f"{CONFIG_MAPS}/{two}")) == (True, False)
    managed.delete()
    managed.gone()
    assert not is_there(shoot, f"{CONFIG_MAPS}/{one}")


# -- healthy --------------------------------------------------------------------------------------


def count(shoot: Caller, name: str, wanted: int, ready: int, updated: int) -> None:
    """What the DaemonSet controller says."""
    status = {
        "observedGeneration": shoot.call("GET", f"{DAEMON_SETS}/{name}").body["metadata"]["generation"],
        "currentNumberScheduled": wanted,
        "desiredNumberScheduled": wanted,
        "numberMisscheduled": 0,
        "numberReady": ready,
        "numberAvailable": ready,
        "updatedNumberScheduled": updated,
    }
    if wanted > ready:
        status["numberUnavailable"] = wanted - ready
    answer = shoot.call("PATCH", f"{DAEMON_SETS}/{name}/status", {"status": status})
    assert answer.ok, answer


def test_it_is_healthy_when_its_daemon_sets_are(managed: Managed, shoot: Caller, one: str) -> None:
    managed.write(daemon_set(one))
    managed.rest()
    until(lambda: managed.says("ResourcesHealthy") == ("False", "DaemonSetUnhealthy"))
    assert one in managed.message("ResourcesHealthy")
    until(lambda: managed.says("ResourcesProgressing") == ("True", "DaemonSetProgressing"))
    count(shoot, one, 3, 3, 3)
    until(lambda: managed.says("ResourcesHealthy") == ("True", "ResourcesHealthy"))
    until(lambda: managed.says("ResourcesProgressing") == ("False", "ResourcesRolledOut"))


def test_a_rollout_makes_nothing_sick(managed: Managed, shoot: Caller, one: str) -> None:
    """One pod may be missing (maxUnavailable), and not all need be of the newest template."""
    managed.write(daemon_set(one))
    managed.rest()
    count(shoot, one, 3, 2, 1)
    until(lambda: managed.says("ResourcesProgressing") == ("True", "DaemonSetProgressing"))
    until(lambda: managed.says("ResourcesHealthy") == ("True", "ResourcesHealthy"))
    count(shoot, one, 3, 1, 3)
    until(lambda: managed.says("ResourcesHealthy") == ("False", "DaemonSetUnhealthy"))


def test_nothing_is_known_of_the_health_of_new_objects(
    managed: Managed, shoot: Caller, one: str, two: str
) -> None:
    """As long as old ones are being deleted."""
    managed.write(config_map(one, finalizers=[HELD]))
    until(lambda: managed.says("ResourcesHealthy")[0] == "True")
    managed.write(config_map(two))
    until(lambda: managed.says("ResourcesHealthy") == ("Unknown", "ChecksPending"))
    until(lambda: managed.says("ResourcesProgressing") == ("Unknown", "ChecksPending"))
    shoot.call("PATCH", f"{CONFIG_MAPS}/{one}", {"metadata": {"finalizers": None}})
    managed.rest()
    until(lambda: managed.says("ResourcesHealthy")[0] == "True")


# -- deleted --------------------------------------------------------------------------------------


def test_it_goes_when_its_objects_are_gone(managed: Managed, shoot: Caller, one: str, two: str) -> None:
    managed.write(config_map(one), daemon_set(two, finalizers=[HELD]))
    managed.rest()
    managed.delete()
    until(lambda: managed.says("ResourcesApplied") == ("Progressing", "DeletionPending"))
    until(lambda: two in managed.message("ResourcesApplied"))
    until(lambda: not is_there(shoot, f"{CONFIG_MAPS}/{one}"))
    assert managed.says("ResourcesHealthy") == ("False", "DeletionPending")
    assert is_there(shoot, f"{DAEMON_SETS}/{two}")
    finalizers = shoot.call("GET", f"{DAEMON_SETS}/{two}").body["metadata"]["finalizers"]
    left = [each for each in finalizers if each != HELD]
    shoot.call("PATCH", f"{DAEMON_SETS}/{two}", {"metadata": {"finalizers": left}})
    managed.gone()


def test_its_objects_stay_where_it_says_so(managed: Managed, shoot: Caller, one: str) -> None:
    managed.write(config_map(one))
    managed.rest()
    managed.edit({"spec": {"keepObjects": True}})
    managed.delete()
    managed.gone()
    assert is_there(shoot, f"{CONFIG_MAPS}/{one}")


def test_what_does_not_end_in_time_is_let_go(managed: Managed, shoot: Caller, one: str) -> None:
    annotations = {f"{_GROUP}/finalize-deletion-after": "1s"}
    managed.write(daemon_set(one, finalizers=[HELD], annotations=annotations))
    managed.rest()
    managed.delete()
    managed.gone()
    assert not is_there(shoot, f"{DAEMON_SETS}/{one}")


# -- the resource itself --------------------------------------------------------------------------


def test_its_status_is_written_at_its_own_path_only(managed: Managed, seed: Caller, one: str) -> None:
    managed.write(config_map(one), **{"class": "nobody's"})
    before = managed.body
    managed.edit({"status": {"observedGeneration": 99}})
    assert managed.body.get("status") == before.get("status")
    patch = {
        "status": {"observedGeneration": 7},
        "spec": {"keepObjects": True},
        "metadata": {"labels": {"a": "b"}},
    }
    answer = seed.call("PATCH", f"{managed.path}/status", patch)
    assert answer.body["status"] == {"observedGeneration": 7}
    assert answer.body["spec"] == before["spec"]
    assert "labels" not in answer.body["metadata"]


def test_its_generation_is_that_of_its_spec(managed: Managed, seed: Caller, one: str) -> None:
    managed.write(config_map(one), **{"class": "nobody's"})
    managed.edit({"metadata": {"annotations": {"a": "b"}, "finalizers": [HELD]}})
    assert managed.body["metadata"]["generation"] == 1
    managed.edit({"spec": {"keepObjects": True}})
    assert managed.body["metadata"]["generation"] == 2
    managed.delete()
    assert managed.body["metadata"]["generation"] == 3
    managed.edit({"metadata": {"finalizers": None}})
    managed.gone()
