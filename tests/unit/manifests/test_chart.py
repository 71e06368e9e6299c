"""The Helm chart, rendered by Helm's own engine: the objects that `manifests` prints, for every case, but for
what stands in DIFFERENCES."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.chart_schema import FILE as SCHEMA
from hack.chart_schema import build_schema
from hack.releasing import CONTROLLER, NODES
from installer import __version__
from installer.cluster.selection import selects
from installer.inputs.yaml_document import parse_document
from installer.manifests import ManifestOptions, render_objects
from installer.manifests.inputs import load_inputs
from installer.manifests.values import Values
from installer.model.names import INSTANCE_LABEL, NAME_LABEL
from tests.lib import yamltext
from tests.lib.charts import engine, lint_chart, load_chart, render_chart
from tests.unit.manifests.rendering import IMAGE, NAMES, Maker, options_of, pod_of, the

CHART = Path(__file__).parents[3] / "charts" / "cri-resmgr-installer"
DOCS = CHART.parents[1] / "docs"
MINIMAL = {"images": {"installer": IMAGE}, "hooks": {"image": "registry.example.org/operator:1"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NO_TERMS: tuple[Any, ...] = ([], [{}], None, [{}, {"matchExpressions": []}])
Object = dict[str, Any]


def rendered(values: Object, namespace: str = "kube-system") -> list[Object]:
    return render_chart(CHART, values, namespace, "cri-resmgr-installer")


def values_of(options: ManifestOptions) -> Object:
    """What an operator of the chart writes for the same: the files of Gardener's users are not read there."""
    if options.values is not None and not options.provider_configs and not options.managed_resource:
        values = yamltext.load(options.values.read_text())
        if options.mode:
            values["settings"] = {**values.get("settings", {}), "mode": options.mode}
        values |= {"profile": options.profile} if options.profile else {}
    else:
        inputs = load_inputs(options, lambda _: None)
        values = inputs.values.model_dump(mode="json", by_alias=True, exclude_unset=True)
        values["settings"] = dict(inputs.settings_given)
        for gardeners in ("managedResource", "registration"):
            values.pop(gardeners, None)
    return {"hooks": {"uninstall": False}, "monitoring": options.monitoring, **values}


# -- what differs ------------------------------------------------------------------------


def _labels_of_charts(each: Object) -> bool:
    """Helm's own; never on pods."""
    labels = each["metadata"]["labels"]
    for key in ("helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"):
        labels.pop(key, None)
    return True


def _kept_by_helm(each: Object) -> bool:
    """What nodes need to clean themselves, where somebody deletes the release with --no-hooks."""
    each["metadata"].get("annotations", {}).pop("helm.sh/resource-policy", None)
    return True


def _read_by_gardener(each: Object) -> bool:
    """What only gardener-resource-manager reads. It keeps the rights itself, and no policy must hinder it."""
    places = [each["metadata"]]
    if each["kind"] == "DaemonSet":
        places.append(each["spec"]["template"]["metadata"])
    for place in places:
        for part in ("labels", "annotations"):
            given = place.get(part, {})
            place[part] = {key: given[key] for key in given if "resources.gardener.cloud/" not in key}
    return not each["metadata"]["name"].endswith("-deletion")


def _digests(each: Object) -> bool:
    """A ConfigMap that pods start from is named by the digest of its text, which others have written."""
    if each["kind"] == "ConfigMap" and each.get("immutable"):
        each["metadata"]["name"] = _without_digest(each["metadata"]["name"])
    if each["kind"] == "DaemonSet":
        for volume in pod_of(each)["volumes"]:
            if "configMap" in volume:
                volume["configMap"]["name"] = _without_digest(volume["configMap"]["name"])
    return True


def _without_digest(name: str) -> str:
    found = re.fullmatch(r"(.*)-[0-9a-f]{10}", name)
    assert found, name
    return found[1]


def _text_of_yaml(each: Object) -> bool:
    """Settings, and the sections of a dynamic config: what they say, however it is written. cri-resmgr's own
    files arrive as they are."""
    if each["kind"] == "ConfigMap":
        for key, text in each["data"].items():
            if not key.endswith(".cfg"):
                each["data"][key] = yamltext.load(text)
    return True


def _definition(each: Object) -> bool:
    """In crds/ nothing is filled in: no labels of the values. Helm always installs it, never deletes it."""
    return str(each["kind"]) != "CustomResourceDefinition"


