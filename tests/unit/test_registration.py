"""What registers the extension with Gardener: the same bytes each time, objects that an API server takes, and
values that reach the controller as people gave them."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import validate

from installer import __version__
from installer.errors import InvalidInputError
from installer.gardener.managed_resource import Renderer
from installer.gardener.registration import build_chart, render_registration
from installer.gardener.resources import Shoot, parse_extension
from installer.manifests import ManifestOptions
from installer.model.names import Mode
from tests.lib import yamltext
from tests.lib.charts import lint_chart, load_chart, render_chart

NODES, CONTROLLER = "registry.example.org/cri-resmgr-installer:1", "registry.example.org/extension:1"
CHART = Path(__file__).parents[2] / "templates" / "chart"
NAMESPACE = "extension-cri-resmgr-x7k2p"
MIXED_IN: dict[str, Any] = {
    "gardener": {
        "version": "v1.130.0",
        "garden": {"clusterIdentity": "landscape-1", "genericKubeconfigSecretName": "generic"},
        "seed": {
            "name": "seed-1",
            "clusterIdentity": "seed-1-identity",
            "labels": {"a": "b"},
            "annotations": {},
            "provider": "local",
            "region": "r",
            "ingressDomain": "ingress.example.org",
            "networks": {"pods": "10.0.0.0/16", "services": "10.1.0.0/16"},
            "taints": [],
            "spec": {"provider": {"type": "local"}},
        },
        "gardenlet": {"featureGates": {"SomeGate": True}},
    }
}
"""What gardenlet mixes into the values (docs/extensions/registration.md of gardener/gardener)."""


def printed(values: Path | None = None, *images: str, **asked: Any) -> dict[str, dict[str, Any]]:
    """By kind."""
    options = ManifestOptions(values, images=images or (NODES, f"extension={CONTROLLER}"), **asked)
    text = render_registration(options)
    assert text == render_registration(options)
    return {each["kind"]: each for each in yamltext.load_all(text)}


def rendered(deployment: dict[str, Any], values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What gardenlet makes of it, by kind."""
    given = deployment["helm"]
    objects = render_chart(b64decode(given["rawChart"]), merge(given["values"], values) | MIXED_IN, NAMESPACE)
    return {each["kind"]: each for each in objects}


def merge(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}


def mounted(config: dict[str, Any], directory: Path) -> Renderer:
    for name, text in config["data"].items():
        (directory / name).write_text(text)
    return Renderer(directory / "values.yaml", (directory / "deployment.yaml",))


RESOURCE = {
    "kind": "Extension",
    "type": "cri-resmgr-extension",
    "clusterCompatibility": ["shoot"],
    "workerlessSupported": False,
    "lifecycle": {
        "reconcile": "AfterKubeAPIServer",
        "delete": "BeforeKubeAPIServer",
        "migrate": "BeforeKubeAPIServer",
    },
}
POD_SECURITY = {"security.gardener.cloud/pod-security-enforce": "restricted"}
REF = "registry.example.org/charts/gardener-extension-cri-resmgr:0.1.0"


def test_a_registration_names_its_deployment_and_our_type() -> None:
    found = printed()
    spec = found["ControllerRegistration"]["spec"]
    assert spec["resources"] == [RESOURCE]
    assert spec["deployment"]["deploymentRefs"] == [
        {"name": found["ControllerDeployment"]["metadata"]["name"]}
    ]
    assert found["ControllerRegistration"]["metadata"]["annotations"] == POD_SECURITY
    assert found["ControllerDeployment"]["apiVersion"] == "core.gardener.cloud/v1"
    assert found["ControllerDeployment"]["helm"].keys() == {"rawChart", "values"}


def test_a_chart_in_a_registry_is_referred_to() -> None:
    helm = printed(chart_ref=f"oci://{REF}")["ControllerDeployment"]["helm"]
    assert helm == {
        "ociRepository": {"ref": REF},
        "values": printed()["ControllerDeployment"]["helm"]["values"],
    }


def test_gardener_operator_gets_one_object() -> None:
    found = printed(registers_for="operator", chart_ref=REF)
    (extension,) = found.values()
    assert (extension["apiVersion"], extension["kind"]) == ("operator.gardener.cloud/v1alpha1", "Extension")
    assert extension["metadata"]["annotations"] == POD_SECURITY
    deployment = extension["spec"]["deployment"]["extension"]
    assert deployment == {
        "helm": {"ociRepository": {"ref": REF}},
        "values": printed()["ControllerDeployment"]["helm"]["values"],
    }
    assert extension["spec"]["resources"] == [RESOURCE]


