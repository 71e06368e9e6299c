"""Gardener's extension on API servers: what becomes of a Shoot that enables it, changes it, disables it or
moves."""

from __future__ import annotations

from installer.gardener.decide import FINALIZER
from installer.gardener.registration import build_chart
from installer.model.names import STATUS
from tests.contract.extension.replica import CHANGED, INSTALLED, REMOVED, SHOOT, Start, secrets
from tests.lib.charts import render_chart
from tests.lib.throwaway.fleet import DAEMON_SETS, LEASES, NODES, PODS
from tests.lib.throwaway.gardener import EVENTS, RESOURCE, Landscape
from tests.lib.throwaway.kubeserver import Kind, Name, parse_path
from tests.lib.throwaway.managed import RESOURCES, SECRETS

ACCOUNTS, NAMESPACES = Kind("/api/v1", "serviceaccounts"), Kind("/api/v1", "namespaces")
CLUSTER_ROLES = Kind("/apis/rbac.authorization.k8s.io/v1", "clusterroles")
DEFINITIONS = Kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions")
ADJUSTMENTS = Kind("/apis/criresmgr.intel.com/v1alpha1", "adjustments")
OURS = dict.fromkeys(("app.kubernetes.io/name", "app.kubernetes.io/instance"), RESOURCE)


def test_enabled_configured_disabled(enabled: Landscape) -> None:
    world, first = enabled, secrets(enabled)
    assert FINALIZER in world.extension(SHOOT)["metadata"]["finalizers"]
    world.ask(SHOOT, config=CHANGED)
    world.seed.wait(lambda: secrets(world) != first)
    world.rest(SHOOT, "Reconcile Succeeded")
    assert world.extension(SHOOT)["status"]["observedGeneration"] == 2
    assert world.story == [f"{INSTALLED} created"]
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert world.story[1:] == [f"{INSTALLED} deleted", f"{REMOVED} created", f"{REMOVED} deleted"]
    told = {each["reason"] for each in world.seed.find(EVENTS, SHOOT)}
    assert {"CreateSucceeded", "ReconcileSucceeded", "DeleteProcessing", "DeleteSucceeded"} <= told


def test_nothing_new_is_no_request(enabled: Landscape) -> None:
    """But the Leases, and one question to the Shoot now and then."""
    world = enabled
    quiet = world.seed.requests["PATCH", "extensions"]
    asked = world.shoot.requests["GET", "daemonsets"]
    world.shoot.wait(lambda: world.shoot.requests["GET", "daemonsets"] > asked + 3)
    assert world.seed.requests["PATCH", "extensions"] == quiet
    assert {plural for method, plural in world.seed.requests if method == "GET"} <= {
        "extensions",
        "clusters",
        "managedresources",
        "leases",
        "secrets",
    }
    assert not world.shoot.requests["GET", "pods"]


def test_a_changed_spec_waits_for_gardenlet(enabled: Landscape) -> None:
    """Nodes are changed in the maintenance window: the annotation says when."""
    world = enabled
    before = world.extension(SHOOT)["status"]["lastOperation"]
    world.seed.patch(world.key(SHOOT), {"metadata": {"labels": {"a": "b"}}})
    asked = world.shoot.requests["GET", "daemonsets"]
    world.shoot.wait(lambda: world.shoot.requests["GET", "daemonsets"] > asked + 1)
    assert world.extension(SHOOT)["status"]["lastOperation"] == before


def test_who_asks_again_gets_a_new_time(enabled: Landscape) -> None:
    world = enabled
    # The clock of a status has seconds.
    world.seed.patch(
        world.key(SHOOT), {"status": {"lastOperation": {"lastUpdateTime": "2020-01-01T00:00:00Z"}}}, True
    )
    world.ask(SHOOT)
    world.rest(SHOOT, "Reconcile Succeeded")
    assert world.extension(SHOOT)["status"]["lastOperation"]["lastUpdateTime"] > "2021"


