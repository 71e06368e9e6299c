"""Hostile values for the manifests, and texts that want to break out of a YAML template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from installer.manifests import ManifestOptions, render_manifests
from tests.faults.inputs.texts import every_value, hostile_text, spoilt
from tests.faults.inputs.trial import Trial, end_of
from tests.lib import yamltext

_IMAGE = "registry.example.org/installer:1"
_VALUES = (
    f"""images: {{installer: "{_IMAGE}"}}
name: cri-resmgr-installer
namespace: kube-system
settings:
  mode: install
  proxy: {{startTimeoutSeconds: 20}}
configs:
  fallback: |
    policy:
      Active: none
  EXTRA_OPTIONS: EXTRA_OPTIONS="--disable-ui"
  node.n1: "logger: {{Debug: x}}"
nodeSelector: {{pool: a}}
nodes: [n1, n2]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{{matchExpressions: [{{key: a, operator: Exists}}]}}]
resources: {{requests: {{memory: 64Mi}}}}
updateStrategy: {{maxUnavailable: 10%}}
labels: {{team: a}}
annotations: {{example.org/a: b}}
agent: {{enabled: true}}
""",
    f"images: {{installer: {_IMAGE}, agent: {_IMAGE}}}\nprofile: restricted\nannotateNode: true\n",
)
_PROVIDER_CONFIGS = (
    """apiVersion: core.gardener.cloud/v1beta1
kind: Shoot
spec:
  kubernetes: {version: 1.31.2}
  extensions:
    - type: cri-resmgr-extension
      disabled: false
      providerConfig:
        configs:
          fallback: "policy: {Active: none}"
        nodeSelector: {pool: a}
        imageVectorOverwrite: |
          images:
            - name: cri-resmgr-installer
              repository: registry.example.org/installer
              tag: "1"
              architectures: [amd64, arm64]
            - name: cri-resmgr-installer
              repository: registry.example.org/installer
              tag: "0"
              runtimeVersion: "1.20 - 1.26"
""",
    """kind: ControllerDeployment
helm:
  values:
    image: a
    configs: {force: "logger: {}"}
    imageVectorOverwrite:
      images: [{name: cri-resmgr-installer, ref: registry.example.org/installer:1, architectures: [amd64]}]
---
configs: {default: "logger: {}"}
""",
    """kind: Extension
spec:
  type: cri-resmgr-extension
  providerConfig: {configs: {EXTRA_OPTIONS: EXTRA_OPTIONS="--disable-ui"}}
---
replicaCount: 1
imageVectorOverwrite: [{name: gardener-extension-cri-resmgr-agent, repository: a/b, tag: v1}]
---
type: cri-resmgr-extension
disabled: false
""",
)


def _check_values(content: bytes, directory: Path) -> str:
    file = directory / "values.yaml"
    file.write_bytes(content)
    return end_of(lambda: _read(render_manifests(ManifestOptions(values=file))))


def _check_provider_config(content: bytes, directory: Path) -> str:
    file = directory / "provider.yaml"
    file.write_bytes(content)
    options = ManifestOptions(provider_configs=(file,), images=(_IMAGE,), managed_resource=True)
    return end_of(lambda: _read(render_manifests(options)))


def _read(stream: str) -> list[dict[str, Any]]:
    return [each for each in yamltext.load_all(stream) if each]


def _check_texts(texts: tuple[str, str, str], directory: Path) -> str:
    """The operator's texts arrive in the objects unchanged, or are refused."""
    annotation, comment, word = texts
    given: dict[str, Any] = {
        "images": {"installer": _IMAGE},
        "annotations": {"example.org/a": annotation},
        "configs": {
            "fallback": f"policy: {{Active: none}}\n# {comment}\n",
            "force": f"logger: {{Debug: {word}}}",
        },
        "labels": {"x": word},
        "name": word or "x",
    }
    for key in ("labels", "name"):
        if not word.isidentifier():
            del given[key]  # an invalid name or label would be refused, and all the rest with it
    file = directory / "values.yaml"
    file.write_text(json.dumps(given))
    wrong: list[str] = []

    def render() -> None:
        for each in _read(render_manifests(ManifestOptions(values=file))):
            wrong.extend(_wrong_object(each, given))

    return end_of(render) or next(iter(wrong), "")


def _wrong_object(found: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    annotations = found["metadata"].get("annotations")
    wrong = (
        [] if annotations == given["annotations"] else [f"{found['kind']} has the annotations {annotations}"]
    )
    data = found.get("data", {})
    for key, text in given["configs"].items():
        if data.get(f"{key}.cfg", text) != text:
            wrong.append(f"{key}.cfg is {data[f'{key}.cfg']!r}")
    return wrong


TRIALS = (
    Trial("values of the manifests", spoilt(_VALUES), _check_values, every_value(_VALUES)),
    Trial(
        "provider configs", spoilt(_PROVIDER_CONFIGS), _check_provider_config, every_value(_PROVIDER_CONFIGS)
    ),
    Trial("texts in the manifests", st.tuples(hostile_text, hostile_text, hostile_text), _check_texts),
)
