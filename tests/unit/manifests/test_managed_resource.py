"""The ManagedResource that our objects may come in: what it holds, keeps and leaves to be collected."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.cli import main
from tests.unit.manifests.gardener_files import SHOOT, Given, managed
from tests.unit.manifests.rendering import Maker, objects, options_of, pod_of, rendered, the


def test_a_managed_resource_is_gardeners_unless_the_values_say_otherwise(make: Maker) -> None:
    def selector(values: dict[str, Any]) -> dict[str, str]:
        pod = pod_of(the(managed(make(values, managed_resource=True)), "DaemonSet"))
        found: dict[str, str] = pod["nodeSelector"]
        return found

    assert "worker.gardener.cloud/cri-name" in selector({})
    assert "worker.gardener.cloud/cri-name" not in selector({"gardener": False})


def test_a_managed_resource_holds_all_and_keeps_the_rights() -> None:
    outer = objects(rendered("managed-resource"))
    inner = managed(outer)
    settings = next(each for each in inner if "settings.yaml" in each.get("data", {}))
    assert yaml.safe_load(settings["data"]["settings.yaml"])["removal"] == {"onTermination": "auto"}
    kept = {
        each["kind"]
        for each in inner
        if each["metadata"].get("annotations", {}).get("resources.gardener.cloud/keep-object") == "true"
    }
    # People's Adjustments would go with their definition.
    rights = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert kept == {*rights, "Namespace", "CustomResourceDefinition"}
    assert the(inner, "DaemonSet", "cri-resmgr-installer")


def test_an_operator_who_says_keep_is_heard(make: Maker) -> None:
    inner = managed(make({"settings": {"removal": {"onTermination": "keep"}}}, managed_resource=True))
    settings = next(each for each in inner if "settings.yaml" in each.get("data", {}))
    assert yaml.safe_load(settings["data"]["settings.yaml"])["removal"] == {"onTermination": "keep"}


def reference(kind: str, name: str) -> dict[str, str]:
    """The annotation as Gardener computes it."""
    return {f"reference.resources.gardener.cloud/{kind}-{sha256(name.encode()).hexdigest()[:8]}": name}


def test_an_old_secret_is_collected_and_the_new_one_is_not(make: Maker) -> None:
    one, other = (
        make({"settings": {"proxy": {"deadSeconds": seconds}}}, managed_resource=True) for seconds in (21, 22)
    )
    names = {the(each, "Secret")["metadata"]["name"] for each in (one, other)}
    assert len(names) == 2
    for outer in (one, other):
        secret, resource = the(outer, "Secret"), the(outer, "ManagedResource")
        name = secret["metadata"]["name"]
        assert secret["immutable"] is True
        assert (
            secret["metadata"]["labels"]["resources.gardener.cloud/garbage-collectable-reference"] == "true"
        )
        assert resource["spec"]["secretRefs"] == [{"name": name}]
        assert resource["metadata"]["annotations"] == reference("secret", name)


def test_a_config_map_stays_as_long_as_a_pod_uses_it(make: Maker) -> None:
    """Pods that the rollout has not reached yet could not start again without theirs."""
    values = {"configs": {"fallback": "logger: {}"}, "annotations": {"example.org/a": "b"}}
    inner = managed(make(values, managed_resource=True))
    config_maps = [each for each in inner if each["kind"] == "ConfigMap"]
    assert len(config_maps) == 2
    wanted = {"example.org/a": "b"}
    for each in config_maps:
        assert each["metadata"]["labels"]["resources.gardener.cloud/garbage-collectable-reference"] == "true"
        wanted |= reference("configmap", each["metadata"]["name"])
    daemon_set = the(inner, "DaemonSet")
    # A pod that never ends must not hold up a removal for ever.
    late = {"resources.gardener.cloud/finalize-deletion-after": "15m"}
    assert daemon_set["metadata"]["annotations"] == wanted | late
    assert daemon_set["spec"]["template"]["metadata"]["annotations"] == wanted
    # Without gardener-resource-manager, nobody collects.
    assert "garbage-collectable" not in make.text(values)


def test_a_managed_resource_for_the_seeds_own_nodes() -> None:
    shoots, seeds = (
        the(objects(rendered(f"managed-resource{end}")), "ManagedResource") for end in ("", "-seed")
    )
    assert "class" not in shoots["spec"]
    assert shoots["spec"]["injectLabels"] == {"shoot.gardener.cloud/no-cleanup": "true"}
    assert seeds["spec"]["class"] == "seed"
    assert "injectLabels" not in seeds["spec"]


def test_a_shoots_configuration_never_goes_to_the_seeds_nodes(given: Given, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("managedResource:\n  class: seed\n")
    shoot = SHOOT.format(type="cri-resmgr-extension", rest="")
    what = "seed installs on the nodes of the seed, but the configuration is that of a Shoot"
    assert given.faults(shoot, values=values, managed_resource=True) == [
        f"managedResource.class: {what} (values.yaml:2)"
    ]


def test_objects_may_outlive_their_managed_resource() -> None:
    spec = the(objects(rendered("gardener-disabled")), "ManagedResource")["spec"]
    assert spec["keepObjects"] is True
    assert the(objects(rendered("managed-resource")), "ManagedResource")["spec"]["keepObjects"] is False
    assert spec["injectLabels"] == {"example.org/team": "nodes", "shoot.gardener.cloud/no-cleanup": "true"}


def test_the_verb_warns_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """So that stdout can be piped into kubectl."""
    options = options_of("gardener-shoot")
    words = [word for path in options.provider_configs for word in ("--provider-config", str(path))]
    assert main(["manifests", *words]) == 0
    printed = capsys.readouterr()
    assert printed.out == rendered("gardener-shoot")
    lines = printed.err.splitlines()
    assert {line.partition(" ")[0] for line in lines} == {"warning:"}
    assert "does not contain this program" in lines[-1]
