"""What Gardener users have, in; a ManagedResource out. The whole output of some of it is in tests/cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from installer.gardener.registration import render_registration
from installer.manifests import ManifestOptions, render_manifests
from tests.unit.manifests.gardener_files import NONE, READ, SHOOT, Given, managed
from tests.unit.manifests.rendering import IMAGE, objects, pod_of, rendered, the


def test_the_shoot_overrides_the_deployment_key_by_key() -> None:
    """Whatever their order: Gardener has it so."""
    found = objects(rendered("gardener-shoot"))
    static = next(each for each in found if "fallback.cfg" in each.get("data", {}))
    assert "balloons" in static["data"]["fallback.cfg"]
    assert "--disable-ui" in static["data"]["EXTRA_OPTIONS.cfg"]
    assert pod_of(the(found, "DaemonSet", "cri-resmgr-installer"))["nodeSelector"] == {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "worker.gardener.cloud/cri-name": "containerd",
        "worker.gardener.cloud/pool": "pinned",
    }


def test_every_form_of_a_provider_config_says_the_same(given: Given) -> None:
    config = {"configs": {"force": "policy: {Active: none}"}, "nodeSelector": {"pool": "x"}}
    entry = {"type": "cri-resmgr-extension", "providerConfig": config}
    bare = given.render(yaml.safe_dump(config))
    for form in (
        {"kind": "Shoot", "spec": {"extensions": [{"type": "other"}, entry]}},
        {"kind": "Extension", "spec": entry},
        entry,
        {"providerConfig": config},
        {"kind": "ControllerDeployment", "helm": {"values": config}},
        {
            "apiVersion": "operator.gardener.cloud/v1alpha1",
            "kind": "Extension",
            "spec": {"deployment": {"extension": {"values": config}}},
        },
        {
            "kind": "ControllerDeployment",
            "type": "helm",
            "providerConfig": {"chart": "H4s", "values": config},
        },
        {"replicaCount": 1, **config},
    ):
        assert given.render(yaml.safe_dump(form)) == bare


def test_an_extension_that_is_only_switched_on(given: Given) -> None:
    found = the(
        given.render("kind: Shoot\nspec: {extensions: [{type: cri-resmgr-extension}]}\n"), "DaemonSet"
    )
    assert pod_of(found)["nodeSelector"]["worker.gardener.cloud/cri-name"] == "containerd"
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels["node.gardener.cloud/critical-component"] == "true"
    assert labels["gardener.cloud/role"] == "system-component"
    assert not given.warnings


def test_a_deployment_without_values_changes_nothing(given: Given) -> None:
    shoot = "kind: Shoot\nspec: {extensions: [{type: cri-resmgr-extension}]}\n"
    deployment = "kind: ControllerDeployment\ntype: helm\nproviderConfig:\n  chart: H4s\n  values:\n"
    assert given.render(deployment, shoot) == given.render(shoot)


def test_the_agent_comes_with_the_configs_that_it_reads(given: Given) -> None:
    """As the original always did."""
    names = [
        {each["metadata"]["name"] for each in given.render(text) if each["kind"] == "DaemonSet"}
        for text in ("configs: {fallback: 'logger: {}'}\n", "configs: {default: 'logger: {}'}\n")
    ]
    assert names == [{"cri-resmgr-installer"}, {"cri-resmgr-installer", "cri-resmgr-agent"}]
    fault = (
        "configs.default: reaches the nodes only through cri-resmgr-agent: set agent.enabled or give --agent"
    )
    assert given.faults("configs: {default: 'logger: {}'}\n", agent=False) == [f"{fault} (a.yaml:1)"]


@pytest.mark.parametrize(
    "shoot",
    [
        SHOOT.format(type="cri-resmgr-extension", rest="disabled: true"),
        SHOOT.format(type="other", rest=""),
        "kind: Shoot\nspec: {}\n",
    ],
)
def test_a_removal_needs_no_extension_that_is_enabled(given: Given, shoot: str) -> None:
    found = the(given.render(shoot, mode="remove"), "DaemonSet", "cri-resmgr-installer-removal")
    assert pod_of(found)["nodeSelector"]["worker.gardener.cloud/cri-name"] == "containerd"
    # A new node of a cluster that is being cleaned need not wait for it.
    assert "node.gardener.cloud/critical-component" not in found["spec"]["template"]["metadata"]["labels"]


def test_what_is_the_controllers_is_not_dropped_without_a_word(given: Given) -> None:
    given.render("replicaCount: 1\nimage: {repository: a/b, tag: v1}\nconfigs: {}\nvpa:\n")
    what = "configures the extension's controller and is ignored here"
    assert given.warnings == [f"image: {what} (a.yaml:2)", f"replicaCount: {what} (a.yaml:1)"]


def test_the_registration_that_we_print_can_be_rendered_from(given: Given, tmp_path: Path) -> None:
    """Its `installer` has the values of the manifests, which a Shoot's own are stronger than."""
    values = tmp_path / "values.yaml"
    values.write_text(
        f"images: {{installer: '{IMAGE}'}}\nname: ours\narch: arm64\nnodeSelector: {{pool: x}}\n"
    )
    printed = render_registration(ManifestOptions(values=values, images=("extension=a/b:1",)))
    entry = "type: cri-resmgr-extension\nproviderConfig: {nodeSelector: {pool: y}}"
    found = the(given.render(printed, entry, image=""), "DaemonSet", "ours")
    assert found["spec"]["template"]["spec"]["nodeSelector"]["pool"] == "y"
    assert "installer: must be a mapping, not a string" in given.faults("installer: x")[0]
    faults = given.faults("installer:\n  nam: x")
    assert [each for each in faults if "nam: unknown key; did you mean name?" in each]
    assert "(a.yaml:2)" in faults[0]


