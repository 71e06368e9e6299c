"""Gardener's extension on API servers: what becomes of a Shoot that enables it, changes it, disables it or
moves; and what an API server, a network or a kill may do to it meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from installer.extension.controller import Setup
from installer.extension.decide import FINALIZER
from installer.extension.desired import Renderer
from installer.extension.health import HealthServer, Pulses
from installer.extension.service import serve
from installer.kube.api import LEASES as LEASE_RESOURCE
from installer.kube.api import ApiError
from installer.kube.client import connect_with
from installer.manifests.registration import build_chart
from installer.model.node_marks import STATUS
from tests.extras import EXTENSION
from tests.gochart import render_chart
from tests.throwaway.gardener import (
    DAEMON_SETS,
    EVENTS,
    LEASES,
    NODES,
    OPERATION,
    PODS,
    RESOURCE,
    SECRETS,
    Landscape,
)
from tests.throwaway.kubeserver import Kind, Name, parse_path

CASES = Path(__file__).parents[1] / "cases" / "extension"
SHOOT = "shoot--example--pinned"
CHANGED = {"configs": {"fallback": "policy:\n  Active: none\nlogger:\n  Debug: policy\n"}}
PACE, LEASE_PACE = 0.01, 0.4
ACCOUNTS, NAMESPACES = Kind("/api/v1", "serviceaccounts"), Kind("/api/v1", "namespaces")
CLUSTER_ROLES = Kind("/apis/rbac.authorization.k8s.io/v1", "clusterroles")
DEFINITIONS = Kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions")
ADJUSTMENTS = Kind("/apis/criresmgr.intel.com/v1alpha1", "adjustments")
OURS = dict.fromkeys(("app.kubernetes.io/name", "app.kubernetes.io/instance"), RESOURCE)
INSTALLED, REMOVED = f"{SHOOT}: {RESOURCE}", f"{SHOOT}: {RESOURCE}-removal"


class Replica:
    """The controller in a thread."""

    def __init__(
        self, world: Landscape, name: str = "replica-1", seed: Any = None, pulses: Pulses | None = None
    ) -> None:
        seed = seed or connect_with(world.seed.kubeconfig().encode())
        renderer = Renderer(CASES / "values.yaml", (CASES / "deployment.yaml",))
        setup = Setup(renderer, renderer.check()[0], name, connect_with, pulses or Pulses(), PACE, LEASE_PACE)
        self.lines: list[str] = []
        self._stop = threading.Event()
        self.ended_well: bool | None = None

        def run() -> None:
            self.ended_well = serve(seed, seed, setup, "extension", self._stop, self.lines.append)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self.join()


Start = Callable[..., Replica]


@pytest.fixture
def world() -> Iterator[Landscape]:
    with Landscape(n1="ready", n2="ready") as found:
        yield found


@pytest.fixture
def start(world: Landscape) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(name: str = "replica-1") -> Replica:
            replica = Replica(world, name)
            stack.callback(replica.stop)
            return replica

        stack.callback(world.seed.heal)
        yield begin


@pytest.fixture
def enabled(world: Landscape, start: Start) -> Landscape:
    """A Shoot has it, and all is well."""
    start()
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.rest(SHOOT, "Create Succeeded")
    return world


def secrets(world: Landscape) -> list[str]:
    return [each["name"] for each in world.resource(SHOOT)["spec"]["secretRefs"]]


# -- the life of a Shoot --------------------------------------------------------------------------------


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
    world.ask(SHOOT, config={"configs": {"fallback": "policy: {}\npolcy: {}\n"}})
    world.rest(SHOOT, "Reconcile Error", "False")
    error = world.extension(SHOOT)["status"]["lastError"]
    assert error["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
    what = (
        "configs.fallback: line 2: polcy: unknown key; did you mean policy? (in the Shoot's providerConfig)"
    )
    assert what in error["description"]
    assert world.health(SHOOT)[1] == error["description"]
    assert secrets(world) == first
    world.ask(SHOOT, config=CHANGED)
    world.rest(SHOOT, "Reconcile Succeeded")
    assert "lastError" not in world.extension(SHOOT)["status"]


def test_a_broken_configuration_can_be_removed(enabled: Landscape) -> None:
    world = enabled
    world.ask(SHOOT, config={"configs": {"fallback": "polcy: {}"}})
    world.rest(SHOOT, "Reconcile Error", "False")
    world.disable(SHOOT)
    world.gone(SHOOT)


def test_a_node_that_is_not_well_is_named(enabled: Landscape) -> None:
    world = enabled
    world.nodes["n2"] = "stuck"
    world.rest(SHOOT, "Create Succeeded", "False")
    assert world.health(SHOOT)[1] == "1 of 2 node is not well: n2 (its pod ended with exit code 6)."
    world.nodes["n2"] = "ready"
    world.rest(SHOOT, "Create Succeeded")


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
    assert "Left as they are: n1 (not heard of since" in notes(world)
    # When they come back, their pods ask whether they have to clean up.
    assert "Left in the Shoot: what the pods need that have not ended on n1 (not" in notes(world)
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
    world.seed.wait(lambda: "cannot be asked for what is left" in world.health(SHOOT)[1])
    world.shoot.heal()
    world.gone(SHOOT)
    assert set(world.shoot.objects) == {name for name in before if name.kind not in (DAEMON_SETS, PODS)}
    assert world.shoot.get(Name(NODES, "", "n1"))["metadata"]["annotations"] == {"theirs": "x"}
    assert "Left in the Shoot: 1 Adjustment of people's" in notes(world)


def notes(world: Landscape) -> str:
    return "\n".join(each["note"] for each in world.seed.find(EVENTS, SHOOT))


def test_a_shoot_whose_api_server_is_away_is_not_given_up(enabled: Landscape) -> None:
    world = enabled
    world.shoot.go_away()
    world.disable(SHOOT)
    world.seed.wait(lambda: "cannot be asked" in world.health(SHOOT)[1])
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


def test_it_may_do_what_it_does_and_no_more(world: Landscape, start: Start) -> None:
    """Each request of a life against the chart's RBAC, and each of its rules against the requests."""
    chart = render_chart(build_chart(), {"image": {"repository": "x", "tag": "1"}}, "extension")
    rules = [rule for each in chart if "rules" in each for rule in each["rules"]]
    start()
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.rest(SHOOT, "Create Succeeded")
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


