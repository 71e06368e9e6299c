"""Writes the schema of the chart's values, from the models by which the program itself reads them.

    python -m hack.chart_schema

So what `manifests --values` refuses for its form, Helm also refuses, with the key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field

from installer.inputs.settings import Settings
from installer.manifests.values import GivenImage, Values

FILE = Path(__file__).parents[1] / "charts/cri-resmgr-installer/values.schema.json"


class Hooks(BaseModel, extra="forbid"):
    """What `helm uninstall` and `helm test` run."""

    image: GivenImage = ""
    uninstall: bool | Literal["argocd"] = True
    deadlineSeconds: int = Field(default=86_400, ge=60)
    tolerations: list[dict[str, Any]] = []


class ChartValues(Values):
    """Values of the manifests, and what only the chart has. `enabled`: read by Helm alone, as the condition
    of a chart that has this one in it."""

    enabled: bool = True
    monitoring: bool = False
    hooks: Hooks = Field(default_factory=Hooks)


def build_schema() -> str:
    """As JSON, the same for the same models."""
    schema = _inlined(ChartValues)
    properties = schema["properties"]
    properties["settings"] = _inlined(Settings)
    for gardeners in ("managedResource", "registration"):  # what a chart brings, Helm manages
        del properties[gardeners]
    properties["global"] = {"type": "object", "description": "Of a chart that has this one in it."}
    properties["images"]["required"] = ["installer"]
    _require(schema, yaml.safe_load((FILE.parent / "values.yaml").read_text()))
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "description": ChartValues.__doc__,
        **{key: value for key, value in schema.items() if key != "description"},
    }
    return json.dumps(schema, indent=2) + "\n"


def _require(schema: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Require every key that has a default: Helm takes it away where a person gives the key without a value,
    and the templates would fail, or render something else than `manifests`."""
    schema["required"] = [*schema.get("required", ()), *defaults]
    for key, value in defaults.items():
        if value and "properties" in (below := schema["properties"][key]):
            _require(below, value)


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True)
    found = _clean(schema, schema.pop("$defs", {}))
    assert isinstance(found, dict)
    return found


def _clean(node: Any, definitions: dict[str, Any]) -> Any:
    """Without references, and without what only says again what the key says."""
    if isinstance(node, list):
        return [_clean(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _clean(definitions[node["$ref"].rpartition("/")[2]], definitions)
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            found[key] = {name: _clean(each, definitions) for name, each in value.items()}
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key not in ("title", "default"):
            found[key] = _clean(value, definitions)
    if patterns := found.pop("patternProperties", None):
        ((pattern, values),) = patterns.items()
        found["propertyNames"] = {**found.get("propertyNames", {}), "pattern": pattern}
        found["additionalProperties"] = values
    return found


if __name__ == "__main__":
    FILE.write_text(build_schema())
