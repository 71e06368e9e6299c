"""A tenant may create objects in a namespace of its own, with our labels on them: nothing there is taken for
ours, by no command. And a release of Helm is what Helm has installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.manifests.build import build_objects
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.operator.api import CONFIG_MAPS as CONFIG_MAPS_OF_A_CLIENT
from installer.operator.api import KUBECTL
from installer.operator.kube import connect_with
from tests.lib.rules import rule
from tests.lib.throwaway.fleet import DAEMON_SETS, LEASES, PODS, Fleet, build_pod, kind_of
from tests.lib.throwaway.installed_fleet import CONFIG_MAPS, VALUES, World, node, two_installations
from tests.lib.throwaway.kubeserver import Kind, Name

OURS = {
    "app.kubernetes.io/name": "cri-resmgr-installer",
    "app.kubernetes.io/instance": "cri-resmgr-installer",
}
TENANT, INSTALLER = "tenant", "cri-resmgr-installer"
ROLES = Kind("/apis/rbac.authorization.k8s.io/v1", "roles")
BINDING = Name(Kind("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"), "", INSTALLER)
INSTALLED = Name(DAEMON_SETS, "resources", INSTALLER)
RELEASE = "node-tools/resmgr"

Begin = Callable[..., World]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    (tmp_path / "values.yaml").write_text(VALUES)
    with ExitStack() as stack:
        yield lambda **nodes: World(stack.enter_context(Fleet(**nodes)), tmp_path / "values.yaml")


def squat(world: World, instance: str, namespace: str = TENANT) -> list[Name]:
    """What a tenant may create: a DaemonSet with a pod that is never Ready, and more with a finalizer."""
    labels = {**OURS, "app.kubernetes.io/instance": instance, "app.kubernetes.io/component": "installation"}
    metadata = {"name": instance, "labels": labels, "annotations": {"resources.gardener.cloud/origin": "x"}}
    template = {
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": {"theirs": "only"}, "containers": []},
    }
    spec = {"selector": {"matchLabels": labels}, "template": template}
    daemon_set = world.server.create(DAEMON_SETS, namespace, {"metadata": metadata, "spec": spec})
    world.server.create(PODS, namespace, build_pod(daemon_set, "n1", "stuck"))
    held: dict[str, Any] = {"name": f"{instance}-held", "labels": labels, "finalizers": ["example.org/held"]}
    for kind in (CONFIG_MAPS, LEASES, ROLES):
        world.server.create(kind, namespace, {"metadata": dict(held)})
    return [
        Name(DAEMON_SETS, namespace, instance),
        *(Name(kind, namespace, str(held["name"])) for kind in (CONFIG_MAPS, LEASES, ROLES)),
    ]


@pytest.mark.parametrize("instance", [INSTALLER, "a-sorts-before-ours"])
def test_no_command_takes_a_tenants_objects_for_ours(begin: Begin, instance: str) -> None:
    world = begin(n1="ready", n2="ready")
    theirs = squat(world, instance)
    seen = json.loads(world.run("--output", "json", verb="report").stdout)
    assert seen["well"] is True, seen["summary"]
    assert [each["namespace"] for each in seen["installations"]] == ["resources"]
    shown = json.loads(world.run("status", "--output", "json", verb="rollout").stdout)
    assert [each["daemonSet"] for each in shown["rollouts"]] == [f"resources/{INSTALLER}"]
    assert world.run("pause", verb="rollout").returncode == 0
    assert [key.namespace for key in world.server.objects if key.name == "fleet"] == [f"{INSTALLER}-rollout"]
    assert world.run("resume", verb="rollout").returncode == 0
    done = world.run("--yes")
    assert done.returncode == 0, done.stderr + done.stdout
    assert world.fleet.removed == {"n1", "n2"}
    assert INSTALLED not in world.server.objects
    for each in theirs:
        assert "deletionTimestamp" not in world.server.objects[each]["metadata"]


def test_a_name_that_no_installation_has_is_said_by_every_command(begin: Begin) -> None:
    world = begin(n1="ready")
    for verb in (("report",), ("rollout", "status")):
        ran = world.run(*verb[1:], "--name", "typo", verb=verb[0])
        assert ran.returncode == 2, ran.stdout
        assert "no DaemonSet of cri-resmgr-installer was found with --name typo" in ran.stderr


def test_a_page_that_is_too_large_is_asked_for_again_in_smaller_ones(begin: Begin) -> None:
    world = begin(n1="ready")
    for at in range(30):
        large = {"name": f"large-{at}", "labels": OURS, "annotations": {"x": "y" * 5000}}
        world.server.create(CONFIG_MAPS, "resources", {"metadata": large})
    limits = replace(KUBECTL, size=40_000)
    with closing(connect_with(world.server.kubeconfig().encode(), limits)) as api:
        found = list(api.list_objects(CONFIG_MAPS_OF_A_CLIENT, "", "resources"))
    assert sum(each["metadata"]["name"].startswith("large-") for each in found) == 30


def test_pods_that_the_api_server_refuses_are_no_silent_nodes(begin: Begin) -> None:
    """`report` sent people to the node, where nothing was wrong."""
    world = begin(n1="ready")
    uid = world.server.get(INSTALLED)["metadata"]["uid"]
    world.fleet.played.clear()  # its controller creates no pod any more
    world.server.delete(Name(PODS, "resources", f"{INSTALLER}-n1"))
    for at, (reason, message) in enumerate(
        [
            ("FailedCreate", 'Error creating: pods "x-1" is forbidden: exceeded quota'),
            ("FailedCreate", 'Error creating: pods "x-2" is forbidden: violates PodSecurity'),
            ("SuccessfulCreate", "Created pod: x-3"),
        ]
    ):
        about = {"kind": "DaemonSet", "namespace": "resources", "name": INSTALLER, "uid": uid}
        event = {"involvedObject": about, "reason": reason, "message": message}
        event |= {"metadata": {"name": f"e{at}"}, "lastTimestamp": f"2026-01-01T00:00:0{at}Z"}
        world.server.create(Kind("/api/v1", "events"), "resources", event)
    shown = world.run(verb="report")
    assert shown.returncode == 3
    assert 'its pod cannot be created: pods "x-2" is forbidden: violates PodSecurity' in shown.stdout
    world.server.fail("GET", "/events", code=403)
    assert "the DaemonSet selects it, but it has no pod" in world.run(verb="report").stdout


def test_the_failure_of_one_installation_keeps_no_command_from_the_others(tmp_path: Path) -> None:
    with two_installations(tmp_path) as world:
        world.server.fail(part="/namespaces/first-rollout/", code=403)
        paused = world.run("pause", "--why", "a Friday", verb="rollout")
        assert paused.returncode != 0
        assert "first-rollout" in paused.stderr
        fleet = world.server.get(Name(LEASES, "second-rollout", "fleet"))
        assert "a Friday" in fleet["metadata"]["annotations"].values()
        shown = world.run("status", verb="rollout")
        assert shown.returncode == 3
        assert "its Leases cannot be read: 403" in shown.stdout
        assert "paused: a Friday" in shown.stdout


@rule("R13")
def test_a_node_that_two_installations_select_names_both(tmp_path: Path) -> None:
    with two_installations(tmp_path) as world:
        both = {"nodeAffinity": None}
        for name in ("first", "second"):
            place = Name(DAEMON_SETS, "resources", name)
            world.server.patch(place, {"spec": {"template": {"spec": {"affinity": both}}}})
        world.fleet.rest()
        shown = world.run(verb="report")
        assert shown.returncode == 3
        assert "resources/first and resources/second both select it" in shown.stdout
        for name in ("first", "second"):  # asked for alone, each said WELL
            shown = world.run("--name", name, verb="report")
            assert shown.returncode == 3
            assert "resources/first and resources/second both select it" in shown.stdout
        world.server.fail("GET", "/clusterrolebindings", code=403)
        assert world.run("--namespace", "resources", "--name", "first", verb="report").returncode == 0


def test_an_agent_that_two_installations_share_is_taken_from_neither(tmp_path: Path) -> None:
    with two_installations(tmp_path) as world:
        values = tmp_path / "first.yaml"
        for name in ("first", "second"):
            values = tmp_path / f"{name}.yaml"
            values.write_text(f"{values.read_text()}agent: {{enabled: true}}\n")
            for body in build_objects(load_inputs(ManifestOptions(values=values), lambda _: None)):
                key = Name(kind_of(body), body["metadata"].get("namespace", ""), body["metadata"]["name"])
                if key in world.server.objects:
                    world.server.patch(key, {"metadata": {"labels": body["metadata"].get("labels", {})}})
                else:
                    world.server.create(key.kind, key.namespace, body)
        refused = world.run("--yes", "--name", "second")
        assert refused.returncode == 2
        assert "installation first uses it too" in refused.stderr


def test_a_daemon_set_that_nothing_proves_is_named_and_left(begin: Begin) -> None:
    """A person has deleted the ClusterRoleBinding: only a person can say which one is ours."""
    world = begin(n1="ready")
    squat(world, INSTALLER)
    world.server.delete(BINDING)
    refused = world.run("--yes")
    assert refused.returncode == 2, refused.stdout
    assert f"resources/{INSTALLER}" in refused.stderr
    assert f"{TENANT}/{INSTALLER}" in refused.stderr
    assert "--namespace" in refused.stderr
    assert world.fleet.removed == set()
    done = world.run("--yes", "--namespace", "resources")
    assert done.returncode == 0, done.stderr
    assert world.fleet.removed == {"n1"}
    assert Name(DAEMON_SETS, TENANT, INSTALLER) in world.server.objects


@pytest.mark.parametrize("annotated", [True, False])
def test_a_report_without_proof_calls_no_node_left_over(begin: Begin, annotated: bool) -> None:
    """It called the nodes deselected, and advised to clean them; or the cluster not installed, and well."""
    world = begin(n1="ready")
    world.server.delete(BINDING)
    if not annotated:
        world.fleet.played.clear()
        world.server.patch(node("n1"), {"metadata": {"annotations": None}})
    shown = world.run(verb="report")
    assert shown.returncode == 3
    assert "UNKNOWN: no ClusterRoleBinding says whose they are" in shown.stdout
    assert f"anyone may have created resources/{INSTALLER}" in shown.stdout
    assert "give its --namespace" in shown.stdout
    if annotated:
        assert "apply the manifests again, with their ClusterRoleBinding" in shown.stdout
    status = world.run("status", verb="rollout")
    assert status.returncode == 2
    assert f"resources/{INSTALLER}" in status.stderr


def test_a_binding_that_a_person_has_renamed_proves_as_well(begin: Begin) -> None:
    world = begin(n1="ready")
    body = world.server.get(BINDING)
    world.server.delete(BINDING)
    metadata = {"name": "platform-resmgr", "labels": body["metadata"]["labels"]}
    kept = {key: body[key] for key in ("roleRef", "subjects")}
    world.server.create(BINDING.kind, "", {"metadata": metadata, **kept})
    assert world.run(verb="report").returncode == 0
    assert world.run("--yes").returncode == 0
    assert world.fleet.removed == {"n1"}
    assert Name(BINDING.kind, "", "platform-resmgr") not in world.server.objects


def test_pods_in_the_namespace_of_ours_count_only_if_our_daemon_set_owns_them(begin: Begin) -> None:
    world = begin(n1="ready")
    theirs = world.server.get(squat(world, "elsewhere")[0])
    stray = build_pod(world.server.get(INSTALLED), "n1", "stuck")
    stray["metadata"]["name"] = "stray"
    stray["metadata"]["ownerReferences"][0]["uid"] = theirs["metadata"]["uid"]
    world.server.create(PODS, "resources", stray)
    seen = json.loads(world.run("--output", "json", verb="report").stdout)
    assert seen["well"] is True, seen["summary"]


def released(
    world: World, *names: Name, manager: str = "terraform-provider-helm", at: str = "2027-01-01T00:00:00Z"
) -> None:
    namespace, name = RELEASE.split("/")
    annotations = {"meta.helm.sh/release-namespace": namespace, "meta.helm.sh/release-name": name}
    owns: dict[str, Any] = {"f:metadata": {"f:annotations": {"f:meta.helm.sh/release-name": {}}}}
    fields = [{"manager": manager, "operation": "Apply", "time": at, "fieldsV1": owns}]
    for each in names:
        world.server.patch(each, {"metadata": {"annotations": annotations, "managedFields": fields}})


HOOK = ("--yes", "--name", INSTALLER, "--namespace", "resources", "--helm-release", RELEASE)


def test_the_hook_of_a_rendered_chart_uninstalls_nothing(begin: Begin) -> None:
    world = begin(n1="ready")
    ran = world.run(*HOOK)
    assert ran.returncode == 0, ran.stderr
    assert "does nothing" in ran.stdout
    assert not {method for method, _ in world.server.log} - {"GET"}
    assert world.fleet.removed == set()


def test_the_hook_of_a_release_uninstalls_it_and_goes_on_where_it_was(begin: Begin) -> None:
    world = begin(n1="ready")
    released(world, INSTALLED, BINDING)
    world.server.fail("DELETE", "/configmaps/", code=403)
    assert world.run(*HOOK).returncode != 0
    world.server.heal()
    done = world.run(*HOOK)
    assert done.returncode == 0, done.stderr
    assert world.everything() == world.before


@pytest.mark.parametrize(("taken", "who"), [(INSTALLED, RELEASE), (BINDING, "another program")])
def test_a_release_whose_objects_are_taken_over_is_not_deleted_silently(
    begin: Begin, taken: Name, who: str
) -> None:
    """`helm install --take-ownership` under another name, or `kubectl replace` of the DaemonSet: Helm would
    delete the DaemonSet with the first release, and no node would be cleaned."""
    world = begin(n1="ready")
    released(world, taken)
    ran = world.run(*HOOK[:-1], "kube-system/other" if taken == INSTALLED else RELEASE)
    assert ran.returncode == 2, ran.stdout
    assert f"{who} has applied {INSTALLER} since" in ran.stderr
    assert "the Secrets of the release" in ran.stderr
    assert world.fleet.removed == set()


@pytest.mark.parametrize(
    ("manager", "operation", "done"),
    [
        ("argocd-controller", "Update", True),
        ("argocd-controller", "Apply", True),
        ("kubectl-client-side-apply", "Update", False),
        ("helm", "Apply", False),
        ("", "", False),
    ],
)
def test_the_hook_of_argo_cd_acts_for_what_argo_cd_has_applied(
    begin: Begin, manager: str, operation: str, done: bool
) -> None:
    """With everything else it runs at once, and it removed what had just been installed."""
    world = begin(n1="ready")
    if manager == "helm":
        released(world, INSTALLED, manager=manager)
    elif manager:
        entry = {"manager": manager, "operation": operation, "time": "2027-01-01T00:00:00Z"}
        world.server.patch(INSTALLED, {"metadata": {"managedFields": [entry]}})
    ran = world.run("--yes", "--name", INSTALLER, "--namespace", "resources", "--argo-cd")
    assert ran.returncode == (0 if done else 2), ran.stderr + ran.stdout
    assert world.fleet.removed == ({"n1"} if done else set())
    if not done:
        assert f"this hook is for Argo CD, and {manager or 'another program'} has applied" in ran.stderr
        assert not {method for method, _ in world.server.log} - {"GET"}


@pytest.mark.parametrize(
    ("manager", "operation", "done"),
    [
        ("OpenAPI-Generator", "Update", False),
        ("kubectl", "Apply", False),
        ("kubectl-create", "Update", False),
        ("argocd-controller", "Apply", False),
        ("helm", "Apply", True),
        ("helm-controller", "Apply", True),
        ("Go-http-client", "Update", True),
    ],
)
def test_the_hook_of_a_release_that_another_program_has_created_uninstalls_nothing(
    begin: Begin, manager: str, operation: str, done: bool
) -> None:
    """It renders the chart onto what Helm has installed, and has not written the DaemonSet, perhaps because
    that is right already."""
    world = begin(n1="ready")
    released(world, INSTALLED, BINDING)
    labels = {"app.kubernetes.io/name": "cri-resmgr-installer-hooks", "app.kubernetes.io/instance": INSTALLER}
    made = {"manager": manager, "operation": operation, "time": "2027-01-01T00:00:00Z"}
    metadata = {"name": f"{INSTALLER}-uninstall", "labels": labels, "managedFields": [made]}
    world.server.create(BINDING.kind, "", {"metadata": metadata})
    ran = world.run(*HOOK)
    assert ran.returncode == (0 if done else 2), ran.stderr
    assert world.fleet.removed == ({"n1"} if done else set())
    assert done or f"{manager} has applied {INSTALLER} since" in ran.stderr


@pytest.mark.parametrize("manager", ["kubectl-client-side-apply", "argocd-controller"])
def test_a_release_that_another_program_has_applied_since_is_in_doubt(begin: Begin, manager: str) -> None:
    """Somebody has moved it from Helm to a pipeline: its rendered hook runs beside Helm's annotations."""
    world = begin(n1="ready")
    released(world, INSTALLED)
    fields: list[dict[str, Any]] = world.server.get(INSTALLED)["metadata"]["managedFields"]
    since = {"manager": manager, "operation": "Update", "time": "2027-01-02T00:00:00Z"}
    world.server.patch(INSTALLED, {"metadata": {"managedFields": [*fields, since]}})
    ran = world.run(*HOOK)
    assert ran.returncode == 2
    assert f"{manager} has applied {INSTALLER} since" in ran.stderr
    assert world.fleet.removed == set()
    hint = f"uninstall --name {INSTALLER} --namespace resources"
    assert hint in ran.stderr
    assert world.run("--yes", *hint.split()[1:]).returncode == 0
    assert node("n1") in world.server.objects
