"""What Gardener users have, in; a ManagedResource out. The whole output of some of it is in tests/cases."""

from __future__ import annotations

from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.cli import main
from installer.errors import InvalidInputError
from installer.manifests import ManifestOptions, render_manifests, render_registration
from installer.manifests.image_vector import Target, read_vector
from installer.manifests.versions import fits
from tests.unit.test_manifests import IMAGE, Maker, objects, options_of, pod_of, rendered, the

__all__ = ["make"]

make = pytest.fixture(lambda tmp_path: Maker(tmp_path))
SHOOT = "kind: Shoot\nspec:\n  extensions:\n    - type: {type}\n      {rest}\n"
NONE = "spec.extensions: has no entry of type cri-resmgr-extension"
READ = "a Shoot, an Extension, a ControllerDeployment, the values of its chart, or a providerConfig"


class Given:
    """Files of Gardener users, and what is said of them: faults without the directory, warnings."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.warnings: list[str] = []

    def render(self, *texts: str, image: str = IMAGE, **options: Any) -> list[dict[str, Any]]:
        files = [self._directory / f"{name}.yaml" for name in "abc"[: len(texts)]]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        given = ManifestOptions(
            provider_configs=tuple(files), **{"images": (image,) if image else (), **options}
        )
        return objects(render_manifests(given, lambda said: self.warnings.append(self._short(said))))

    def faults(self, *texts: str, **options: Any) -> list[str]:
        with pytest.raises(InvalidInputError) as caught:
            self.render(*texts, **options)
        return [self._short(fault) for fault in caught.value.faults]

    def _short(self, said: str) -> str:
        return said.replace(f"{self._directory}/", "")


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


def managed(outer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is in the Secret of a ManagedResource."""
    return objects(b64decode(the(outer, "Secret")["data"]["objects.yaml"]).decode())


# -- the files -------------------------------------------------------------------------------


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


def test_the_abbreviated_type_is_taken_with_a_warning(given: Given) -> None:
    full = given.render(SHOOT.format(type="cri-resmgr-extension", rest="disabled: false"))
    assert given.render(SHOOT.format(type="cri-resmgr", rest="disabled: false")) == full
    assert given.warnings == [
        "spec.extensions.0.type: cri-resmgr is taken for cri-resmgr-extension; Gardener knows the extension "
        "only by that name (a.yaml:4)"
    ]


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
    what = "is about the extension's controller, and not used"
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
    assert container["livenessProbe"]["exec"]["command"] == ["/bin/cri-resmgr-agent-probe"]


