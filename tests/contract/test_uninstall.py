"""`uninstall` on an API server's stand-in with our manifests and played nodes: first every node is clean,
then nothing of ours is left, and all of others'.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

from installer.errors import InvalidInputError, RollbackFailedError, RolledBackError
from installer.manifests.inputs import ManifestOptions
from installer.model.event import Event
from installer.model.names import NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS, UNINSTALLING
from installer.model.overview import NodeHealth, NodeView
from installer.operator.api import ApiError
from installer.operator.kube import KubeClient
from installer.operator.uninstall import UninstallOptions, find, left_behind, uninstall
from installer.operator.wait import Clock
from tests.lib.rules import rule
from tests.lib.throwaway.fleet import DAEMON_SETS, NODES, PODS, Fleet, build_node
from tests.lib.throwaway.installed_fleet import (
    ACCOUNTS,
    CONFIG_MAPS,
    VALUES,
    World,
    node,
    two_installations,
)
from tests.lib.throwaway.kubeserver import Name


@pytest.fixture
def values(tmp_path: Path) -> Path:
    (tmp_path / "values.yaml").write_text(VALUES)
    return tmp_path / "values.yaml"


Begin = Callable[..., World]


@pytest.fixture
def begin(values: Path) -> Iterator[Begin]:
    with ExitStack() as stack:
        yield lambda **nodes: World(stack.enter_context(Fleet(**nodes)), values)


def test_nothing_of_ours_is_left_and_all_of_others(begin: Begin) -> None:
    world = begin(n1="ready", n2="ready")
    written = {
        "metadata": {"labels": {READY_LABEL: "true"}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in (NOT_READY_TAINT, "theirs")]},
        "status": {
            "conditions": [*world.before[node("n1")]["status"]["conditions"], {"type": READY_CONDITION}]
        },
    }
    world.server.patch(node("n1"), written)
    shown = world.run("--dry-run")
    assert shown.returncode == 3, shown.stderr
    assert "without progress; about 1 min, with 1 node at a time" in shown.stdout
    assert "serviceaccounts: kube-system/cri-resmgr-agent, resources/cri-resmgr-installer" in shown.stdout
    assert world.run().returncode == 2
    assert not {method for method, _ in world.server.log} - {"GET"}
    world.server.fail("GET", "/daemonsets/cri-resmgr-installer-removal", code=503, times=1)
    done = world.run("--yes", "--output", "json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert [json.loads(line)["kind"] for line in done.stdout.splitlines()][-1] == "uninstall.done"
    assert world.fleet.removed == {"n1", "n2"}
    world.before[node("n1")]["spec"] = {"taints": [{"key": "theirs", "effect": "NoSchedule"}]}
    assert world.everything() == world.before
    assert world.run("--yes").stdout == "no object of cri-resmgr-installer is in this cluster\n"


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """A client that is killed after its first write that has an effect."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name not in ("create", "merge", "delete"):
            return found

        def write(*arguments: Any, **options: Any) -> Any:
            found(*arguments, **options)
            raise Killed

        return write


def test_killed_after_any_write_it_goes_on_where_it_was(begin: Begin) -> None:
    world = begin(n1="ready", n2="ready")
    installed = Name(DAEMON_SETS, "resources", "cri-resmgr-installer")
    for _ in range(200):
        had = installed in world.server.objects
        try:
            world.uninstall(api=Mortal(world.api()))
            break
        except Killed:
            if had and installed not in world.server.objects:
                assert world.fleet.removed == {"n1", "n2"}
    assert world.everything() == world.before


def test_a_node_that_fails_keeps_its_rights_until_it_is_clean(begin: Begin) -> None:
    world = begin(n1="ready", n2="stuck")
    with pytest.raises(RolledBackError, match=r"not clean: 1.*\nn2: the disk is full"):
        world.uninstall()
    assert world.virtual >= 600  # removal.waitSeconds
    assert {method for method, _ in world.server.log} == {"GET", "POST"}
    world.fleet.recover("n2")
    world.uninstall()
    assert world.everything() == world.before