def test_gardener_of_earlier_gets_what_it_knows(tmp_path: Path) -> None:
    """v1 of a ControllerDeployment, `autoEnable` and `clusterCompatibility` came later."""
    own = tmp_path / "own.yaml"
    for text, enabled in (("{}", False), ("registration: {autoEnable: [shoot]}", True)):
        own.write_text(text)
        found = printed(own, registers_for="v1beta1")
        deployment = found["ControllerDeployment"]
        assert (deployment["apiVersion"], deployment["type"]) == ("core.gardener.cloud/v1beta1", "helm")
        assert deployment["providerConfig"]["chart"] == printed()["ControllerDeployment"]["helm"]["rawChart"]
        (resource,) = found["ControllerRegistration"]["spec"]["resources"]
        assert resource["globallyEnabled"] is enabled
        assert not {"autoEnable", "clusterCompatibility"} & resource.keys()


def test_every_shoot_can_have_it_unless_it_says_otherwise(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "registration: {autoEnable: [shoot], clusterCompatibility: [shoot]}\nprofile: restricted\n"
    )
    for asked in ({}, {"registers_for": "operator", "chart_ref": REF}):
        found = printed(own, **asked)
        where = found.get("ControllerRegistration") or found["Extension"]
        (resource,) = where["spec"]["resources"]
        assert resource == RESOURCE | {"autoEnable": ["shoot"]}
        assert "registration" not in str(found.get("ControllerDeployment", {}).get("helm", {}).get("values"))
        assert "'profile': 'restricted'" in str(found)
    own.write_text("registration: {autoEnable: [seed]}\n")
    with pytest.raises(InvalidInputError, match=r"registration\.autoEnable\.0: must be 'shoot'"):
        printed(own)


