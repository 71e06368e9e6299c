"""Bad input for the manifests: every fault at once, with its path and place, and nothing printed."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.errors import InvalidInputError
from installer.manifests import ManifestOptions, render_manifests

BAD = """\
name: Upper
images: {installer: "a b", agnet: example.org/x:1}
imagePullPolicy: never
settings:
  mode: purge
  proxy: {dead_seconds: 3, startTimeoutSeconds: "3"}
configs:
  fallback: |
    policy:
      Active: toplogy-aware
    logger: {}
  EXTRA_OPTIONS: --metrics-interval=10s
  node.n1: "policy.Active: topology"
  fallbck: ""
nodeSelector: {kubernetes.io/arch: arm64}
labels: {app.kubernetes.io/name: mine, "a b": "c d"}
nodes: [worker_1]
resources: {requests: {memory: lots}}
updateStrategy: {maxUnavailable: 0}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}
annotateNode: "yes"
agent: {enabled: true, image: x}
"""
FAULTS = (
    "name: must be at most 52 lower-case letters, digits and dashes, not 'Upper' (values.yaml:1)",
    "images.installer: must be an image reference, such as registry.example.org/name:tag, not 'a b'",
    "images.agnet: unknown key; did you mean agent? (values.yaml:2)",
    "imagePullPolicy: must be 'Always', 'IfNotPresent' or 'Never', not 'never' (values.yaml:3)",
    "settings.mode: must be 'install' or 'remove', not 'purge' (values.yaml:5)",
    "settings.proxy.dead_seconds: unknown key; did you mean deadSeconds? (values.yaml:6)",
    "settings.proxy.startTimeoutSeconds: must be a whole number, not '3' (values.yaml:6)",
    "configs.fallback: policy.Active: unknown policy 'toplogy-aware'",
    "configs.EXTRA_OPTIONS: line 1: only one line EXTRA_OPTIONS=... is allowed",
    "configs.node.n1: policy.Active: unknown policy 'topology'; did you mean topology-aware?",
    "configs.fallbck: must be one of fallback, force, EXTRA_OPTIONS, default, node.<NODE>, group.<GROUP>",
    "nodeSelector.kubernetes.io/arch: must be amd64, or left out",
    "labels.app.kubernetes.io/name: is the installer's own; leave it out (values.yaml:16)",
    "labels.a b: must be a valid key, such as name or example.org/name, not 'a b' (values.yaml:16)",
    "labels.a b: must be a valid label value (at most 63 letters, digits, '-', '_' and '.'), not 'c d'",
    "nodes.0: must be an object's name (lower-case letters, digits, dashes, dots), not 'worker_1'",
    "resources.requests.memory: must be a quantity, such as 100m or 64Mi, not 'lots' (values.yaml:18)",
    "updateStrategy.maxUnavailable: must be a number above 0, or a percentage such as 10%, not 0 (values",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: matches no",
    "annotateNode: must be true or false, not 'yes' (values.yaml:23)",
    "agent.image: unknown key; expected one of enabled, namespace (values.yaml:24)",
)


def faults_of(directory: Path, values: str = "", **given: Any) -> list[str]:
    """The messages, with the file called values.yaml."""
    values_file = directory / "values.yaml"
    values_file.write_text(values or "images: {installer: example.org/x:1}\n")
    options = ManifestOptions(values=values_file, **given)
    with pytest.raises(InvalidInputError) as caught:
        render_manifests(options)
    return [fault.replace(f"{directory}/", "") for fault in caught.value.faults]


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    found = faults_of(tmp_path, BAD)
    for expected in FAULTS:
        assert any(fault.startswith(expected) for fault in found), expected
    assert len(found) == len(FAULTS)


def test_without_an_image_there_is_nothing_to_run(tmp_path: Path) -> None:
    assert faults_of(tmp_path, "name: x\n") == [
        "images.installer: must be given, here or as --image: the image to run"
    ]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ("name: a\nname: b\n", "name: already given on line 1 (values.yaml:2)"),
        ("- a\n", "values.yaml: must be a mapping, not a list"),
        ("a: [\n", "values.yaml:2: not YAML"),
        ("affinity: &a {nodeAffinity: *a}\n", "values.yaml:1: an alias refers to a value that contains it"),
        ("configs: {fallback: {policy: {}}}\n", "configs.fallback: must be a string (values.yaml:1)"),
        ("settings: [a]\n", "settings: must be a mapping"),
        ("criName: ''\n", "criName: must be a valid label value, such as containerd, not '' (values.yaml:1)"),
        ("managedResource: {class: A}\n", "managedResource.class: must be 'shoot' or 'seed', not 'A'"),
        ("images:\n", "images.installer: must be given"),
        ("namespace: cri-resmgr-installer-rollout\n", "namespace: must not be that of the permits"),
        ("name: x\nnamespace: x-rollout\n", "namespace: must not be that of the permits"),
        ("hooks: {uninstall: false}\n", "hooks: only the chart has it; leave it out here (values.yaml:1)"),
        ("monitoring: true\n", "monitoring: only the chart has it; leave it out here, and use --monitoring"),
    ],
)
def test_bad_yaml_is_no_traceback(tmp_path: Path, values: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults_of(tmp_path, values)), faults_of(tmp_path, values)


def test_a_config_that_nobody_would_bring_to_the_nodes(tmp_path: Path) -> None:
    """Only cri-resmgr-agent reads it. A removal needs neither."""
    values = "images: {installer: example.org/x:1}\nconfigs:\n  group.blue: 'logger: {}'\n"
    fault = "configs.group.blue: reaches the nodes only through cri-resmgr-agent: set agent.enabled or give "
    assert faults_of(tmp_path, values) == [fault + "--agent (values.yaml:3)"]
    options = ManifestOptions(values=tmp_path / "values.yaml")
    assert "cri-resmgr-config.group.blue" in render_manifests(replace(options, agent=True))
    assert "cri-resmgr-config.group.blue" not in render_manifests(replace(options, mode="remove"))


def test_the_agents_objects_have_a_name_of_their_own(tmp_path: Path) -> None:
    """Else there are two of each, and the agent's take the place of ours."""
    values = "name: cri-resmgr-agent\nimages: {installer: example.org/x:1}\n"
    (fault,) = faults_of(tmp_path, values, agent=True)
    assert fault.startswith("name: must not be the name of the agent's objects")
    assert render_manifests(ManifestOptions(values=tmp_path / "values.yaml"))


def test_an_image_with_an_unknown_name(tmp_path: Path) -> None:
    found = faults_of(tmp_path, images=("agnet=example.org/x:1",))
    assert found == ["images.agnet: unknown key; did you mean agent? (command line)"]


def test_an_empty_list_of_nodes_does_not_mean_all_nodes(tmp_path: Path) -> None:
    assert any(fault.startswith("nodes.0: must be") for fault in faults_of(tmp_path, nodes=" ,"))


def test_values_may_come_from_a_pipe(tmp_path: Path) -> None:
    """As `--values <(...)` or `--provider-config /dev/stdin`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("images: {installer: example.org/x:1}\n",))
    writer.start()
    assert "image: example.org/x:1" in render_manifests(ManifestOptions(values=pipe)).replace('"', "")
    writer.join()


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file or directory"):
        render_manifests(ManifestOptions(values=tmp_path / "none.yaml", images=("example.org/x:1",)))
