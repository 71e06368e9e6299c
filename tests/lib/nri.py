"""What nri-plugins take as a resource: our own strict form of it, and the schemas of their CRDs.

An API server drops a key that it does not know without a word, so here an unknown key is a fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lib import yamltext

OPTION = "--nri"
WHAT = "the CRDs of nri-plugins: DIR has config.nri_balloonspolicies.yaml and ..._topologyawarepolicies.yaml"

_TEXTS = [str]
_CAT = {"*": {"unified": str, "code": str, "data": str}}
_ALLOCATIONS = {"l2Allocation": _CAT, "l3Allocation": _CAT, "mbAllocation": {"*": _TEXTS}}
_PARTITION = {**_ALLOCATIONS, "classes": {"*": _ALLOCATIONS}}
_FREQUENCIES = dict.fromkeys(("minFreq", "maxFreq", "uncoreMinFreq", "uncoreMaxFreq"), str)
_KLOG = {
    **dict.fromkeys(("add_dir_header", "alsologtostderr", "legacy_stderr_threshold_behavior"), bool),
    **dict.fromkeys(("logtostderr", "one_output", "skip_headers", "skip_log_headers"), bool),
    **dict.fromkeys(("alsologtostderrthreshold", "log_backtrace_at", "log_dir", "log_file"), str),
    **dict.fromkeys(("stderrthreshold", "vmodule"), str),
    **dict.fromkeys(("log_file_max_size", "v"), int),
}
_COMMON: dict[str, Any] = {
    "availableResources": {"cpu": str},
    "reservedResources": {"cpu": str},
    "pinCPU": bool,
    "pinMemory": bool,
    "reservedPoolNamespaces": _TEXTS,
    "agent": {"nodeResourceTopology": bool, "podResourceAPI": bool},
    "control": {
        "rdt": {
            "enable": bool,
            "usePodQoSAsDefaultClass": bool,
            "options": {each: {"optional": bool} for each in ("l2", "l3", "mb")},
            "partitions": {"*": _PARTITION},
        },
        "blockio": {"enable": bool, "usePodQoSAsDefaultClass": bool},
    },
    "log": {"debug": _TEXTS, "source": bool, "klog": _KLOG},
    "instrumentation": {
        "httpEndpoint": str,
        "prometheusExport": bool,
        "reportPeriod": str,
        "samplingRatePerMillion": int,
        "tracingCollector": ("otlp-http", "otlp-grpc"),
    },
}
_SPREADING = dict.fromkeys(("allocatorTopologyBalancing", "preferSpreadOnPhysicalCores"), bool)
_TYPE: dict[str, Any] = {
    **dict.fromkeys(("name", "cpuClass", "groupBy"), str),
    "namespaces": _TEXTS,
    **dict.fromkeys(("minCPUs", "maxCPUs", "minBalloons", "maxBalloons"), int),
    "allocatorPriority": ("high", "normal", "low", "none"),
    **dict.fromkeys(("preferSpreadingPods", "preferPerNamespaceBalloon", "preferNewBalloons"), bool),
    **_SPREADING,
    "shareIdleCPUsInSame": ("", "system", "package", "die", "numa", "core", "thread"),
}
FORMS: dict[str, dict[str, Any]] = {
    "TopologyAwarePolicy": {
        **_COMMON,
        **dict.fromkeys(("preferIsolatedCPUs", "preferSharedCPUs"), bool),
        **dict.fromkeys(("colocatePods", "colocateNamespaces"), bool),
        "unlimitedBurstable": ("numa",),
        "defaultCPUPriority": ("none",),
    },
    "BalloonsPolicy": {
        **_COMMON,
        **_SPREADING,
        "idleCPUClass": str,
        "balloonTypes": [_TYPE],
        "cpuClasses": [{"name": str, **_FREQUENCIES, "energyPerformancePreference": int}],
    },
}
REQUIRED = {"reservedResources", "pinCPU", "pinMemory", "reservedPoolNamespaces", "control", "log"}


def add_option(add: Any) -> None:
    add(OPTION, type=Path, metavar="DIR", help=f"tests/unit/translate: {WHAT}")


def load_schemas(config: pytest.Config) -> dict[str, Any]:
    """By kind; skips the test where nobody has named them."""
    directory = config.getoption(OPTION)
    if directory is None:
        pytest.skip(f"needs {OPTION} DIR: {WHAT}")
    found = {}
    for path in sorted(Path(directory).glob("config.nri_*.yaml")):
        definition = yamltext.load(path.read_text())["spec"]
        [version] = [each for each in definition["versions"] if each["name"] == "v1alpha1"]
        found[definition["names"]["kind"]] = _strict(version["schema"]["openAPIV3Schema"])
    assert found.keys() == FORMS.keys(), f"{directory} has the CRDs {', '.join(found)}"
    return found


def definitions(config: pytest.Config) -> list[dict[str, Any]]:
    """The CustomResourceDefinitions; where nobody has named them, one that takes anything for one kind."""
    if directory := config.getoption(OPTION):
        return [yamltext.load(path.read_text()) for path in sorted(Path(directory).glob("config.nri_*.yaml"))]
    names = {"kind": "TopologyAwarePolicy", "plural": "topologyawarepolicies"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{names['plural']}.config.nri"},
            "spec": {
                "group": "config.nri",
                "scope": "Namespaced",
                "names": names,
                "versions": [{**version, "subresources": {"status": {}}}],
            },
        }
    ]


def check_schema(resource: dict[str, Any], schemas: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    faults = jsonschema.Draft202012Validator(schemas[resource["kind"]]).iter_errors(resource)
    assert not [f"{each.json_path}: {each.message}" for each in faults]


def check_form(resource: dict[str, Any]) -> None:
    assert resource.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert resource["apiVersion"] == "config.nri/v1alpha1"
    assert resource["metadata"]["namespace"] == "kube-system"
    assert resource["spec"].keys() >= REQUIRED
    assert not list(_faults(resource["spec"], FORMS[resource["kind"]], "spec"))


def _faults(value: Any, form: Any, where: str) -> Any:
    if isinstance(form, dict):
        for key, each in value.items() if isinstance(value, dict) else [("", f"{where} is no mapping")]:
            below = form.get(key, form.get("*"))
            if below is None:
                yield f"{where}.{key} is unknown"
            else:
                yield from _faults(each, below, f"{where}.{key}")
    elif isinstance(form, list):
        for index, each in enumerate(value) if isinstance(value, list) else [(0, None)]:
            yield from _faults(each, form[0], f"{where}.{index}")
    elif isinstance(form, tuple):
        if value not in form:
            yield f"{where}: {value!r} is none of {form}"
    elif type(value) is not form:
        yield f"{where}: {value!r} is not {form.__name__}"


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, which takes no key that it does not name: an API server drops such a key."""
    found = {key: value for key, value in schema.items() if key not in ("format", "default")}
    if "properties" in schema:
        found["properties"] = {key: _strict(each) for key, each in schema["properties"].items()}
        found.setdefault("additionalProperties", False)
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        found["items"] = _strict(schema["items"])
    return found
