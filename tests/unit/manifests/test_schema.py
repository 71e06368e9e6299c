"""Every object against the schemas of the API server, strictly: a field that it does not know is a fault.

What Gardener's own resources look like is not among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.manifests import ManifestOptions, render_manifests
from tests.unit.manifests.rendering import IMAGE, rendered
from tests.unit.manifests.rendering import objects as read

kubernetes_validate = pytest.importorskip("kubernetes_validate")

VERSIONS = list(dict.fromkeys(kubernetes_validate.utils.all_versions()))


def objects(case: str) -> list[dict[str, Any]]:
    return read(rendered(case))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_in_every_version(version: str, tmp_path: Path) -> None:
    """One object of each kind; the installer's DaemonSet of those, in the profile with more fields. Admission
    policies, and AppArmor's profile as a field, are for 1.30 and later."""
    numbers = tuple(int(number) for number in version.split("."))
    new = numbers >= (1, 30, 0)
    found = {each["kind"]: each for each in [*objects("full"), *objects("restricted")]}
    assert {"DaemonSet", "CustomResourceDefinition", "ConfigMap"} <= found.keys()
    if not new:
        found = {kind: each for kind, each in found.items() if not kind.startswith("ValidatingAdmission")}
        (tmp_path / "values.yaml").write_text(f"images: {{installer: {IMAGE}}}\nadmissionPolicies: false\n")
        old = ManifestOptions(values=tmp_path / "values.yaml", profile="restricted")
        found |= {each["kind"]: each for each in read(render_manifests(old))}
    template = found["DaemonSet"]["spec"]["template"]
    by_field = "appArmorProfile" in template["spec"]["containers"][0]["securityContext"]
    by_annotation = any("apparmor" in key for key in template["metadata"].get("annotations", {}))
    assert (by_field, by_annotation) == (new, not new)
    for each in found.values():
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("case", ["minimal", "remove", "managed-resource"])
def test_the_other_shapes_in_the_latest_version(case: str) -> None:
    for each in objects(case):
        if each["kind"] in ("DaemonSet", "Secret"):
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    ("adjustment", "accepted"),
    [
        ("{spec: {scope: [{nodes: [n1]}], classes: {rdt: gold, blockio: slow}, toptierLimit: 1Gi}}", True),
        ("{spec: {scope: [], resources: {requests: {cpu: 2}, limits: {cpu: 500m, memory: 1Gi}}}}", True),
        (
            "{spec: {scope: [{containers: [{key: name, operator: In, values: [a]}]}]}, "
            "status: {nodes: {n1: {errors: {a: b}}}}}",
            True,
        ),
        ("{spec: {scopes: []}}", False),
        ("{}", False),
        ("{spec: {scope: [{nodes: n1}]}}", False),
        ("{spec: {scope: [], resources: {limits: {cpu: [1]}}}}", False),
    ],
)
def test_an_adjustment_is_what_cri_resmgr_agent_reads(adjustment: str, accepted: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    definition = next(each for each in objects("full") if each["kind"] == "CustomResourceDefinition")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "preserve-unknown-fields" not in str(schema)
    assert jsonschema.Draft4Validator(schema).is_valid(yaml.safe_load(adjustment)) is accepted


def test_a_misspelt_field_is_found() -> None:
    daemonset = next(each for each in objects("minimal") if each["kind"] == "DaemonSet")
    container = daemonset["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemonset, VERSIONS[-1], strict=True)