def _nothing(each: Object) -> bool:
    """An empty mapping of annotations is none."""
    places = [each["metadata"]]
    if each["kind"] == "DaemonSet":
        places.append(each["spec"]["template"]["metadata"])
    for place in places:
        if place.get("annotations") == {}:
            del place["annotations"]
    return True


DIFFERENCES: tuple[Callable[[Object], bool], ...] = (
    _labels_of_charts,
    _kept_by_helm,
    _read_by_gardener,
    _digests,
    _text_of_yaml,
    _definition,
    _nothing,
)
"""Each takes away, on both sides, what its words say; False: the object is there on one side only."""


def common(found: list[Object], *, gardener: bool) -> dict[tuple[str, str, str], Object]:
    """By kind, namespace and name."""
    chosen = [each for each in DIFFERENCES if gardener or each is not _read_by_gardener]
    kept = {}
    for each in found:
        metadata = each["metadata"]
        alike = [differs(each) for differs in chosen]  # each of them takes something away
        if "helm.sh/hook" not in metadata.get("annotations", {}) and all(alike):
            kept[each["kind"], metadata.get("namespace", ""), metadata["name"]] = each
    return kept


def printed(options: ManifestOptions) -> list[Object]:
    """For a ManagedResource, what is in it."""
    found = render_objects(options, lambda _: None)
    for each in found:
        if each["kind"] == "Secret":
            return list(yamltext.load_all(b64decode(each["data"]["objects.yaml"])))
    return found


def compare(options: ManifestOptions) -> None:
    inputs = load_inputs(options, lambda _: None)
    values = inputs.values
    made = render_chart(CHART, values_of(options), values.namespace, values.name)
    wanted = common(printed(options), gardener=options.managed_resource)
    found = common(made, gardener=options.managed_resource)
    assert found.keys() == wanted.keys()
    for key, each in wanted.items():
        assert found[key] == each, key


@pytest.mark.parametrize("case", NAMES)
def test_a_case_renders_what_manifests_prints(case: str) -> None:
    compare(options_of(case))


