"""Gardener's image vectors: which entry says our image for a Shoot, and what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from installer.manifests.image_vector import read_vector
from tests.unit.manifests.gardener_files import Given
from tests.unit.manifests.rendering import IMAGE, pod_of, the

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


def test_the_entry_is_the_one_for_the_architecture(given: Given) -> None:
    """The one that says it most exactly, of those that fit."""
    entries = [{**OURS, "tag": tag, "architectures": [tag]} for tag in ("amd64", "arm64")]
    entries.append({**OURS, "tag": "any"})
    for arch, chosen in (("amd64", "amd64"), ("arm64", "arm64")):
        found = read_vector(entries, arch)
        assert found.references == {"installer": f"example.org/x:{chosen}"}
    assert read_vector(entries[2:], "arm64").references == {"installer": "example.org/x:any"}


@pytest.mark.parametrize("key", ["targetVersion", "runtimeVersion"])
@pytest.mark.parametrize("range_", [">= 1.27", "1" * 100_000, "a " * 50_000])
def test_ranges_of_versions_are_refused_and_not_read(key: str, range_: str) -> None:
    """A large one held the controller of all Shoots for a minute."""
    found = read_vector([{**OURS, "tag": "1", key: range_}], "amd64")
    what = "is not supported: one image serves every version of Kubernetes; leave it out"
    assert found.faults == [(("0", key), what)]


def test_a_reference_has_an_end() -> None:
    found = read_vector([{**OURS, "tag": "x" * 100_000}], "amd64")
    assert found.faults == [(("0", "tag"), "must have at most 1024 characters")]


VECTOR_FAULTS = (
    ("images: [{name: pause}]", "images.0", "unknown name 'pause'; expected one of cri-resmgr-installer"),
    ("images: [{name: cri-resmgr-agnt}]", "images.0", "unknown name 'cri-resmgr-agnt'; did you mean"),
    ("images: [a]", "images.0", "must be a mapping with a name, not 'a'"),
    (
        "images: {a: b}",
        "images",
        "must be a list of images, each with name, repository and tag, not a mapping",
    ),
    ("1", "", "must be a list of images"),
    ("a:\n  - [}", "", "line 2: not YAML"),
    ("images: []\nimages: []", "", "images: already given on line 1 (line 2)"),
    ("[{name: cri-resmgr-installer, repository: a/b}]", "0", "needs repository and tag, or ref alone"),
    ("[{name: cri-resmgr-installer, tag: v1}]", "0", "needs repository and tag, or ref alone"),
    ("[{name: cri-resmgr-installer, ref: 'a/b:1', tag: '1'}]", "0", "needs repository and tag, or ref alone"),
    (
        "[{name: cri-resmgr-installer, repository: a/b, tag: 1.10}]",
        "0.tag",
        "must be a string, not 1.1; put it in quotes",
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
        "matches as well as 0; keep one of them",
    ),
)


@pytest.mark.parametrize(("vector", "path", "fault"), VECTOR_FAULTS)
def test_a_bad_vector_is_refused_with_its_entry(vector: str, path: str, fault: str) -> None:
    data = yaml.safe_load(vector) if "\n" not in vector else vector
    found = read_vector(data, "amd64")
    assert [(".".join(where), what[: len(fault)]) for where, what in found.faults] == [(path, fault)]
    assert not found.references


def test_the_place_of_a_vectors_fault_is_its_line(given: Given) -> None:
    """In a text, the line of the text too: where it begins in the file depends on its style."""
    entries = "  images:\n    - name: cri-resmgr-agent\n      ref: a/b:1\n    - name: pause\n"
    fault = "imageVectorOverwrite.images.1: {}unknown name 'pause'; expected one of cri-resmgr-installer, "
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
        f"imageVectorOverwrite.images.0: {name} is the original extension's image, which does not "
        "contain this program, and is ignored; give ours as --image or as an entry named cri-resmgr-"
        "installer (a.yaml:3)"
    )
    found = the(given.render(text), "DaemonSet")
    assert pod_of(found)["containers"][0]["image"] == IMAGE
    assert given.warnings == [said]
    given.warnings.clear()
    assert given.faults(text, image="") == [
        "images.installer: must be given, here or as --image: the image to run"
    ]
    assert given.warnings == [said]