def test_gardeners_schema_takes_it(request: pytest.FixtureRequest) -> None:
    """That of gardener-operator's Extension: the others are types in Go, and have none."""
    directory = request.config.getoption("--gardener-schemas")
    if directory is None:
        pytest.skip("needs Gardener's CustomResourceDefinitions: --gardener-schemas DIR")
    definition = yamltext.load((directory / "crd-operator.gardener.cloud_extensions.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    extension = printed(registers_for="operator", chart_ref=REF)["Extension"]
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(extension, schema)
    extension["spec"]["resources"][0]["autoEnabled"] = ["shoot"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(extension, schema)


def _closed(schema: Any) -> Any:
    """As an API server takes it strictly: no unknown fields but where it says so, and in metadata."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def test_the_chart_has_the_programs_version() -> None:
    with load_chart(build_chart()) as chart:
        assert (chart.version, chart.metadata["appVersion"]) == (__version__, __version__)


def test_its_pod_keeps_the_pod_security_of_its_namespace() -> None:
    """`restricted` of the Pod Security Standards, which the registration asks Gardener to enforce."""
    pod = rendered(printed()["ControllerDeployment"], {})["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {tuple(volume.keys() - {"name"}) for volume in pod["volumes"]} == {("configMap",), ("emptyDir",)}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_the_archive_is_the_same_bytes() -> None:
    """Without a time, an owner, or a compression of this machine's."""
    chart = build_chart()
    assert chart == build_chart()
    assert chart[4:8] == bytes(4)
    assert len(chart) < 100_000


def test_helm_finds_nothing_wrong_with_it() -> None:
    values = {"image": {"repository": "registry.example.org/extension", "tag": "1"}}
    assert lint_chart(CHART, values) == []


def test_an_api_server_takes_all_of_it() -> None:
    objects = rendered(printed()["ControllerDeployment"], {})
    for kind, each in objects.items():
        if kind != "VerticalPodAutoscaler":
            validate(each, "1.31", strict=True)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["image"] == CONTROLLER
    alive = container["args"][-1].removeprefix("--alive=")
    for kind in ("liveness", "readiness"):
        assert f"find {alive} -newermt" in container[f"{kind}Probe"]["exec"]["command"][-1]
    assert alive.startswith(tuple(f"{each['mountPath']}/" for each in container["volumeMounts"]))
    assert {each.get("metadata", {}).get("namespace", NAMESPACE) for each in objects.values()} == {NAMESPACE}
    assert "VerticalPodAutoscaler" not in rendered(
        printed()["ControllerDeployment"], {"vpa": {"enabled": False}}
    )


def test_a_digest_follows_an_at_sign() -> None:
    image = f"registry.example.org/extension@sha256:{'0' * 64}"
    objects = rendered(printed(None, NODES, f"extension={image}")["ControllerDeployment"], {})
    assert objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] == image


@pytest.mark.parametrize(
    "values",
    [{"image": {"tag": 1}}, {"vpa": None}, {"vpa": {"resourcePolicy": None}}, {"resources": None}],
)
def test_values_as_people_write_them_render(values: dict[str, Any]) -> None:
    """YAML makes a number of an unquoted tag, and Helm takes away what is null."""
    objects = rendered(printed()["ControllerDeployment"], values)
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    tag = values.get("image", {}).get("tag", CONTROLLER.rpartition(":")[2])
    assert container["image"] == f"{CONTROLLER.rpartition(':')[0]}:{tag}"
    assert ("VerticalPodAutoscaler" in objects) == (values.get("vpa", {}) is not None)


def test_no_shoot_can_take_all_memory_of_a_seed() -> None:
    objects = rendered(printed()["ControllerDeployment"], {})
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}


def test_the_values_reach_the_nodes(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("resources: {requests: {cpu: 20m}}\nsettings: {proxy: {startTimeoutSeconds: 30}}\n")
    people = {
        "configs": {
            "fallback": "policy: {Active: none}\n",
            "EXTRA_OPTIONS": 'EXTRA_OPTIONS="--metrics-interval 30s"',
        },
        "nodeSelector": {"pool": "pinned"},
        "imageVectorOverwrite": "images:\n- {name: cri-resmgr-installer, repository: other/nodes, tag: v2}\n",
        "replicaCount": 2,
    }
    objects = rendered(printed(own)["ControllerDeployment"], people)
    assert objects["Deployment"]["spec"]["replicas"] == 2
    renderer = mounted(objects["ConfigMap"], tmp_path)
    assert renderer.check() == ("cri-resmgr-installer", ())
    extension = parse_extension(
        {
            "metadata": {"namespace": "shoot--a--b"},
            "spec": {"providerConfig": {"configs": {"fallback": "logger: {}\n"}}},
        }
    )
    wanted = renderer.render(extension, Shoot("1.31.2", False), Mode.INSTALL)
    made = b64decode(wanted.secret["data"]["objects.yaml"]).decode()
    for part in ("other/nodes:v2", "pool: pinned", 'cpu: "20m"', "startTimeoutSeconds: 30", "logger: {}"):
        assert part in made
    assert "--metrics-interval 30s" in made
    assert "Active: none" not in made


def test_wrong_configs_of_all_shoots_are_said_and_hinder_no_removal(tmp_path: Path) -> None:
    """Nor does their nodeSelector: an earlier one may have chosen other nodes."""
    people = {"configs": {"fallback": "policy.Active: baloons\n"}, "nodeSelector": {"pool": "pinned"}}
    objects = rendered(printed()["ControllerDeployment"], people)
    renderer = mounted(objects["ConfigMap"], tmp_path)
    name, warnings = renderer.check()
    assert name == "cri-resmgr-installer"
    assert any("policy.Active: unknown policy" in each for each in warnings)
    wanted = renderer.render(parse_extension({}), Shoot("1.31.2", False), Mode.REMOVE)
    assert "pinned" not in b64decode(wanted.secret["data"]["objects.yaml"]).decode()


def test_a_changed_value_is_a_new_pod() -> None:
    """It reads them once."""
    deployment = printed()["ControllerDeployment"]
    pods = [
        rendered(deployment, values)["Deployment"]["spec"]["template"]
        for values in ({}, {"configs": {"fallback": "x"}}, {"nodeSelector": {"a": "b"}})
    ]
    assert pods[0] != pods[1] != pods[2] != pods[0]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            ManifestOptions(images=(NODES, f"extension={CONTROLLER}"), nodes="n1", profile="restricted"),
            "--profile: has no effect on a registration; set `profile` in --values\n--nodes: has no effect",
        ),
        (ManifestOptions(images=(NODES,)), "--image extension=REFERENCE: must be given once"),
        (
            ManifestOptions(images=(NODES, f"extension={CONTROLLER}"), registers_for="operator"),
            "--chart-ref REFERENCE: must be given with --for operator",
        ),
        (
            ManifestOptions(
                images=(NODES, f"extension={CONTROLLER}"), registers_for="v1beta1", chart_ref="a/b:1"
            ),
            "--chart-ref: needs Gardener 1.96 or later",
        ),
        (
            ManifestOptions(
                images=(NODES, f"extension={CONTROLLER}"), chart_ref="registry.example.org/chart"
            ),
            "--chart-ref registry.example.org/chart: needs a tag or a digest",
        ),
        (ManifestOptions(images=(f"extension={CONTROLLER}",)), "images.installer: must be given"),
        (ManifestOptions(images=(NODES, "extension=registry.example.org:5000/x")), "needs a tag or a digest"),
        (ManifestOptions(images=(NODES, "extension=a/b@sha256:0")), "must be an image reference"),
        (
            ManifestOptions(images=(NODES, f"extension={CONTROLLER}"), chart_ref="oci://a/B c:1"),
            "--chart-ref a/B c:1: must be an image reference",
        ),
        (
            ManifestOptions(images=(NODES, f"extension={CONTROLLER}"), provider_configs=(Path("x"),)),
            "--provider-config: has no effect on a registration",
        ),
    ],
)
def test_what_is_missing_is_said(options: ManifestOptions, what: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        render_registration(options)
    assert what in str(raised.value)


def test_faults_of_the_values_are_found_before_any_seed_has_them(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    for text, what in (
        ("setings: {}\n", "did you mean settings"),
        ("configs: {fallback: 'policy.Active: baloons'}\n", "did you mean balloons"),
    ):
        own.write_text(text)
        with pytest.raises(InvalidInputError, match=what):
            printed(own)