FAULTS = (
    (
        SHOOT.format(type="other", rest=""),
        f"{NONE}; add `- type: cri-resmgr-extension` (a.yaml:3)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extention", rest=""),
        f"{NONE}; is 'cri-resmgr-extention' meant to be it? (a.yaml:3)",
    ),
    (
        "kind: Shoot\nspec: {}\n",
        f"{NONE}; add `- type: cri-resmgr-extension` (a.yaml:2)",
    ),
    (
        "kind: Shoot\nspec:\n  extensions: {type: cri-resmgr-extension}\n",
        "spec.extensions: must be a list, not a mapping (a.yaml:3)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="") + "    - type: other\n    - type: cri-resmgr\n",
        "spec.extensions.2: a second entry for this extension, after spec.extensions.0; keep one of them "
        "(a.yaml:7)",
    ),
    (
        SHOOT.format(type="cri-resmgr-extension", rest="disabled: true"),
        "spec.extensions.0.disabled: the extension is disabled, so nothing is to be installed; --mode remove "
        "renders its removal (a.yaml:5)",
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
    what = "a second Shoot, after the one in a.yaml:1: they are two clusters; render each by itself"
    assert given.faults(shoot, shoot) == [f"kind: {what} (b.yaml:1)"]


def test_everything_that_is_wrong_is_said_at_once(given: Given, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("- a\n")
    found = given.faults("kind: Pod\nspec: {}\n", "configs: [\n", values=values)
    assert [fault.partition(":")[0] for fault in found] == ["values.yaml", "kind", "b.yaml"]


# -- image vectors ---------------------------------------------------------------------------

OURS = {"name": "cri-resmgr-installer", "repository": "example.org/x"}
DIGEST = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("entry", "reference"),
    [
        ({"tag": "1.2"}, "example.org/x:1.2"),
        ({"tag": DIGEST}, f"example.org/x@{DIGEST}"),
        ({"tag": f"1.2@{DIGEST}"}, f"example.org/x:1.2@{DIGEST}"),
        ({"repository": f"example.org:5000/x@{DIGEST}"}, f"example.org:5000/x@{DIGEST}"),
        ({"repository": None, "ref": f"example.org/y:3@{DIGEST}"}, f"example.org/y:3@{DIGEST}"),
    ],
)
def test_a_reference_with_a_tag_or_a_digest(given: Given, entry: dict[str, Any], reference: str) -> None:
    images = [{**OURS, **entry}]
    for vector in ({"images": images}, images, yaml.safe_dump({"images": images}), yaml.safe_dump(images)):
        text = yaml.safe_dump({"imageVectorOverwrite": vector})
        found = the(given.render(text, image=""), "DaemonSet")
        assert pod_of(found)["containers"][0]["image"] == reference


def test_the_entry_is_the_one_for_the_shoots_version(given: Given) -> None:
    """The one that says it most exactly, of those that fit."""
    versions = {"old": "1.26.x", "exact": "1.27.4", "near": "~1.27"}
    entries = [{**OURS, "tag": tag, "targetVersion": version} for tag, version in versions.items()]
    entries.append({**OURS, "tag": "any"})
    deployment = yaml.safe_dump({"imageVectorOverwrite": {"images": entries}})

    def chosen(version: str) -> str:
        shoot = f"{SHOOT.format(type='cri-resmgr-extension', rest='')}\n  kubernetes: {{version: {version}}}"
        pod = pod_of(the(given.render(shoot, deployment, image=""), "DaemonSet"))
        image: str = pod["containers"][0]["image"]
        return image.rpartition(":")[2]

    shoots = ("1.26.9", "1.27.4", "1.27.11", "1.33.0", "1.26.9-gke.1")
    assert [chosen(version) for version in shoots] == ["old", "exact", "near", "any", "old"]


VECTOR_FAULTS = (
    ("images: [{name: pause}]", "images.0", "unknown name 'pause'; known are cri-resmgr-installer"),
    ("images: [{name: cri-resmgr-agnt}]", "images.0", "unknown name 'cri-resmgr-agnt'; did you mean"),
    ("images: [a]", "images.0", "must be a mapping with a name, not 'a'"),
    (
        "images: {a: b}",
        "images",
        "must be a list of images, each with name, repository and tag, not a mapping",
    ),
    ("1", "", "must be a list of images"),
    ("a:\n  - [}", "", "line 2: not YAML"),
    ("images: []\nimages: []", "", "images: already given in line 1 (line 2)"),
    ("[{name: cri-resmgr-installer, repository: a/b}]", "0", "needs repository and tag, or ref alone"),
    ("[{name: cri-resmgr-installer, tag: v1}]", "0", "needs repository and tag, or ref alone"),
    ("[{name: cri-resmgr-installer, ref: 'a/b:1', tag: '1'}]", "0", "needs repository and tag, or ref alone"),
    (
        "[{name: cri-resmgr-installer, repository: a/b, tag: 1.10}]",
        "0.tag",
        "must be a string, not 1.1; put it in quotes",
    ),
    (
        "[{name: cri-resmgr-installer, repository: a/b, tag: v1, targetVersion: 'about 1.2'}]",
        "0.targetVersion",
        "must be a constraint such as '>= 1.27': not a condition on a version: 'about'",
    ),
    (
        "[{name: cri-resmgr-installer, repository: a/b, tag: v1, architectures: amd64}]",
        "0.architectures",
        "must be a list, not 'amd64'",
    ),
    (
        "[{name: cri-resmgr-installer, ref: 'a/b:1', architectures: [arm64]}]",
        "0",
        "no entry for the installer is for amd64",
    ),
    (
        "[{name: cri-resmgr-agent, ref: 'a/b:1'}, {name: gardener-extension-cri-resmgr-agent, ref: 'a/b:2'}]",
        "1",
        "fits as well as 0; keep one of them",
    ),
    (
        "[{name: cri-resmgr-agent, ref: 'a:1', targetVersion: '1.2'}, {name: cri-resmgr-agent, ref: 'a:2'}]",
        "1",
        "the Kubernetes version decides between the entries; give the Shoot",
    ),
)


@pytest.mark.parametrize(("vector", "path", "fault"), VECTOR_FAULTS)
def test_a_bad_vector_is_refused_with_its_entry(vector: str, path: str, fault: str) -> None:
    data = yaml.safe_load(vector) if "\n" not in vector else vector
    found = read_vector(data, Target("", "amd64"))
    assert [(".".join(where), what[: len(fault)]) for where, what in found.faults] == [(path, fault)]
    assert not found.references


def test_the_place_of_a_vectors_fault_is_its_line(given: Given) -> None:
    """In a text, the line of the text too: where it begins in the file depends on its style."""
    entries = "  images:\n    - name: cri-resmgr-agent\n      ref: a/b:1\n    - name: pause\n"
    fault = "imageVectorOverwrite.images.1: {}unknown name 'pause'; known are cri-resmgr-installer, "
    for style, line, place in (("", "", 6), (" |", "line 4: ", 2)):
        found = given.faults(f"configs: {{}}\nimageVectorOverwrite:{style}\n{entries}")
        assert len(found) == 1
        assert found[0].startswith(fault.format(line))
        assert found[0].endswith(f"(a.yaml:{place})")
    base = "base: &base {images: [{name: pause}]}\n"
    merged = f"{base}kind: ControllerDeployment\nhelm: {{values: {{imageVectorOverwrite: *base}}}}"
    assert given.faults(merged)[0].startswith(
        "helm.values.imageVectorOverwrite.images.0: unknown name 'pause'"
    )


@pytest.mark.parametrize("suffix", ["installation", "installation-and-agent"])
def test_the_image_of_the_original_is_not_run(given: Given, suffix: str) -> None:
    """It has a shell script and no program of ours."""
    name = f"gardener-extension-cri-resmgr-{suffix}"
    text = f"imageVectorOverwrite:\n  images:\n  - {{name: {name}, repository: a/b, tag: v1}}\n"
    said = (
        f"imageVectorOverwrite.images.0: {name} is the image of the original extension, which does not "
        "contain this program, and not used; give ours as --image or as an entry named cri-resmgr-installer "
        "(a.yaml:3)"
    )
    found = the(given.render(text), "DaemonSet")
    assert pod_of(found)["containers"][0]["image"] == IMAGE
    assert given.warnings == [said]
    given.warnings.clear()
    assert given.faults(text, image="") == [
        "images.installer: must be given, here or as --image: the image to run"
    ]
    assert given.warnings == [said]


@pytest.mark.parametrize(
    ("constraint", "version", "expected"),
    [
        ("1.27", "1.27.9", True),
        ("1.27", "1.28.0", False),
        ("= 1.27.3", "1.27.3", True),
        ("1.27.x", "1.27.0", True),
        ("1.x", "1.99.0", True),
        ("*", "0.0.1", True),
        ("!= 1.27.x", "1.27.3", False),
        ("!=1.27.4", "1.27.3", True),
        (">= 1.27", "1.26.15", False),
        (">= 1.27, < 1.30", "1.29.9", True),
        (">= 1.27 < 1.30", "1.30.0", False),
        ("> 1.27", "1.27.9", False),
        ("> 1.27", "1.28.0", True),
        ("> 1.27.1", "1.27.2", True),
        ("<= 1.27", "1.27.9", True),
        ("<= 1.27.1", "1.27.2", False),
        ("~1.27", "1.27.9", True),
        ("~1.27.3", "1.28.0", False),
        ("~1", "1.99.0", True),
        ("^1.27.3", "1.99.0", True),
        ("^1.27.3", "2.0.0", False),
        ("^0.2.3", "0.3.0", False),
        ("1.20 - 1.27", "1.27.9", True),
        ("1.20 - 1.27.3", "1.27.4", False),
        ("< 1.20 || >= 1.30", "1.33.1", True),
        ("< 1.20 || >= 1.30", "1.25.1", False),
        ("v1.27.3", "v1.27.3+build", True),
    ],
)
def test_a_version_fits_a_constraint(constraint: str, version: str, expected: bool) -> None:
    assert fits(version, constraint) is expected


@pytest.mark.parametrize("constraint", ["", "new", ">", "1.2.3.4", ">= 1.2 ||", "1.2 && 1.3", ">> 1.2"])
def test_a_constraint_that_nobody_could_mean(constraint: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        fits("1.27.3", constraint)


# -- ManagedResource -------------------------------------------------------------------------


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
    what = "seed puts everything on the nodes of the seed, but the configuration is that of a Shoot"
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
