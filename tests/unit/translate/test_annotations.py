"""Annotations of workloads, and configs of a cluster: what is read of an API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from installer.errors import InvalidInputError
from installer.model.names import CONFIG_NAMESPACE
from installer.operator.annotations import find_unready, find_workloads, translate_annotations
from installer.operator.api import PODS, ApiError, KubeApi, Page, Resource
from installer.operator.config_sources import read_cluster
from installer.operator.inventory import Owned
from installer.operator.nri_table import Grade
from installer.operator.uninstall import Target, UninstallOptions, describe

OLD, NEW = "cri-resource-manager.intel.com", "resource-policy.nri.io"
Object = dict[str, Any]


class Cluster(KubeApi):
    """It has objects by the plural of their kind, each on a page of its own."""

    def __init__(self, **objects: list[Object]) -> None:
        self._objects = objects

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
    ) -> Iterator[Page]:
        for each in self._objects.get(resource.plural, []):
            if namespace in ("", each["metadata"].get("namespace")) and _selects(selector, each):
                yield Page((each,), "1")

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        for page in self.list_pages(resource, namespace=namespace):
            if page.items[0]["metadata"]["name"] == name:
                return dict(page.items[0])
        raise ApiError(404, "not found")


def _selects(selector: str, found: Object) -> bool:
    """Of `a=b,c in (d,e)` what is given."""
    labels = found["metadata"].get("labels", {})
    parts = re.findall(r"([^,=\s(]+)(?:=([^,]*)| in \(([^)]*)\))", selector)
    return all(labels.get(key) in (one or several).split(",") for key, one, several in parts)


def template(**annotations: str) -> Object:
    return {
        "metadata": {"annotations": {key.replace("__", "/"): value for key, value in annotations.items()}},
        "spec": {"containers": [{"name": "web"}, {"name": "log"}]},
    }


def named(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "team"}, **more}


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        (
            f"prefer-isolated-cpus.{OLD}/container.web",
            "true",
            {f"prefer-isolated-cpus.{NEW}/container.web": "true"},
        ),
        (f"memory-type.{OLD}/pod", "dram", {f"memory-type.{NEW}/pod": "dram"}),
        (
            f"{OLD}/prefer-shared-cpus",
            "web: true\nlog: no\n",
            {
                f"prefer-shared-cpus.{NEW}/container.web": "true",
                f"prefer-shared-cpus.{NEW}/container.log": "false",
            },
        ),
        (f"{OLD}/prefer-isolated-cpus", "true", {f"prefer-isolated-cpus.{NEW}/pod": "true"}),
        (f"{OLD}/prefer-isolated-cpus", "web: false", {f"prefer-isolated-cpus.{NEW}/container.web": "false"}),
        (f"{OLD}/memory-type", "web: dram", {f"memory-type.{NEW}/container.web": "dram"}),
        (f"{OLD}/affinity", "web: [log]", {f"{NEW}/affinity": "web: [log]"}),
    ],
)
def test_an_annotation_that_a_plugin_reads_becomes_its_form(
    old: str, value: str, new: dict[str, str]
) -> None:
    found, (entry,) = translate_annotations({old: value, "other.io/x": "y"}, ["web", "log"], "it")
    assert found == new
    assert (entry.grade, entry.path, set(entry.to)) == (Grade.EXACT, (old,), set(new))


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        (
            f"{OLD}/memory-type",
            "web: pmem\nlog: dram\n",
            {f"memory-type.{NEW}/container.web": "pmem", f"memory-type.{NEW}/container.log": "dram"},
        ),
        (f"memory-type.{OLD}/pod", "hbm", {f"memory-type.{NEW}/pod": "hbm"}),
        (f"{OLD}/memory-type", "dram,pmem", {f"memory-type.{NEW}/pod": "dram,pmem"}),
        (f"{OLD}/memory-type", "web: 2020-01-01", {f"memory-type.{NEW}/container.web": "2020-01-01"}),
        (
            f"{OLD}/cold-start",
            "web: {duration: 22:00}",
            {f"cold-start.{NEW}/container.web": '{"duration": "22:00"}'},
        ),
    ],
)
def test_what_a_plugin_may_refuse_is_said(old: str, value: str, new: dict[str, str]) -> None:
    found, (entry,) = translate_annotations({old: value}, ["web", "log"], "it")
    assert (found, entry.grade) == (new, Grade.APPROXIMATE)
    assert "the plugin refuses containers" in entry.note


@pytest.mark.parametrize("newer", ["", "/pod", "/container.web"])
@pytest.mark.parametrize("value", ["true", "web: true"])
def test_the_older_form_counts_only_where_no_newer_one_does(newer: str, value: str) -> None:
    old = {f"{OLD}/prefer-shared-cpus": value, f"prefer-shared-cpus.{OLD}{newer}": "false"}
    found, (older, _) = translate_annotations(old, ["web", "log"], "it")
    kept = newer.startswith("/container")
    assert found.pop(f"prefer-shared-cpus.{NEW}{newer}") == "false"
    assert found == ({f"prefer-shared-cpus.{NEW}/pod": "true"} if kept and value == "true" else {})
    assert older.grade is (Grade.EXACT if kept else Grade.IDLE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefer-shared-cpus", "1"),
        ("prefer-shared-cpus", "TRUE"),
        ("prefer-isolated-cpus", "yes"),
        ("prefer-isolated-cpus", "web: 'true'"),
        ("prefer-isolated-cpus", "web: 1"),
        ("prefer-isolated-cpus", "web: true\nlog: maybe"),
        ("prefer-shared-cpus", "web:true"),
        ("prefer-shared-cpus", "true\n"),
        ("prefer-shared-cpus", "web: 'True'"),
        ("prefer-shared-cpus", "web: 1"),
        ("prefer-shared-cpus", "web:"),
        ("prefer-shared-cpus", "web: true\nlog: [true]"),
    ],
)
def test_a_value_that_cri_resmgr_ignores_does_not_begin_to_work(key: str, value: str) -> None:
    found, (entry,) = translate_annotations({f"{OLD}/{key}": value}, ["web"], "it")
    assert (found, entry.grade) == ({}, Grade.IDLE)


@pytest.mark.parametrize("ignored", ["maybe", "1", "'True'", ""])
def test_a_value_for_one_container_that_cri_resmgr_ignores_leaves_the_others_theirs(ignored: str) -> None:
    old = {f"{OLD}/prefer-shared-cpus": f"web: 'true'\nlog: {ignored}"}
    found, (entry,) = translate_annotations(old, ["web", "log"], "it")
    assert found == {f"prefer-shared-cpus.{NEW}/container.web": "true"}
    assert (entry.grade, entry.note) == (Grade.EXACT, "cri-resmgr ignores the value for container.log")


@pytest.mark.parametrize("key", ["memory-type", "cold-start", "prefer-isolated-cpus", "prefer-shared-cpus"])
def test_a_mapping_of_no_containers_is_for_none(key: str) -> None:
    found, (entry,) = translate_annotations({f"{OLD}/{key}": "{}"}, ["web"], "it")
    assert (found, entry.grade) == ({}, Grade.IDLE)


def test_isolated_cpus_without_a_word_are_refused_ones() -> None:
    found, _ = translate_annotations({f"{OLD}/prefer-isolated-cpus": "web:"}, ["web"], "it")
    assert found == {f"prefer-isolated-cpus.{NEW}/container.web": "false"}


@pytest.mark.parametrize(
    ("old", "value", "note"),
    [
        (f"toptierlimit.{OLD}/pod", "1G", "no plugin reads it"),
        (f"{OLD}/cold-start", "a: [", "is not YAML"),
        (f"{OLD}/cold-start", "a: !!set {b}", "is not YAML"),
        (f"{OLD}/cold-start", "a: .nan", "is not YAML"),
        ("intel.com/resources", "{}", "resource-annotator"),
    ],
)
def test_an_annotation_that_no_plugin_reads_is_reported_as_lost(old: str, value: str, note: str) -> None:
    found, (entry,) = translate_annotations({old: value}, ["web"], "it")
    assert (found, entry.grade) == ({}, Grade.LOST)
    assert note in entry.note


def test_a_name_that_no_container_has_is_said() -> None:
    _, (entry,) = translate_annotations({f"{OLD}/memory-type": "db: dram"}, ["web"], "it")
    assert entry.note == "no container is named db"
    _, (entry,) = translate_annotations({f"{OLD}/memory-type": "db: pmem"}, ["web"], "it")
    assert entry.note.startswith("no container is named db; the plugin refuses containers")


def test_workloads_are_patched_in_their_templates_and_owned_objects_follow_them() -> None:
    old = template(**{f"memory-type.{OLD}__pod": "dram"})
    owned = named("web-1", spec={"template": old})
    owned["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}]
    cron = named("backup", spec={"jobTemplate": {"spec": {"template": old}}})
    cluster = Cluster(
        deployments=[named("web", spec={"template": old}), named("plain", spec={"template": template()})],
        replicasets=[owned],
        cronjobs=[cron],
        pods=[{**old, "metadata": {**old["metadata"], "name": "lone", "namespace": "team"}}],
    )
    web, backup, lone = find_workloads(cluster)
    assert (web.name, web.annotations) == ("team/deployments/web", {f"memory-type.{NEW}/pod": "dram"})
    assert web.patch.startswith(
        'kubectl -n team patch deployments web --type merge -p \'{"spec": {"template"'
    )
    assert '"jobTemplate": {"spec": {"template"' in backup.patch
    assert lone.patch.startswith("# team/pods/lone cannot be changed: recreate it with")


ROLLOUT = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "controller": True}


def owned(name: str, owner: Object, **spec: Any) -> Object:
    found = named(name, **spec)
    found["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}, owner]
    return found


def test_an_owner_that_we_do_not_read_is_named_once_with_what_to_write_there() -> None:
    old = template(**{f"memory-type.{OLD}__pod": "dram"})
    cluster = Cluster(
        replicasets=[owned(f"web-{each}", ROLLOUT, spec={"template": old}) for each in range(2)],
        statefulsets=[owned("group", {**ROLLOUT, "kind": "LeaderWorkerSet"}, spec={"template": old})],
        pods=[
            owned(
                "web-0-x",
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-0", "controller": True},
            ),
            owned(
                "old-job", {"apiVersion": "batch/v1beta1", "kind": "Job", "name": "job", "controller": True}
            ),
        ],
    )
    cluster_pods: Any = cluster._objects["pods"]
    for each in cluster_pods:
        each["metadata"]["annotations"] = old["metadata"]["annotations"]
    found = {each.name: each for each in find_workloads(cluster)}
    assert [*found] == ["team/LeaderWorkerSet/web", "team/Rollout/web"]
    assert found["team/Rollout/web"].patch == (
        "# team/replicasets/web-0: made by Rollout web (argoproj.io/v1alpha1): "
        f'write into that one\'s template of pods {{"memory-type.{NEW}/pod": "dram"}}'
    )
    assert find_unready(cluster) == tuple(found)


def test_an_owner_whose_pods_differ_is_named_for_each_of_them() -> None:
    workers = {**ROLLOUT, "kind": "LeaderWorkerSet"}
    cluster = Cluster(
        statefulsets=[
            owned("leader", workers, spec={"template": template(**{f"memory-type.{OLD}__pod": "dram"})}),
            owned(
                "worker", workers, spec={"template": template(**{f"prefer-shared-cpus.{OLD}__pod": "true"})}
            ),
        ]
    )
    leader, worker = find_workloads(cluster)
    assert leader.name == worker.name == "team/LeaderWorkerSet/web"
    assert [*leader.annotations, *worker.annotations] == [
        f"memory-type.{NEW}/pod",
        f"prefer-shared-cpus.{NEW}/pod",
    ]


def test_one_ready_pod_of_an_owner_does_not_hide_another() -> None:
    old, new = f"memory-type.{OLD}__pod", f"memory-type.{NEW}__pod"
    both = [template(**{old: "dram", new: "dram"}), template(**{old: "dram"})]
    sets = [owned(f"web-{number}", ROLLOUT, spec={"template": each}) for number, each in enumerate(both)]
    assert find_unready(Cluster(replicasets=sets)) == ("team/Rollout/web",)


def pod_of(owner: str, **annotations: str) -> Object:
    found = owned("web-x", {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "controller": True})
    found["metadata"]["annotations"] = template(**annotations)["metadata"]["annotations"]
    return found


def test_annotations_that_something_adds_to_the_pods_of_a_template_are_named() -> None:
    kept, added = f"memory-type.{OLD}__pod", f"prefer-shared-cpus.{OLD}__pod"
    plain = named("web-1", spec={"template": template(**{kept: "dram"})})
    pod = pod_of("web-1", **{kept: "dram", added: "true"})
    _, found = find_workloads(Cluster(replicasets=[plain], pods=[pod]))
    assert (found.name, found.ready) == ("team/ReplicaSet/web-1", False)
    assert found.patch == (
        "# team/pods/web-x: made by ReplicaSet web-1 (apps/v1), whose template lacks the old ones: "
        f'whatever adds those, such as a webhook, must add {{"prefer-shared-cpus.{NEW}/pod": "true"}}'
    )
    pod["metadata"]["annotations"][f"prefer-shared-cpus.{NEW}/pod"] = "true"
    assert [each.ready for each in find_workloads(Cluster(replicasets=[plain], pods=[pod]))] == [False, True]


def test_what_the_webhook_of_cri_resmgr_adds_is_not_named_for_each_owner() -> None:
    plain = named("web-1", spec={"template": template()})
    assert not [*find_workloads(Cluster(replicasets=[plain], pods=[pod_of("web-1", intel_com="x")]))]
    pod = pod_of("web-1", **{"intel.com__resources": "{}"})
    assert not [*find_workloads(Cluster(replicasets=[plain], pods=[pod]))]


def test_an_init_container_is_a_container() -> None:
    old = template(**{f"{OLD}__memory-type": "setup: dram"})
    old["spec"]["initContainers"] = [{"name": "setup"}]
    (found,) = find_workloads(Cluster(deployments=[named("web", spec={"template": old})]))
    assert (found.report[0].note, found.annotations) == ("", {f"memory-type.{NEW}/container.setup": "dram"})


def test_a_static_pod_is_named_with_its_node() -> None:
    pod = owned("etcd-n1", {"apiVersion": "v1", "kind": "Node", "name": "n1", "controller": True})
    pod["metadata"]["annotations"] = template(**{f"memory-type.{OLD}__pod": "dram"})["metadata"][
        "annotations"
    ]
    (found,) = find_workloads(Cluster(pods=[pod]))
    assert found.patch.startswith("# team/pods/etcd-n1: a static pod: write into its manifest on node n1 {")
    assert not found.ready


@pytest.mark.parametrize(
    "key", ["rdtclass", "blockioclass", "topologyhints", "prefer-reserved-cpus", "toptierlimit"]
)
def test_a_form_that_cri_resmgr_does_not_read_does_not_begin_to_work(key: str) -> None:
    found, (entry,) = translate_annotations({f"{OLD}/{key}": "web: gold"}, ["web"], "it")
    assert (found, entry.grade) == ({}, Grade.IDLE)


def test_an_uninstallation_names_the_workloads_that_a_plugin_would_not_read() -> None:
    old, new = f"memory-type.{OLD}__pod", f"memory-type.{NEW}__pod"
    cluster = Cluster(
        deployments=[
            named("late", spec={"template": template(**{old: "dram"})}),
            named("ready", spec={"template": template(**{old: "dram", new: "dram"})}),
        ]
    )
    unready = find_unready(cluster)
    assert unready == ("team/deployments/late",)
    owned = Owned(PODS, "team", "x")
    found = Target("it", "team", None, None, {}, 60.0, 60.0, (owned,), (), 0, unready)
    (warning,) = [each for each in describe(found, UninstallOptions()) if each.kind == "warning"]
    assert "NRI plugin: team/deployments/late; " in warning.message


def test_who_may_not_list_workloads_is_not_kept_from_uninstalling() -> None:
    class Forbidden(Cluster):
        def list_pages(
            self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
        ) -> Iterator[Page]:
            raise ApiError(403, "forbidden")

    assert find_unready(Forbidden()) == ()


# -- configs of a cluster ------------------------------------------------------------------------------


INSTALLER = "cri-resmgr-installer"
INSTALLATION = {"app.kubernetes.io/component": "installation"}
FALLBACK = "policy:\n  Active: %s\n"


def ours(namespace: str, configs: str, name: str = INSTALLER) -> dict[str, Object]:
    """A ClusterRoleBinding and a DaemonSet, whose pods have this ConfigMap."""
    labels = {"app.kubernetes.io/name": INSTALLER, "app.kubernetes.io/instance": name}
    account = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    volumes = [
        {"name": "settings", "configMap": {"name": f"{name}-settings"}},
        {"name": "configs", "configMap": {"name": configs}},
    ]
    daemon_set = {"template": {"spec": {"containers": [{"name": "installer"}], "volumes": volumes}}}
    return {
        "clusterrolebindings": {"metadata": {"name": name, "labels": labels}, "subjects": [account]},
        "daemonsets": {
            "metadata": {"name": name, "namespace": namespace, "labels": labels | INSTALLATION},
            "spec": daemon_set,
        },
    }


def agents(namespace: str) -> Object:
    labels = {"app.kubernetes.io/name": "cri-resmgr-agent", "app.kubernetes.io/instance": INSTALLER}
    metadata = {"name": "cri-resmgr-agent", "labels": labels, "annotations": {CONFIG_NAMESPACE: namespace}}
    return {"metadata": metadata}


def config_map(namespace: str, name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def test_the_configs_are_those_that_the_daemon_set_names_now() -> None:
    installed = ours("cri", "configs-2")
    cluster = Cluster(
        **{key: [each] for key, each in installed.items()},
        configmaps=[
            config_map("cri", f"configs-{each}", **{"fallback.cfg": FALLBACK % policy})
            for each, policy in enumerate(("static", "balloons", "none"))
        ],
    )
    assert read_cluster(cluster) == ({"fallback": FALLBACK % "none"}, {"fallback": "cri/configs-2"})


def test_what_a_tenant_calls_so_does_not_count() -> None:
    installed = ours("cri", "configs-1")
    cluster = Cluster(
        daemonsets=[installed["daemonsets"], {**ours("team", "mine")["daemonsets"]}],
        clusterrolebindings=[installed["clusterrolebindings"], agents("cri-agent")],
        configmaps=[
            config_map("cri", "configs-1", **{"fallback.cfg": FALLBACK % "none"}),
            config_map(
                "team", "mine", **{"fallback.cfg": FALLBACK % "balloons", "force.cfg": FALLBACK % "static"}
            ),
            config_map("team", "cri-resmgr-config.node.n1", policy="Active: static\n"),
            config_map("kube-system", "cri-resmgr-config.default", policy="Active: static\n"),
            config_map(
                "cri-agent", "cri-resmgr-config.group.fast", policy="Active: none\n", logger="Debug: cache\n"
            ),
        ],
    )
    found, places = read_cluster(cluster)
    assert places == {"fallback": "cri/configs-1", "group.fast": "cri-agent/cri-resmgr-config.group.fast"}
    assert yaml.safe_load(found["group.fast"]) == {"policy": {"Active": "none"}, "logger": {"Debug": "cache"}}


def test_without_an_installation_of_ours_the_agents_own_namespace_counts() -> None:
    named = [
        config_map(each, "cri-resmgr-config.default", policy="Active: none\n")
        for each in ("team", "kube-system")
    ]
    assert read_cluster(Cluster(configmaps=named))[1] == {"default": "kube-system/cri-resmgr-config.default"}


@pytest.mark.parametrize("agent", [False, True])
def test_what_an_earlier_agent_has_left_counts_only_where_an_agent_reads_it(agent: bool) -> None:
    installed = ours("cri", "configs-1")
    older = {"metadata": {"name": "cri-resmgr-agent", "namespace": "kube-system"}}
    cluster = Cluster(
        daemonsets=[installed["daemonsets"], *([older] if agent else [])],
        clusterrolebindings=[installed["clusterrolebindings"]],
        configmaps=[
            config_map("cri", "configs-1", **{"fallback.cfg": FALLBACK % "none"}),
            config_map("kube-system", "cri-resmgr-config.default", policy="Active: static\n"),
        ],
    )
    assert [*read_cluster(cluster)[0]] == (["fallback", "default"] if agent else ["fallback"])


def test_two_installations_that_differ_are_named_and_not_chosen_from() -> None:
    both = [ours(each, f"c-{each}", f"cri-{each}") for each in ("a", "b")]
    cluster = Cluster(
        daemonsets=[each["daemonsets"] for each in both],
        clusterrolebindings=[each["clusterrolebindings"] for each in both],
        configmaps=[
            config_map(each, f"c-{each}", **{"fallback.cfg": FALLBACK % policy})
            for each, policy in (("a", "none"), ("b", "balloons"))
        ],
    )
    with pytest.raises(InvalidInputError, match="fallback: a/c-a and b/c-b differ"):
        read_cluster(cluster)


def test_a_cluster_without_any_is_said() -> None:
    with pytest.raises(InvalidInputError, match="no ConfigMap that this cluster uses"):
        read_cluster(Cluster())


@pytest.mark.parametrize(
    ("key", "grade"),
    [
        (f"balloon.balloons.{OLD}/pod", Grade.APPROXIMATE),
        (f"balloon.balloons.{OLD}/container.web", Grade.APPROXIMATE),
        (f"pool.podpools.{OLD}/pod", Grade.APPROXIMATE),
        (f"pool.podpools.{OLD}/container.web", Grade.IDLE),
        (f"rdtclass.{OLD}/container.web", Grade.APPROXIMATE),
    ],
)
def test_the_scope_of_an_annotation_decides_what_it_means_with_the_plugin(key: str, grade: Grade) -> None:
    found, (entry,) = translate_annotations({key: "gold"}, ["web"], "it")
    assert (entry.grade, bool(found)) == (grade, grade is not Grade.IDLE)