def test_the_proxies_are_scraped_by_the_name_that_people_know() -> None:
    found = objects(rendered("gardener-shoot"))
    service = the(found, "Service", "cri-resmgr-installation")
    assert service["metadata"]["namespace"] == "kube-system"
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(8891, 8891)]
    daemon_set = the(found, "DaemonSet", "cri-resmgr-installer")
    assert service["spec"]["selector"].items() <= daemon_set["spec"]["template"]["metadata"]["labels"].items()
    assert pod_of(daemon_set)["hostNetwork"] is True
    # Neither for other clusters nor for a removal, where no proxy is to be scraped.
    for case in ("full", "remove"):
        assert not [each for each in objects(rendered(case)) if each["kind"] == "Service"]
    assert not [each for each in managed(objects(rendered("gardener-disabled"))) if each["kind"] == "Service"]


def test_the_agent_is_what_gardeners_users_know() -> None:
    found = the(objects(rendered("gardener-shoot")), "DaemonSet", "cri-resmgr-agent")
    assert found["spec"]["template"]["metadata"]["labels"]["gardener.cloud/role"] == "system-component"
    (container,) = pod_of(found)["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "512Mi"}
    assert container["livenessProbe"]["exec"]["command"][0] == "/bin/cri-resmgr-agent-probe"


FAULTS = (
    (
        SHOOT.format(type="other", rest=""),
        f"{NONE}; add one (a.yaml:3)",
    ),
    (
        "kind: Shoot\nspec: {}\n",
        f"{NONE}; add one (a.yaml:2)",
    ),
    (
        "kind: Shoot\nspec:\n  extensions: {type: cri-resmgr-extension}\n",
        "spec.extensions: must be a list, not a mapping (a.yaml:3)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="")
        + "    - type: other\n    - type: cri-resmgr-extension\n",
        "spec.extensions.2: a second entry for this extension, after spec.extensions.0; keep one of them "
        "(a.yaml:7)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="disabled: true"),
        "spec.extensions.0.disabled: the extension is disabled, so there is nothing to install; --mode "
        "remove renders its removal (a.yaml:5)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="disabled: 'yes'"),
        "spec.extensions.0.disabled: must be true or false, not 'yes' (a.yaml:5)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="providerConfig: [configs]"),
        "spec.extensions.0.providerConfig: must be a mapping, not a list (a.yaml:5)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="providerConfig: {config: {}}"),
        "spec.extensions.0.providerConfig.config: unknown key; did you mean configs? (a.yaml:5)",
    ),
    (
        "kind: Extension\nspec: {type: other}\n",
        "spec.type: must be cri-resmgr-extension, not 'other' (a.yaml:2)",
    ),
    ("kind: Extension\nspec: other\n", "spec: must be a mapping, not a string (a.yaml:2)"),
    (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {fallback: ''}\n",
        f"kind: 'ConfigMap' is not read here; expected {READ} (a.yaml:2)",
    ),
    (
        "kind: List\nitems: []\n",
        f"kind: 'List' is not read here; expected {READ} (a.yaml:1)",
    ),
    (
        "kind: ControllerRegistration\nspec: {}\n",
        f"a.yaml: has no providerConfig; expected {READ}",
    ),
    (
        "# nothing\n",
        f"a.yaml: has no providerConfig; expected {READ}",
    ),
    ("- configs\n", "a.yaml: must be a mapping, not a list"),
    ("configs: [a]\n", "configs: must be a mapping, not a list (a.yaml:1)"),
    (
        "---\nkind: ControllerRegistration\n---\nconfigs:\n  fallback: 3\n",
        "configs.fallback: must be a string, not 3 (a.yaml:5)",
    ),
    (
        "replicaCount: 1\nconfig: {}\n",
        "config: unknown key; did you mean configs? (a.yaml:2)",
    ),
)


@pytest.mark.parametrize(("text", "fault"), FAULTS)
def test_what_is_wrong_is_named_with_its_line_and_what_to_do(given: Given, text: str, fault: str) -> None:
    assert given.faults(text) == [fault]


def test_two_shoots_are_two_clusters(given: Given) -> None:
    shoot = SHOOT.format(type="cri-resmgr-extension", rest="")
    what = "a second Shoot, after the one in a.yaml:1: render the two clusters separately"
    assert given.faults(shoot, shoot) == [f"kind: {what} (b.yaml:1)"]


def test_everything_that_is_wrong_is_said_at_once(given: Given, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("- a\n")
    found = given.faults("kind: Pod\nspec: {}\n", "configs: [\n", values=values)
    assert [fault.partition(":")[0] for fault in found] == ["values.yaml", "kind", "b.yaml"]


def window_of(given: Given, window: object) -> object:
    """The window in the settings of the pods of a Shoot with this maintenance.timeWindow."""
    spec = {"extensions": [{"type": "cri-resmgr-extension"}], "maintenance": {"timeWindow": window}}
    found = given.render(yaml.safe_dump({"kind": "Shoot", "spec": spec}))
    settings = next(
        each["data"]["settings.yaml"] for each in found if "settings.yaml" in each.get("data", {})
    )
    return yaml.safe_load(settings).get("rollout", {}).get("window")


@pytest.mark.parametrize(
    ("begin", "end", "window"),
    [
        ("220000+0100", "230000+0100", {"from": "22:00", "to": "23:00", "timeZone": "+01:00"}),
        ("233000+0000", "003000+0000", {"from": "23:30", "to": "00:30", "timeZone": "+00:00"}),
        ("220000-0330", "040000+0000", {"from": "22:00", "to": "00:30", "timeZone": "-03:30"}),
        ("220000+0100", "220000+0100", None),
        ("22:00", "23:00", None),
        (None, {"a": 1}, None),
    ],
)
def test_planned_work_waits_for_the_maintenance_window_of_the_shoot(
    begin: object, end: object, window: object, given: Given
) -> None:
    assert window_of(given, {"begin": begin, "end": end}) == window


@pytest.mark.parametrize("window", [None, "nights", [], {}])
def test_a_shoot_without_a_maintenance_window_has_none(window: object, given: Given) -> None:
    assert window_of(given, window) is None


@pytest.mark.parametrize("window", [[], {"from": "01:00", "to": "02:00"}])
def test_the_operator_of_the_landscape_may_give_another_window(tmp_path: Path, window: object) -> None:
    values, shoot = tmp_path / "values.yaml", tmp_path / "shoot.yaml"
    values.write_text(
        yaml.safe_dump({"images": {"installer": "i:1"}, "settings": {"rollout": {"window": window}}})
    )
    begin_end = {"begin": "220000+0100", "end": "230000+0100"}
    spec = {"extensions": [{"type": "cri-resmgr-extension"}], "maintenance": {"timeWindow": begin_end}}
    shoot.write_text(yaml.safe_dump({"kind": "Shoot", "spec": spec}))
    found = objects(render_manifests(ManifestOptions(values=values, provider_configs=(shoot,))))
    settings = next(
        each["data"]["settings.yaml"] for each in found if "settings.yaml" in each.get("data", {})
    )
    assert yaml.safe_load(settings)["rollout"]["window"] == window