# -- faults ---------------------------------------------------------------------------------------------


def test_an_api_server_that_goes_and_comes(enabled: Landscape) -> None:
    world, first = enabled, secrets(enabled)
    world.seed.go_away()
    world.seed.patch(
        world.key(SHOOT),
        {"metadata": {"annotations": {OPERATION: "reconcile"}}, "spec": {"providerConfig": CHANGED}},
    )
    world.seed.come_back()
    world.seed.wait(lambda: secrets(world) != first)
    world.rest(SHOOT, "Reconcile Succeeded")


@pytest.mark.parametrize("how", ["cut", "forgotten"])
def test_a_watch_that_ends(enabled: Landscape, how: str) -> None:
    """410 Gone included: all is listed again."""
    world, first = enabled, secrets(enabled)
    if how == "forgotten":
        world.seed.forget()
    world.seed.cut_watches()
    world.ask(SHOOT, config=CHANGED)
    world.seed.wait(lambda: secrets(world) != first)
    world.rest(SHOOT, "Reconcile Succeeded")
    world.disable(SHOOT)
    world.seed.wait(
        lambda: world.extension(SHOOT).get("status", {}).get("lastOperation", {})["type"] == "Delete"
    )
    if how == "forgotten":
        world.seed.forget()
    world.seed.cut_watches()
    world.gone(SHOOT)


@pytest.mark.parametrize("how", ["cut", "forgotten"])
def test_watches_that_never_last(world: Landscape, start: Start, how: str) -> None:
    """Whatever the state in which it happens."""
    ended = threading.Event()

    def disturb() -> None:
        while not ended.wait(0.05):
            if how == "forgotten":
                world.seed.forget()
            world.seed.cut_watches()

    nemesis = threading.Thread(target=disturb)
    nemesis.start()
    try:
        start()
        world.add_shoot(SHOOT)
        world.enable(SHOOT)
        world.rest(SHOOT, "Create Succeeded")
        world.ask(SHOOT, config={"configs": {"fallback": "polcy: {}"}})
        world.rest(SHOOT, "Reconcile Error", "False")
        world.ask(SHOOT, "migrate", CHANGED)
        world.seed.wait(lambda: world.operation(SHOOT) == "Migrate Succeeded" and not world.resource(SHOOT))
        world.ask(SHOOT, "restore")
        world.rest(SHOOT, "Restore Succeeded")
        world.nodes["n2"] = "stuck"
        world.disable(SHOOT)
        world.seed.wait(lambda: "n2" in world.health(SHOOT)[1])
        world.nodes["n2"] = "ready"
        world.gone(SHOOT)
    finally:
        ended.set()
        nemesis.join()