def test_nodes_that_wait_while_canaries_are_watched_are_waited_for(begin: Begin, values: Path) -> None:
    """An NRI plugin follows: for longer than `waitSeconds` no further node becomes clean."""
    rules = "removal: {successor: nri}, rollout: {soakSeconds: 3000}"
    values.write_text(f"{VALUES}settings: {{{rules}}}\n")
    world = begin(n1="ready", n2="stuck")
    since = world.virtual

    def sleep(seconds: float) -> None:
        world.virtual += seconds
        if world.virtual - since > 3200 and world.fleet.played["n2"] == "stuck":
            world.fleet.recover("n2")
        world.fleet.rest()

    with closing(world.api()) as client:
        asked = UninstallOptions()
        uninstall(client, find(client, asked), asked, world.emit, Clock(lambda: world.virtual, sleep))
    assert world.fleet.removed == {"n1", "n2"}
    assert world.everything() == world.before


@pytest.mark.parametrize("last", ["cri-resmgr-installer", "cri-resmgr-installer-removal"])
def test_a_clean_node_that_is_switched_off_meanwhile_holds_nothing_up(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Its pod ends when it is on again."""
    world = begin(n1="ready", n2="ready")
    silent = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    delete = KubeClient.delete

    def switch_off(client: KubeClient, resource: Any, namespace: str, name: str) -> None:
        if name == last and resource.plural == "daemonsets":
            world.fleet.played["n2"] = "gone"
            world.server.patch(node("n2"), {"status": {"conditions": [silent]}})
        delete(client, resource, namespace, name)

    monkeypatch.setattr(KubeClient, "delete", switch_off)
    if last.endswith("-removal"):
        world.uninstall(UninstallOptions(wait=30))
    else:  # whether its pod has undone the removal since is not known
        with pytest.raises(RollbackFailedError, match="n2: its kubelet is silent"):
            world.uninstall(UninstallOptions(wait=30))
    left = {name.kind.plural for name in world.everything().keys() - world.before.keys()}
    assert left == {"pods"}


def test_a_node_that_joins_meanwhile_is_waited_for(begin: Begin) -> None:
    """Its DaemonSet has not counted it yet, and would be done."""
    world = begin(n1="ready")

    def emit(event: Event) -> None:
        world.emit(event)
        if event.kind == "uninstall.removal":
            world.server.create(NODES, "", build_node("n2"))

    def sleep(seconds: float) -> None:
        world.fleet.played["n2"] = "ready"
        world.fleet.rest()
        world.virtual += seconds

    with closing(world.api()) as client:
        asked = UninstallOptions()
        uninstall(client, find(client, asked), asked, emit, Clock(lambda: world.virtual, sleep))
    assert world.fleet.removed == {"n1", "n2"}


def test_a_node_that_is_silent_is_named_and_left(begin: Begin) -> None:
    world = begin(n1="ready", n2="gone")
    with pytest.raises(RollbackFailedError, match="n2: its kubelet is silent"):
        world.uninstall(UninstallOptions(wait=30))
    assert 30 <= world.virtual < 60  # it is not waited for a second time
    left = {name.kind.plural for name in world.everything().keys() - world.before.keys()}
    assert left == {"pods"}  # that of the silent node, which kubelet ends when it comes back
    waits = [event.message for event in world.events if event.kind == "uninstall.waiting"]
    assert any("nodes to be clean: n2 (its kubelet is silent); gives up after 30 s" in each for each in waits)


@rule("R13")
def test_a_node_that_was_left_says_so_until_it_is_clean(begin: Begin, values: Path) -> None:
    """Its kubelet may run on with the proxy: no command calls the cluster clean meanwhile."""
    world = begin(n1="ready", n2="gone")
    with pytest.raises(RollbackFailedError, match="everything is deleted") as failed:
        world.uninstall(UninstallOptions(wait=30))
    assert "manifests --mode remove --nodes n2 | kubectl apply -f -`" in failed.value.hint
    reported = world.run(verb="report")
    assert (reported.returncode, "deselected, not removed, left" in reported.stdout) == (3, True)
    assert "manifests --mode remove --nodes" in reported.stdout
    again = world.run("--yes")
    assert again.returncode == 6
    left = "n2: `uninstall` has left this node as it was: its kubelet is silent\n"
    assert left in again.stderr

    for pod in world.server.find(PODS):  # the garbage collector's work
        world.server.delete(Name(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
    world.fleet.apply(ManifestOptions(values=values))
    world.fleet.rest()
    with pytest.raises(RollbackFailedError):
        world.uninstall(UninstallOptions(wait=30))
    assert left in world.run("--yes").stderr

    world.fleet.recover("n2")
    heard = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    world.server.patch(node("n2"), heard)
    world.before[node("n2")]["status"] = heard["status"]
    world.fleet.apply(ManifestOptions(values=values, mode="remove", nodes="n2"))
    world.uninstall()
    assert world.fleet.removed == {"n1", "n2"}
    assert world.everything() == world.before
    assert world.run("--yes").stdout == "no object of cri-resmgr-installer is in this cluster\n"


@rule("R13")
def test_killed_at_any_write_it_does_not_forget_the_node_that_it_leaves(begin: Begin) -> None:
    """This one has no annotation, so only DaemonSets and pods tell of it, and they are gone then."""
    world = begin(n1="ready", n2="gone")
    with pytest.raises(RollbackFailedError, match=r"everything is deleted.*\nn2: "):  # noqa: PT012 - until then
        for _ in range(200):
            try:
                world.uninstall(UninstallOptions(wait=2), Mortal(world.api()))
            except Killed:
                continue
            return


def test_each_minute_it_says_what_the_nodes_say_then(begin: Begin) -> None:
    """Their pods are not Ready all the while, and nothing counts that they have another reason."""
    world = begin(n1="stuck")

    class Changing(World):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if event.kind == "uninstall.waiting":
                self.fleet.rest()  # else the first pod writes its own reason after this one
                said = json.dumps({"state": "failed", "reason": f"at {self.virtual:g} s it was another"})
                self.server.patch(node("n1"), {"metadata": {"annotations": {STATUS: said}}})

    world.__class__ = Changing
    with pytest.raises(RolledBackError):
        world.uninstall(UninstallOptions(wait=200))
    waits = [event.message for event in world.events if event.kind == "uninstall.waiting"]
    said = [word for word in waits if "n1 (at " in word]
    assert len(said) >= 3
    assert len({word.partition(";")[0] for word in said}) == len(said)


@rule("R13")
def test_a_namespace_that_a_finalizer_keeps_is_not_called_gone(begin: Begin) -> None:
    world = begin(n1="ready")
    theirs = {"metadata": {"name": "theirs", "finalizers": ["example.org/held"]}}
    world.server.create(CONFIG_MAPS, "cri-resmgr-installer-rollout", theirs)
    with pytest.raises(RolledBackError, match=r"namespaces cri-resmgr-installer-rollout .*example\.org/held"):
        world.uninstall(UninstallOptions(wait=200))
    named = [name for event in world.events for name in cast(list[str], event.data.get("objects", []))]
    assert sorted(named) == sorted(set(named)), "each is named once"
    waits = [event.message for event in world.events if event.kind == "uninstall.waiting"]
    assert len([each for each in waits if "objects to be gone: namespaces" in each]) == 4  # each minute
    again = world.run("--yes", "--wait", "1")
    assert (again.returncode, "example.org/held" in again.stderr) == (5, True)
    held = Name(CONFIG_MAPS, "cri-resmgr-installer-rollout", "theirs")
    world.server.patch(held, {"metadata": {"finalizers": None}})
    world.uninstall()
    assert world.everything() == world.before


def test_nodes_are_left_dirty_only_when_a_person_says_so(begin: Begin) -> None:
    world = begin(n1="stuck")
    with pytest.raises(RollbackFailedError, match="n1: the disk is full"):
        world.uninstall(UninstallOptions(wait=30, leave_nodes=True))
    left = world.everything()
    (word,) = left[node("n1")]["metadata"].pop("annotations").values()
    assert json.loads(word)["state"] == "left"
    assert left == world.before


def test_without_its_daemonset_it_does_not_believe_that_nodes_are_clean(begin: Begin) -> None:
    world = begin(n1="ready")
    world.server.delete(Name(DAEMON_SETS, "resources", "cri-resmgr-installer"))
    world.fleet.rest()
    with pytest.raises(RolledBackError, match="n1: no DaemonSet is left to clean it"):
        world.uninstall()
    assert Name(ACCOUNTS, "resources", "cri-resmgr-installer") in world.server.objects


@rule("R13")
def test_without_its_daemonset_it_does_not_believe_nodes_that_say_nothing(begin: Begin) -> None:
    """As with `annotateNode: false`, clean or not."""
    world = begin(n1="ready")
    world.server.delete(Name(DAEMON_SETS, "resources", "cri-resmgr-installer"))
    world.fleet.rest()
    world.server.patch(node("n1"), {"metadata": {"annotations": {STATUS: None}}})
    with pytest.raises(RolledBackError, match="no node has reported itself clean; nothing was deleted"):
        world.uninstall()
    assert {method for method, _ in world.server.log} == {"GET"}
    world.uninstall(UninstallOptions(leave_nodes=True))
    assert world.everything() == world.before


def test_a_removal_with_wrong_settings_is_made_anew_where_a_person_deletes_it(
    begin: Begin, values: Path
) -> None:
    world, removal = begin(n1="stuck"), Name(DAEMON_SETS, "resources", "cri-resmgr-installer-removal")
    with pytest.raises(RolledBackError) as failed:
        world.uninstall(UninstallOptions(wait=30))
    assert f"correct image or settings, delete DaemonSet {removal.name} just before" in failed.value.hint
    installed = Name(DAEMON_SETS, "resources", "cri-resmgr-installer")
    template = world.server.get(installed)["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "registry.example.org/corrected:1"
    world.server.patch(installed, {"spec": {"template": template}})
    world.server.delete(removal)
    with pytest.raises(RolledBackError):
        world.uninstall(UninstallOptions(wait=30))
    (container,) = world.server.get(removal)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/corrected:1"


@rule("R13")
def test_what_the_deletion_of_its_namespaces_has_left_is_found(begin: Begin) -> None:
    """They had everything that it usually finds an installation by."""
    world = begin(n1="ready")
    namespaces = {"resources", "cri-resmgr-installer-rollout", "cri-resmgr-installer-agent"}
    for key in world.everything().keys() - world.before.keys():
        if key in world.server.objects and {key.namespace, key.name} & namespaces:
            world.server.delete(key)
    world.server.finish_namespaces()
    world.fleet.rest()
    done = world.run("--yes")
    assert (done.returncode, "n1: no DaemonSet is left to clean it" in done.stderr) == (5, True)
    assert world.run("--yes", "--leave-nodes").returncode == 6
    assert "clusterroles" not in {key.kind.plural for key in world.everything()}


def test_every_node_that_was_left_is_in_the_command_that_cleans_it() -> None:
    left = [NodeView(f"n{at}", NodeHealth.SILENT) for at in range(30)]
    assert "--nodes n0,n1," in left_behind(left, "").hint
    assert ",n28,n29 |" in left_behind(left, "").hint


def test_a_stale_mark_does_not_stand_for_clean_nodes(begin: Begin) -> None:
    """Of an uninstallation that was ended, and then installed again."""
    world = begin(n1="ready")
    mark = {"metadata": {"annotations": {UNINSTALLING: "true"}}}
    world.server.patch(Name(ACCOUNTS, "resources", "cri-resmgr-installer"), mark)
    world.uninstall()
    assert world.fleet.removed == {"n1"}


def test_an_api_server_that_is_busy_now_and_then_is_waited_for(begin: Begin) -> None:
    world = begin(n1="ready", n2="ready")
    for method, part in (
        ("PATCH", "/nodes/n2"),
        ("PATCH", "/serviceaccounts/cri-resmgr-installer"),
        ("DELETE", "/daemonsets/cri-resmgr-installer"),
        ("DELETE", "/clusterroles/cri-resmgr-installer"),
    ):
        world.server.fail(method, part, code=429, times=2)
    world.uninstall()
    assert world.everything() == world.before


def test_what_gardener_manages_is_left_to_gardener(begin: Begin) -> None:
    world = begin(n1="ready")
    theirs = {"metadata": {"annotations": {"resources.gardener.cloud/origin": "shoot"}}}
    world.server.patch(Name(DAEMON_SETS, "resources", "cri-resmgr-installer"), theirs)
    with pytest.raises(InvalidInputError, match="belongs to a ManagedResource"):
        world.uninstall()


def test_a_removal_of_some_nodes_does_not_stand_for_all(begin: Begin, values: Path) -> None:
    world = begin(n1="ready", n2="ready")
    world.fleet.apply(ManifestOptions(values=values, mode="remove", nodes="n1"), only="DaemonSet")
    with pytest.raises(RolledBackError, match="n2: the existing removal does not select it"):
        world.uninstall(UninstallOptions(wait=30))
    assert Name(ACCOUNTS, "resources", "cri-resmgr-installer") in world.server.objects


def test_the_nodes_of_another_installation_stay_as_they_are(tmp_path: Path) -> None:
    with two_installations(tmp_path) as world:
        paused = {"cri-resource-manager.intel.com/pause": "ours"}
        world.server.patch(node("n2"), {"metadata": {"annotations": paused}})
        before = world.server.get(node("n2"))
        assert "n2" not in world.run("--name", "first", "--nodes", verb="report").stdout
        world.uninstall(UninstallOptions(name="first"))
        assert world.server.get(node("n2")) == before
        assert STATUS not in world.server.get(node("n1"))["metadata"].get("annotations", {})
        assert world.fleet.removed == {"n1"}


@rule("R13")
def test_the_nodes_of_another_installation_do_not_speak_for_ours(tmp_path: Path) -> None:
    with two_installations(tmp_path) as world:
        world.server.delete(Name(DAEMON_SETS, "resources", "first"))
        world.fleet.rest()
        world.server.patch(node("n1"), {"metadata": {"annotations": {STATUS: None}}})
        with pytest.raises(RolledBackError, match="no node has reported itself clean; nothing was deleted"):
            world.uninstall(UninstallOptions(name="first"))


@pytest.mark.parametrize("left", ["daemonsets", "pods"])
def test_an_api_server_that_stays_away_says_nothing_of_clean_nodes(begin: Begin, left: str) -> None:
    world = begin(n1="stuck")
    after = {"daemonsets": "uninstall.removal", "pods": "uninstall.deleted"}[left]

    class Away(World):
        def emit(self, event: Event) -> None:
            if event.kind == after:
                self.server.fail("GET", code=503)

    world.__class__ = Away
    asked = UninstallOptions(wait=30, leave_nodes=left == "pods")
    with pytest.raises(ApiError, match="503"):
        world.uninstall(asked)
    assert world.virtual >= 30
    assert Name(ACCOUNTS, "resources", "cri-resmgr-installer") in world.server.objects


def test_settings_that_a_person_has_deleted_are_missed_only_where_a_removal_needs_them(begin: Begin) -> None:
    """Another kubelet's unit may be in them. A removal that is at work has its own."""
    world = begin(n1="ready", n2="stuck")
    prefix = "cri-resmgr-installer-settings-"
    (settings,) = (
        each for each in world.server.objects if each.name.startswith(prefix) and each not in world.before
    )
    kept = world.server.objects.pop(settings)
    with pytest.raises(InvalidInputError, match="is gone: the removal needs the settings in it"):
        world.uninstall()
    assert {method for method, _ in world.server.log} == {"GET"}
    world.server.objects[settings] = kept
    with pytest.raises(RolledBackError):
        world.uninstall()
    del world.server.objects[settings]
    world.fleet.recover("n2")
    world.uninstall()
    assert world.everything() == world.before


def test_settings_that_people_mount_otherwise_are_not_guessed(begin: Begin) -> None:
    """The removal's pods would have the settings of the installation, and install."""
    world = begin(n1="ready")
    (daemon_set,) = (
        each
        for name, each in world.server.objects.items()
        if name.kind == DAEMON_SETS and name not in world.before and "agent" not in name.name
    )
    (volume,) = (
        each for each in daemon_set["spec"]["template"]["spec"]["volumes"] if each["name"] == "settings"
    )
    volume["projected"] = {"sources": [{"configMap": volume.pop("configMap")}]}
    with pytest.raises(
        InvalidInputError, match="has no ConfigMap `settings`: the removal needs the settings"
    ):
        world.uninstall()
    assert {method for method, _ in world.server.log} == {"GET"}
