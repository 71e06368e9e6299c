"""Annotations of workloads, and configs of a cluster: what is read of an API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from installer.errors import InvalidInputError
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
            yield Page((each,), "1")


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
        (f"balloon.balloons.{OLD}", "gold", {f"balloon.balloons.{NEW}": "gold"}),
        (
            f"{OLD}/memory-type",
            "web: dram\nlog: pmem\n",
            {f"memory-type.{NEW}/container.web": "dram", f"memory-type.{NEW}/container.log": "pmem"},
        ),
        (f"{OLD}/affinity", "web: [log]", {f"{NEW}/affinity": "web: [log]"}),
        (f"{OLD}/memory-type", "web: 2020-01-01", {f"memory-type.{NEW}/container.web": "2020-01-01"}),
        (f"{OLD}/memory-type", "web: {at: 22:00}", {f"memory-type.{NEW}/container.web": '{"at": "22:00"}'}),
    ],
)
def test_an_annotation_that_a_plugin_reads_becomes_its_form(
    old: str, value: str, new: dict[str, str]
) -> None:
    found, (entry,) = translate_annotations({old: value, "other.io/x": "y"}, ["web", "log"], "it")
    assert found == new
    assert (entry.grade, entry.path, set(entry.to)) == (Grade.EXACT, (old,), set(new))


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


def test_workloads_are_patched_in_their_templates_and_owned_objects_follow_them() -> None:
    old = template(**{f"memory-type.{OLD}__pod": "dram"})
    owned = named("web-1", spec={"template": old})
    owned["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "web"}]
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


def test_the_configs_of_the_agent_and_of_the_installer_are_found() -> None:
    agents = {"policy": "Active: topology-aware\n", "logger": "Debug: cache\n"}
    cluster = Cluster(
        configmaps=[
            named("cri-resmgr-config.group.fast", data=agents),
            named("cri-resmgr-installer-configs-1", data={"fallback.cfg": "policy:\n  Active: none\n"}),
            named("unrelated", data={"key": "value"}),
        ]
    )
    found = read_cluster(cluster)
    assert found["fallback"] == "policy:\n  Active: none\n"
    assert yaml.safe_load(found["group.fast"]) == {
        "policy": {"Active": "topology-aware"},
        "logger": {"Debug": "cache"},
    }
    assert found.keys() == {"fallback", "group.fast"}


def test_two_that_differ_are_named_and_not_chosen_from() -> None:
    both = [
        named(f"c-{each}", data={"fallback.cfg": f"policy:\n  Active: {each}\n"})
        for each in ("none", "balloons")
    ]
    with pytest.raises(InvalidInputError, match="fallback: team/c-none and team/c-balloons differ"):
        read_cluster(Cluster(configmaps=both))


def test_a_cluster_without_any_is_said() -> None:
    with pytest.raises(InvalidInputError, match="no ConfigMap of this cluster"):
        read_cluster(Cluster())