def test_a_storm_of_conflicts(world: Landscape, start: Start) -> None:
    world.seed.fail("PATCH", "/extensions/", code=409, times=5)
    start()
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.rest(SHOOT, "Create Succeeded")


@pytest.mark.parametrize("method", ["PATCH", "POST", "DELETE"])
def test_an_answer_that_is_lost(world: Landscape, start: Start, method: str) -> None:
    """The request had its effect."""
    for part in ("/extensions/", "/managedresources", "/secrets"):
        world.seed.fail(method, part, after=True, times=1)
    start()
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.rest(SHOOT, "Create Succeeded")
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert world.story.count(f"{REMOVED} created") == 1


def test_a_mirror_that_is_late_is_not_believed(world: Landscape, start: Start) -> None:
    """The watch of ManagedResources shows nothing new, and yet the nodes are cleaned before it ends."""
    start()
    world.seed.wait(lambda: world.seed.requests["WATCH", "managedresources"])
    world.seed.fail("GET", "/managedresources", hang=True, times=1)
    world.seed.cut_watches()
    world.seed.wait(lambda: world.seed.requests["WATCH", "managedresources"] > 1)
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.seed.wait(lambda: world.operation(SHOOT) == "Create Succeeded")
    world.disable(SHOOT)
    world.seed.wait(lambda: world.extension(SHOOT)["metadata"].get("deletionTimestamp"))
    asked = world.seed.requests["GET", "managedresources"]
    world.seed.wait(lambda: world.seed.requests["GET", "managedresources"] > asked)
    assert FINALIZER in world.extension(SHOOT)["metadata"]["finalizers"]
    world.seed.heal()
    world.gone(SHOOT)
    assert f"{REMOVED} created" in world.story


def test_a_slow_api_server(world: Landscape, start: Start) -> None:
    world.seed.fail("PATCH", "/extensions/", delay=0.3)
    start()
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.rest(SHOOT, "Create Succeeded")