def test_a_broken_configuration_leaves_the_nodes_what_they_have(enabled: Landscape) -> None:
    world, first = enabled, secrets(enabled)
    world.ask(SHOOT, config={"configs": {"fallback": "policy.Active: baloons"}})
    world.rest(SHOOT, "Reconcile Error", "False")
    error = world.extension(SHOOT)["status"]["lastError"]
    assert error["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
    what = "unknown policy 'baloons'; did you mean balloons? (in the Shoot's providerConfig)"
    assert f"configs.fallback: policy.Active: {what}" in error["description"]
    assert world.health(SHOOT)[1] == error["description"]
    assert secrets(world) == first
    world.ask(SHOOT, config=CHANGED)
    world.rest(SHOOT, "Reconcile Succeeded")
    assert "lastError" not in world.extension(SHOOT)["status"]


def test_a_broken_configuration_can_be_removed(enabled: Landscape) -> None:
    world = enabled
    world.ask(SHOOT, config={"configs": {"fallback": "policy.Active: baloons"}})
    world.rest(SHOOT, "Reconcile Error", "False")
    world.disable(SHOOT)
    world.gone(SHOOT)


def test_a_node_that_is_not_well_is_named(enabled: Landscape) -> None:
    world = enabled
    world.nodes["n2"] = "stuck"
    world.rest(SHOOT, "Create Succeeded", "False")
    assert world.health(SHOOT)[1] == "1 of 2 nodes is not well: n2 (its pod ended with exit code 6)."
    world.nodes["n2"] = "ready"
    world.rest(SHOOT, "Create Succeeded")


REFUSED = "could not apply ValidatingAdmissionPolicy own-lease: expected type 'dyn' but found 'string'"


def test_what_a_shoot_does_not_take_is_said(enabled: Landscape) -> None:
    """Whatever generation gardener-resource-manager has observed, as gardenlet reads it."""
    world = enabled
    world.refuses = {RESOURCE: REFUSED, f"{RESOURCE}-removal": REFUSED}
    world.ask(SHOOT, config=CHANGED)
    world.says(SHOOT, "False", REFUSED)
    world.refuses = {}
    world.rest(SHOOT, "Reconcile Succeeded")
    world.refuses = {f"{RESOURCE}-removal": REFUSED}
    world.disable(SHOOT)
    world.says(SHOOT, "False", f"The removal cannot be applied in the Shoot: {REFUSED}")
    assert REFUSED in world.extension(SHOOT)["status"]["lastError"]["description"]
    world.refuses = {}
    world.gone(SHOOT)


def test_what_the_seed_does_not_take_is_said(enabled: Landscape) -> None:
    """Else the Shoot would show that gardenlet has waited too long, and no reason."""
    world = enabled
    world.seed.fail("POST", "/secrets", code=403)
    world.ask(SHOOT, config=CHANGED)
    world.seed.wait(lambda: "lastError" in world.extension(SHOOT)["status"], 20)
    error = world.extension(SHOOT)["status"]["lastError"]["description"]
    assert error.startswith("The seed refuses the ManagedResource or its Secret: 403: ")
    world.seed.heal()
    world.rest(SHOOT, "Reconcile Succeeded")
    assert "lastError" not in world.extension(SHOOT)["status"]
    world.seed.fail("POST", "/secrets", code=422)
    world.disable(SHOOT)
    world.seed.wait(lambda: "lastError" in world.extension(SHOOT)["status"], 20)
    assert world.extension(SHOOT)["status"]["lastOperation"]["type"] == "Delete"
    world.seed.heal()
    world.gone(SHOOT)


def test_an_installation_that_nobody_knows_of_does_not_run_on(world: Landscape, start: Start) -> None:
    """Its first apply failed behind the DaemonSet, so gardener-resource-manager does not delete that."""
    world.refuses = {RESOURCE: REFUSED}
    start()
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.says(SHOOT, "False", REFUSED)
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert f"{INSTALLED} deleted" not in world.story
    assert not world.shoot.find(DAEMON_SETS)
    assert not world.shoot.find(PODS)


def test_a_deletion_waits_for_the_node_that_is_left(enabled: Landscape) -> None:
    world = enabled
    world.nodes["n2"] = "stuck"
    world.disable(SHOOT)
    world.seed.wait(lambda: "n2" in world.extension(SHOOT)["status"]["lastOperation"]["description"])
    assert "n1" not in world.health(SHOOT)[1]
    assert world.resource(SHOOT)
    world.nodes["n2"] = "ready"
    world.gone(SHOOT)


def test_nodes_that_are_all_down_are_left(enabled: Landscape) -> None:
    """They have been away for an hour: nobody knows whether they come back."""
    world = enabled
    world.nodes |= {"n1": "silent", "n2": "silent"}
    world.shoot.wait(lambda: len([1 for each in world.nodes.values() if each == "silent"]) == 2)
    account = Name(ACCOUNTS, SHOOT, RESOURCE)
    world.shoot.create(*account[:2], {"metadata": {"name": account.name, "labels": OURS}})
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert "Left as they are: n1 (silent since" in notes(world)
    # When they come back, their pods ask whether they have to clean up.
    assert "Left in the Shoot: everything that the pods on n1 (silent" in notes(world)
    assert account in world.shoot.objects


def test_what_the_pods_needed_goes_with_them(enabled: Landscape) -> None:
    """And our marks on the Nodes; not what is others', nor people's Adjustments with what they live in."""
    world = enabled
    world.shoot.patch(Name(NODES, "", "n1"), {"metadata": {"annotations": {STATUS: "{}", "theirs": "x"}}})
    world.shoot.create(LEASES, SHOOT, {"metadata": {"name": "theirs"}})
    world.shoot.create(NAMESPACES, "", {"metadata": {"name": SHOOT, "labels": OURS}})
    definition = {"name": "adjustments.criresmgr.intel.com", "labels": OURS}
    world.shoot.create(DEFINITIONS, "", {"metadata": definition})
    world.shoot.create(ADJUSTMENTS, SHOOT, {"metadata": {"name": "theirs"}})
    before = set(world.shoot.objects)
    for kind, namespace in ((ACCOUNTS, SHOOT), (CLUSTER_ROLES, ""), (NAMESPACES, "")):
        world.shoot.create(kind, namespace, {"metadata": {"name": RESOURCE, "labels": OURS}})
    lease = {"name": "node-n1", "labels": {"app.kubernetes.io/name": RESOURCE}}
    world.shoot.create(LEASES, SHOOT, {"metadata": lease})
    world.shoot.fail("DELETE", f"/clusterroles/{RESOURCE}", code=503)
    world.disable(SHOOT)
    world.seed.wait(lambda: "does not list what is left" in world.health(SHOOT)[1])
    world.shoot.heal()
    world.gone(SHOOT)
    world.shoot.finish_namespaces()  # they are Terminating until their controller comes round
    assert set(world.shoot.objects) == {name for name in before if name.kind not in (DAEMON_SETS, PODS)}
    assert world.shoot.get(Name(NODES, "", "n1"))["metadata"]["annotations"] == {"theirs": "x"}
    assert "Left in the Shoot: 1 Adjustment of users" in notes(world)


def notes(world: Landscape) -> str:
    return "\n".join(each["note"] for each in world.seed.find(EVENTS, SHOOT))


def test_a_shoot_whose_api_server_is_away_is_not_given_up(enabled: Landscape) -> None:
    world = enabled
    world.shoot.go_away()
    world.disable(SHOOT)
    world.seed.wait(lambda: "API server does not list" in world.health(SHOOT)[1])
    assert world.resource(SHOOT)
    world.shoot.come_back()
    world.gone(SHOOT)


def test_a_shoot_without_credentials_is_not_given_up(enabled: Landscape) -> None:
    world = enabled
    world.shoot.go_away()  # what is connected is no longer good
    world.seed.delete(Name(SECRETS, SHOOT, "gardener-internal"))
    world.disable(SHOOT)
    world.seed.wait(lambda: "gardener-internal or gardener" in world.health(SHOOT)[1])
    assert world.resource(SHOOT)
    world.edit_shoot(SHOOT, metadata={"annotations": {"confirmation.gardener.cloud/force-deletion": "true"}})
    world.gone(SHOOT)


def test_a_hibernated_shoot_is_not_waited_for(enabled: Landscape) -> None:
    world = enabled
    world.nodes |= {"n1": "stuck", "n2": "stuck"}
    world.edit_shoot(SHOOT, spec={"hibernation": {"enabled": True}}, status={"hibernated": True})
    world.seed.wait(lambda: "hibernated" in world.health(SHOOT)[1])
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert f"{REMOVED} created" not in world.story


def test_migrated_and_restored_and_the_nodes_do_not_notice(enabled: Landscape) -> None:
    world, written = enabled, secrets(enabled)
    world.ask(SHOOT, "migrate")
    world.seed.wait(lambda: world.operation(SHOOT) == "Migrate Succeeded" and not world.resource(SHOOT))
    world.seed.wait(lambda: not world.extension(SHOOT)["metadata"].get("finalizers"))
    world.ask(SHOOT, "restore")
    world.seed.wait(lambda: world.operation(SHOOT) == "Restore Succeeded")
    # The same objects to the byte: nothing is rolled out.
    assert secrets(world) == written
    assert not [line for line in world.story if "deleted" in line]


def move_and_leave_objects(world: Landscape) -> None:
    """The Shoot leaves its seed."""
    world.ask(SHOOT, "migrate")
    world.seed.wait(lambda: world.operation(SHOOT) == "Migrate Succeeded" and not world.resource(SHOOT))
    world.seed.wait(lambda: not world.extension(SHOOT)["metadata"].get("finalizers"))


def test_a_shoot_that_its_new_seed_refuses_is_cleaned_when_it_is_disabled(enabled: Landscape) -> None:
    """The controller there is newer, or has other values. What the old seed has left runs on in the Shoot."""
    world = enabled
    move_and_leave_objects(world)
    world.ask(SHOOT, "restore", config={"configs": {"force": "policy.Active: baloons"}})
    world.seed.wait(lambda: world.operation(SHOOT) == "Restore Error")
    assert world.shoot.find(DAEMON_SETS)
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert [f"{REMOVED} created", f"{REMOVED} deleted"] == [each for each in world.story if REMOVED in each]
    assert not world.shoot.find(DAEMON_SETS)


def test_a_managed_resource_that_was_deleted_is_named(enabled: Landscape) -> None:
    world = enabled
    world.seed.delete(Name(RESOURCES, SHOOT, RESOURCE))
    world.says(SHOOT, "False", "The ManagedResource of cri-resmgr is gone")
    world.ask(SHOOT)
    world.says(SHOOT, "True", "on every selected node")


def test_a_secret_that_was_deleted_comes_back_with_the_next_reconciliation(enabled: Landscape) -> None:
    world, (name,) = enabled, secrets(enabled)
    world.seed.delete(Name(SECRETS, SHOOT, name))
    world.ask(SHOOT)
    world.seed.wait(lambda: name in [each["metadata"]["name"] for each in world.seed.find(SECRETS, SHOOT)])


def test_it_may_do_what_it_does_and_no_more(world: Landscape, start: Start) -> None:
    """Each request of a life against the chart's RBAC, and each of its rules against the requests."""
    chart = render_chart(build_chart(), {"image": {"repository": "x", "tag": "1"}}, "extension")
    rules = [rule for each in chart if "rules" in each for rule in each["rules"]]
    start()
    world.serve(SHOOT)
    world.ask(SHOOT, "migrate")
    world.seed.wait(lambda: world.operation(SHOOT) == "Migrate Succeeded" and not world.resource(SHOOT))
    world.ask(SHOOT, "restore")
    world.rest(SHOOT, "Restore Succeeded")
    world.disable(SHOOT)
    world.gone(SHOOT)
    used: set[tuple[int, str]] = set()
    for verb, group, resource, name in {verb_of(*each) for each in world.seed.log}:
        allowed = [
            number
            for number, rule in enumerate(rules)
            if group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            if name in rule.get("resourceNames", [name])
        ]
        assert allowed, f"{verb} {group}/{resource} {name}"
        used |= {(number, verb) for number in allowed}
    granted = {(number, verb) for number, rule in enumerate(rules) for verb in rule["verbs"]}
    assert granted == used


def verb_of(method: str, path: str) -> tuple[str, str, str, str]:
    """Verb, API group, resource and name, as RBAC has them."""
    name, status = parse_path(path)
    parts = name.kind.prefix.split("/")
    group = parts[2] if parts[1] == "apis" else ""
    verb = {"GET": "get" if name.name else "list", "POST": "create"}.get(method, method.lower())
    return verb, group, name.kind.plural + "/status" * status, name.name