MORE: tuple[Object, ...] = (
    {"annotateNode": False, "imagePullPolicy": "Always", "arch": "arm64"},
    {"admissionPolicies": False, "namespace": "default", "name": "a"},
    {"admissionPolicies": False, "annotateNode": True, "criName": "x", "gardener": True},
    {
        "agent": {"enabled": True, "namespace": "kube-system"},
        "configs": {"default": "", "node.n1": "a: {b: 1.5, c: 750m}"},
    },
    {"agent": {"enabled": True}, "settings": {"proxy": {"agentSockets": "shared", "deadSeconds": 600}}},
    {"settings": {"kubelet": {"settleSeconds": 61, "guardSeconds": 3, "startTimeoutSeconds": 121}}},
    {
        "settings": {
            "rollout": {
                "soakSeconds": 0,
                "maxFailures": 3,
                "podReadySeconds": 0,
                "window": {"days": ["Sat"], "from": "22:00", "to": "06:00", "timeZone": "Europe/Berlin"},
            },
            "status": {"listen": ":9464"},
        }
    },
    {"settings": {"status": {"listen": "[::1]:9464"}}, "updateStrategy": {"maxUnavailable": 3}},
    {"settings": {"status": {"listen": "0.0.0.0:9464"}}, "labels": {"a": "true", "b.example.org/c": "12"}},
    {"settings": {"removal": {"resetPinning": False}, "takeOver": False}, "nodes": ["b", "a", "b"]},
    {
        "configs": {
            "force": "a: |\n  '{{ x }}'\n",
            "EXTRA_OPTIONS": 'EXTRA_OPTIONS="--metrics-interval=10s"',
        },
        "controlPlane": True,
    },
    {"resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"example.org/x": 1}}},
    {
        "annotations": {"a": "yes", "b": "two\nlines", "c": "012", "d": '"{{'},
        "imagePullSecrets": ["z", "a", "z"],
    },
    {"imagePullSecrets": [{"name": "z"}, "a", {"name": "a"}], "agent": {"enabled": True}},
    {"priorityClassName": "workers", "agent": {"enabled": True}},
    {"priorityClassName": "", "agent": {"enabled": True}},
    {"nodeSelector": {"pool": "", "kubernetes.io/os": "linux"}, "affinity": {"podAffinity": {"x": [1]}}},
    {"resources": {"requests": {"cpu": 0.5, "memory": 67108864}, "limits": {"memory": 1073741824}}},
    # What YAML reads as a number, a boolean or nothing.
    *(
        {"name": word, "namespace": word, "agent": {"enabled": True, "namespace": word}}
        | {"images": {"installer": word, "agent": "10:20"}, "imagePullSecrets": [word], "nodes": [word]}
        for word in ("123", "0x10", "on", "null", "2026-01-01")
    ),
)


@pytest.mark.parametrize("values", MORE, ids=lambda values: ",".join(values))
def test_other_values_render_the_same_too(values: Object, make: Maker, tmp_path: Path) -> None:
    make(values)  # which writes the file
    monitored = values.get("settings", {}).get("status", {}).get("listen") == ":9464"
    for profile in ("privileged", "restricted"):
        compare(ManifestOptions(tmp_path / "values.yaml", monitoring=monitored, profile=profile))


def test_the_definition_is_the_same(make: Maker) -> None:
    definition = the(rendered(MINIMAL), "CustomResourceDefinition")
    assert definition["spec"] == the(make({}, agent=True), "CustomResourceDefinition")["spec"]


def test_another_config_is_another_config_map_and_another_pod_template() -> None:
    def look(policy: str) -> tuple[str, Object]:
        found = rendered({**MINIMAL, "configs": {"fallback": f"policy: {{Active: {policy}}}"}})
        config_map = next(each for each in found if "fallback.cfg" in each.get("data", {}))
        return config_map["metadata"]["name"], the(found, "DaemonSet")

    (one, before), (other, after) = look("none"), look("balloons")
    assert one != other
    assert {"configMap": {"name": one}, "name": "configs"} in pod_of(before)["volumes"]
    assert {"configMap": {"name": other}, "name": "configs"} in pod_of(after)["volumes"]
    assert look("none") == (one, before)


# -- what Helm makes of it ---------------------------------------------------------------


def test_helm_finds_nothing_wrong_with_it() -> None:
    assert lint_chart(CHART, yamltext.load((CHART / "ci" / "minimal-values.yaml").read_text())) == []
    assert lint_chart(CHART, {**values_of(options_of("full")), "hooks": MINIMAL["hooks"]}) == []


def test_three_lines_are_enough() -> None:
    text = (CHART / "ci" / "minimal-values.yaml").read_text()
    assert text.count("\n") <= 3
    assert the(rendered(yamltext.load(text)), "DaemonSet")


@pytest.mark.parametrize("word", ["123", "on", "null"])
def test_a_name_is_a_text_in_every_object(word: str) -> None:
    def texts(value: Any) -> Iterator[Any]:
        for key, each in value.items() if isinstance(value, dict) else ():
            yield from [each] if key in ("name", "namespace", "image", INSTANCE_LABEL) else texts(each)
        for each in value if isinstance(value, list) else ():
            yield from texts(each)

    hooks = {"image": word}
    found = render_chart(CHART, {**MINIMAL, "name": word, "hooks": hooks}, word, "cri-resmgr-installer")
    assert [each for each in texts(found) if not isinstance(each, str)] == []


def test_a_release_of_another_name_has_it_everywhere() -> None:
    found = render_chart(CHART, MINIMAL, "tools", "numa")
    names = {
        each["metadata"]["name"] for each in found if each["kind"] in ("DaemonSet", "ClusterRole", "Job")
    }
    assert names == {
        "numa-cri-resmgr-installer",
        "numa-cri-resmgr-installer-test",
        "numa-cri-resmgr-installer-uninstall",
    }
    assert the(found, "DaemonSet")["metadata"]["namespace"] == "tools"


def test_a_release_with_a_dot_in_its_name_has_a_namespace() -> None:
    found = render_chart(CHART, {**MINIMAL, "agent": {"enabled": True}}, "tools", "numa.v1.2")
    names = [each["metadata"]["name"] for each in found if each["kind"] == "Namespace"]
    assert names == ["numa-v1-2-cri-resmgr-installer-agent", "numa-v1-2-cri-resmgr-installer-rollout"]
    (job,) = (each for each in found if each["kind"] == "Job")
    assert pod_of(job)["containers"][0]["args"][-1] == "tools/numa.v1.2"  # as Helm has it
    cut = render_chart(CHART, MINIMAL, "tools", "a" * 35 + ".b")
    assert the(cut, "DaemonSet")["metadata"]["name"] == "a" * 35 + "-b-cri-resmgr-ins"


def stack(directory: Path, **dependency: str) -> Path:
    """A chart that has this one in it."""
    shutil.copytree(CHART, directory / "charts" / CHART.name)
    dependencies = [{"name": CHART.name, "version": "*", **dependency}]
    about = {"apiVersion": "v2", "name": "stack", "version": "1.0.0", "dependencies": dependencies}
    (directory / "Chart.yaml").write_text(json.dumps(about))
    return directory


@pytest.mark.parametrize("enabled", [True, False])
def test_a_chart_that_has_this_one_in_it_can_leave_it_out(tmp_path: Path, enabled: bool) -> None:
    chart = stack(tmp_path, condition=f"{CHART.name}.enabled")
    found = render_chart(chart, {CHART.name: {**MINIMAL, "enabled": enabled}}, "tools", "release")
    assert bool(found) is enabled


def test_the_hooks_run_on_machines_too() -> None:
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    found = rendered(MINIMAL)
    for template in (the(found, "Job")["spec"]["template"], the(found, "Pod")):
        assert selects(template, "n1", labels)
        assert not selects(template, "n1", {**labels, "type": "virtual-kubelet"})
        assert not selects(template, "n1", {**labels, "eks.amazonaws.com/compute-type": "fargate"})


def test_the_hooks_end_and_wait_for_no_node_that_goes_down() -> None:
    mine = {"key": "dedicated", "operator": "Exists"}
    found = rendered({**MINIMAL, "hooks": {**MINIMAL["hooks"], "tolerations": [mine], "deadlineSeconds": 60}})
    job, pod = the(found, "Job")["spec"], the(found, "Pod")["spec"]
    assert (job["activeDeadlineSeconds"], pod["activeDeadlineSeconds"]) == (60, 600)
    for spec in (job["template"]["spec"], pod):
        assert [each["key"] for each in spec["tolerations"]] == [
            "node-role.kubernetes.io/control-plane",
            "cri-resource-manager.intel.com/not-ready",
            "dedicated",
        ]


def test_everything_has_the_labels_and_annotations_of_the_values() -> None:
    more = {"labels": {"team": "nodes"}, "annotations": {"example.org/contact": "nodes@example.org"}}
    for each in rendered({**MINIMAL, **more, "agent": {"enabled": True}}):
        if each["kind"] != "CustomResourceDefinition":
            assert more["labels"].items() <= each["metadata"]["labels"].items(), each["kind"]
            if each["kind"] != "ConfigMap":  # named by its content
                assert more["annotations"].items() <= each["metadata"]["annotations"].items(), each["kind"]


def test_no_value_makes_a_hook_an_ordinary_object() -> None:
    stolen = {"helm.sh/hook": "crd-install", "helm.sh/hook-weight": "9", "argocd.argoproj.io/hook": "Sync"}
    found = rendered({**MINIMAL, "annotations": stolen})
    for each in (the(found, "Job"), the(found, "Pod")):
        assert each["metadata"]["annotations"]["helm.sh/hook"] in ("pre-delete", "test")
        assert "argocd.argoproj.io/hook" not in each["metadata"]["annotations"]


def test_the_hooks_have_the_secrets_of_the_registry_too() -> None:
    found = rendered({**MINIMAL, "imagePullSecrets": [{"name": "registry"}]})
    for kind in ("DaemonSet", "Job", "Pod"):
        spec = the(found, kind)["spec"]
        spec = spec.get("template", {}).get("spec", spec)
        assert spec["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("version", ["v1.29.4-gke.1043002", "v1.20.0"])
def test_without_a_cluster_helm_is_told_its_version(tmp_path: Path, version: str) -> None:
    """The engine of these tests has one that knows the policies; older ones stop, and name the option."""
    chart = tmp_path / CHART.name
    shutil.copytree(CHART, chart)
    checks = chart / "templates" / "_checks.tpl"
    given = ".Capabilities.KubeVersion.Version"
    assert given in checks.read_text()
    checks.write_text(checks.read_text().replace(given, f'"{version}"'))
    with pytest.raises(engine().HelmError, match="--kube-version"):
        render_chart(chart, MINIMAL, "tools", "release")
    assert render_chart(chart, {**MINIMAL, "admissionPolicies": False}, "tools", "release")


def test_an_image_has_one_name_everywhere() -> None:
    """What hack/image, the release, the values and the documentation call the images."""
    places = [CHART / "values.yaml", CHART / "README.md", CHART / "ci" / "minimal-values.yaml"]
    places += [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    found = {
        name
        for path in places
        for name in re.findall(r"registry\.example\.org/([a-z-]+)[:@]", path.read_text())
    }
    assert found == {NODES, CONTROLLER, "cri-resmgr-agent"}
    script = (DOCS.parent / "hack" / "image").read_text()
    assert set(re.findall(r"localhost/([a-z-]+):\$version", script)) == {NODES, CONTROLLER}


def test_an_image_may_be_given_in_the_parts_that_most_charts_have() -> None:
    digest = f"sha256:{'a' * 64}"
    parts = {
        "registry": "registry.example.org",
        "repository": "tools/installer",
        "tag": "1",
        "digest": digest,
    }
    whole = f"registry.example.org/tools/installer:1@{digest}"
    found = rendered({"images": {"installer": parts}, "hooks": {"image": {**parts, "digest": ""}}})
    assert pod_of(the(found, "DaemonSet"))["containers"][0]["image"] == whole
    assert pod_of(the(found, "Job"))["containers"][0]["image"] == whole.partition("@")[0]
    assert Values.model_validate({"images": {"installer": parts}}).images.installer == whole
    for wrong in ({**parts, "repo": "x"}, {"tag": "1"}, {**parts, "tag": "a b"}):
        with pytest.raises(engine().HelmError, match="/images/installer"):
            rendered({**MINIMAL, "images": {"installer": wrong}})
        with pytest.raises(ValueError, match="installer"):
            Values.model_validate({"images": {"installer": wrong}})


def test_under_an_alias_uninstall_finds_what_is_ours(tmp_path: Path) -> None:
    """By its labels; else the hook finds nothing to clean, and Helm deletes the rights of the nodes."""
    found = render_chart(
        stack(tmp_path, alias="numa"), {"numa": {**MINIMAL, "agent": {"enabled": True}}}, "tools", "release"
    )
    found = [each for each in found if each["kind"] != "CustomResourceDefinition"]
    of_hooks = [each for each in found if each["metadata"]["labels"][NAME_LABEL].endswith("-hooks")]
    for each in (each for each in found if each not in of_hooks):
        assert "helm.sh/hook" not in each["metadata"].get("annotations", {})
        labels = each["metadata"]["labels"]
        assert labels[NAME_LABEL] in ("cri-resmgr-installer", "cri-resmgr-agent")
        assert labels[INSTANCE_LABEL] == "release-numa"


def test_the_chart_has_the_programs_version() -> None:
    with load_chart(CHART) as chart:
        assert (chart.version, chart.metadata["appVersion"]) == (__version__, __version__)


def test_labels_follow_helms_conventions() -> None:
    for each in rendered(MINIMAL):
        if each["kind"] != "CustomResourceDefinition":
            labels = each["metadata"]["labels"]
            assert labels["helm.sh/chart"] == f"cri-resmgr-installer-{__version__}"
            assert labels["app.kubernetes.io/version"] == __version__
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert {"app.kubernetes.io/name", "app.kubernetes.io/instance"} <= labels.keys()


def test_no_key_stands_twice_where_the_values_have_one_of_the_charts() -> None:
    """kustomize, which Flux lets a chart's output go through, refuses that."""
    labels = {"app.kubernetes.io/version": "9", "app.kubernetes.io/managed-by": "x", "helm.sh/chart": "x"}
    values = {"labels": labels, "annotations": {"helm.sh/resource-policy": "keep"}, "gardener": True}
    with load_chart(CHART) as chart:
        found = chart.render({**MINIMAL, **values, "agent": {"enabled": True}}, name="a", namespace="b")
    for path, text in found.items():
        for document in re.split(r"(?m)^---$", text if path.endswith(".yaml") else ""):
            assert parse_document(document.encode(), path).faults == ()


def test_what_nodes_need_to_clean_themselves_outlives_the_release() -> None:
    found = rendered({**MINIMAL, "agent": {"enabled": True}})
    kept = {
        each["kind"] for each in found if "helm.sh/resource-policy" in each["metadata"].get("annotations", {})
    }
    assert kept == {
        *("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Namespace"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    for each in found:
        if each["kind"] in ("DaemonSet", "ConfigMap"):
            assert "annotations" not in each["metadata"]


def test_a_hook_cleans_every_node_first() -> None:
    found = rendered(MINIMAL)
    job = the(found, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (container,) = pod_of(job)["containers"]
    name, namespace = "cri-resmgr-installer", "kube-system"
    asked = ["uninstall", "--name", name, "--namespace", namespace, "--yes"]
    asked += ["--binding-if-failed", "cri-resmgr-installer-uninstall"]
    release = ["--helm-release", f"{namespace}/{name}"]
    assert (container["image"], container["args"]) == (MINIMAL["hooks"]["image"], asked + release)
    # By these two labels `uninstall` finds what is to go.
    for each in found:
        if "helm.sh/hook" in each["metadata"].get("annotations", {}):
            assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "cri-resmgr-installer-hooks"
    without = rendered({**MINIMAL, "hooks": {"uninstall": False}})
    assert not [each for each in without if each["kind"] in ("Job", "Pod")]


def test_with_argo_cd_the_hook_is_one_of_its_deletion() -> None:
    """It runs that at no other time, and Helm itself does not know it as a hook."""
    found = rendered({**MINIMAL, "hooks": {**MINIMAL["hooks"], "uninstall": "argocd"}})
    (job,) = (each for each in found if each["kind"] == "Job")
    assert job["metadata"]["annotations"]["argocd.argoproj.io/hook"] == "PreDelete"
    assert "helm.sh/hook" not in job["metadata"]["annotations"]
    arguments = pod_of(job)["containers"][0]["args"]
    assert "--argo-cd" in arguments
    assert "--helm-release" not in arguments


def rights_in(role: Object) -> set[tuple[str, str, str]]:
    """Those that are not bound to names."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("successor", ["none", "nri"])
@pytest.mark.parametrize("place", ["", "kube-system", "default", "tenants"])
@pytest.mark.parametrize("namespace", ["tools", "kube-system", "default"])
def test_the_hook_has_the_rights_of_each_role_that_it_marks(
    namespace: str, place: str, successor: str
) -> None:
    """Else the API server refuses the mark, after all nodes have been cleaned."""
    agent = {"enabled": True, "namespace": place}
    values = {**MINIMAL, "agent": agent, "settings": {"removal": {"successor": successor}}}
    found = render_chart(CHART, values, namespace, "cri-resmgr-installer")
    roles = [each for each in found if each["kind"] in ("Role", "ClusterRole")]
    of_hooks = [
        each for each in roles if each["metadata"]["labels"]["app.kubernetes.io/name"].endswith("-hooks")
    ]
    uninstall = [each for each in of_hooks if not each["metadata"]["name"].endswith("-test")]
    places = [(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in uninstall]
    assert len(places) == len(set(places))
    for marked in (each for each in roles if each not in of_hooks):
        where = marked["metadata"].get("namespace")
        mine = [each for each in uninstall if each["metadata"].get("namespace") in (None, where)]
        # Those of names are the DaemonSets', which the hook may get whatever their name.
        assert rights_in(marked) <= set().union(*map(rights_in, mine)), (where, marked["metadata"]["name"])


def test_the_hooks_write_only_where_the_installation_is() -> None:
    """In the whole cluster they may change Nodes, and delete what has one of our names."""
    found = render_chart(CHART, {**MINIMAL, "agent": {"enabled": True}}, "tools", "cri-resmgr-installer")
    (uninstall, test) = sorted(
        (
            each
            for each in found
            if each["kind"] == "ClusterRole" and each["metadata"]["name"][-4:] in ("tall", "test")
        ),
        key=lambda each: each["metadata"]["name"],
        reverse=True,
    )
    writes = {right for right in rights_in(uninstall) if right[2] not in ("get", "list", "watch")}
    assert writes == {("", "nodes", "patch"), ("", "nodes/status", "patch")}
    assert {verb for _, _, verb in rights_in(test)} == {"list"}
    bound = {
        each["metadata"]["namespace"]
        for each in found
        if each["kind"] == "RoleBinding" and "-hooks" in each["metadata"]["labels"]["app.kubernetes.io/name"]
    }
    agents, rollout = "cri-resmgr-installer-agent", "cri-resmgr-installer-rollout"
    assert bound == {"tools", "kube-system", "default", agents, rollout}


# -- its schema --------------------------------------------------------------------------


def test_the_schema_is_current() -> None:
    """`python -m hack.chart_schema` writes it."""
    assert SCHEMA.read_text() == build_schema()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"setings": {}}, "'setings'"),
        ({"settings": {"kubelet": {"settleSecond": 1}}}, "'/settings/kubelet'.*'settleSecond'"),
        ({"settings": {"kubelet": {"settleSeconds": 0}}}, "'/settings/kubelet/settleSeconds'"),
        ({"settings": {"mode": "instal"}}, "'/settings/mode'"),
        ({"settings": {"status": {"listen": "9464"}}}, "'/settings/status/listen'"),
        ({"settings": {"status": {"listen": ":65536"}}}, "'/settings/status/listen'"),
        ({"configs": {"falback": "a: b"}}, "falback"),
        ({"images": {"installer": "Not An Image"}}, "'/images/installer'"),
        ({"images": {}}, "'/images'.*'installer'"),
        ({"resources": {"requests": {"cpu": "many"}}}, "'/resources/requests/cpu'"),
        ({"updateStrategy": {"maxUnavailable": "0%"}}, "'/updateStrategy/maxUnavailable'"),
        ({"nodeSelector": {"a b": "c"}}, "a b"),
        ({"managedResource": {}}, "'managedResource'"),
        ({"imagePullSecrets": [{"nam": "x"}]}, "'/imagePullSecrets/0'"),
        ({"priorityClassName": "a b"}, "'/priorityClassName'"),
        ({"hooks": {"timeout": 1}}, "'/hooks'.*'timeout'"),
        ({"name": "a" * 53}, "'/name'"),
        # A key whose value somebody has commented out. Nothing else must be rendered than by default.
        ({"settings": None, "labels": None}, "missing properties 'settings', 'labels'"),
        ({"admissionPolicies": None}, "missing property 'admissionPolicies'"),
        ({"hooks": {"uninstall": None, "image": IMAGE}}, "'/hooks': missing property 'uninstall'"),
    ],
)
def test_helm_refuses_a_typo_with_the_key(values: Object, key: str) -> None:
    with pytest.raises(engine().HelmError, match=f"(?s){key}"):
        rendered({**MINIMAL, **values})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (
            {"configs": {"default": "a: b"}},
            "configs.default: reaches the nodes only through cri-resmgr-agent",
        ),
        (
            {"agent": {"enabled": True}, "settings": {"proxy": {"agent": "disabled"}}},
            "agent.enabled: must not",
        ),
        ({"nodeSelector": {"kubernetes.io/arch": "arm64"}}, "nodeSelector.kubernetes.io/arch: must be amd64"),
        (
            {"labels": {"app.kubernetes.io/name": "x"}},
            "labels.app.kubernetes.io/name: is the installer's own",
        ),
        ({"monitoring": True}, "settings.status.listen: must be an address that Prometheus reaches"),
        *(
            (
                {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}},
                f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms: matches no node",
            )
            for terms in NO_TERMS
        ),
        ({"hooks": {}}, "hooks.image: must be given"),
        ({"name": "cri-resmgr-agent", "agent": {"enabled": True}}, "name: must not be the name of the agent"),
        ({"name": "x", "namespace": "x-rollout"}, "namespace: must not be that of the permits"),
        ({"agent": {"enabled": True}, "configs": {"default": "a: ["}}, "configs.default: "),
    ],
)
def test_what_does_not_go_together_is_refused_too(values: Object, key: str) -> None:
    with pytest.raises(engine().HelmRenderError, match=re.escape(key)):
        rendered({**MINIMAL, **values})


def test_the_schema_takes_every_case() -> None:
    def merged(defaults: Object, values: Object) -> Object:
        """As Helm does."""
        nested = {key for key, each in values.items() if isinstance(each, dict)} & defaults.keys()
        return {**defaults, **values, **{key: merged(defaults[key], values[key]) for key in nested}}

    schema, defaults = json.loads(SCHEMA.read_text()), yamltext.load((CHART / "values.yaml").read_text())
    validate = pytest.importorskip("jsonschema").Draft7Validator(schema).validate
    for case in NAMES:
        validate(merged(defaults, values_of(options_of(case))))