class OddClusters:
    """A client whose watch of Clusters does what nobody has foreseen."""

    def __init__(self, world: Landscape, watch: Callable[[], Iterator[Any]]) -> None:
        self._client, self._watch = connect_with(world.seed.kubeconfig().encode()), watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def watch(self, resource: Any, *arguments: Any) -> Any:
        return self._watch() if resource.plural == "clusters" else self._client.watch(resource, *arguments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mirror_that_breaks_ends_the_replica(world: Landscape) -> None:
    """It is started again; what nobody keeps up to date is not decided from."""

    def break_down() -> Iterator[Any]:
        raise RuntimeError("odd")

    replica = Replica(world, seed=OddClusters(world, break_down))
    replica.join()
    assert replica.ended_well is False
    assert "a thread has ended unexpectedly; this is a bug" in replica.lines


def test_a_watch_that_hangs_is_said_to_the_probes(world: Landscape) -> None:
    """And what does its work is not: each thread is heard of, while nothing happens too."""
    now, hangs, lifted = [0.0], threading.Event(), threading.Event()
    pulses = Pulses(lambda: now[0])

    def hang() -> Iterator[Any]:
        hangs.set()
        lifted.wait()
        yield from ()

    replica = Replica(world, seed=OddClusters(world, hang), pulses=pulses)
    try:
        with HealthServer("127.0.0.1:0", pulses) as server:
            assert hangs.wait(300)
            assert ask(server.port, "/healthz") == (200, "ok\n")
            assert ask(server.port, "/readyz") == (200, "ok\n")
            assert ask(server.port, "/metrics")[0] == 404
            now[0] += 1000.0
            live = "extensions", "managedresources"
            world.seed.wait(lambda: not any(each in ask(server.port, "/healthz")[1] for each in live))
            code, said = ask(server.port, "/healthz")
            assert code == 503
            assert said.startswith("hangs: clusters")
    finally:
        lifted.set()
        replica.stop()


def ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


# -- replicas -------------------------------------------------------------------------------------------


def test_one_of_two_replicas_acts_and_the_other_follows(world: Landscape, start: Start) -> None:
    first, second = start("replica-1"), start("replica-2")
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.rest(SHOOT, "Create Succeeded")
    leader = world.seed.get(Name(LEASES, "extension", "cri-resmgr-extension-leader-election"))
    held_by = leader["spec"]["holderIdentity"]
    world.seed.wait(lambda: world.seed.find(EVENTS, SHOOT))  # which are told after what they tell of
    acted = {each["reportingInstance"] for each in world.seed.find(EVENTS, SHOOT)}
    assert acted == {held_by}
    (first if held_by == "replica-1" else second).stop()
    world.disable(SHOOT)
    world.gone(SHOOT)
    acted = {each["reportingInstance"] for each in world.seed.find(EVENTS, SHOOT)}
    assert acted == {"replica-1", "replica-2"}
    heart = world.seed.get(Name(LEASES, "extension", "gardener-extension-heartbeat"))
    assert heart["spec"]["leaseDurationSeconds"] == 30


class Mortal:
    """A connection that dies with its replica: after `lives` writes nothing goes through it any more."""

    def __init__(self, kubeconfig: str, lives: int) -> None:
        self._client, self._lives = connect_with(kubeconfig.encode()), lives
        self.died = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.died.is_set():
                raise ApiError(0, "killed")
            found = getattr(self._client, name)(*arguments, **options)
            if name in ("create", "create_secret", "merge", "delete") and arguments[0] != LEASE_RESOURCE:
                self._lives -= 1
                if self._lives == 0:
                    self.died.set()
                    raise ApiError(0, "killed")
            return found

        return call


def outlive(world: Landscape, lives: int, reached: Callable[[], bool]) -> int:
    """Replicas one after another, each gone after `lives` writes, until it is so; how many they were."""
    for count in range(1, 30):
        mortal = Mortal(world.seed.kubeconfig(), lives)
        replica = Replica(world, seed=mortal)
        world.seed.wait(lambda died=mortal.died: died.is_set() or reached())  # type: ignore[misc]
        mortal.died.set()
        replica.stop()
        if reached():
            return count
    raise AssertionError((world.story, world.extension(SHOOT)))


@pytest.mark.parametrize("lives", [1, 2, 5])
def test_killed_after_every_few_writes(world: Landscape, lives: int) -> None:
    """The next replica goes on from there."""
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    replicas = outlive(world, lives, lambda: world.operation(SHOOT).endswith(" Succeeded"))
    world.disable(SHOOT)
    replicas += outlive(world, lives, lambda: not world.extension(SHOOT) and not world.resource(SHOOT))
    assert replicas >= 3
    assert world.story == [
        f"{INSTALLED} created",
        f"{INSTALLED} deleted",
        f"{REMOVED} created",
        f"{REMOVED} deleted",
    ]


@pytest.mark.parametrize("lives", [1, 2])
def test_killed_while_a_shoot_moves_to_another_seed(world: Landscape, lives: int) -> None:
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    outlive(world, lives, lambda: world.operation(SHOOT).endswith(" Succeeded"))
    written = secrets(world)
    world.ask(SHOOT, "migrate")
    replicas = outlive(
        world, lives, lambda: not world.resource(SHOOT) and world.operation(SHOOT) == "Migrate Succeeded"
    )
    world.ask(SHOOT, "restore")
    restored = "Restore Succeeded", "Reconcile Succeeded"  # by the next replica
    replicas += outlive(world, lives, lambda: world.operation(SHOOT) in restored)
    assert replicas >= 4
    assert secrets(world) == written
    assert world.story == [f"{INSTALLED} created"]


def test_the_verb_works_until_it_is_told_to_end(world: Landscape, tmp_path: Path) -> None:
    """As a process, with the kubeconfig that it is given; each line of its output is JSON."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(world.seed.kubeconfig())
    place = {"KUBECONFIG": str(kubeconfig), "POD_NAME": "pod-1", "POD_NAMESPACE": "extension"}
    place["PYTHONPATH"] = str(EXTENSION)
    program = Path(sys.executable).parent / "cri-resmgr-installer"
    files = f"--values={CASES / 'values.yaml'}", f"--provider-config={CASES / 'deployment.yaml'}"
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [program, "--output=json", "extension", *files], env={**os.environ, **place}, stdout=output
        )
    try:
        world.seed.wait(lambda: world.operation(SHOOT) == "Create Succeeded")
        process.terminate()
        assert process.wait(300) == 128 + signal.SIGTERM
    finally:
        process.kill()
    said = [json.loads(line)["message"] for line in (tmp_path / "output").read_text().splitlines()]
    assert (
        f"{SHOOT}/cri-resmgr-extension: Create Succeeded: The ManagedResource of cri-resmgr is written."
        in said
    )
    lease = world.seed.get(Name(LEASES, "extension", "cri-resmgr-extension-leader-election"))
    assert lease["spec"]["holderIdentity"] == ""  # nobody has to wait for it
